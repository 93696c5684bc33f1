"""The values of subjects in the last hours, in memory: rows that changed, thinned to a budget. Pure.

A row is held until the next one: an idle queue has one row, whatever the time is. Its values are in the order
of the columns of its `Tracks`. A window that reaches back before the first row uses that one. An age would
change all the time, so a row has the time since when it grows.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from ..alert_rules.expression import Sample, Value

Row = tuple[Value, ...]
MAX_ROWS = 60  # of one subject
MAX_ALL_ROWS = 100_000  # of all subjects of a kind
MIN_ROWS = 8
STEP_S = 1.0


class Track:
    """The rows of one subject."""

    __slots__ = ("changed_s", "due_s", "held", "latest", "names", "rows", "settled", "times")

    def __init__(self, now_s: float, row: Row) -> None:
        self.times = [now_s]
        self.rows = [row]
        self.latest = row
        self.changed_s = now_s
        self.settled = False  # evaluated since its window has no change any more
        self.held: tuple[str, ...] = ()  # the rules that held then
        self.due_s = math.inf  # when an age reaches a limit of a rule
        self.names: Mapping[str, str] = {}

    def add(self, now_s: float, row: Row, step_s: float) -> None:
        """Rows that follow each other sooner than `step_s` are one."""
        if row == self.latest:
            return
        times = self.times
        if len(times) >= 2 and now_s - times[-2] < step_s:
            times[-1] = now_s
            self.rows[-1] = row
        else:
            times.append(now_s)
            self.rows.append(row)
        self.latest = row
        self.changed_s = now_s
        self.settled = False

    def drop(self, before_s: float) -> None:
        """Forget rows that no window reaches; the last one before it is still held."""
        count = bisect_right(self.times, before_s) - 1
        if count > 0:
            del self.times[:count]
            del self.rows[:count]

    def at(self, time_s: float) -> Row:
        return self.rows[max(0, bisect_right(self.times, time_s) - 1)]


class Tracks:
    """All subjects of one kind."""

    def __init__(self, kind: str, columns: Sequence[str], age: str | None = None) -> None:
        """`age` is the column whose value is the time since when it grows, or None while it is 0."""
        self.kind = kind
        self.age_at = -1 if age is None else columns.index(age)
        self.index = {f"{kind}.{name}": at for at, name in enumerate(columns)}
        self.tracks: dict[str, Track] = {}
        self.window_s = 0.0
        self._updated_s: float | None = None
        self._before_s = 0.0  # when the round before this one began
        self._step_s = STEP_S
        self._zero: Row = tuple(None if at == self.age_at else 0.0 for at in range(len(columns)))
        self.is_first = True

    def begin(self, now_s: float) -> None:
        """A round begins. Subjects that are new in a later round had nothing before."""
        self.is_first = self._updated_s is None
        self._before_s = now_s if self._updated_s is None else self._updated_s
        self._updated_s = now_s
        most = min(MAX_ROWS, max(MIN_ROWS, MAX_ALL_ROWS // max(1, len(self.tracks))))
        self._step_s = max(STEP_S, self.window_s / most)

    def update(self, name: str, row: Row, now_s: float) -> Track:
        track = self.tracks.get(name)
        if track is None:
            track = self.tracks[name] = Track(self._before_s, row if self.is_first else self._zero)
        track.add(now_s, row, self._step_s)
        if len(track.times) > 1:
            track.drop(now_s - self.window_s - self._step_s)
        return track

    def due_s(self, track: Track, ages_s: Sequence[float] | None, now_s: float) -> float:
        """When the age of a subject reaches one of these, which are in order; a second more, because times
        are rounded."""
        since_s = track.latest[self.age_at] if self.age_at >= 0 else None
        if since_s is None:
            return math.inf
        if ages_s is None:
            return now_s
        for age_s in ages_s:
            if since_s + age_s > now_s - 1:
                return since_s + age_s
        return math.inf

    def keep(self, names: Iterable[str]) -> None:
        """Forget the subjects that are gone."""
        # Their number says nothing: where queues are read in turn, a new one has no track yet.
        for name in self.tracks.keys() - names:
            del self.tracks[name]


class SubjectSource:
    """What an expression sees: the rows of one subject, and the signals that have one value.

    One object is used for all subjects, one after the other: set `track` before each evaluation.
    """

    __slots__ = ("age_at", "index", "now_s", "singles", "track")

    def __init__(self, now_s: float, singles: Mapping[str, Track], tracks: Tracks | None = None) -> None:
        self.now_s = now_s
        self.singles = singles
        self.index: Mapping[str, int] = {} if tracks is None else tracks.index
        self.age_at = -1 if tracks is None else tracks.age_at
        self.track: Track | None = None

    def _find(self, signal: str) -> tuple[Track | None, int]:
        at = self.index.get(signal)
        return (self.singles.get(signal), 0) if at is None else (self.track, at)

    def value(self, signal: str) -> Value:
        at = self.index.get(signal)
        if at is None:
            single = self.singles.get(signal)
            return None if single is None else single.latest[0]
        track = self.track
        if track is None:
            return None
        return track.latest[at] if at != self.age_at else _age(track.latest[at], self.now_s)

    def first_last(self, signal: str, window_s: float) -> tuple[Sample, Sample] | None:
        track, at = self._find(signal)
        if track is None:
            return None
        start_s = max(self.now_s - window_s, track.times[0])
        first, last = track.rows[0][at], track.latest[at]
        if first != last:  # most counters of most queues have not changed
            first = track.at(start_s)[at]
        if first is None or last is None:
            return None
        return (start_s, first), (self.now_s, last)

    def points(self, signal: str, window_s: float, count: int) -> tuple[list[float], float]:
        track, at = self._find(signal)
        step_s = window_s / (count - 1)
        if track is None:
            return [], step_s
        covered = int(min(window_s, self.now_s - track.times[0]) / step_s + 1e-9)
        moments = [self.now_s - step_s * back for back in range(covered, -1, -1)]
        if at == self.age_at:
            return [_age(track.at(moment)[at], moment) for moment in moments], step_s
        values = [track.at(moment)[at] for moment in moments]
        return [value for value in values if value is not None], step_s


def _age(since_s: Value, now_s: float) -> float:
    return 0.0 if since_s is None else max(0.0, now_s - since_s)
