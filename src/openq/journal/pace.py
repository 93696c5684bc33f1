"""How long commits take at present: may an event loop commit by itself?"""

from __future__ import annotations

SHORT_S = 0.001
SHORT_IN_A_ROW = 16
REST_FACTOR = 10


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
