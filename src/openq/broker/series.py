"""The built-in history of counts: ring buffers of fixed size, one page per series.

A series is that of all queues (slot 0) or of one queue. Its page has an entry that names the queue, and three
rings: seconds of an hour, minutes of a day, quarters of an hour of 30 days. A row is 64 bytes, so it never
crosses a sector: its time, its values, and a checksum that also covers the generation of the page. So a row
that is torn, damaged, from an earlier turn of the ring, or of an earlier queue in the same slot reads as
missing. Nothing is ever cleared, and no damage stops a server.

To save writes, an idle series writes one row per minute. A missing row is therefore filled on reading if the
coarser ring has a row for its time: nothing was counted, and the gauges were as before.

To add a store: implement `SeriesPages`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from typing import NamedTuple, Protocol
from zlib import crc32

# Sums of a bucket, then values at its end, then the maximum, then averages.
SUMS = (
    "published",
    "delivered",
    "redelivered",
    "acked",
    "nacked",
    "lease_expired",
    "dead_lettered",
    "expired",
)
GAUGES = ("ready", "delayed", "in_flight")
MAXIMA = ("oldest_age",)  # milliseconds in a row, seconds outside
AVERAGES = ("wait", "publish_to_ack")  # likewise
NAMES = (*SUMS, *GAUGES, *MAXIMA, *AVERAGES)
IN_MS = frozenset((*MAXIMA, *AVERAGES))
FIRST_GAUGE = len(SUMS)
FIRST_MAXIMUM = FIRST_GAUGE + len(GAUGES)
FIRST_AVERAGE = FIRST_MAXIMUM + len(MAXIMA)
_WEIGHTS = {FIRST_AVERAGE: SUMS.index("delivered"), FIRST_AVERAGE + 1: SUMS.index("acked")}

Values = list[int]  # in the order of NAMES


class Ring(NamedTuple):
    step_s: int
    rows: int

    @property
    def span_s(self) -> int:
        return self.step_s * self.rows


RINGS = (Ring(1, 3_600), Ring(60, 1_440), Ring(900, 2_880))
MAX_QUEUES = 38  # with a series of their own
TOTAL = 0  # the slot of all queues together
SLOTS = MAX_QUEUES + 1

_ROW = Struct("<16I")  # time, values, checksum
_ROW_VALUES = Struct("<15I")
_ENTRY = Struct("<III")  # checksum, generation, length of the name
ENTRY_BYTES = 1_024
_MAX_NAME = ENTRY_BYTES - _ENTRY.size
_MAX_VALUE = (1 << 32) - 1
PAGE_BYTES = ENTRY_BYTES + _ROW.size * sum(ring.rows for ring in RINGS)  # 39 pages: 19.8 MB


class SeriesPages(Protocol):
    """Where the pages are.

    Errors are OSError or OpenQError; the caller goes on without what was not written.
    """

    def lead(self) -> bool:
        """Whether this process records now: one process of those that share the pages."""

    def read(self, slot: int, offset: int, size: int) -> bytes:
        """Fewer bytes, or none, if they were never written."""

    def write(self, writes: Sequence[tuple[int, int, bytes]]) -> None:
        """Slot, offset in its page, bytes. Not durable before the next moments: a power cut may take them."""

    def close(self) -> None: ...


def ring_offset(ring: int) -> int:
    return ENTRY_BYTES + _ROW.size * sum(each.rows for each in RINGS[:ring])


def row_offset(ring: int, time_s: int) -> int:
    step_s, rows = RINGS[ring]
    return ring_offset(ring) + time_s // step_s % rows * _ROW.size


def pack_row(time_s: int, values: Sequence[int], generation: int) -> bytes:
    data = _ROW_VALUES.pack(time_s, *[min(max(0, value), _MAX_VALUE) for value in values])
    return data + crc32(data, generation).to_bytes(4, "little")


def unpack_row(data: bytes, generation: int) -> tuple[int, Values] | None:
    if len(data) != _ROW.size:
        return None
    time_s, *values, check = _ROW.unpack(data)
    return (time_s, values) if crc32(data[:-4], generation) == check else None


def pack_entry(name: str, generation: int) -> bytes:
    """The entry of a page. A name that is too long is cut: its series is then never found, and harmless."""
    data = name.encode("utf-8", "surrogatepass")[:_MAX_NAME]
    body = _ENTRY.pack(0, generation, len(data))[4:] + data
    return (crc32(body).to_bytes(4, "little") + body).ljust(ENTRY_BYTES, b"\0")


def unpack_entry(data: bytes) -> tuple[str, int] | None:
    if len(data) != ENTRY_BYTES:
        return None
    check, generation, length = _ENTRY.unpack_from(data)
    if length > _MAX_NAME or crc32(data[4 : _ENTRY.size + length]) != check:
        return None
    try:
        return data[_ENTRY.size : _ENTRY.size + length].decode("utf-8", "surrogatepass"), generation
    except UnicodeDecodeError:
        return None


def add(into: Values, values: Sequence[int]) -> None:
    """Add the values of a later bucket. Averages are weighted with what each bucket delivered or acked."""
    for at, weight in _WEIGHTS.items():
        mine, its = into[weight], values[weight]
        if its:
            into[at] = (into[at] * mine + values[at] * its) // (mine + its)
    for at in range(FIRST_GAUGE):
        into[at] += values[at]
    into[FIRST_GAUGE:FIRST_MAXIMUM] = values[FIRST_GAUGE:FIRST_MAXIMUM]
    for at in range(FIRST_MAXIMUM, FIRST_AVERAGE):
        into[at] = max(into[at], values[at])


def add_beside(into: Values, values: Sequence[int]) -> None:
    """Add the values of another queue in the same bucket: what waits in both is added, too."""
    gauges = slice(FIRST_GAUGE, FIRST_MAXIMUM)
    waiting = [mine + its for mine, its in zip(into[gauges], values[gauges], strict=True)]
    add(into, values)
    into[gauges] = waiting


class SeriesRange(NamedTuple):
    """Values at the steps from `start_s` on; None where nothing is known."""

    start_s: int
    step_s: int
    rows: list[Values | None]

    def column(self, name: str) -> list[float | None]:
        at = NAMES.index(name)
        unit = 1000 if name in IN_MS else 1
        return [None if row is None else row[at] / unit if unit > 1 else row[at] for row in self.rows]


class SeriesReader:
    """Reads ranges of one store. Blocking: not for an event loop."""

    def __init__(self, pages: SeriesPages) -> None:
        self._pages = pages

    def slots(self) -> dict[str, tuple[int, int]]:
        """Slot and generation of each queue with a series of its own; "" is all queues together."""
        found: dict[str, tuple[int, int]] = {}
        for slot in range(SLOTS):
            entry = unpack_entry(self._pages.read(slot, 0, ENTRY_BYTES))
            if entry is not None and (slot == TOTAL) == (entry[0] == ""):
                found[entry[0]] = slot, entry[1]
        return found

    def read(self, name: str, from_s: int, to_s: int, step_s: int | None, now_s: int) -> SeriesRange | None:
        """None: the queue has no series of its own. `step_s` is raised to what is kept for so long."""
        place = self.slots().get(name)
        return None if place is None else self._read(place, from_s, to_s, step_s, now_s)

    def read_sum(
        self, wanted: Callable[[str], bool], from_s: int, to_s: int, step_s: int | None, now_s: int
    ) -> tuple[int, SeriesRange | None]:
        """How many of the queues with a series of their own are wanted, and these together."""
        places = [place for name, place in self.slots().items() if name and wanted(name)]
        summed: SeriesRange | None = None
        for place in places:
            one = self._read(place, from_s, to_s, step_s, now_s)
            if summed is None:
                summed = one
                continue
            for at, row in enumerate(one.rows):
                mine = summed.rows[at]
                if mine is None:
                    summed.rows[at] = row
                elif row is not None:
                    add_beside(mine, row)
        return len(places), summed

    def _read(
        self, place: tuple[int, int], from_s: int, to_s: int, step_s: int | None, now_s: int
    ) -> SeriesRange:
        to_s = min(to_s, now_s + 1)
        from_s = _on_time(from_s, now_s)
        ring = choose_ring(from_s, step_s, now_s)
        from_s = max(from_s, now_s - RINGS[ring].span_s + RINGS[ring].step_s)
        step_s = _multiple(step_s or auto_step(to_s - from_s), RINGS[ring].step_s)
        start_s = from_s // step_s * step_s
        if to_s <= start_s:
            return SeriesRange(start_s, step_s, [])
        fine = self._filled(place, ring, start_s, to_s)
        size = step_s // RINGS[ring].step_s
        rows = [_merged(fine[at : at + size]) for at in range(0, len(fine), size)]
        return SeriesRange(start_s, step_s, rows)

    def _filled(self, place: tuple[int, int], ring: int, from_s: int, to_s: int) -> list[Values | None]:
        step_s = RINGS[ring].step_s
        known = self._rows(place, ring, from_s, to_s)
        coarse = self._rows(place, ring + 1, from_s, to_s) if ring + 1 < len(RINGS) else {}
        coarse_s = RINGS[ring + 1].step_s if coarse else 1
        last: Values | None = None
        rows: list[Values | None] = []
        for time_s in range(from_s, to_s, step_s):
            row = known.get(time_s)
            if row is None and time_s // coarse_s * coarse_s in coarse:
                row = [0] * len(NAMES)
                if last is not None:
                    row[FIRST_GAUGE:FIRST_AVERAGE] = last[FIRST_GAUGE:FIRST_AVERAGE]
            last = row
            rows.append(row)
        return rows

    def _rows(self, place: tuple[int, int], ring: int, from_s: int, to_s: int) -> dict[int, Values]:
        """The rows of a ring by their time, read in at most two pieces."""
        slot, generation = place
        step_s, count = RINGS[ring]
        first, last = from_s // step_s, (to_s - 1) // step_s
        first = max(first, last - count + 1)
        found: dict[int, Values] = {}
        at = first
        while at <= last:
            start = at % count
            size = min(last - at + 1, count - start)
            data = self._pages.read(slot, ring_offset(ring) + start * _ROW.size, size * _ROW.size)
            for position in range(0, len(data), _ROW.size):
                row = unpack_row(data[position : position + _ROW.size], generation)
                if row is not None and first * step_s <= row[0] <= last * step_s:
                    found[row[0]] = row[1]
            at += size
        return found


def _merged(rows: Iterable[Values | None]) -> Values | None:
    merged: Values | None = None
    for row in rows:
        if row is None:
            continue
        if merged is None:
            merged = list(row)
        else:
            add(merged, row)
    return merged


def _on_time(from_s: int, now_s: int) -> int:
    """The start of what is kept, if the request is for just that and arrived a little later.

    Otherwise a request for the seconds of the last hour would get minutes, now and then.
    """
    for step_s, rows in RINGS:
        span_s = step_s * rows
        if span_s <= now_s - from_s <= span_s + _LATE_S:
            return now_s - span_s + step_s
    return from_s


def choose_ring(from_s: int, step_s: int | None, now_s: int) -> int:
    """The coarsest ring that is fine enough; a coarser one if only that reaches back so far."""
    wanted_s = step_s or auto_step(now_s - from_s)
    ring = max((at for at, each in enumerate(RINGS) if each.step_s <= wanted_s), default=0)
    while ring + 1 < len(RINGS) and now_s - from_s >= RINGS[ring].span_s:
        ring += 1
    return ring


_LATE_S = 10
_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 300, 900, 3_600, 10_800, 21_600, 86_400)
MAX_POINTS = 11_000
_AUTO_POINTS = 120


def auto_step(span_s: int) -> int:
    """A step with which a span has about a hundred points."""
    return next((step for step in _STEPS_S if span_s <= step * _AUTO_POINTS), _STEPS_S[-1])


def _multiple(step_s: int, of_s: int) -> int:
    return math.ceil(step_s / of_s) * of_s
