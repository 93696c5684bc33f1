"""Counts and times of many queues in Redis (`broker/statistics.py`).

Counts are those of the store: every server shows the same. Times are those that this process measured
(`delivery_times.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..broker.interface import QueueStats
from ..broker.statistics import COUNTERS, NO_TIMES, MessageTimes, QueueCounts, QueueTimes
from ..errors import QueueNotFound, StoreError
from ..metrics import Family
from ..names import split_name
from .delivery_times import DeliveryTimes
from .functions import function_name
from .net.round_trips import ROUND_TRIPS
from .registry import CachedQueue
from .schedules import RedisSchedules
from .series_pages import RedisPages
from .servers import ServerDirectory
from .store import RedisStore

_SLICE = 200  # queues in one pipeline


def deleted_key(store: RedisStore) -> bytes:
    """A hash: account and counter -> sum over the deleted queues."""
    return f"{store.address.prefix}:{{meta}}:deleted".encode()


def add_deleted(store: RedisStore, queue: str, pairs: Sequence[bytes]) -> None:
    """Keep the counters of a queue that was deleted. A process that dies just here loses them."""
    account = split_name(queue)[0].encode()
    key = deleted_key(store)
    commands = [
        (key, (b"HINCRBY", key, account + b"/" + counter, value))
        for counter, value in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    if commands:
        store.calls.many(commands)  # errors are items: the queue is deleted all the same


class RedisStatistics:
    def __init__(
        self,
        store: RedisStore,
        stats: Callable[[str], QueueStats],
        count_waiters: Callable[[str], int],
        servers: ServerDirectory,
        schedules: RedisSchedules,
    ) -> None:
        self._servers = servers
        self._schedules = schedules
        self.pages = RedisPages(store)
        self._store = store
        self._stats = stats
        self._count_waiters = count_waiters
        self._deleted_key = deleted_key(store)

    def of(self, queues: Sequence[str]) -> list[QueueCounts]:
        rows: list[QueueCounts] = []
        for start in range(0, len(queues), _SLICE):
            for name, reply in self._ask(queues[start : start + _SLICE]):
                row = self._row(name, reply)
                if row is not None:
                    rows.append(row)
        return rows

    def _ask(self, queues: Sequence[str]) -> list[tuple[str, Any]]:
        store = self._store
        store.state.check_open()
        find = store.registry.queues.get
        views = [view for name in queues if (view := find(name)) is not None]
        function, now = function_name("stats"), store.now_argument()
        commands = [(view.key, (b"FCALL", function, 1, view.key, now)) for view in views]
        replies = store.calls.many(commands, idempotent=True)
        return [(view.name, reply) for view, reply in zip(views, replies, strict=True)]

    def _row(self, name: str, reply: Any) -> QueueCounts | None:
        view = self._store.registry.queues.get(name)
        if isinstance(reply, StoreError) or len(reply) != 3 or reply[0]:
            # A deleted or lost queue, a node without the functions, messages to move: `stats` handles these.
            try:
                return self._from_stats(self._stats(name), view)
            except (QueueNotFound, StoreError):
                return None
        now_ms, (ready, delayed, in_flight, size, oldest_ms, _, pairs, limited) = reply[1:]
        counted = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return QueueCounts(
            name,
            ready,
            delayed,
            in_flight,
            size,
            max(0, now_ms - int(oldest_ms)) if oldest_ms else None,
            self._count_waiters(name),
            limited,
            [int(counted.get(counter, 0)) for counter in _COUNTER_KEYS],
            self._times_of(view),
        )

    def _from_stats(self, stats: QueueStats, view: CachedQueue | None) -> QueueCounts:
        return QueueCounts(
            stats.name,
            stats.ready,
            stats.delayed,
            stats.in_flight,
            stats.waiting_bytes,
            stats.oldest_age_ms,
            stats.waiters,
            stats.limited,
            [stats.counters[counter] for counter in COUNTERS],
            self._times_of(view),
        )

    def _times_of(self, view: CachedQueue | None) -> QueueTimes:
        measured = self._store.state.delivery_times
        if measured is None or view is None:
            return NO_TIMES
        return measured.times.queues.get(view.number, NO_TIMES)

    def counters(self, queues: Sequence[str]) -> list[tuple[str, Sequence[int]]]:
        return [(row.name, row.counters) for row in self.of(queues)]

    def changed(self, queues: Sequence[str], known: dict[str, object]) -> list[str]:
        return list(queues)  # reading the counters is as dear as reading all

    def deleted(self) -> Mapping[str, Sequence[int]]:
        key = self._deleted_key
        pairs = self._store.calls.call(key, "HGETALL", key, idempotent=True)
        counts: dict[str, dict[str, int]] = {}
        for field, value in zip(pairs[::2], pairs[1::2], strict=True):
            account, _, counter = field.decode().rpartition("/")
            counts.setdefault(account, {})[counter] = int(value)
        return {account: [each.get(counter, 0) for counter in COUNTERS] for account, each in counts.items()}

    def measure(self) -> MessageTimes:
        state = self._store.state
        if state.delivery_times is None:
            state.delivery_times = DeliveryTimes()
        return state.delivery_times.times

    def gauges(self) -> list[Family]:
        return [*self._servers.gauges(), *self._schedules.families()]

    def families(self) -> list[Family]:
        return [
            Family(
                "openq_redis_round_trip_seconds",
                "histogram",
                "Time from sending commands to Redis to the first reply, on the event loop.",
                [({}, ROUND_TRIPS.replies.value())],
            ),
            Family(
                "openq_redis_wait_seconds",
                "histogram",
                "Time until the replicas of Redis had confirmed what a group of answers waits for.",
                [({}, ROUND_TRIPS.copies.value())],
            ),
        ]


_COUNTER_KEYS = [counter.encode() for counter in COUNTERS]
