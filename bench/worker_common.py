"""What the worker benches share: the rivals, the job that counts itself, the laps of workers in this process.

The workers of a lap are started and warm before the clock starts: jobs that wait hold all of their threads
while the jobs that count are enqueued. The clock starts when the threads are let go and stops when the last
job has run.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from . import amqp_rounds
from .harness import BenchTarget, Lap, Row
from .server_processes import TOOLS, pip_install

BENCH = "worker"
THREADS = 8
DEADLINE_S = 300.0
PACKAGES = ("dramatiq[rabbitmq,redis]>=2", "rq>=2", "huey>=2.5", "celery>=5.4")
RIVALS = TOOLS / "worker-rivals"


def obtain_rivals() -> str:
    """The folder with the rivals, installed once. Raises NotAvailable."""
    pip_install(RIVALS.name, *PACKAGES)
    return str(RIVALS)


def use_rivals(folder: str) -> None:
    """Behind everything that is installed, which what they bring must not replace."""
    if folder not in sys.path:
        sys.path.append(folder)


class JobCounter:
    """Counts the jobs that ran in this process, and notes when the first one began and the last one ended."""

    def __init__(self) -> None:
        self._gate = threading.Event()
        self._held = threading.Semaphore(0)
        self._finished = threading.Event()
        self._expected = 0
        self._numbers = itertools.count(1)  # next() on it is atomic
        self._began = self._ended = (0.0, 0.0)

    def expect(self, count: int) -> None:
        self._gate.clear()
        self._finished.clear()
        self._expected = count
        self._numbers = itertools.count(1)

    def hold(self) -> None:
        """The body of a job that keeps its thread until `release`."""
        self._held.release()
        self._gate.wait(DEADLINE_S)

    def run(self) -> None:
        """The body of a job that counts."""
        number = next(self._numbers)
        if number == 1:
            self._first = _now()
        if number == self._expected:
            self._ended = _now()
            self._finished.set()

    def wait_held(self, threads: int) -> None:
        for _ in range(threads):
            if not self._held.acquire(timeout=DEADLINE_S):
                raise RuntimeError("a worker did not take the jobs that hold its threads")

    def release(self) -> None:
        self._began = _now()
        self._gate.set()

    def wait(self) -> None:
        if not self._finished.wait(DEADLINE_S):
            raise RuntimeError(f"{next(self._numbers) - 1} of {self._expected} jobs ran")

    def lap(self) -> Lap:
        """From `release` to the end of the last job."""
        return _lap(self._expected, self._began, self._ended)

    def lap_from_first(self) -> Lap:
        """From the start of the first job: for a worker that cannot be held."""
        return _lap(self._expected, self._first, self._ended)


COUNTER = JobCounter()


def nothing(number: int) -> None:
    """The job of all of them."""
    COUNTER.run()


def hold() -> None:
    COUNTER.hold()


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _lap(count: int, began: tuple[float, float], ended: tuple[float, float]) -> Lap:
    return Lap(count, ended[0] - began[0], ended[1] - began[1])


class Service(Protocol):
    """A worker with `THREADS` threads in this process, and its queue."""

    def send_hold(self) -> None: ...
    def fill(self, count: int) -> None: ...
    def settle(self) -> None:
        """Wait until the queue is empty, acks included: not part of a lap."""

    def close(self) -> None: ...


class Drained:
    """A contestant: its worker works off a filled queue."""

    def __init__(self, make: Callable[..., Service], count: int, *args: Any) -> None:
        self._service = make(*args)
        self._count = count

    def lap(self, given: Any) -> Lap:
        COUNTER.expect(self._count)
        for _ in range(THREADS):
            self._service.send_hold()
        COUNTER.wait_held(THREADS)
        self._service.fill(self._count)
        COUNTER.release()
        COUNTER.wait()
        done = COUNTER.lap()
        self._service.settle()
        return done

    def close(self) -> None:
        self._service.close()


def wait_until(ready: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not ready():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited in vain for {what}")
        time.sleep(0.01)


def lower_is_better(
    what: str,
    reference: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: BenchTarget | None,
    unit: str,
) -> Row:
    return replace(amqp_rounds.lower_is_better(what, reference, ours, theirs, target, unit), bench=BENCH)
