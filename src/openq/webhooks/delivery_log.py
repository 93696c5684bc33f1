"""What a webhook has done: counts for the metrics, and the log of its last attempts.

Attempts are collected in memory and stored every few seconds, in parts with a TTL: one write for many
attempts. A busy webhook stores a part of them: all of them are counted, failures are kept first.
"""

from __future__ import annotations

import os
from bisect import bisect_left

import msgspec

from ..broker.kv import KeyValues, KvPut
from ..broker.workers import decode
from ..metrics import HistogramValue
from .store import LOG, pages_of, put_one

MAX_PART = 100  # attempts in one part
MAX_PARTS = 20
TTL_MS = 7 * 86_400_000
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

DELIVERED, FAILED, PAUSED, GONE = "delivered", "failed", "paused", "gone"


class Attempt(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One request. `status` is null if there was no response; `detail` is the excerpt or the error."""

    id: str  # the header webhook-id
    time_ms: int
    outcome: str
    status: int | None
    duration_ms: int
    attempt: int = 1
    messages: int = 1
    detail: str = ""


class LogPart(msgspec.Struct, kw_only=True):
    attempts: list[Attempt]
    skipped: int = 0  # attempts of the same time that are not in the log


class Counts:
    """Of one webhook, since the start of the server."""

    __slots__ = ("_buckets", "_seconds", "failures", "messages", "requests", "retries")

    def __init__(self) -> None:
        self.requests: dict[str, int] = {}  # by class of status: 2xx, 4xx, ..., or "none"
        self.messages: dict[str, int] = {}  # by outcome
        self.retries = 0
        self.failures = 0  # requests in a row that failed
        self._buckets = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0

    def add(self, attempt: Attempt) -> None:
        kind = "none" if attempt.status is None else f"{attempt.status // 100}xx"
        self.requests[kind] = self.requests.get(kind, 0) + 1
        self.messages[attempt.outcome] = self.messages.get(attempt.outcome, 0) + attempt.messages
        self.retries += attempt.attempt > 1
        self.failures = 0 if attempt.outcome == DELIVERED else self.failures + 1
        seconds = attempt.duration_ms / 1000
        self._buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds += seconds

    def durations(self) -> HistogramValue:
        return HistogramValue(BOUNDS_S, list(self._buckets), self._seconds)


class DeliveryLog:
    """The attempts of one webhook that are not stored yet."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: Attempt | None = None
        self.last_failure: Attempt | None = None
        self._failures: list[Attempt] = []
        self._others: list[Attempt] = []
        self._skipped = 0

    def add(self, attempt: Attempt) -> None:
        self.last = attempt
        kept = self._others
        if attempt.outcome != DELIVERED:
            self.last_failure = attempt
            kept = self._failures
        if len(kept) < MAX_PART:
            kept.append(attempt)
        else:
            self._skipped += 1

    def take(self) -> LogPart | None:
        """Everything since the last call, for `store_part`."""
        if not self._failures and not self._others:
            return None
        others = self._others[: MAX_PART - len(self._failures)]
        attempts = sorted(self._failures + others, key=lambda each: each.time_ms)
        skipped = self._skipped + len(self._others) - len(others)
        self._failures, self._others, self._skipped = [], [], 0
        return LogPart(attempts=attempts, skipped=skipped)


def store_part(kv: KeyValues, name: str, part: LogPart, now_ms: int) -> None:
    """In a thread. The oldest parts make room."""
    # Several servers may store parts in the same millisecond.
    key = f"{name}/{now_ms:015d}-{os.urandom(4).hex()}"
    put_one(kv, LOG, KvPut(key, msgspec.json.encode(part), TTL_MS))
    keys = [entry.key for entry in pages_of(kv, LOG, f"{name}/") if entry.key.rpartition("/")[0] == name]
    if len(keys) > MAX_PARTS:
        kv.delete_many(LOG, keys[:-MAX_PARTS])


def stored_parts(kv: KeyValues, name: str) -> list[LogPart]:
    """In a thread. The oldest first."""
    entries = [entry for entry in pages_of(kv, LOG, f"{name}/") if entry.key.rpartition("/")[0] == name]
    return [part for entry in entries if (part := decode(entry.value, LogPart)) is not None]
