"""How long commits take at present: may an event loop commit by itself? And rests of background work."""

from __future__ import annotations

import time

SHORT_S = 0.001
SHORT_IN_A_ROW = 4
REST_FACTOR = 10
MAX_REST_S = 0.02


class SyncPace:
    """Whether the last commits, each a write and a sync, were short.

    A commit that is not short delays every connection of the loop that made it. It cannot be foreseen, so the
    share of such commits is bounded: after a commit of `d` seconds, whichever thread made it, a loop commits
    by itself only after `REST_FACTOR * d` seconds and `SHORT_IN_A_ROW` short commits. So a loop spends less
    than 10 % of its time in commits that are not short. On a disk whose commits are never short it makes
    none.
    """

    __slots__ = ("_in_a_row", "_rests_until_s")

    def __init__(self) -> None:
        self._in_a_row = 0
        self._rests_until_s = 0.0

    def add(self, began_s: float, ended_s: float) -> None:
        """A commit, with its times on a monotonic clock."""
        seconds = ended_s - began_s
        if seconds < SHORT_S:
            self._in_a_row += 1
        else:
            self._in_a_row = 0
            self._rests_until_s = max(self._rests_until_s, ended_s + REST_FACTOR * seconds)

    def is_short(self, now_s: float) -> bool:
        return self._in_a_row >= SHORT_IN_A_ROW and now_s >= self._rests_until_s


class WorkRests:
    """Rests of a thread that works in the background: each is `factor` times as long as the work before it.

    A thread that computes holds the interpreter while others wait for it, at every step of theirs.
    """

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._began_s = time.monotonic()

    def rest(self) -> None:
        time.sleep(min(self._factor * (time.monotonic() - self._began_s), MAX_REST_S))
        self._began_s = time.monotonic()
