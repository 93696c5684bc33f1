"""The registry of workers: what each worker process writes of itself, and the commands it waits for.

All of it is in key-values of the account, as JSON, with a TTL that a heartbeat renews:

    bucket "workers"          name of the process -> WorkerEntry
    bucket "worker-stats"     name of the process -> WorkerStats, written when it changes
    bucket "worker-commands"  name of the process -> WorkerCommand, written by operators

A process that dies stops renewing its entry, which then vanishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from ..names import split_name
from .kv import KeyValues

WORKERS, STATS, COMMANDS = "workers", "worker-stats", "worker-commands"
BUCKETS = (WORKERS, STATS, COMMANDS)
HEARTBEAT_S = 3.0
ENTRY_TTL_S = 10.0
STATS_INTERVAL_S = 10.0
STATS_TTL_S = 60.0
COMMAND_TTL_S = 60.0
MAX_RUNNING = 100  # jobs that an entry lists
MAX_TASKS = 200  # tasks with statistics
_PAGE = 1000

T = TypeVar("T")


class RunningJob(msgspec.Struct, kw_only=True):
    """A job that runs. `since` is when it started."""

    id: str
    task: str
    queue: str
    attempt: int
    since: str


class WorkerEntry(msgspec.Struct, kw_only=True):
    """One process of a worker.

    `service` is the name of the worker, which all its processes share; `instance` differs for each start.
    `queues` are the weights by name, `slots` the jobs that it can run at once, `busy` those that it runs.
    """

    name: str
    service: str
    instance: str
    host: str
    pid: int
    started: str
    version: str  # of OpenQ
    python: str
    runs: str
    queues: dict[str, int]
    slots: int
    busy: int
    state: str  # running | quiet | stopping
    memory: int = 0  # bytes
    running: list[RunningJob] = []


class HistogramCounts(msgspec.Struct, kw_only=True):
    """Counts by bucket, one more than there are bounds; the sum is in seconds."""

    counts: list[int]
    sum: float


class TaskCounts(msgspec.Struct, kw_only=True):
    """What became of the jobs of a task: how many by outcome, how long they ran and waited."""

    name: str
    queue: str
    outcomes: dict[str, int]
    run: HistogramCounts
    wait: HistogramCounts


class WorkerStats(msgspec.Struct, kw_only=True):
    """What a process has done since its start."""

    instance: str
    bounds: list[float]
    tasks: list[TaskCounts]


class WorkerCommand(msgspec.Struct, kw_only=True):
    """`quiet` or `stop`, for the process with this instance."""

    command: str
    instance: str


def encode(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def decode(value: bytes, kind: type[T]) -> T | None:
    """None for a value that is not of this kind: any program may write to a bucket."""
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.MsgspecError:
        return None


def list_values(kv: KeyValues, bucket: str, kind: type[T]) -> Iterator[tuple[str, T]]:
    """The keys of a bucket with their values, without those that cannot be read."""
    after = ""
    while page := kv.list(bucket, "", after, _PAGE):
        kv.load(page)
        for entry in page:
            found = decode(entry.value, kind)
            if found is not None:
                yield entry.key, found
        after = page[-1].key


def list_workers(kv: KeyValues, bucket: str = WORKERS) -> list[WorkerEntry]:
    """The workers of an account, whose qualified name of the bucket is given."""
    return [entry for key, entry in list_values(kv, bucket, WorkerEntry) if entry.name == key]


def worker_buckets(kv: KeyValues) -> list[tuple[str, str]]:
    """The accounts that have workers, each with its bucket."""
    found = [(split_name(each.name), each.name) for each in kv.buckets()]
    return [(account, bucket) for (account, name), bucket in found if name == WORKERS]
