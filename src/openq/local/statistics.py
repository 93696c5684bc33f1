"""Counts and times of many queues of this process (`broker/statistics.py`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ..broker.statistics import NO_TIMES, MessageTimes, QueueCounts, QueueTimes
from ..engine.queue import read_counters
from ..metrics import Family
from .core import BrokerCore
from .schedules import LocalSchedules
from .series_pages import FilePages, MemoryPages

_SLICE = 64  # queues that are read under one hold of the lock: about 0.2 ms
_TURN = 8 * _SLICE  # queues after which others run: `sleep` takes longer than a slice if nobody does


class LocalStatistics:
    def __init__(
        self, core: BrokerCore, pages: FilePages | MemoryPages, schedules: LocalSchedules, *, is_relaxed: bool
    ) -> None:
        self._core = core
        self._engine = core.engine
        self._schedules = schedules
        self._is_relaxed = is_relaxed
        self.pages = pages

    def of(self, queues: Sequence[str]) -> list[QueueCounts]:
        core = self._core
        rows: list[QueueCounts] = []
        for start in range(0, len(queues), _SLICE):
            if start and start % _TURN == 0:
                time.sleep(0)  # the event loop gets the interpreter
            with core.lock, core.guard:
                core.check_open()
                now_ms = core.now_ms() if start else core.advance()
                self._add_rows(rows, queues[start : start + _SLICE], now_ms)
        return rows

    def _add_rows(self, rows: list[QueueCounts], names: Sequence[str], now_ms: int) -> None:
        """Lock held. One loop without calls for what most queues do not have: there may be thousands."""
        find = self._engine.queues.get
        times = self._engine.times
        known: Mapping[int, QueueTimes] = {} if times is None else times.queues
        times_of = known.get
        for name in names:
            queue = find(name)
            if queue is None:
                continue
            ready = queue.ready
            count = ready.count
            oldest_ms = ready.oldest_ms() if count else None
            delayed = len(queue.delayed)
            limited = None if queue.limits is None else queue.limited_order
            # As `QueueCounts(...)` does, in half the time.
            row = tuple.__new__(
                QueueCounts,
                (
                    name,
                    count - delayed if queue.fifo else count,
                    delayed,
                    len(queue.leases),
                    queue.waiting_bytes,
                    None if oldest_ms is None else now_ms - oldest_ms,
                    self._core.waiters.count(name) if queue.watched else 0,
                    0 if limited is None else limited.limited_count(now_ms),
                    read_counters(queue.counters),
                    times_of(queue.number, NO_TIMES),
                ),
            )
            rows.append(row)

    def counters(self, queues: Sequence[str]) -> list[tuple[str, Sequence[int]]]:
        # Without the lock: each counter is one number that only grows.
        find = self._engine.queues.get
        return [(name, read_counters(found.counters)) for name in queues if (found := find(name)) is not None]

    def changed(self, queues: Sequence[str], known: dict[str, object]) -> list[str]:
        # Without the lock, as above. Messages come and go with a counter, waiters with `watched`.
        find = self._engine.queues.get
        before = known.get
        found: list[str] = []
        for start in range(0, len(queues), _TURN):
            if start:
                time.sleep(0)
            for name in queues[start : start + _TURN]:
                queue = find(name)
                if queue is None:
                    continue
                mark = (read_counters(queue.counters), queue.watched, queue.settings)
                if before(name) != mark:
                    known[name] = mark
                    found.append(name)
        return found

    def deleted(self) -> Mapping[str, Sequence[int]]:
        with self._core.lock:
            return {account: read_counters(each) for account, each in self._engine.deleted_counters.items()}

    def measure(self) -> MessageTimes:
        if self._engine.times is None:
            self._engine.times = MessageTimes()
        return self._engine.times

    def gauges(self) -> list[Family]:
        core, values = self._core, self._engine.key_values
        families = [
            Family(
                "openq_relaxed", "gauge", "1: answers come before the sync.", [({}, int(self._is_relaxed))]
            ),
            *core.damage.families(),
            Family("openq_kv_keys", "gauge", "Keys of all buckets.", [({}, values.count)]),
            Family("openq_kv_bytes", "gauge", "Bytes of keys and values.", [({}, values.bytes)]),
            Family(
                "openq_kv_bytes_limit",
                "gauge",
                "Maximum of these bytes before puts are refused.",
                [({}, values.max_bytes)],
            ),
            *self._schedules.families(),
        ]
        if core.journal is not None:
            size = sum(segment.bytes for segment in core.journal.segments())
            families.append(Family("openq_journal_size_bytes", "gauge", "Bytes on disk.", [({}, size)]))
        return families

    def families(self) -> list[Family]:
        journal = self._core.journal
        if journal is None:
            return []
        figures = journal.commit_figures
        return [
            Family(
                "openq_journal_sync_seconds",
                "histogram",
                "Time to write and sync a group of records.",
                [({}, figures.sync_times.value())],
            ),
            Family(
                "openq_journal_group_records",
                "histogram",
                "Records that one sync made durable: the size of a group commit.",
                [({}, figures.group_records.value())],
            ),
            Family(
                "openq_journal_written_bytes_total",
                "counter",
                "Bytes written to the journal since the process started.",
                [({}, figures.written_bytes)],
            ),
        ]
