"""The job of a worker service that is measured from outside: it writes down when it started, and where.

`perf_counter_ns` is the same clock in all processes of a machine (CLOCK_MONOTONIC).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

STAMPS = "OPENQ_BENCH_STAMPS"  # the file
REDIS_PORT = "OPENQ_BENCH_REDIS_PORT"
OPENQ_URL = "OPENQ_BENCH_URL"
QUEUE = "bench"


@dataclass(frozen=True, slots=True)
class Stamp:
    sent_ns: int
    started_ns: int
    pid: int  # of the worker process

    @property
    def wait_ms(self) -> float:
        return (self.started_ns - self.sent_ns) / 1e6


def stamp(sent_ns: int) -> None:
    """The body of the job. One write of one line: appended as a whole."""
    started_ns = time.perf_counter_ns()
    file = os.open(os.environ[STAMPS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{sent_ns} {started_ns} {os.getpid()}\n".encode())
    finally:
        os.close(file)


def read_stamps(path: str) -> list[Stamp]:
    try:
        text = Path(path).read_text("ascii")
    except FileNotFoundError:
        return []
    return [Stamp(*map(int, line.split())) for line in text.splitlines()]
