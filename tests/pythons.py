"""The tests of the core and the library on every other Python that this machine has.

    python -m tests.pythons            # all of them, on each interpreter: `make test-pythons`
    python -m tests.pythons --short    # a part of them, as `make test` does by tests/test_pythons.py

For all of them an interpreter has an environment of its own, `.venv-3.13`, with the base install and the
packages that the tests need. It is made by the first call and used again until the requirements change.

The short part installs nothing. The library needs no other package, and pytest is pure Python: the other
interpreter imports the pytest of this one.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.isolation import ROOT

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
TOOLS = (
    "pytest",
    "pytest-timeout",
    "hypothesis",
    "pika",
    "amqp",
)  # of the extra `dev`; none of them is compiled
INSTALL_S = 300
RUN_S = 1200

# What the library and pytest need, and nothing else: no server, no hypothesis.
SHORT = (
    *("-k", "not server"),
    "tests/test_stdlib_names.py",
    "tests/aio/test_consumer.py",
    "tests/client/test_hooks.py",
    "tests/client/test_threads.py",
    "tests/engine/test_engine.py",
    "tests/journal/test_commit.py",
)
PYTEST = ("pytest", "_pytest", "pytest_timeout", "py", "pluggy", "iniconfig", "packaging", "pygments")
WHOLE = (
    "tests/test_stdlib_names.py",
    "tests/test_config.py",
    "tests/test_contract.py",
    "tests/test_contract_delivery.py",
    "tests/test_contract_formats.py",
    "tests/test_packed.py",
    "tests/test_amqp_fields.py",
    "tests/test_amqp_properties.py",
    "tests/aio",
    "tests/local",
    "tests/cli/test_main.py",
    "tests/client",
    "tests/engine",
    "tests/amqp/test_frames.py",
    "tests/amqp/test_methods.py",
    "tests/sqs/test_limits.py",
    "tests/sqs/test_fast_path.py",
    "tests/server/test_http.py",
    "tests/scenarios",
    "tests/journal",
    "tests/testing",
    # These need Redis, or certificates.
    "--ignore=tests/client/test_examples.py",
    "--ignore=tests/client/test_remote_tls.py",
)

ASK = """
import json, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(json.dumps(["%d.%d" % sys.version_info[:2], sys.implementation.name, free]))
"""


class NotMade(Exception):
    """An environment could not be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Python:
    version: str  # 3.13
    path: str

    def __str__(self) -> str:
        return self.version


@functools.cache
def others() -> tuple[Python, ...]:
    """One interpreter of each supported version but our own: those on the PATH, then pyenv's."""
    found: dict[str, Python] = {}
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for path in _candidates():
        try:
            said = subprocess.run([path, "-c", ASK], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode:
            continue  # a shim of pyenv for a version that is not switched on
        version, implementation, is_free_threaded = json.loads(said.stdout)
        if implementation == "cpython" and not is_free_threaded and version in SUPPORTED and version != own:
            found.setdefault(version, Python(version, path))
    return tuple(found[version] for version in SUPPORTED if version in found)


def _candidates() -> Iterator[str]:
    for version in SUPPORTED:
        if path := shutil.which(f"python{version}"):
            yield path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    # The newest patch release first: 3.13.10 before 3.13.9.
    places = [place for place in (pyenv / "versions").glob("3.*") if not place.is_symlink()]
    for place in sorted(places, key=lambda each: (len(each.name), each.name), reverse=True):
        yield str(place / "bin" / "python")


def environment(python: Python) -> Path:
    """The interpreter of the environment for `python`. Raises NotMade."""
    place = ROOT / f".venv-{python.version}"
    own, stamp = place / "bin" / "python", place / ".made"
    wanted = "\n".join([python.path, *_requirements()])
    with (ROOT / "pyproject.toml").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two calls at once do not make the same one
        if stamp.exists() and stamp.read_text() == wanted:
            return own
        shutil.rmtree(place, ignore_errors=True)
        _run([python.path, "-m", "venv", "--without-pip", str(place)])
        install = [sys.executable, "-m", "pip", "--python", str(own), "install", "--quiet"]
        pip_options = ["--disable-pip-version-check", "--retries", "2", "--timeout", "20"]
        _run([*install, *pip_options, "--only-binary", ":all:", *_requirements()])
        [packages] = place.glob("lib/python3.*/site-packages")
        (packages / "openq-source.pth").write_text(f"{ROOT / 'src'}\n")
        stamp.write_text(wanted)  # last: what was left half-way is made anew
    return own


def _requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tools = [line for line in project["optional-dependencies"]["dev"] if line.startswith(TOOLS)]
    return [*project["dependencies"], *(line for line in tools if line.partition(">")[0] in TOOLS)]


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise NotMade(f"`{' '.join(command)}` took more than {INSTALL_S} s") from None
    if done.returncode:
        raise NotMade(f"`{' '.join(command)}`: {(done.stderr or done.stdout).strip()[-1500:]}")


def run_short(python: Python) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        for name in PYTEST:
            found = importlib.util.find_spec(name)
            assert found is not None, f"pytest no longer needs {name}"
            assert found.origin is not None
            path = Path(found.origin)
            path = path.parent if path.name == "__init__.py" else path
            (Path(folder) / path.name).symlink_to(path)
        environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'src'}"}
        return run_tests(python.path, *SHORT, capture=True, environ=environ)


def run_tests(
    python: Path | str, *words: str, capture: bool = False, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=capture, text=True, timeout=RUN_S, env=environ)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests of the library on every other Python.")
    parser.add_argument("--short", action="store_true", help="only the part that `make test` runs")
    options = parser.parse_args()
    found = others()
    if not found:
        print(f"no other Python than {sys.version.split()[0]} here: install one of {', '.join(SUPPORTED)}")
    failed = []
    for python in found:
        print(f"-- Python {python.version}: {python.path}", flush=True)
        try:
            done = run_short(python) if options.short else run_tests(environment(python), *WHOLE)
            if options.short:
                print(done.stdout + done.stderr, end="")
            if done.returncode:
                failed.append(python.version)
        except (NotMade, subprocess.TimeoutExpired) as error:
            print(error)
            failed.append(python.version)
    if failed:
        print(f"failed on Python {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
