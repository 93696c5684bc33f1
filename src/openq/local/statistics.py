"""Counts and times of many queues of this process (`broker/statistics.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..broker.statistics import NO_TIMES, MessageTimes, QueueCounts
from ..engine.queue import QueueState, read_counters
from ..metrics import Family
from .core import BrokerCore

_SLICE = 64  # queues that are read under one hold of the lock: about 0.1 ms


class LocalStatistics:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._engine = core.engine

    def of(self, queues: Sequence[str]) -> list[QueueCounts]:
        core = self._core
        find = self._engine.queues.get
        rows: list[QueueCounts] = []
        for start in range(0, len(queues), _SLICE):
            names = queues[start : start + _SLICE]
            with core.lock, core.guard:
                core.check_open()
                now_ms = core.now_ms() if start else core.advance()
                rows += [self._row(found, now_ms) for name in names if (found := find(name)) is not None]
        return rows

    def _row(self, queue: QueueState, now_ms: int) -> QueueCounts:
        """Lock held."""
        ready = queue.ready
        oldest_ms = ready.oldest_ms() if ready.count else None
        limited = queue.limited_order if queue.limits is not None else None
        times = self._engine.times
        return QueueCounts(
            queue.name,
            queue.ready_count,
            len(queue.delayed),
            len(queue.leases),
            queue.waiting_bytes,
            None if oldest_ms is None else now_ms - oldest_ms,
            self._core.waiters.count(queue.name) if queue.watched else 0,
            0 if limited is None else limited.limited_count(now_ms),
            read_counters(queue.counters),
            NO_TIMES if times is None else times.queues.get(queue.number, NO_TIMES),
        )

    def counters(self, queues: Sequence[str]) -> list[tuple[str, Sequence[int]]]:
        # Without the lock: each counter is one number that only grows.
        find = self._engine.queues.get
        return [(name, read_counters(found.counters)) for name in queues if (found := find(name)) is not None]

    def deleted(self) -> Mapping[str, Sequence[int]]:
        with self._core.lock:
            return {account: read_counters(each) for account, each in self._engine.deleted_counters.items()}

    def measure(self) -> MessageTimes:
        if self._engine.times is None:
            self._engine.times = MessageTimes()
        return self._engine.times

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
