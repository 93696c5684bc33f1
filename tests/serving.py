"""A real server in a process of its own, for tests that use its protocols."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.server_template import ForkedServer, can_fork

READY_S = 120  # it takes a second; a machine may be very busy
MIN_PORT, MAX_PORT = 10_000, 32_000
REFUSED_BY_BROWSERS = (10_080,)  # ERR_UNSAFE_PORT: that of another protocol
CLAIMED_S = 600


def free_port() -> int:
    """Below the ports that the system lends to clients: a restarted server finds it free again."""
    import random

    chooser = random.Random(os.urandom(8))
    while True:
        port = chooser.randrange(MIN_PORT, MAX_PORT)
        if port in REFUSED_BY_BROWSERS or not _claim(port):
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _claim(port: int) -> bool:
    """Between the choice and the server's own bind, processes that test beside us must not choose it too."""
    folder = Path(tempfile.gettempdir(), f"openq-test-ports-{os.getuid()}")
    folder.mkdir(exist_ok=True)
    claim = folder / str(port)
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        if time.time() - claim.stat().st_mtime < CLAIMED_S:
            return False
        claim.touch()
    return True


class Served:
    """A running `openq serve`. `lines` is what it printed, `log` what it logged."""

    def __init__(
        self,
        arguments: list[str],
        port: int,
        env: Mapping[str, str] | None = None,
        descriptors: int | None = None,
    ) -> None:
        self.port = port
        self.arguments = arguments
        self.url = f"http://127.0.0.1:{port}"
        self.lines: list[str] = []
        self.log: list[str] = []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")}
        if "--amqp-port" not in arguments:
            arguments = [*arguments, "--amqp-port", "off"]  # many servers at once share a machine
        self.process: subprocess.Popen[str] | ForkedServer
        words = ["--port", str(port), *arguments]
        if descriptors is None and can_fork(env or {}):
            self.process = ForkedServer(words, {**environment, **(env or {})})
        else:
            limit = [] if descriptors is None else ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"]
            self.process = subprocess.Popen(
                [*limit, sys.executable, "-m", "openq", "serve", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**environment, "PYTHONUNBUFFERED": "1", **(env or {})},
            )
        self._ready = threading.Event()
        self._is_log_only = "json" in arguments  # --log-format json: nothing is printed beside the log
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.log), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object, into: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            into.append(line.rstrip("\n"))
            if "is ready" in line or (self._is_log_only and '"event": "started"' in line):
                self._ready.set()
        self._ready.set()

    def wait(self) -> Served:
        assert self._ready.wait(READY_S), f"not ready in time: {self.lines} {self.log}"
        marks = ("is ready", '"event": "started"')
        is_up = any(mark in line for line in (*self.lines, *self.log) for mark in marks)
        assert is_up, f"ended with {self.process.wait(READY_S)}: {self.lines} {self.log}"
        return self

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> int:
        """As an operator would; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._ended()

    def kill(self) -> None:
        self.process.kill()
        self._ended()

    def _ended(self) -> int:
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        for reader in self._readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code

    def get(self, path: str) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


def start(
    data: Path | None, *flags: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Served:
    where = ["--memory"] if data is None else ["--data", str(data)]
    return Served([*where, *flags], port or free_port(), env)


@contextmanager
def served_amqp(
    data: Path | None = None, *flags: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[Served, int]]:
    """A server with an AMQP port, and that port."""
    port = free_port()
    with served(data, "--amqp-port", str(port), *flags, env=env) as server:
        yield server, port


@contextmanager
def served(
    data: Path | None = None, *flags: str, port: int | None = None, env: Mapping[str, str] | None = None
) -> Iterator[Served]:
    """A server for the length of a block: in memory, or with its data in a directory."""
    server = start(data, *flags, port=port, env=env)
    try:
        yield server.wait()
    finally:
        server.stop()


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as other:
        port = free_port()
        other.bind(("127.0.0.1", port))
        other.listen()
        yield port
