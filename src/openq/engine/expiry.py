"""Expiry: leases, delays and TTLs that end."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ..errors import OpenQError
from ..model import (
    Entry,
)
from .delayed import Bucket, due_of
from .lease_timers import arm_leases, open_bucket
from .queue import QueueState
from .records import (
    EXPIRED,
)
from .rules import is_expired, is_zero_ttl
from .timers import DELAY, DELAYS, KV_BUCKET, KV_TTL, LEASE, LEASES, TTL, WAKE, Timers

_RETRY_MS = 200
_MIN_REBUILD = 8192  # timers
_MAX_STALE = 4  # timers to one live deadline
_MAX_SPREAD = 4096  # delayed messages of a far bucket that are spread in one step

if TYPE_CHECKING:
    from .engine import Engine


class Expiry:
    """Deadlines: armed as timers, handled by `advance`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._unchecked = 0  # calls of `advance` since the live deadlines were counted

    def advance(self, now_ms: int, limit: int = 1 << 60) -> int:
        """Handle the timers due up to `now_ms`, or the first `limit` of them.

        Returns how many leases ended.
        """
        engine = self._engine
        expired = 0
        while engine.timers.next_ms <= now_ms and limit > 0:
            payloads = engine.timers.due(now_ms, limit)
            limit -= len(payloads)
            for payload in payloads:
                try:
                    expired += self._fire(payload, now_ms)
                except OpenQError:
                    # The log refused (disk completely full): the deadline stays and is retried.
                    engine.timers.add(now_ms + _RETRY_MS, payload)
        if engine.timers.size > _MIN_REBUILD:
            self._rebuild_if_stale()
        return expired

    def _rebuild_if_stale(self) -> None:
        """Rebuild the timers if most belong to messages that are gone.

        The count reads every queue, so that with thousands of queues it is not made in every call.
        """
        engine = self._engine
        queue_count = len(engine.queues)
        size = engine.timers.size
        self._unchecked += 1
        if size <= _MAX_STALE * queue_count or self._unchecked <= queue_count // 4:
            return  # each queue counts as one deadline at least
        self._unchecked = 0
        if size > _MAX_STALE * self.count_deadlines():
            self.rebuild_timers()

    def _fire(self, payload: tuple[int, Any, Any], now_ms: int) -> int:
        kind, owner, data = payload
        if owner.deleted:
            return 0
        if kind == KV_TTL:
            self._engine.key_values.look_at(owner, data, now_ms)
            return 0
        if kind == KV_BUCKET:
            self._engine.key_values.open_far(owner, data, now_ms)
            return 0
        return self._fire_of_queue(kind, owner, data, now_ms)

    def _fire_of_queue(self, kind: int, queue: QueueState, data: Any, now_ms: int) -> int:
        engine = self._engine
        expired = 0
        if kind == LEASE:
            for seq in sorted(data):
                delivery = queue.leases.get(seq)
                if delivery is not None and 0 < delivery.until_ms <= now_ms:
                    engine.leases.return_delivery(queue, delivery, EXPIRED, None, None, now_ms)
                    expired += 1
        elif kind == WAKE:
            if queue.watched:
                engine.woken.append(queue)
        elif kind == LEASES:
            open_bucket(engine, queue, data, now_ms)
        elif kind == DELAY:
            queue.delayed.near.pop(data, None)
            entry = queue.delayed.get(data)
            if entry is not None and due_of(entry) <= now_ms:
                self.come_due(queue, entry, now_ms)
        elif kind == DELAYS:
            self._open_delays(queue, data, now_ms)
        elif kind == TTL:
            self._expire_waiting(queue, data, now_ms)
        elif data == queue.retention_armed:
            self._expire_old(queue, now_ms)
        return expired

    def _open_delays(self, queue: QueueState, bucket: Bucket, now_ms: int) -> None:
        """Arm exact deadlines for a near bucket; spread a far bucket into narrower ones.

        A message that is due already gets a deadline too, so that it comes due in order among all other
        deadlines.
        """
        width, number = bucket
        is_early = now_ms < number << width
        for seq, due_ms in queue.delayed.open(bucket, _MAX_SPREAD if is_early else 1 << 60):
            self._engine.arm_delay(queue, seq, due_ms, now_ms)
        if bucket in queue.delayed.buckets:
            self._engine.timers.add(now_ms + 1, (DELAYS, queue, bucket))

    def come_due(self, queue: QueueState, entry: Entry, now_ms: int) -> None:
        engine = self._engine
        queue.delayed.pop(entry.seq)
        queue.ready.due(entry)
        if entry.options is not None and 0 < entry.options.expires_ms <= now_ms:
            engine.offer_zero_ttl(queue, entry, now_ms)
        if not queue.retention_armed:
            engine.arm_retention(queue, now_ms)
        if queue.watched:
            engine.woken.append(queue)

    def _expire_waiting(self, queue: QueueState, seq: int, now_ms: int, even_zero_ttl: bool = False) -> None:
        entry = None if seq in queue.leases else queue.find(seq)
        if entry is None or entry.options is None or not 0 < entry.options.expires_ms <= now_ms:
            return
        if not even_zero_ttl and is_zero_ttl(entry, now_ms - queue.settings.retention_ms, now_ms):
            self._engine.timers.add(now_ms + 1, (TTL, queue, seq))
        else:
            self._engine.dead_letters.expire_one(queue, entry, now_ms)

    def expire_zero_ttl(self, now_ms: int) -> None:
        """Expire messages with TTL 0 that no waiting consumer took."""
        expired_now, self._engine.zero_ttl = self._engine.zero_ttl, []
        for _, queue, seq in expired_now:
            if not queue.deleted:
                try:
                    self._expire_waiting(queue, seq, now_ms, even_zero_ttl=True)
                except OpenQError:
                    continue  # the log refused; its timer tries again

    def _expire_old(self, queue: QueueState, now_ms: int) -> None:
        horizon_ms = now_ms - queue.settings.retention_ms
        for ready_list in queue.ready.ready_lists():
            while True:
                entry = ready_list.first()
                if (
                    entry is None
                    or not is_expired(entry, horizon_ms, now_ms)
                    or is_zero_ttl(entry, horizon_ms, now_ms)
                ):
                    break
                self._engine.dead_letters.expire_one(queue, entry, now_ms)
            # A message that was delayed is kept longer than some behind it.
            early = takewhile(lambda each: each.sent_ms <= horizon_ms, ready_list)
            for entry in [each for each in early if is_expired(each, horizon_ms, now_ms)]:
                self._engine.dead_letters.expire_one(queue, entry, now_ms)
        self._engine.arm_retention(queue, now_ms)

    def count_deadlines(self) -> int:
        engine = self._engine
        queues = engine.queues.values()
        return engine.key_values.deadlines() + sum(
            queue.count + len(queue.lease_buckets) + 1 for queue in queues
        )

    def rebuild_timers(self) -> None:
        """Keep only live deadlines.

        The timer of a message that was acked long before a distant deadline must not stay until then.
        """
        engine = self._engine
        engine.timers = Timers()
        for queue in engine.queues.values():
            queue.lease_buckets.clear()
            for delivery in queue.leases.values():
                if delivery.until_ms:
                    arm_leases(engine, queue, (delivery.entry.seq,), delivery.until_ms, 0)
            queue.delayed.clear_timers()
            for seq, due_ms in queue.delayed.dues():
                engine.arm_delay(queue, seq, due_ms, 0)
            for seq, expires_ms in queue.delayed.expiries():
                engine.timers.add(expires_ms, (TTL, queue, seq))
            for ready_list in queue.ready.ready_lists():
                for seq, expires_ms in ready_list.expiries():
                    engine.timers.add(expires_ms, (TTL, queue, seq))
            for entry in (delivery.entry for delivery in queue.leases.values()):
                if entry.options is not None and entry.options.expires_ms:
                    engine.timers.add(entry.options.expires_ms, (TTL, queue, entry.seq))
            engine.arm_retention(queue, 0)
            if queue.limits is not None and queue.limits.armed_ms:
                engine.timers.add(queue.limits.armed_ms, (WAKE, queue, 0))
        engine.key_values.rebuild_timers()
