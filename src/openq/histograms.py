"""Histograms that cost little to fill: a bucket is the number of bits of a whole number. Pure.

The value is a count of units (milliseconds, microseconds, records). Bucket k holds the values below 2**k and
not below 2**(k-1), so its bound is 2**k units: an observation is one `bit_length` and one addition. There is
no lock: each histogram has one writer at a time (a lock that the caller holds anyway, one thread, or one
event loop).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

_BITS = 64  # values of more bits are counted in the last bucket


class Exemplar(NamedTuple):
    """One observation, and the trace it belongs to."""

    value: float
    trace_id: str
    time_s: float


class HistogramValue(NamedTuple):
    """Observations by bucket. There is one count more than there are bounds: that of larger ones."""

    bounds: Sequence[float]
    counts: Sequence[int]
    sum: float
    exemplars: Mapping[int, Exemplar] = {}


class Histogram:
    __slots__ = ("_exemplars", "_first", "_last", "_unit", "counts", "total")

    def __init__(self, unit: float, first: int = 0, last: int = 26) -> None:
        """`unit` is what one means in the metric, `first` and `last` the bits of the bounds that are
        shown.
        """
        self._unit = unit
        self._first = first
        self._last = last
        self.counts = [0] * (_BITS + 1)
        self.total = 0
        self._exemplars: dict[int, Exemplar] | None = None  # the newest of each bucket, by bits

    def observe(self, value: int) -> None:
        if value < 0:
            value = 0  # the clock of another machine may be behind
        bits = value.bit_length()
        self.counts[bits if bits < _BITS else _BITS] += 1
        self.total += value

    def observe_many(self, values: Sequence[int]) -> None:
        """Values of one batch are often in one bucket: then this is two additions."""
        low, high = min(values), max(values)
        if low < 0 or high.bit_length() > _BITS:
            for value in values:
                self.observe(value)
            return
        bits = high.bit_length()
        if low.bit_length() == bits:
            self.counts[bits] += len(values)
        else:
            counts = self.counts
            for value in values:
                counts[value.bit_length()] += 1
        self.total += sum(values)

    def keep_exemplar(self, value: int, trace_id: str, time_ms: int) -> None:
        """Show the trace of a value that was observed: the newest of each bucket is kept."""
        value = max(value, 0)
        if self._exemplars is None:
            self._exemplars = {}
        bits = min(value.bit_length(), _BITS)
        self._exemplars[bits] = Exemplar(_rounded(value * self._unit), trace_id, time_ms / 1000)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def value(self) -> HistogramValue:
        return merged([self])


def merged(histograms: Iterable[Histogram]) -> HistogramValue:
    """One value of several histograms with the same unit and bounds."""
    each = list(histograms)
    unit, first, last = each[0]._unit, each[0]._first, each[0]._last
    columns = [sum(column) for column in zip(*(one.counts for one in each), strict=True)]
    counts = [sum(columns[: first + 1]), *columns[first + 1 : last + 1], sum(columns[last + 1 :])]
    bounds = [_rounded((1 << bits) * unit) for bits in range(first, last + 1)]
    exemplars = {
        min(max(bits, first), last + 1) - first: exemplar
        for one in each
        if one._exemplars is not None
        for bits, exemplar in sorted(one._exemplars.copy().items())
    }
    return HistogramValue(bounds, counts, _rounded(sum(one.total for one in each) * unit), exemplars)


def _rounded(value: float) -> float:
    """Without the noise of floating point: 0.064, not 0.064000000000000001."""
    return round(value, 9) if isinstance(value, float) else value
