"""Long operations over many messages, the same for every store: search, redrive, replay.

A broker supplies the messages, some hundred at a time, and the function that handles a few of them. This
module decides when to continue, how fast, and when to stop.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator

from ..engine.publishing import make_properties
from ..errors import InvalidSetting
from ..model import DeliveryOptions, Draft, Entry
from .filters import matches
from .interface import Filter, SearchResult

CHUNK = 256
MAX_LOADED_BYTES = 8 << 20
MIN_RATE = 0.01  # messages a second; a slower rate is of no use
_REPLAYED = 100  # messages replayed at once
_PAUSE_S = 0.1  # how long a slow redrive or replay may take to notice that it must stop

IdOf = Callable[[Entry], str]
Progress = Callable[[int], bool]  # called with the number done, also during waits; False stops


def check_rate(rate: float | None) -> None:
    if rate is not None and not MIN_RATE <= rate < math.inf:
        raise InvalidSetting(f"rate must be at least {MIN_RATE} messages a second, not {rate!r}")


def split_by_size(entries: list[Entry]) -> Iterator[list[Entry]]:
    """The same entries in parts whose bodies fit in memory together: `LIGHT` bytes, or one message."""
    part: list[Entry] = []
    size = 0
    for entry in entries:
        size += entry.size
        if part and size > MAX_LOADED_BYTES:
            yield part
            part, size = [], entry.size
        part.append(entry)
    if part:
        yield part


def chosen(candidates: Iterable[list[Entry]], id_of: IdOf, filter: Filter) -> Iterator[list[Entry]]:
    for part in candidates:
        yield [entry for entry in part if matches(id_of, entry, filter)]


def search(
    candidates: Iterable[list[Entry]],
    id_of: IdOf,
    filter: Filter,
    limit: int,
    budget_s: float,
    max_bytes: int | None = None,
) -> SearchResult:
    """Stops at the limit, when the time is up, or before `max_bytes` of bodies.

    The first match is always returned.
    """
    deadline = time.monotonic() + budget_s
    matching: list[Entry] = []
    scanned = size = 0
    complete = True
    for part in candidates:
        if len(matching) > limit or time.monotonic() > deadline:
            complete = False
            break
        scanned += len(part)
        for entry in part:
            if matches(id_of, entry, filter):
                size += entry.size
                if max_bytes is not None and size > max_bytes and matching:
                    return SearchResult(matching[:limit], False, scanned)
                matching.append(entry)
    return SearchResult(matching[:limit], complete and len(matching) <= limit, scanned)


def redrive(
    parts: Iterable[list[Entry]],
    act: Callable[[list[Entry]], int],
    rate: float | None,
    progress: Progress | None,
) -> int:
    """`act` redrives a few dead letters and returns how many moved."""
    step = _step(CHUNK, rate)
    pace = Pace(rate, progress)
    done = 0
    for part in parts:
        for start in range(0, len(part), step):
            done += act(part[start : start + step])
            if not pace.goes_on(done):
                return done
    return done


def replay(
    drafts: Iterable[Draft],
    act: Callable[[list[Draft]], int],
    rate: float | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> int:
    """`act` publishes a few messages again, or counts them in a dry run. A dry run has no rate limit."""
    step = _step(_REPLAYED, rate)
    pace = Pace(None if dry_run else rate, progress)
    count = 0
    batch: list[Draft] = []
    for draft in drafts:
        batch.append(draft)
        if len(batch) == step:
            count += act(batch)
            batch = []
            if not pace.goes_on(count):
                break
    return count + act(batch)


def chosen_drafts(drafts: Iterable[Draft], id_of: IdOf, filter: Filter | None) -> Iterable[Draft]:
    if filter is None:
        return drafts
    return (draft for draft in drafts if matches(id_of, _as_entry(draft), filter))


def _as_entry(draft: Draft) -> Entry:
    """A past message in the form that filters take."""
    options = DeliveryOptions(id=draft.id, type=draft.type, group=draft.group, priority=draft.priority)
    return Entry(0, 0, 0, len(draft.body), draft.encoding, draft.body, make_properties(draft), options)


def _step(maximum: int, rate: float | None) -> int:
    """How many messages are handled at once: a tenth of a second's worth."""
    return maximum if rate is None else max(1, min(maximum, int(rate / 10)))


class Pace:
    """How fast an operation goes, and whether it goes on.

    `progress` blocks while the operation is paused. That time is not made up for: after a pause of a minute
    the rate is what it was before.
    """

    def __init__(self, rate: float | None, progress: Progress | None) -> None:
        self._rate = rate
        self._progress = progress
        self._started = time.monotonic()

    def reports(self, done: int) -> bool:
        """False if the operation must stop."""
        if self._progress is None:
            return True
        before = time.monotonic()
        goes_on = self._progress(done)
        self._started += time.monotonic() - before
        return goes_on

    def due(self) -> float:
        """How many messages the rate allows by now."""
        return math.inf if self._rate is None else (time.monotonic() - self._started) * self._rate

    def goes_on(self, done: int) -> bool:
        """Wait until the next messages are due. False if the operation must stop, also during the wait."""
        if not self.reports(done):
            return False
        while self._rate is not None and (left := (done - self.due()) / self._rate) > 0:
            if not self.reports(done):
                return False
            time.sleep(min(left, _PAUSE_S))
        return True
