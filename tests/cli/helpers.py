"""Runs the real command, and makes data directories for it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from openq.cli.main import main
from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, Draft, QueueSettings

OPENQ = [sys.executable, "-m", "openq"]


class CommandResult(NamedTuple):
    code: int
    out: str
    err: str


def run_openq(*words: str | Path, answer: str = "", **environment: str) -> CommandResult:
    """In a process of its own. Fails on a traceback."""
    done = subprocess.run(
        [*OPENQ, *map(str, words)],
        input=answer,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return CommandResult(done.returncode, done.stdout, done.stderr)


class _Stream(io.TextIOWrapper):
    """A standard stream in memory; text and bytes may be mixed, as on the real one."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8", errors="surrogateescape", newline="")

    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


def run_in_process(*words: str | Path, answer: str | bytes = "", **environment: str) -> CommandResult:
    """The same command in this process: no terminal anywhere, and much faster."""
    given = answer if isinstance(answer, bytes) else answer.encode()
    out, err, before = _Stream(), _Stream(), sys.stdin
    sys.stdin = _Stream(given)
    try:
        with _environment(environment), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in words])
    finally:
        sys.stdin = before
    return CommandResult(code, out.text(), err.text())


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run_on_terminal(*words: str | Path, typed: str = "", **environment: str) -> tuple[int, str]:
    """All three streams on a pseudo-terminal; `typed` has a line for each question."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")}
    try:
        process = subprocess.Popen(
            [*OPENQ, *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**plain, "TERM": "xterm", **environment},
        )
        os.close(theirs)
        seen = b""
        answers = typed.splitlines(keepends=True)
        while True:
            # Only after the question: a password prompt drops what was typed ahead.
            if answers and seen.endswith((b": ", b"] ")):
                os.write(ours, answers.pop(0).encode())
                seen += b"\n"
            if not select.select([ours], [], [], 60)[0]:
                process.kill()
                raise AssertionError(f"nothing more came after {seen!r}")
            try:
                piece = os.read(ours, 4096)
            except OSError:  # how Linux reports that the other side is closed
                break
            if not piece:
                break
            seen += piece
        code = process.wait(timeout=60)
    finally:
        os.close(ours)
    return code, seen.decode()


def fill(path: Path) -> None:
    """A data directory with one commit per message, so that each has a block of its own."""
    broker = LocalBroker(path)
    broker.declare("orders.dead", QueueSettings())
    broker.declare("orders", QueueSettings(max_receives=1, dead_letter="orders.dead"))
    broker.sync()
    for number in range(5):
        broker.publish("orders", Draft(f"order {number}".encode(), ENCODING_TEXT))
        broker.sync()
    [first] = broker.receive("orders", consumer="till 1")
    broker.ack_one("orders", first.entry.seq, first.number)
    broker.sync()
    [second] = broker.receive("orders")
    broker.nack("orders", [(second.entry.seq, second.number)], reason="no such customer")
    broker.sync()
    broker.close()


def segment(path: Path, number: int = 1) -> Path:
    return path / "journal" / f"{number:016x}.seg"


def corrupt(path: Path, text: bytes) -> None:
    """Damage the first segment where `text` stands in it."""
    file = segment(path)
    data = bytearray(file.read_bytes())
    at = data.index(text)
    data[at] ^= 0xFF
    file.write_bytes(data)


def directory_contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


class FakeTerminal(io.StringIO):
    """A stderr that is a terminal, or not."""

    def __init__(self, watched: bool) -> None:
        super().__init__()
        self._watched = watched

    def isatty(self) -> bool:
        return self._watched


class Cli:
    """`openq` with the address of a server, and queues that no other test has."""

    def __init__(self, url: str, name: str) -> None:
        self.url = url
        self.name = name

    def __call__(
        self, *words: str | Path, answer: str | bytes = "", code: int = 0, **environment: str
    ) -> CommandResult:
        done = run_in_process(*words, answer=answer, OPENQ_URL=self.url, **environment)
        assert done.code == code, done
        return done

    def json(self, *words: str, **options: Any) -> Any:
        return json.loads(self(*words, "--json", **options).out)

    def lines(self, *words: str, **options: Any) -> list[Any]:
        return [json.loads(line) for line in self(*words, "--json", **options).out.splitlines()]

    def counts(self, queue: str) -> tuple[int, int, int]:
        stats = self.json("queue", "show", queue)["stats"]
        return stats["ready"], stats["delayed"], stats["in_flight"]
