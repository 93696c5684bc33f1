"""The progress of long work: a bar on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import sys
import time

from .output import duration_text
from .terminal import is_terminal, say

BAR_WIDTH = 24


class ProgressBar:
    """How many of `total` are done; None if the total is unknown."""

    _BAR_INTERVAL_S = 0.2
    _LINE_INTERVAL_S = 10.0

    def __init__(self, what: str, total: int | None) -> None:
        self._what = what
        self._total = total
        self._watched = is_terminal(sys.stderr)
        self._started = time.monotonic()
        # Short work shows nothing.
        self._next = self._started + (2 * self._BAR_INTERVAL_S if self._watched else self._LINE_INTERVAL_S)
        self._shown = False

    def update(self, done: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (self._BAR_INTERVAL_S if self._watched else self._LINE_INTERVAL_S)
        text = line(self._what, done, self._total, now - self._started, self._watched)
        if self._watched:
            self._shown = True
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
        else:
            say(text)

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False


def line(what: str, done: int, total: int | None, seconds: float, bar: bool) -> str:
    """Count, rate and remaining time, for the bar and the line alike."""
    rate = done / seconds if seconds > 0 else 0.0
    speed = f", {rate:.0f}/s" if rate >= 10 else f", {rate:.1f}/s"
    if not total:
        return f"{what}: {done}{speed}"
    share = min(done / total, 1.0)
    drawn = f"[{'#' * int(share * BAR_WIDTH):<{BAR_WIDTH}}] " if bar else ""
    left = f", {duration_text(max(total - done, 0) / rate)} left" if rate > 0 else ""
    return f"{what}: {drawn}{int(share * 100)} % ({done} of {total}){speed}{left}"
