"""Timers: near deadlines in a heap, far ones in buckets of a second.

A timer is never removed: its owner recognises one that no longer matters when it comes due. So arming costs
an append, and an ack costs nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

# Kinds of timers: the first field of a payload. The queue follows, then:
LEASE = 1  # sequences of messages in flight
LEASES = 5  # a bucket of such sequences
WAKE = 6  # nothing: waiters of the queue could not be served, try again
DELAY = 2  # a sequence
DELAYS = 7  # a bucket of sequences
TTL = 3  # a sequence
RETENTION = 4  # the due time
# In place of the queue these have a bucket of key-values:
KV_TTL = 8  # a key
KV_BUCKET = 9  # a coarse time, whose keys come due soon

MAX_TIMERS_PER_STEP = 1000  # timers handled before other threads get their turn
NEVER = 1 << 62
_SHIFT = 10  # 1,024 ms a bucket


class Timers:
    __slots__ = ("_buckets", "_far", "_near", "_opened", "_tie", "next_ms", "size")

    def __init__(self) -> None:
        self._near: list[tuple[int, int, Any]] = []
        self._far: dict[int, list[tuple[int, Any]]] = {}
        self._buckets: list[int] = []  # heap of the keys of _far
        self._opened = -1  # buckets up to here are in _near
        self._tie = 0
        self.next_ms = NEVER  # nothing is due before
        self.size = 0  # armed and not yet due, including timers that no longer matter

    def add(self, due_ms: int, payload: Any) -> None:
        self.size += 1
        bucket = due_ms >> _SHIFT
        if bucket > self._opened:
            entries = self._far.get(bucket)
            if entries is not None:
                entries.append((due_ms, payload))
                return
            self._far[bucket] = [(due_ms, payload)]
            heappush(self._buckets, bucket)
            due_ms = bucket << _SHIFT
        else:
            self._tie += 1
            heappush(self._near, (due_ms, self._tie, payload))
        if due_ms < self.next_ms:
            self.next_ms = due_ms

    def due(self, now_ms: int, limit: int = 1 << 60) -> list[Any]:
        """Payloads of the timers that are due, in order of time; at most `limit`."""
        near = self._near
        buckets = self._buckets
        while buckets and buckets[0] << _SHIFT <= now_ms:
            bucket = heappop(buckets)
            self._opened = bucket
            for due_ms, payload in self._far.pop(bucket):
                self._tie += 1
                heappush(near, (due_ms, self._tie, payload))
        out: list[Any] = []
        while near and near[0][0] <= now_ms and len(out) < limit:
            out.append(heappop(near)[2])
        self.size -= len(out)
        self.next_ms = min(near[0][0] if near else NEVER, buckets[0] << _SHIFT if buckets else NEVER)
        return out
