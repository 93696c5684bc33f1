"""Quantiles of a histogram over the last minutes, from the counts that it had before. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..histograms import HistogramValue

_STEP_S = 15.0


class RecentQuantile:
    """Of the observations of the last `window_s`, at least; at most `_STEP_S` more."""

    def __init__(self, share: float = 0.99, window_s: float = 300.0) -> None:
        self._share = share
        self._window_s = window_s
        self._before: deque[tuple[float, Sequence[int]]] = deque()

    def update(self, value: HistogramValue, now_s: float) -> float | None:
        """None if there were no observations."""
        before = self._before
        if not before or now_s - before[-1][0] >= _STEP_S:
            before.append((now_s, list(value.counts)))
        while len(before) > 1 and before[1][0] <= now_s - self._window_s:
            before.popleft()
        counts = [now - then for now, then in zip(value.counts, before[0][1], strict=True)]
        total = sum(counts)
        if total <= 0:
            return None
        seen = 0
        for bound, count in zip(value.bounds, counts, strict=False):
            seen += count
            if seen >= self._share * total:
                return bound
        return 2 * value.bounds[-1]
