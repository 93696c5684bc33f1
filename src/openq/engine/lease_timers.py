"""Timers of leases: deadlines in buckets, and the next token of a rate limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .queue import QueueState
from .timers import LEASE, LEASES, WAKE

BUCKET_BITS = 10  # leases are grouped by the high bits of their deadline: 1,024 ms together

if TYPE_CHECKING:
    from .engine import Engine


def arm_leases(engine: Engine, queue: QueueState, seqs: Sequence[int], until_ms: int, now_ms: int) -> None:
    bucket = until_ms >> BUCKET_BITS
    known = queue.lease_buckets.get(bucket)
    if known is not None:
        known.extend(seqs)
    elif bucket << BUCKET_BITS <= now_ms:
        engine.timers.add(until_ms, (LEASE, queue, seqs))
    else:
        _compact(queue)
        # Of a queue that only delivers, too: keys are forgotten by publishes, and here once in a second.
        queue.forget_dedup(now_ms)
        queue.lease_buckets[bucket] = list(seqs)
        engine.timers.add(bucket << BUCKET_BITS, (LEASES, queue, bucket))


def _compact(queue: QueueState) -> None:
    """Drop sequences of long leases that were acked early; they must not stay until their deadlines."""
    buckets = queue.lease_buckets
    leases = queue.leases
    total = sum(map(len, buckets.values()))
    if total > 8192 and total > 4 * len(leases):
        for bucket, seqs in buckets.items():
            buckets[bucket] = [
                seq for seq in seqs if seq in leases and leases[seq].until_ms >> BUCKET_BITS == bucket
            ]


def open_bucket(engine: Engine, queue: QueueState, bucket: int, now_ms: int) -> None:
    """Arm exact deadlines for the leases of this bucket that are still in flight.

    Leases that end together end in the order of their messages, as on Redis: FIFO groups are served in
    the order in which their messages return.
    """
    for seq in sorted(queue.lease_buckets.pop(bucket, ())):
        delivery = queue.leases.get(seq)
        if delivery is not None and delivery.until_ms >> BUCKET_BITS == bucket:
            engine.timers.add(delivery.until_ms, (LEASE, queue, (seq,)))


def arm_tokens(engine: Engine, queue: QueueState, now_ms: int) -> None:
    """Arm a timer for the next token that a message may wait for. One timer for a queue is enough."""
    limits = queue.limits
    if limits is None or not queue.ready.count:
        return
    next_ms = limits.next_ms(now_ms)
    if next_ms and not now_ms < limits.armed_ms <= next_ms:
        limits.armed_ms = next_ms
        engine.timers.add(next_ms, (WAKE, queue, 0))
