"""Records the built-in history: samples the counters of all queues each second, and writes rows
(`series.py`).

The total is that of all queues. A queue gets a series of its own while it is among the busiest: a queue
without one replaces the least busy one when it is clearly busier. The recorder keeps the last row of every
queue, so a sample of idle queues costs one comparison each. Gauges of idle queues are refreshed a few at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence

from .interface import Broker
from .series import (
    ENTRY_BYTES,
    MAX_QUEUES,
    NAMES,
    RINGS,
    SLOTS,
    SUMS,
    TOTAL,
    SeriesPages,
    Values,
    add,
    pack_entry,
    pack_row,
    row_offset,
    unpack_entry,
    unpack_row,
)
from .statistics import COUNTERS, QueueCounts

REFRESHED = 100  # idle queues whose gauges are read again in each sample
SAMPLED_OF_REMOTE = 200  # queues that are read in each sample where a store must be asked for each
MIN_STAY_S = 60  # that a queue keeps its series
_DECAY = 0.98  # of the activity of a queue, per second
_SUM_POSITIONS = [COUNTERS.index(name) for name in SUMS]
_ROW_BYTES = 64
_ENTRIES_S = 60  # how often the names are written again: a file may be removed, and a Redis flushed


class _Buckets:
    """The open bucket of each ring of one series."""

    __slots__ = ("generation", "last", "rows", "since_s", "times_s")

    def __init__(self, generation: int, since_s: int) -> None:
        self.generation = generation
        self.since_s = since_s
        self.rows: list[Values] = [[0] * len(NAMES) for _ in RINGS]
        self.times_s = [-1] * len(RINGS)
        self.last: Values = []

    def add(self, now_s: int, values: Values) -> None:
        for at, ring in enumerate(RINGS):
            time_s = now_s // ring.step_s * ring.step_s
            if self.times_s[at] == time_s:
                add(self.rows[at], values)
            else:
                self.times_s[at] = time_s
                self.rows[at] = list(values)

    def is_idle(self, now_s: int, values: Values) -> bool:
        """Whether this row need not be written: readers fill it in."""
        idle = now_s % 60 != 0 and not any(values[: len(SUMS)]) and values == self.last
        self.last = values
        return idle


class _Queue:
    """What the recorder remembers of a queue."""

    __slots__ = ("activity", "at_s", "row", "seen_s", "times")

    def __init__(self, row: QueueCounts, now_s: int) -> None:
        self.row = row
        self.at_s = now_s  # when the row was read
        self.seen_s = now_s
        self.activity = 0.0
        self.times = _times(row)


def _times(row: QueueCounts) -> tuple[int, int, int, int]:
    """A copy: the object itself changes."""
    times = row.times
    return times.waited, times.wait_ms, times.acked, times.total_ms


class SeriesRecorder:
    def __init__(self, broker: Broker, pages: SeriesPages) -> None:
        self._broker = broker
        self._pages = pages
        self._queues: dict[str, _Queue] = {}
        self._slots: dict[str, int] = {}  # queue -> slot
        self._buckets: dict[int, _Buckets] = {}  # slot -> open buckets
        self._writes: list[tuple[int, int, bytes]] = []
        self._cursor = 0
        self._is_leading = False

    def sample(self) -> bool:
        """One sample, about once per second. False: another process records. Raises OSError or OpenQError."""
        if not self._pages.lead():
            self._is_leading = False
            return False
        now_s = self._broker.now_ms() // 1000
        if not self._is_leading:
            self._begin(now_s)
            self._is_leading = True
            return True
        names = self._broker.queues()
        rows = self._broker.statistics.of(self._changed(names))
        total = [0] * len(NAMES)
        for row in rows:
            add_sums(total, self._update(row, now_s))
        self._forget(names)
        self._add_gauges(total, now_s)
        self._record(TOTAL, now_s, total)
        if now_s % _ENTRIES_S == 0:
            self._write_entries()
        self._write()
        return True

    # -- reading ----------------------------------------------------------------------------------

    def _begin(self, now_s: int) -> None:
        """Counting starts here; what happened before is in the rows of an earlier process."""
        self._load(now_s)
        rows = self._broker.statistics.of(self._broker.queues())
        self._queues = {row.name: _Queue(row, now_s) for row in rows}

    def _load(self, now_s: int) -> None:
        """The queues that have a series, and the open buckets of an earlier process."""
        self._slots.clear()
        self._buckets.clear()
        for slot in range(SLOTS):
            entry = unpack_entry(self._pages.read(slot, 0, ENTRY_BYTES))
            if entry is None or (slot == TOTAL) != (entry[0] == ""):
                continue
            name, generation = entry
            if slot != TOTAL:
                self._slots[name] = slot
            buckets = self._buckets[slot] = _Buckets(generation, now_s)
            for at, ring in enumerate(RINGS):
                time_s = now_s // ring.step_s * ring.step_s
                data = self._pages.read(slot, row_offset(at, time_s), _ROW_BYTES)
                row = unpack_row(data, generation)
                if row is not None and row[0] == time_s:
                    buckets.times_s[at], buckets.rows[at] = row
        if TOTAL not in self._buckets:
            self._open(TOTAL, "", now_s)

    def _changed(self, names: Sequence[str]) -> list[str]:
        """The queues to read: those with a series, those that changed, and some others in turn."""
        if not names:
            return []
        known = self._queues
        self._cursor = (self._cursor + REFRESHED) % len(names)
        chosen = dict.fromkeys(self._slots)
        if self._broker.storage.waits:
            turns = [*names[self._cursor :], *names[: self._cursor]]
            chosen.update(dict.fromkeys(turns[: SAMPLED_OF_REMOTE - len(chosen)]))
            return list(chosen)
        for name, counters in self._broker.statistics.counters(names):
            found = known.get(name)
            if found is None or found.row.counters != counters:
                chosen[name] = None
        chosen.update(dict.fromkeys(names[self._cursor : self._cursor + REFRESHED]))
        return list(chosen)

    def _update(self, row: QueueCounts, now_s: int) -> Values:
        """The values of one queue since its last sample; recorded if it has a series."""
        found = self._queues.get(row.name)
        if found is None:  # it is new: all that it counted is news
            found = self._queues[row.name] = _Queue(row, now_s)
            before: Sequence[int] = [0] * len(COUNTERS)
            times = (0, 0, 0, 0)
        else:
            before, times = found.row.counters, found.times
            if row.counters[COUNTERS.index("published")] < before[COUNTERS.index("published")]:
                before, times = [0] * len(COUNTERS), (0, 0, 0, 0)  # deleted and created again
        values = [max(0, row.counters[at] - before[at]) for at in _SUM_POSITIONS]
        measured = _times(row)
        waited, wait_ms, acked, total_ms = (max(0, a - b) for a, b in zip(measured, times, strict=True))
        values += (row.ready, row.delayed, row.in_flight, row.oldest_age_ms or 0)
        values += (wait_ms // waited if waited else 0, total_ms // acked if acked else 0)
        found.activity = found.activity * _DECAY ** (now_s - found.seen_s) + sum(values[: len(SUMS)])
        found.row, found.at_s, found.seen_s, found.times = row, now_s, now_s, measured
        slot = self._slots.get(row.name)
        if slot is None and any(values[: len(SUMS)]):
            slot = self._slot_for(row.name, found.activity, now_s)
        if slot is not None:
            self._record(slot, now_s, values)
        return values

    def _forget(self, names: Sequence[str]) -> None:
        if len(self._queues) > len(names):
            existing = set(names)
            for name in [name for name in self._queues if name not in existing]:
                del self._queues[name]
        # The series of a deleted queue stays readable until another queue needs its slot.

    def _add_gauges(self, total: Values, now_s: int) -> None:
        at = len(SUMS)
        oldest_ms = 0
        for each in self._queues.values():
            row = each.row
            total[at] += row.ready
            total[at + 1] += row.delayed
            total[at + 2] += row.in_flight
            if row.oldest_age_ms is not None:
                oldest_ms = max(oldest_ms, row.oldest_age_ms + (now_s - each.at_s) * 1000)
        total[at + 3] = oldest_ms

    # -- slots ------------------------------------------------------------------------------------

    def _slot_for(self, name: str, activity: float, now_s: int) -> int | None:
        """A free slot, or that of a queue that is much less busy."""
        if len(self._slots) < MAX_QUEUES:
            slot = next(each for each in range(1, SLOTS) if each not in self._buckets)
        else:
            least = min(self._slots, key=lambda each: self._activity(each, now_s))
            slot = self._slots[least]
            is_new = now_s - self._buckets[slot].since_s < MIN_STAY_S
            if least in self._queues and (is_new or activity < 2 * self._activity(least, now_s)):
                return None
            del self._slots[least]
        self._slots[name] = slot
        self._open(slot, name, now_s)
        return slot

    def _activity(self, name: str, now_s: int) -> float:
        found = self._queues.get(name)
        return -1.0 if found is None else found.activity * float(_DECAY ** (now_s - found.seen_s))

    def _open(self, slot: int, name: str, now_s: int) -> None:
        """A new generation: the rows of the queue before read as missing."""
        known = self._buckets.get(slot)
        generation = (1 if known is None else known.generation + 1) ^ (now_s << 8) & 0xFFFFFFFF
        self._buckets[slot] = _Buckets(generation, now_s)
        self._writes.append((slot, 0, pack_entry(name, generation)))

    # -- writing ----------------------------------------------------------------------------------

    def _record(self, slot: int, now_s: int, values: Values) -> None:
        buckets = self._buckets[slot]
        buckets.add(now_s, values)
        if buckets.is_idle(now_s, values):
            return
        for at, row in enumerate(buckets.rows):
            time_s = buckets.times_s[at]
            self._writes.append((slot, row_offset(at, time_s), pack_row(time_s, row, buckets.generation)))

    def _write_entries(self) -> None:
        for name, slot in (("", TOTAL), *self._slots.items()):
            self._writes.append((slot, 0, pack_entry(name, self._buckets[slot].generation)))

    def _write(self) -> None:
        """Raises OSError or OpenQError. Rows that were not written are missing; the names follow later."""
        writes, self._writes = self._writes, []
        if writes:
            self._pages.write(writes)


def add_sums(total: Values, values: Values) -> None:
    """The sums of one queue. Averages are weighted; gauges are summed elsewhere, from all queues."""
    gauges = total[len(SUMS) :]
    add(total, values)
    total[len(SUMS) : len(SUMS) + 4] = gauges[:4]
