"""What a worker tells about itself."""

from __future__ import annotations

from dataclasses import dataclass

from .stats import TaskStats


@dataclass(frozen=True, slots=True)
class RunningJob:
    id: str
    task: str
    queue: str
    attempt: int
    started_at: float  # epoch seconds


@dataclass(frozen=True, slots=True)
class WorkerSnapshot:
    name: str
    pid: int
    started_at: float  # epoch seconds
    queues: dict[str, int]  # name -> weight
    threads: int
    busy: int  # jobs that run
    held: int  # jobs under a lease: running, waiting for a thread or for their ack
    is_quiet: bool
    is_unreachable: bool
    running: list[RunningJob]
    tasks: list[TaskStats]
