"""What jobs keep beside their messages: results, progress, cancel flags, claims and groups.

All of it is in key-value buckets of the target, so that it needs nothing but the library and is the same in
memory, on disk, on a server and in Redis. Every value is written so that writing it twice changes nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..engine.key_values import MAX_VALUE_BYTES, KvPut
from . import codec
from .errors import InvalidResult

if TYPE_CHECKING:
    from ..client.kv import KeyValue
    from ..client.queues import Queue
    from .queues import Queues

RESULTS = "openq.results"
PROGRESS = "openq.progress"
CANCELLED = "openq.cancelled"
ONCE = "openq.once"
GROUPS = "openq.groups"

DAY_S = 86_400.0
CANCEL_TTL_S = DAY_S
PROGRESS_TTL_S = DAY_S


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """How a job ended."""

    state: str  # done | failed | cancelled
    result: Any = None  # plain values
    error: str = ""  # type and text of the exception
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """What a handler reported last."""

    fraction: float | None
    text: str
    reported_ms: int


class JobStore:
    """The buckets of an app."""

    def __init__(self, queues: Queues) -> None:
        self._queues = queues

    def bucket(self, name: str, queue: Queue | None = None) -> KeyValue:
        return (queue or self._queues.any()).kv(name)

    # -- results ------------------------------------------------------------------------------

    def outcome_put(self, job_id: str, outcome: JobOutcome, ttl: float, task: str) -> KvPut:
        """The write that keeps an outcome. Raises InvalidResult if it is too large."""
        try:
            value = codec.to_json(_fields(outcome)).encode()
        except (ValueError, OverflowError, RecursionError) as error:  # of numbers and texts that JSON has not
            raise InvalidResult(f"the result of task {task!r} cannot be encoded as JSON: {error}") from None
        if len(value) > MAX_VALUE_BYTES:
            raise InvalidResult(
                f"the result of task {task!r} has {len(value)} bytes; at most {MAX_VALUE_BYTES} are kept"
            )
        return KvPut(job_id, value, int(ttl * 1000))

    def put_outcome(self, put: KvPut) -> None:
        self.bucket(RESULTS).put_many([put])

    def outcome(self, job_id: str) -> JobOutcome | None:
        entry = self.bucket(RESULTS).get(job_id)
        return None if entry is None else read_outcome(entry.value)

    def wait_outcome(self, job_id: str, timeout: float | None) -> JobOutcome | None:
        entry = self.bucket(RESULTS).wait(job_id, timeout)
        return None if entry is None else read_outcome(entry.value)

    # -- progress -----------------------------------------------------------------------------

    def put_progress(self, job_id: str, progress: Progress, queue: Queue | None = None) -> None:
        document = {
            "fraction": progress.fraction,
            "text": progress.text,
            "reported_ms": progress.reported_ms,
        }
        self.bucket(PROGRESS, queue).put(job_id, codec.to_json(document), PROGRESS_TTL_S)

    def progress(self, job_id: str) -> Progress | None:
        entry = self.bucket(PROGRESS).get(job_id)
        return None if entry is None else Progress(**codec.read_json(entry.value))

    # -- cancelling ---------------------------------------------------------------------------

    def flag_cancelled(self, job_id: str) -> None:
        self.bucket(CANCELLED).put(job_id, b"", CANCEL_TTL_S)

    def unflag_cancelled(self, job_id: str) -> None:
        self.bucket(CANCELLED).delete(job_id)

    def cancelled_among(self, job_ids: list[str], queue: Queue | None = None) -> set[str]:
        entries = self.bucket(CANCELLED, queue).get_many(job_ids)
        return {entry.key for entry in entries if entry is not None}


def now_ms() -> int:
    return int(time.time() * 1000)


def _fields(outcome: JobOutcome) -> dict[str, Any]:
    return {
        "state": outcome.state,
        "result": outcome.result,
        "error": outcome.error,
        "ended_ms": outcome.ended_ms,
    }


def read_outcome(value: bytes) -> JobOutcome:
    return JobOutcome(**codec.read_json(value))
