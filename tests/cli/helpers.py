"""Running the real command, and data directories for it to look at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from openq.broker.local import LocalBroker
from openq.model import FORM_TEXT, Draft, QueueSettings

OPENQ = [sys.executable, "-m", "openq"]


class Done(NamedTuple):
    code: int
    out: str
    err: str


def openq(*words: str | Path, answer: str = "", **environment: str) -> Done:
    """Never a traceback, whatever the words are."""
    done = subprocess.run(
        [*OPENQ, *map(str, words)],
        input=answer,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def fill(path: Path) -> None:
    """A data directory with one commit per message, so that each has a block of its own."""
    broker = LocalBroker(path)
    broker.declare("orders.dead", QueueSettings())
    broker.declare("orders", QueueSettings(max_receives=1, dead_letter="orders.dead"))
    broker.sync()
    for number in range(5):
        broker.publish("orders", Draft(f"order {number}".encode(), FORM_TEXT))
        broker.sync()
    [first] = broker.receive("orders", consumer="till 1")
    broker.ack_one("orders", first.entry.seq, first.number)
    broker.sync()
    [second] = broker.receive("orders")
    broker.nack("orders", (second.entry.seq, second.number), reason="no such customer")
    broker.sync()
    broker.close()


def segment(path: Path, number: int = 1) -> Path:
    return path / "journal" / f"{number:016x}.seg"


def spoil(path: Path, text: bytes) -> None:
    """Damage the first segment where `text` stands in it."""
    file = segment(path)
    data = bytearray(file.read_bytes())
    at = data.index(text)
    data[at] ^= 0xFF
    file.write_bytes(data)


def state(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}
