"""The application of the worker's crash tests. Its handlers write down what they do, and check themselves.

effects   one line for each thing that happened: kind, number, process
charges   files that `once` guards: the other side of an effect, which knows the same key
slots     two locks for each limited key; a process that dies gives its lock back
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from openq.model import RetryPolicy
from openq.worker import App, Message, current_job, once

FOLDER = Path(os.environ["CRASH_FOLDER"])
LEASE_S = 3.0
KEYS = 5
PER_KEY = 2
KINDS = ("plain", "waited", "charged", "flaky", "chained", "grouped", "limited")

app = App(
    url=os.environ["CRASH_URL"],
    queue="jobs",
    retries=30,
    lease=LEASE_S,
    reconnect=60,
)
app.queue("limited", key_concurrency=PER_KEY)
SOON = RetryPolicy("fixed", base_ms=50)


def write(kind: str, number: int | str) -> None:
    """One write call of a short line: it is there as a whole or not at all."""
    line = f"{kind} {number} {os.getpid()}\n".encode()
    log = os.open(FOLDER / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, line)
    finally:
        os.close(log)


@app.task
def plain(number: int) -> None:
    write("plain", number)


@app.task(queue="coroutines")
async def waited(number: int) -> None:
    write("waited", number)


@app.task
def charged(number: int) -> None:
    with once(f"charge-{number}", claim=LEASE_S) as first:
        if first:
            write("enter", number)
            with open(FOLDER / "charges" / str(number), "x" if not _is_charged(number) else "a"):
                pass
    if first:
        write("left", number)
    write("charged", number)


def _is_charged(number: int) -> bool:
    return (FOLDER / "charges" / str(number)).exists()


@app.task(backoff=SOON)
def flaky(number: int) -> None:
    if current_job().attempt == 1:
        raise ValueError(f"{number} fails at first")
    write("flaky", number)


@app.task
def double(number: int) -> int:
    return 2 * number


@app.task
def chained(doubled: int) -> None:
    write("chained", doubled // 2)


@app.task
def grouped(doubled: list[int]) -> None:
    write("grouped", doubled[0] // 2)


@app.task(queue="limited")
def limited(number: int) -> None:
    """Take one of the locks of its key: if none is free, too many jobs of the key run at once."""
    key = number % KEYS
    for slot in range(PER_KEY):
        with open(FOLDER / "slots" / f"{key}-{slot}", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            write("limited", number)
            return
    write("exceeded", key)


@app.consumer("ticks")
def tick(message: Message) -> None:
    write("tick", f"{message.attributes['openq-due']}={message.id}")
