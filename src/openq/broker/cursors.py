"""Named cursors: how far readers of the journal have come, and which segments are kept for them.

A cursor holds the journal from its position on, within limits. A reader that falls too far behind, or does
not report for too long, loses its hold. So a forgotten reader never fills the disk.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import InvalidSetting, OpenQError
from ..journal.format import (
    BLOCK_BYTES,
    HEADER_BYTES,
    BadHeader,
    make_location,
    offset_of,
    segment_of,
    unpack_header,
)
from ..model import check_name
from .state_file import StateFile, read_field, read_number

if TYPE_CHECKING:
    from ..journal.file_journal import Journal
    from ..journal.segments import SegmentInfo

log = logging.getLogger("openq")

HOLD_BYTES = 8 << 30
HOLD_S = 7 * 86_400
MAX_CURSORS = 10_000
MAX_OF_ONE = 1_000  # cursors of one owner
_MAX_SAMPLES = 512
_MAX_POSITION = (1 << 62) - 1
_LAST_MS = 253_402_300_799_999  # of the year 9999


class CursorNotFound(OpenQError):
    code = "cursor_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"cursor {name!r} does not exist")
        self.name = name


@dataclass(frozen=True, slots=True)
class Cursor:
    """Everything before `position` has been read."""

    name: str
    position: int
    moved_ms: int
    owner: str
    hold_bytes: int = HOLD_BYTES
    hold_s: float = HOLD_S

    @classmethod
    def from_json(cls, name: str, fields: Any) -> Cursor:
        """Read from a file that may have been edited by hand. Raises InvalidSetting."""
        return cls(
            check_name(name, "cursor"),
            read_number(fields, "position", _MAX_POSITION),
            read_number(fields, "moved_ms", _LAST_MS),
            read_field(fields, "owner", str),
            read_number(fields, "hold_bytes", _MAX_POSITION, default=HOLD_BYTES),
            read_number(fields, "hold_s", float("inf"), default=float(HOLD_S)),
        )

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["name"]
        return fields

    def moved(self, position: int, now_ms: int, hold_bytes: int | None, hold_s: float | None) -> Cursor:
        """A copy with other values. None leaves a value as it was."""
        return replace(
            self,
            position=position,
            moved_ms=now_ms,
            hold_bytes=self.hold_bytes if hold_bytes is None else hold_bytes,
            hold_s=self.hold_s if hold_s is None else hold_s,
        )

    def over(self, lag_bytes: int, now_ms: int) -> str | None:
        """Why the journal is no longer held for this cursor; None: it is within its limits."""
        if lag_bytes > self.hold_bytes:
            return f"it is {lag_bytes} bytes behind, more than its {self.hold_bytes}"
        idle_s = (now_ms - self.moved_ms) / 1000
        if idle_s > self.hold_s:
            return f"it was not moved for {idle_s:.0f} s, more than its {self.hold_s:g}"
        return None


@dataclass(frozen=True, slots=True)
class CursorState:
    """A cursor as it is now. `lag_s` is an upper bound: the maximum age of unread records."""

    cursor: Cursor
    lag_bytes: int
    lag_s: float
    lost: str | None  # why it no longer holds the journal


class Cursors(Protocol):
    """The interface of the cursors of any store."""

    @property
    def holds_all(self) -> bool: ...
    def get(self, name: str) -> Cursor | None: ...
    def put(
        self,
        name: str,
        position: int,
        owner: str,
        *,
        hold_bytes: int | None = None,
        hold_s: float | None = None,
    ) -> CursorState: ...
    def remove(self, name: str) -> Cursor: ...
    def states(self) -> list[CursorState]: ...


def check_room(owners: Sequence[str], owner: str) -> None:
    """Check the limits for one more cursor beside those of `owners`."""
    if len(owners) >= MAX_CURSORS:
        raise InvalidSetting(f"there are {MAX_CURSORS} cursors; remove one that is not needed")
    if owners.count(owner) >= MAX_OF_ONE:
        raise InvalidSetting(f"you have {MAX_OF_ONE} cursors; remove one that is not needed")


class LocalCursors:
    def __init__(self, file: StateFile, journal: Journal | None, now_ms: Callable[[], int]) -> None:
        self._file = file
        self._journal = journal
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._cursors: dict[str, Cursor] = {}
        # Samples of where the journal ended, with times: records after such a position are newer than its
        # time.
        self._samples: deque[tuple[int, int]] = deque(maxlen=_MAX_SAMPLES)
        self._created: dict[int, int] = {}  # segment -> when it was created
        for name, fields in file.read().items():
            try:
                self._cursors[name] = Cursor.from_json(name, fields)
            except InvalidSetting as error:
                file.mark_unreadable(f"cursor {name[:100]!r}: {error}")
        if file.is_unreadable:
            log.error(
                "nobody knows what cursors hold, so nothing of the journal is freed: put the cursors again, "
                "then remove %s",
                file.unreadable_path,
            )
        self._take_sample()

    @property
    def holds_all(self) -> bool:
        """The held positions cannot be read: until that is resolved, the whole journal is kept."""
        return self._file.is_unreadable

    def get(self, name: str) -> Cursor | None:
        return self._cursors.get(name)

    def put(
        self,
        name: str,
        position: int,
        owner: str,
        *,
        hold_bytes: int | None = None,
        hold_s: float | None = None,
    ) -> CursorState:
        """Move or create a cursor; on disk when this returns. None leaves a value as it was."""
        check_name(name, "cursor")
        self._take_sample()
        journal = self._journal
        if journal is not None:
            if not 0 <= position <= journal.durable_location:
                raise InvalidSetting(
                    f"position {position} is beyond the end of the journal, {journal.durable_location}"
                )
            # "From the beginning" is where the journal begins now, not a segment that was freed long ago.
            position = position or make_location(journal.segments()[0].number, HEADER_BYTES)
        with self._lock:
            known = self._cursors.get(name)
            if known is None:
                check_room([each.owner for each in self._cursors.values()], owner)
                known = Cursor(name, position, 0, owner)
            moved = known.moved(position, self._now_ms(), hold_bytes, hold_s)
            cursors = {**self._cursors, name: moved}
            self._save(cursors)
            self._cursors = cursors
        return self._state(moved, self._segments(), self._now_ms())

    def remove(self, name: str) -> Cursor:
        with self._lock:
            cursors = dict(self._cursors)
            gone = cursors.pop(name, None)
            if gone is None:
                raise CursorNotFound(name)
            self._save(cursors)
            self._cursors = cursors
        return gone

    def _save(self, cursors: dict[str, Cursor]) -> None:
        self._file.write({name: cursor.to_json() for name, cursor in cursors.items()})

    def states(self) -> list[CursorState]:
        self._take_sample()
        segments, now_ms = self._segments(), self._now_ms()
        return [self._state(cursor, segments, now_ms) for _, cursor in sorted(self._cursors.items())]

    def held_from(self, segments: Sequence[SegmentInfo], now_ms: int) -> int | None:
        """The first segment that a cursor still holds; None: no cursor holds one."""
        if self.holds_all:
            return segments[0].number
        held = [
            max(segment_of(cursor.position), segments[0].number)
            for cursor in self._cursors.values()
            if cursor.over(_behind(cursor.position, segments), now_ms) is None
        ]
        return min(held, default=None)

    def _state(self, cursor: Cursor, segments: Sequence[SegmentInfo], now_ms: int) -> CursorState:
        if not segments:
            return CursorState(cursor, 0, 0.0, cursor.over(0, now_ms))
        lag_bytes = _behind(cursor.position, segments)
        oldest = segments[0].number
        if segment_of(cursor.position) < oldest:
            first = make_location(oldest, HEADER_BYTES)
            lost: str | None = f"positions {cursor.position} to {first} are not kept any more"
        else:
            lost = cursor.over(lag_bytes, now_ms)
        since_ms = self._since_ms(cursor.position, segments, now_ms) if lag_bytes else now_ms
        return CursorState(cursor, lag_bytes, max(0, now_ms - since_ms) / 1000, lost)

    def _segments(self) -> list[SegmentInfo]:
        return [] if self._journal is None else self._journal.segments()

    def _take_sample(self) -> None:
        journal = self._journal
        if journal is None:
            return
        # Where the last block ends; `durable_location` is behind the head of the next one.
        end_location, now_ms = journal.durable_location - BLOCK_BYTES, self._now_ms()
        if self._samples and self._samples[-1][0] == end_location:
            self._samples.pop()  # nothing was written meanwhile: the later time is the better bound
        self._samples.append((end_location, now_ms))

    def _since_ms(self, position: int, segments: Sequence[SegmentInfo], now_ms: int) -> int:
        """The latest known time before which nothing after `position` was written."""
        times = [time_ms for end_location, time_ms in list(self._samples) if end_location <= position]
        before = [segment for segment in segments if segment.number <= segment_of(position)]
        times += [segment.first_ms for segment in before if segment.first_ms is not None]
        if not times:
            times.append(self._created_ms((before or segments[:1])[-1]))
        return min(max(times), now_ms)

    def _created_ms(self, segment: SegmentInfo) -> int:
        known = self._created.get(segment.number)
        if known is not None:
            return known
        try:
            fd = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                created_ms = unpack_header(os.pread(fd, HEADER_BYTES, 0)).created_ms
            finally:
                os.close(fd)
        except (OSError, BadHeader):
            return segment.first_ms or 0  # freed just now
        if len(self._created) > 10_000:
            self._created.clear()
        self._created[segment.number] = created_ms
        return created_ms


def _behind(position: int, segments: Sequence[SegmentInfo]) -> int:
    """How many bytes of the journal come after a position."""
    number = segment_of(position)
    behind = sum(segment.bytes for segment in segments if segment.number >= number)
    if any(segment.number == number for segment in segments):
        behind -= offset_of(position)
    return max(0, behind)
