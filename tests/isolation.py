"""Tests see nothing of the machine that they run on: not its settings, its data, its home, its default ports.

An `Isolation` is made once for each process that runs tests, before any module of OpenQ or of tests is
imported; what tests start inherits it. `fresh` is entered around every single test.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEFAULT_PORTS = frozenset({9324, 5672})  # no module of OpenQ is imported here: see above
# What tests write goes to memory where there is room for it: most of a test's time would be waiting for the
# disk to sync. Tests kill processes, which takes nothing from either; power cuts have disks of their own, in
# tests/crash. With TMPDIR set, that is the place.
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 6 << 30
_permitted: set[int] = set()

# Settings of programs that tests start: OpenQ, AWS's tools, Spark, an inner pytest, the terminal.
_FOREIGN = ("OPENQ_", "AWS_", "SPARK_", "PYSPARK_", "CELERY_", "XDG_", "PYTEST_")
_FOREIGN_NAMES = {"MASTER", "PYTHONPATH", "PYTHONSTARTUP", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
# Tests start hundreds of Python processes: without cached byte code each of them would compile OpenQ again.
_FOREIGN_NAMES |= {"PYTHONDONTWRITEBYTECODE"}
# What a developer tells the tests themselves; pytest's own marks are read by pytest-xdist.
_OURS = ("OPENQ_TEST_", "OPENQ_CRASH_", "PYTEST_XDIST_", "PYTEST_VERSION")

# Tools that find their own settings in the home directory keep them: without these, pip and npm would not
# know the package index of the machine, and the commands of a version manager would find no program.
_KEPT_FROM_HOME = {
    "PIP_CONFIG_FILE": (".config/pip/pip.conf", ".pip/pip.conf"),
    "NPM_CONFIG_USERCONFIG": (".npmrc",),
    "PYENV_ROOT": (".pyenv",),
    "RUSTUP_HOME": (".rustup",),
    "CARGO_HOME": (".cargo",),
}

# Every JVM that a test starts runs for seconds: one compiler and one collector thread, and no verification of
# Spark's classes, make it start in half the time.
JAVA = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def clean(environ: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment for tests: `environ` without anybody's settings, and with another home directory."""
    kept = {
        name: value
        for name, value in environ.items()
        if name.startswith(_OURS) or not (name.startswith(_FOREIGN) or name in _FOREIGN_NAMES)
    }
    own = Path(environ.get("HOME") or home)
    for name, places in _KEPT_FROM_HOME.items():
        found = next((own / place for place in places if (own / place).exists()), None)
        if name not in environ and found is not None:
            kept[name] = str(found)
    kept["JDK_JAVA_OPTIONS"] = JAVA  # the launcher says so in a line on stderr
    kept |= {"HOME": str(home), "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    for name, folder in (
        ("XDG_CACHE_HOME", ".cache"),
        ("XDG_CONFIG_HOME", ".config"),
        ("XDG_DATA_HOME", ".local/share"),
        ("XDG_STATE_HOME", ".local/state"),
    ):
        kept[name] = str(home / folder)
    return kept


def with_tests(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for `python -m tests...` from any working directory."""
    return {**(os.environ if environ is None else environ), "PYTHONPATH": str(ROOT)}


def has_room(folder: Path) -> bool:
    try:
        return os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= MEMORY_BYTES
    except OSError:
        return False


class Isolation:
    """A temporary directory with the home and the working directories of the tests of this process."""

    def __init__(self) -> None:
        """Clean the environment. Modules of OpenQ and of tests read it when they are imported."""
        self._before = dict(os.environ)
        if "TMPDIR" not in os.environ and has_room(MEMORY):
            os.environ["TMPDIR"] = str(MEMORY)
            tempfile.tempdir = None  # it is found again
        self.folder = Path(tempfile.mkdtemp(prefix="openq-tests-")).resolve()
        self._process = os.getpid()
        home = self.folder / "home"
        home.mkdir()
        _replace(clean(os.environ, home))
        sys.dont_write_bytecode = False
        atexit.register(self.end)

    def begin(self) -> None:
        """Leave the checkout, and refuse the default ports from here on."""
        between = self.folder / "between"
        between.mkdir()
        os.chdir(between)
        for name in ("connect", "connect_ex", "bind"):
            _guard(name)

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """A working directory for one test, and the environment as it was before it.

        The directory stays until `end`: a server that several tests share may have been started in it.
        """
        environ = dict(os.environ)
        os.chdir(tempfile.mkdtemp(prefix="cwd-", dir=self.folder))
        try:
            yield
        finally:
            os.chdir(self.folder / "between")
            if dict(os.environ) != environ:
                _replace(environ)

    def end(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child that ends like its parent
        os.chdir(ROOT)
        _replace(self._before)
        shutil.rmtree(self.folder, ignore_errors=True)


def _replace(environ: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environ.keys():
        del os.environ[name]
    os.environ.update(environ)


@contextmanager
def default_ports() -> Iterator[None]:
    """For the one test that has a server there."""
    _permitted.update(DEFAULT_PORTS)
    try:
        yield
    finally:
        _permitted.clear()


def _guard(name: str) -> None:
    """Refuse the default ports, where a server of the developer may run: tests pick a free one."""
    method = getattr(socket.socket, name)

    def guarded(self: socket.socket, address: Any) -> Any:
        if isinstance(address, tuple) and len(address) > 1 and address[1] in DEFAULT_PORTS - _permitted:
            raise AssertionError(f"a test uses the default port {address[1]}: use tests.serving.free_port")
        return method(self, address)

    setattr(socket.socket, name, guarded)
