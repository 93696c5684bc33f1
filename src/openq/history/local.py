"""Archive and journal as one history: a snapshot lists its pieces, which can be read in any process.

The archive's manifest is read first and the journal from where it ends, so a row is in exactly one piece,
even while a job moves segments into the archive. A piece names its rows by position: if its segment is gone
because it was archived meanwhile, the same rows are read from the archive.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa

from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.archive import Archive, ArchiveFile, Manifest, check_path, group_bytes, matching_groups
from openq.history.journal import (
    JournalFiles,
    MessageTracker,
    SegmentContext,
    SegmentRef,
    bare_context,
    needs_tracker,
    read_segment,
)
from openq.history.selection import Selection
from openq.journal.format import make_location, offset_of, segment_of

ARCHIVE_FOLDER = "archive"  # the default folder in a data directory
PIECE_BYTES = 32 << 20
MIN_PIECE_BYTES = 64 << 10  # minimum of a server
MAX_PIECES = 50_000  # pieces are made larger, up to PIECE_BYTES, to stay below
_MAX_SNAPSHOT_ATTEMPTS = 20  # each fails only if another version of the archive was committed meanwhile
_LIMIT = 1 << 63
_TYPES = {"str": str, "int": int}
_MAX_CONTEXTS, _MAX_TRACKERS = 16, 64  # in memory
_NO_TRACKER = -1


@dataclass(frozen=True)
class ScanPiece:
    """Some rows of a segment (by position) or of a file (by row groups). `rows` and `bytes` are estimates."""

    kind: str  # "segment" or "file"
    rows: int
    bytes: int
    journal: str  # the journal's salt as hex: rows of another journal are never returned
    start: int = 0
    stop: int = 0
    version: int = 0  # of the archive
    path: str = ""
    first_group: int = 0
    end_group: int = 0

    @property
    def segment(self) -> int:
        return segment_of(self.start)

    def to_json(self) -> dict[str, Any]:
        return {
            each.name: value for each in fields(self) if (value := getattr(self, each.name)) != each.default
        }

    @classmethod
    def from_json(cls, value: Any) -> ScanPiece:
        """From the value of `to_json`, which is not trusted. Raises InvalidSetting."""
        if not isinstance(value, Mapping):
            raise InvalidSetting("a piece must be a JSON object from a snapshot")
        kinds: dict[str, type] = {each.name: _TYPES[str(each.type)] for each in fields(cls)}
        for name, each in value.items():
            if name not in kinds:
                raise InvalidSetting(f"a piece has no {str(name)[:40]!r}")
            if type(each) is not kinds[name] or (isinstance(each, int) and not 0 <= each < _LIMIT):
                raise InvalidSetting(f"{name} of a piece cannot be {str(each)[:40]!r}")
        try:
            piece = cls(**value)
        except TypeError:
            raise InvalidSetting("a piece needs kind, rows, bytes and journal") from None
        if piece.kind == "segment":
            if piece.start > piece.stop or segment_of(piece.start) != segment_of(
                max(piece.start, piece.stop - 1)
            ):
                raise InvalidSetting("a piece of a segment has its start and its stop in that segment")
        elif piece.kind == "file":
            check_path(piece.path, piece.path.partition("/")[0])
            if not piece.first_group < piece.end_group:
                raise InvalidSetting("a piece of a file has at least one row group")
        else:
            raise InvalidSetting(f"a piece is a segment or a file, not {piece.kind[:40]!r}")
        return piece


@dataclass(frozen=True)
class Snapshot:
    """The pieces of a selection at one moment. Every row before `end_position` is in exactly one of them.

    `gap` is a range of positions that was requested and is no longer kept: a job that must not lose rows
    stops. `oldest_position` is where the history begins.
    """

    end_position: int
    archive_version: int | None
    pieces: tuple[ScanPiece, ...]
    gap: tuple[int, int] | None
    oldest_position: int
    journal: str = ""

    def to_json(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        found["pieces"] = [piece.to_json() for piece in self.pieces]
        return found

    @classmethod
    def from_json(cls, value: Any) -> Snapshot:
        try:
            given = {each.name: value[each.name] for each in fields(cls)}
            given["pieces"] = tuple(map(ScanPiece.from_json, given["pieces"]))
            given["gap"] = None if given["gap"] is None else (int(given["gap"][0]), int(given["gap"][1]))
            return cls(**given)
        except (KeyError, TypeError, ValueError, IndexError):
            raise InvalidSetting("this is not a snapshot of a history; check url") from None


class LocalHistory:
    """The history below a data directory, an archive, or both. Takes no lock: a server may be using it.

    Can be pickled; files are opened on first use.
    """

    def __init__(
        self,
        data_path: str | os.PathLike[str] | None,
        archive_path: str | os.PathLike[str] | None = None,
    ) -> None:
        if data_path is None and archive_path is None:
            raise InvalidSetting("a history needs a data directory or an archive")
        self.data_path = None if data_path is None else os.path.abspath(data_path)
        if archive_path is None:
            archive_path = os.path.join(self.data_path or "", ARCHIVE_FOLDER)
        self.archive_path = os.path.abspath(archive_path)
        self._open()

    def _open(self) -> None:
        self.archive = Archive(self.archive_path)
        self._journal: JournalFiles | None = None
        self._contexts = _ContextCache(self)

    def __repr__(self) -> str:
        return f"LocalHistory({self.data_path!r}, {self.archive_path!r})"

    def __getstate__(self) -> tuple[str | None, str]:
        return self.data_path, self.archive_path

    def __setstate__(self, state: tuple[str | None, str]) -> None:
        self.data_path, self.archive_path = state
        self._open()

    @property
    def journal(self) -> JournalFiles | None:
        """None if there is only an archive."""
        if self._journal is None and self.data_path is not None:
            self._journal = JournalFiles(self.data_path)
        return self._journal

    def end_position(self) -> int:
        """Every later row has at least this position."""
        if self.journal is not None:
            return self.journal.end_position()
        manifest = self.archive.latest()
        return 0 if manifest is None else manifest.through

    def names(self, segment: int) -> set[str]:
        """The queues that a segment mentions; none if it is gone."""
        try:
            assert self.journal is not None
            found = self.journal.ref(segment)
            return set(self._contexts.of(found, False, make_location(segment, 0)).names.values())
        except HistoryUnavailable:
            return set()

    # -- planning

    def snapshot(
        self,
        selection: Selection,
        as_of: int | datetime | None = None,
        max_bytes: int | None = None,
    ) -> Snapshot:
        """The history now; with `as_of`, that version of the archive and nothing else.

        Raises HistoryUnavailable if there is no such version.
        """
        selection.validate()
        limit = PIECE_BYTES if max_bytes is None else max_bytes
        if limit < 1:
            raise InvalidSetting(f"max_bytes must be at least 1, not {limit}")
        if as_of is not None:
            manifest = self.archive.at(as_of)
            return self._make_snapshot(selection, manifest, [], manifest.through, limit)
        for _ in range(_MAX_SNAPSHOT_ATTEMPTS):
            taken = self.archive.latest()
            journal = self.journal
            if journal is None:
                end = 0 if taken is None else taken.through
                return self._make_snapshot(selection, taken, [], end, limit)
            refs = journal.segments()
            if taken is not None and refs and _salt(refs[0]) != taken.journal:
                raise InvalidSetting(
                    f"the archive {self.archive_path} was made from another journal than that of "
                    f"{self.data_path}; name the right one"
                )
            if taken is not None and not taken.origin.get("complete", True):
                raise InvalidSetting(
                    f"the archive {self.archive_path} was read from a server with a token that may not see "
                    "all queues, so it cannot replace the journal: read it without a data directory"
                )
            # Segments dropped meanwhile are in a later version of the archive, or in its first: read that.
            is_whole = taken is not None and _hole(taken, refs) is None
            if is_whole or _version(self.archive.latest()) == _version(taken):
                end = make_location(refs[-1].number, refs[-1].size) if refs else 0
                return self._make_snapshot(selection, taken, refs, end, limit)
        raise HistoryUnavailable("the archive is replaced faster than it can be read; try again")

    def _make_snapshot(
        self, selection: Selection, manifest: Manifest | None, refs: list[SegmentRef], end: int, limit: int
    ) -> Snapshot:
        if selection.end_position is not None:
            end = min(end, selection.end_position)
        through = 0 if manifest is None else manifest.through
        start = max(through, selection.first_position or 0)
        pieces: list[ScanPiece] = []
        files = [] if manifest is None else manifest.pick(selection)
        total = sum(max(file.bytes, file.raw_bytes) for file in files)
        total += sum(min(ref.size, max(0, end - make_location(ref.number, 0))) for ref in refs)
        limit = max(limit, min(PIECE_BYTES, -(-total // MAX_PIECES)))
        for file in files:
            assert manifest is not None
            pieces += self._cut_file(file, manifest, selection, limit)
        for ref in refs:
            pieces += self._cut_segment(ref, selection, start, end, limit)
        oldest = make_location(refs[0].number, 0) if refs else through
        if manifest is not None and (manifest.files or manifest.first):
            oldest = min(oldest, manifest.first)
        salt = _salt(refs[0]) if refs else "" if manifest is None else manifest.journal
        gap = _requested_gap(selection, _hole(manifest, refs), oldest, end)
        return Snapshot(end, _version(manifest), tuple(pieces), gap, oldest, salt)

    def _cut_file(
        self, file: ArchiveFile, manifest: Manifest, selection: Selection, limit: int
    ) -> Iterator[ScanPiece]:
        with self.archive.open(file) as opened:
            weights = group_bytes(opened, file)
            rows = [opened.metadata.row_group(each).num_rows for each in range(len(weights))]
            wanted = matching_groups(opened, selection, range(len(weights)))
        first = 0
        for at, last in enumerate(wanted):
            begin = wanted[first]
            follower = wanted[at + 1] if at + 1 < len(wanted) else None
            if follower == last + 1 and sum(weights[begin : follower + 1]) <= limit:
                continue
            yield ScanPiece(
                *("file", sum(rows[begin : last + 1]), sum(weights[begin : last + 1]), manifest.journal),
                version=manifest.version,
                path=file.path,
                first_group=begin,
                end_group=last + 1,
            )
            first = at + 1

    def _cut_segment(
        self, ref: SegmentRef, selection: Selection, start: int, end: int, limit: int
    ) -> Iterator[ScanPiece]:
        first, last = max(start, make_location(ref.number, 0)), min(end, make_location(ref.number, ref.size))
        if first >= last or not _may_hold(ref, selection):
            return
        # Cuts may be anywhere: a record belongs to the piece with its first byte.
        count = -(-(last - first) // limit)
        cuts = [first + (last - first) * each // count for each in range(count + 1)]
        for left, right in pairwise(cuts):
            rows = ref.rows * (right - left) // max(1, ref.size)
            yield ScanPiece("segment", rows, right - left, _salt(ref), left, right)

    # -- reading

    def read(self, piece: ScanPiece, selection: Selection) -> Iterator[pa.RecordBatch]:
        """The selected rows of a piece, always the same. Raises HistoryUnavailable if they are gone."""
        if piece.kind == "file":
            groups = range(piece.first_group, piece.end_group)
            return self.archive.read_file(piece.path, selection, groups)
        return self._read_positions(piece, selection)

    def read_many(self, pieces: Iterable[ScanPiece], selection: Selection) -> Iterator[pa.RecordBatch]:
        for piece in _joined(pieces):
            yield from self.read(piece, selection)

    def _read_positions(self, piece: ScanPiece, selection: Selection) -> Iterator[pa.RecordBatch]:
        try:
            # Read all before yielding any: if the segment vanishes meanwhile, the archive is read instead,
            # and no row may come twice.
            batches = list(self._read_segment(piece, selection))
        except HistoryUnavailable:
            manifest = self.archive.latest()
            if manifest is None or manifest.through < piece.stop or manifest.journal != piece.journal:
                raise HistoryUnavailable(
                    f"positions {piece.start} to {piece.stop} (segment {piece.segment}) are neither in the "
                    "journal nor in the archive; keep more history, or archive in time"
                ) from None
            yield from self._read_archived(manifest, piece, selection)
        else:
            yield from batches

    def _read_segment(self, piece: ScanPiece, selection: Selection) -> Iterator[pa.RecordBatch]:
        journal = self.journal
        found = None
        if journal is not None:
            found = next((each for each in journal.segments() if each.number == piece.segment), None)
        if found is None or journal is None:
            raise HistoryUnavailable(f"segment {piece.segment} is no longer kept")
        if _salt(found) != piece.journal:
            raise InvalidSetting("this piece is of another journal")
        if make_location(found.number, found.size) < piece.stop:
            raise HistoryUnavailable(f"segment {piece.segment} ends before position {piece.stop}")
        context = self._contexts.of(found, needs_tracker(selection), piece.start)
        index = journal.index(found.number)
        return read_segment(
            found, selection, context=context, start=piece.start, stop=piece.stop, index=index
        )

    def _read_archived(
        self, manifest: Manifest, piece: ScanPiece, selection: Selection
    ) -> Iterator[pa.RecordBatch]:
        first = max(piece.start, selection.first_position or 0)
        end = min(piece.stop, selection.end_position if selection.end_position is not None else _LIMIT - 1)
        if first >= end:
            return
        narrow = replace(selection, first_position=first, end_position=end)
        for file in manifest.pick(narrow):
            yield from self.archive.read_file(file, narrow)


class _ContextCache:
    """The contexts of segments, computed by walking through the segments before them once.

    Trackers are cached by position: a walk continues from the nearest one, or from the archive's own state.
    """

    def __init__(self, history: LocalHistory) -> None:
        self._history = history
        self._known: OrderedDict[tuple[int, int], tuple[int, SegmentContext]] = OrderedDict()
        self._trackers: OrderedDict[int, MessageTracker] = OrderedDict()  # by position

    def of(self, ref: SegmentRef, needs_tracker: bool, start: int) -> SegmentContext:
        """For rows of this segment from position `start` on. Without a tracker: from the segment alone."""
        journal = self._history.journal
        assert journal is not None
        base = self._nearest_tracker(ref, start) if needs_tracker else _NO_TRACKER
        if needs_tracker and not ref.sealed and base < start:
            # A reader that follows the open segment asks for a later start each time: walk up to it only
            # once.
            tracker = self._walk(base, ref)
            tracker.context_for(ref, journal.index(ref.number), start=_start_inside(base, ref), stop=start)
            self._remember(start, tracker)
            base = start
        key = (ref.number, base)
        known = self._known.get(key)
        if known is not None and known[0] >= ref.size:
            self._known.move_to_end(key)
            return known[1]
        index = journal.index(ref.number)
        if base == _NO_TRACKER:
            context = bare_context(ref, index)
        else:
            tracker = self._walk(base, ref)
            context = tracker.context_for(ref, index, start=_start_inside(base, ref))
            if ref.sealed:
                self._remember(make_location(ref.number + 1, 0), tracker)
        self._known[key] = (ref.size, context)
        while len(self._known) > _MAX_CONTEXTS:
            self._known.popitem(last=False)
        return context

    def _nearest_tracker(self, ref: SegmentRef, start: int) -> int:
        """The nearest position at or before `start` with a cached tracker."""
        near = max((each for each in self._trackers if each <= start), default=-1)
        if near >= make_location(ref.number, 0):
            return near
        archive = self._history.archive
        for version in reversed(archive.versions()):
            try:
                manifest = archive.read(version)
            except HistoryUnavailable:
                continue  # removed meanwhile
            if manifest.through <= start:
                if manifest.through > near and manifest.lineage:
                    self._remember(manifest.through, MessageTracker.from_state(manifest.lineage))
                    return manifest.through
                break
        if near < 0:
            near = 0
            self._remember(near, MessageTracker())
        return near

    def _walk(self, base: int, ref: SegmentRef) -> MessageTracker:
        """A tracker after every segment from `base` up to the one before this."""
        journal = self._history.journal
        assert journal is not None
        tracker = self._trackers[base].copy()
        for each in journal.segments():
            if segment_of(base) <= each.number < ref.number:
                tracker.context_for(each, journal.index(each.number), start=_start_inside(base, each))
                self._remember(make_location(each.number + 1, 0), tracker)
        return tracker

    def _remember(self, position: int, tracker: MessageTracker) -> None:
        self._trackers[position] = tracker.copy()
        self._trackers.move_to_end(position)
        while len(self._trackers) > _MAX_TRACKERS:
            self._trackers.popitem(last=False)


def _start_inside(base: int, ref: SegmentRef) -> int | None:
    return base if segment_of(base) == ref.number and offset_of(base) else None


def _may_hold(ref: SegmentRef, selection: Selection) -> bool:
    """By the times of its first and last row."""
    since, until = selection.since_us, selection.until_us
    if not ref.rows or not ref.last_ms:
        return True
    is_before = since is not None and (ref.last_ms + 1) * 1000 <= since
    return not is_before and not (until is not None and ref.first_ms * 1000 >= until)


def _joined(pieces: Iterable[ScanPiece]) -> Iterator[ScanPiece]:
    """Merges adjacent pieces of one file, which is then opened once."""
    held: ScanPiece | None = None
    for piece in pieces:
        if held is not None and _follows(piece, held):
            held = replace(held, end_group=piece.end_group)
            continue
        if held is not None:
            yield held
        held = piece
    if held is not None:
        yield held


def _follows(piece: ScanPiece, before: ScanPiece) -> bool:
    same = (piece.kind, piece.version, piece.path) == ("file", before.version, before.path)
    return same and piece.first_group == before.end_group


def _salt(ref: SegmentRef) -> str:
    return f"{ref.salt:016x}"


def _version(manifest: Manifest | None) -> int | None:
    return None if manifest is None else manifest.version


def _hole(manifest: Manifest | None, refs: list[SegmentRef]) -> tuple[int, int] | None:
    """The positions between the end of the archive and the beginning of the journal."""
    if manifest is None or not refs:
        return None
    begin = make_location(refs[0].number, 0)
    return (manifest.through, begin) if manifest.through < begin else None


def _requested_gap(
    selection: Selection, hole: tuple[int, int] | None, oldest: int, end: int
) -> tuple[int, int] | None:
    """The requested positions that are missing. A selection without a beginning starts at the oldest row, but
    a hole in the middle is always missing."""
    first = selection.first_position
    if hole is not None and (first or 0) < hole[1] and end > hole[0]:
        return max(first or 0, hole[0]), min(hole[1], end)
    # The first segment of a journal is number 1: nothing is missing before it.
    if first is not None and first < oldest and segment_of(oldest) > 1 and first < end:
        return first, min(oldest, end)
    return None
