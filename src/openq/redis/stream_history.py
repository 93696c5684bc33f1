"""The history of a store as columns: a snapshot of the streams of its queues, in pieces, and their rows.

This is the counterpart of `openq.history.local.LocalHistory`, which reads a journal. A piece is a range of
ids of one stream of one queue. It starts at an entry that existed when the snapshot was taken: if that entry
is trimmed before the piece is read, the result is an error and not a shorter answer. Old messages that are
kept only because they are not acked yet, while later ones of their queue were dropped, are no longer part of
the history.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import pairwise

import pyarrow as pa

from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.local import MAX_PIECES, PIECE_BYTES, ScanPiece, Snapshot
from openq.history.selection import Selection
from openq.redis.net.calls import Calls
from openq.redis.net.url import Address
from openq.redis.records import is_from_elsewhere
from openq.redis.registry import CachedQueue, Registry
from openq.redis.stream_positions import (
    Id,
    QueueStreams,
    StreamInfo,
    position_of_event,
    position_of_message,
    queues_with_history,
    read_id,
    read_queue_streams,
    read_script,
    stream_keys,
    time_of,
)
from openq.redis.stream_rows import (
    EventRow,
    PublishedMessage,
    StreamRows,
    head_size,
    parse_event,
    parse_message,
)
from openq.redis.stream_scripts import HEADS, OWN_IDS, RANGES, RETURNS_AND_ARRIVALS

# Clients know pieces of segments and of files. They return pieces unchanged without looking inside, and
# expect no order among files. Ranges of several streams have no order either, so they are sent as files.
_KIND = "file"
_PAGE_BYTES = 2 << 20
_PAGE_ROWS = 2000
_BATCH_ROWS = 32 << 10
_BATCH_BYTES = 8 << 20
_IDS_AT_ONCE = 2000
_PATH = re.compile(r"(?:messages|events)/(\d{1,18})/([mh])/(\d{1,18})-(\d{1,18})/(\d{1,18})\.parquet")


@dataclass(frozen=True)
class StreamRange:
    """The content of a piece's path: entries of one stream, by sequence (messages) or by time (events)."""

    queue: int
    stream: str  # "m" or "h"
    first: Id  # an entry that existed
    last: int  # inclusive: a sequence, or a millisecond

    def piece(self, table: str, journal: str, rows: int, size: int, end: int) -> ScanPiece:
        """`end` is the end of the snapshot: more rows of the last millisecond may follow it."""
        first = f"{self.first[0]}-{self.first[1]}"
        path = f"{table}/{self.queue}/{self.stream}/{first}/{self.last}.parquet"
        return ScanPiece(_KIND, rows, size, journal, stop=end, path=path, end_group=1)

    @classmethod
    def of(cls, piece: ScanPiece) -> StreamRange:
        """Raises InvalidSetting for a piece that is not from a snapshot."""
        found = _PATH.fullmatch(piece.path)
        if piece.kind != _KIND or found is None or int(found[3]) > int(found[5]):
            raise InvalidSetting(f"{piece.path[:100]!r} is no piece of the history of this store")
        return cls(int(found[1]), found[2], (int(found[3]), int(found[4])), int(found[5]))


class StreamHistory:
    """Reads beside the servers of a store and changes nothing. For one thread."""

    def __init__(self, address: Address) -> None:
        self._calls = Calls(address)
        self._registry = Registry(address.prefix)
        self._indexes: dict[int, _EventIndex] = {}
        self._limit = address.history

    def close(self) -> None:
        self._calls.close()

    @property
    def calls(self) -> Calls:
        return self._calls

    @property
    def journal(self) -> str:
        """The id of the store."""
        if not self._registry.id_prefix:
            key = self._registry.counters_key
            found = self._calls.call(key, "HGET", key, "id_prefix", idempotent=True)
            self._registry.id_prefix = "" if found is None else found.decode()
        return self._registry.id_prefix

    def names(self, numbers: Iterable[int]) -> dict[int, str]:
        """The names of those queues that still exist."""
        known = self._registry.numbered
        return {number: known[number].name for number in numbers if number in known}

    # -- planning

    def snapshot(
        self,
        selection: Selection,
        end: int,
        as_of: int | datetime | None = None,
        max_bytes: int | None = None,
    ) -> Snapshot:
        """The rows before `end`, up to where the history is complete. See `LocalHistory.snapshot`."""
        selection.validate()
        if as_of is not None:
            raise HistoryUnavailable("this store has no archive, so there are no versions to name by asOf")
        if selection.end_position is not None:
            end = min(end, selection.end_position)
        self._registry.refresh(self._calls)
        views = [view for view in queues_with_history(self._registry) if selection.matches_queue(view.name)]
        facts = read_queue_streams(self._calls, views)
        pieces: list[ScanPiece] = []
        lost, oldest = 0, end
        limit = self._piece_limit(facts, max_bytes)
        for view in views:
            known = facts[view.number]
            pieces += self._pieces(view, known, selection, end, limit)
            is_events = selection.table == "events"
            lost = max(lost, known.lost(view.settings.history_ms, self._limit, events=is_events))
            oldest = min(oldest, _oldest(known, selection.table, end))
        first = selection.first_position
        gap = None
        # A start of 0 means: all rows that are kept. With queues that keep their history for different times,
        # the oldest row is in none of the gaps, and the gap of another queue lies after it.
        if first and first < min(lost, end):
            gap = (first, min(lost, end))
        oldest = lost if lost <= oldest else 0
        return Snapshot(end, None, tuple(pieces), gap, min(oldest, end), self.journal)

    def _piece_limit(self, facts: Mapping[int, QueueStreams], max_bytes: int | None) -> int:
        limit = PIECE_BYTES if max_bytes is None else max(1, max_bytes)
        entries = sum(each.messages.length + each.events.length for each in facts.values())
        return max(limit, min(PIECE_BYTES, entries * 200 // MAX_PIECES))

    def _pieces(
        self, view: CachedQueue, known: QueueStreams, selection: Selection, end: int, limit: int
    ) -> Iterator[ScanPiece]:
        since_ms = max(selection.since_us or 0, 0) // 1000
        since_ms = max(since_ms, time_of(max(selection.first_position or 0, 0)))
        until_ms = time_of(end - 1) + 1 if end > 0 else 0
        if selection.until_us is not None:
            until_ms = min(until_ms, max(0, -(-selection.until_us // 1000)))
        if since_ms >= until_ms:
            return
        if known.messages.length and known.messages.last[1] >= since_ms and _may_be(selection, "publish"):
            yield from self._message_pieces(view, known.messages, selection, (since_ms, until_ms), limit, end)
        is_late = known.events.last[0] >= since_ms
        if (
            selection.table == "events"
            and known.events.length
            and is_late
            and selection.events != ("publish",)
        ):
            yield from self._event_pieces(view, known.events, (since_ms, until_ms), limit, end)

    def _message_pieces(
        self, view: CachedQueue, stream: StreamInfo, selection: Selection, span: Id, limit: int, end: int
    ) -> Iterator[ScanPiece]:
        key, _ = stream_keys(view)
        low = stream.deleted[0] + 1
        asked = read_script(RANGES, [key], low, *span)
        cuts = [int(each) for each in self._calls.call(view.key, *asked, idempotent=True)]
        ranges = [(cuts[i], cuts[i + 1]) for i in range(0, len(cuts), 2)]
        first_seq, last_seq = selection.first_seq, selection.last_seq
        if first_seq is not None:
            ranges = [(max(low, first_seq), high) for low, high in ranges if high >= first_seq]
        if last_seq is not None:
            ranges = [(low, min(high, last_seq)) for low, high in ranges if low <= last_seq]
        total = sum(high - low + 1 for low, high in ranges)
        if not total:
            return
        weight = max(1, self._memory(view, key) // max(1, stream.length))
        for low, high in ranges:
            # A range may be sparse where much was dropped: make no more pieces than the whole stream would
            # need.
            count = min(-(-min(high - low + 1, stream.length) * weight // limit), high - low + 1)
            places = [low + (high - low + 1) * each // count for each in range(count + 1)]
            for left, right in pairwise(places):
                rows = min(right - left, stream.length)
                chosen = StreamRange(view.number, "m", (left, 0), right - 1)
                yield chosen.piece(selection.table, self.journal, rows, rows * weight, end)

    def _event_pieces(
        self, view: CachedQueue, stream: StreamInfo, span: Id, limit: int, end: int
    ) -> Iterator[ScanPiece]:
        _, key = stream_keys(view)
        first_ms = max(span[0], stream.first[0])
        last_ms = min(span[1] - 1, stream.last[0])
        if first_ms > last_ms:
            return
        size = self._memory(view, key)
        share = (last_ms - first_ms + 1) / (stream.last[0] - stream.first[0] + 1)
        count = max(1, min(int(size * share) // limit + 1, last_ms - first_ms + 1))
        cuts = [first_ms + (last_ms + 1 - first_ms) * each // count for each in range(count + 1)]
        asked = [
            (view.key, ("XRANGE", key, f"{left}-0", f"{right - 1}", "COUNT", 1))
            for left, right in pairwise(cuts)
        ]
        found = self._calls.many(asked, idempotent=True)
        rows = int(stream.length * share) // count
        for (_, right), page in zip(pairwise(cuts), found, strict=True):
            if isinstance(page, Exception):
                raise page
            if page:
                chosen = StreamRange(view.number, "h", read_id(page[0][0]), right - 1)
                yield chosen.piece("events", self.journal, rows, int(size * share) // count, end)

    def _memory(self, view: CachedQueue, key: bytes) -> int:
        return int(self._calls.call(view.key, "MEMORY", "USAGE", key, idempotent=True) or 0)

    # -- reading

    def read(self, piece: ScanPiece, selection: Selection) -> Iterator[pa.RecordBatch]:
        """The selected rows of a piece. Raises HistoryUnavailable, at the latest after the last row, if some
        rows are gone."""
        chosen = StreamRange.of(piece)
        if piece.journal != self.journal:
            raise InvalidSetting("this piece is of another store than the one that is here")
        self._registry.refresh(self._calls)
        view = self._registry.numbered.get(chosen.queue)
        if view is None:
            raise HistoryUnavailable(f"queue {chosen.queue} was deleted, and its history with it")
        end = piece.stop if selection.end_position is None else min(piece.stop, selection.end_position)
        first = None if selection.first_position is None else min(selection.first_position, end)
        rows = StreamRows(replace(selection, first_position=first, end_position=end), self.journal)
        if chosen.stream == "m":
            yield from self._read_messages(view, chosen, rows)
        elif selection.table == "events":
            yield from self._read_events(view, chosen, rows)
        self._check_kept(view, chosen)

    def read_many(self, pieces: Iterable[ScanPiece], selection: Selection) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            yield from self.read(piece, selection)

    def _check_kept(self, view: CachedQueue, chosen: StreamRange) -> None:
        facts = read_queue_streams(self._calls, [view])[view.number]
        if chosen.stream == "m":
            is_lost = facts.messages.deleted[0] >= chosen.first[0] or not facts.messages.added
        else:
            is_lost = not facts.events.length or facts.events.first > chosen.first
        if is_lost:
            raise HistoryUnavailable(
                f"rows of queue {view.name!r} were dropped before they could be read; keep more history"
            )

    def _read_messages(
        self, view: CachedQueue, chosen: StreamRange, rows: StreamRows
    ) -> Iterator[pa.RecordBatch]:
        held: list[PublishedMessage] = []
        weight = 0
        for sent in self._messages(view, chosen, rows.needs_bodies):
            held.append(sent)
            weight += len(sent.body or b"")
            if len(held) >= _BATCH_ROWS or weight >= _BATCH_BYTES:
                batch = rows.message_rows(view.name, held)
                if batch is not None:
                    yield batch
                held, weight = [], 0
        batch = rows.message_rows(view.name, held) if held else None
        if batch is not None:
            yield batch

    def _messages(self, view: CachedQueue, chosen: StreamRange, bodies: bool) -> Iterator[PublishedMessage]:
        key, _ = stream_keys(view)
        start: str | bytes = str(chosen.first[0])
        last = str(chosen.last)
        count = 16 if bodies else _PAGE_ROWS
        while True:
            if bodies:
                page = self._calls.call(key, "XRANGE", key, start, last, "COUNT", count, idempotent=True)
                size = 0
                for id, fields in page:
                    record = fields[1]
                    size += len(record)
                    if not is_from_elsewhere(record):
                        at = head_size(record)
                        yield parse_message(read_id(id), record[:at], len(record) - at, record[at:])
                if len(page) < count:
                    return
                start = b"(" + page[-1][0]
                count = max(1, min(_PAGE_ROWS, 2 * count, _PAGE_BYTES * len(page) // max(1, size)))
            else:
                asked = read_script(HEADS, [key], start, last, count)
                page = self._calls.call(key, *asked, idempotent=True)
                for at in range(0, len(page), 3):
                    if not is_from_elsewhere(page[at + 1]):
                        yield parse_message(read_id(page[at]), page[at + 1], page[at + 2], None)
                if not page:
                    return
                start = b"(" + page[-3]

    def _read_events(
        self, view: CachedQueue, chosen: StreamRange, rows: StreamRows
    ) -> Iterator[pa.RecordBatch]:
        _, key = stream_keys(view)
        known = _StoreEventContext(self, view)
        start: str | bytes = f"{chosen.first[0]}-{chosen.first[1]}"
        held: list[EventRow] = []
        while True:
            asked = ("XRANGE", key, start, str(chosen.last), "COUNT", _PAGE_ROWS // 4)
            page = self._calls.call(key, *asked, idempotent=True)
            for id, fields in page:
                held += parse_event(read_id(id), fields[1])
            is_last = len(page) < _PAGE_ROWS // 4
            if held and (is_last or len(held) >= _BATCH_ROWS):
                batch = rows.event_rows(view.name, held, known)
                if batch is not None:
                    yield batch
                held = []
            if is_last:
                return
            start = b"(" + page[-1][0]

    # -- facts that events lack

    def event_index(self, view: CachedQueue) -> _EventIndex:
        """All returns and arrivals in the events of a queue, up to now."""
        if len(self._indexes) > len(self._registry.numbered):
            self._indexes = {
                each: index for each, index in self._indexes.items() if each in self._registry.numbered
            }
        index = self._indexes.setdefault(view.number, _EventIndex())
        _, key = stream_keys(view)
        is_done = False
        while not is_done:
            reply = self._calls.call(
                key, *read_script(RETURNS_AND_ARRIVALS, [key], index.next), idempotent=True
            )
            for at in range(2, len(reply), 2):
                index.add(read_id(reply[at]), reply[at + 1])
            is_done, index.next = bool(reply[0]), reply[1].decode()
        return index

    def view_of(self, queue: str) -> CachedQueue | None:
        return self._registry.queues.get(queue)

    def own_ids(self, view: CachedQueue, seqs: Iterable[int]) -> dict[int, str]:
        """The ids of messages that were published with an id."""
        key, _ = stream_keys(view)
        left = sorted(seqs)
        found: dict[int, str] = {}
        while left:
            asked = read_script(OWN_IDS, [key], *left[:_IDS_AT_ONCE])
            reply = self._calls.call(key, *asked, idempotent=True)
            found |= {int(reply[at]): reply[at + 1].decode() for at in range(1, len(reply), 2)}
            left = left[int(reply[0]) :]
        return found


@dataclass
class _EventIndex:
    """The index of one queue, from its oldest kept event on."""

    next: str = "-"
    returned: dict[int, list[Id]] = field(default_factory=dict)  # by sequence, the returns that count
    ids: dict[int, str] = field(default_factory=dict)  # of messages that came from another queue
    arrived: dict[tuple[int, int], int] = field(default_factory=dict)  # (queue, sequence there) -> here

    def add(self, id: Id, value: bytes) -> None:
        if value[:1] == b"I":
            _, origin, seq, own = value.decode("utf-8", "replace").split("\x1f", 3)
            queue, _, old = origin.partition(":")
            self.arrived[int(queue), int(old)] = int(seq)
            if own:
                self.ids[int(seq)] = own
            return
        for event in parse_event(id, value):
            if event.event != "release" and event.seq is not None:
                self.returned.setdefault(event.seq, []).append(id)


class _StoreEventContext:
    """For reading one piece once."""

    def __init__(self, history: StreamHistory, view: CachedQueue) -> None:
        self._history = history
        self._view = view
        self._indexes: dict[int, _EventIndex] = {}

    def _of(self, view: CachedQueue) -> _EventIndex:
        if view.number not in self._indexes:
            self._indexes[view.number] = self._history.event_index(view)
        return self._indexes[view.number]

    def ids(self, seqs: Iterable[int]) -> Mapping[int, str | None]:
        came = self._of(self._view).ids
        listed = list(seqs)
        published = self._history.own_ids(self._view, [seq for seq in listed if seq not in came])
        return {**published, **{seq: came[seq] for seq in listed if seq in came}}

    def count(self, event: EventRow) -> int:
        returned = self._of(self._view).returned.get(event.seq or 0)
        return 1 if returned is None else 1 + bisect_left(returned, (event.ms, event.number))

    def sequence_there(self, event: EventRow) -> int | None:
        target = None if event.to_queue is None else self._history.view_of(event.to_queue)
        if target is None or event.seq is None:
            return None
        return self._of(target).arrived.get((self._view.number, event.seq))


def _may_be(selection: Selection, event: str) -> bool:
    return not selection.events or event in selection.events


def _oldest(known: QueueStreams, table: str, end: int) -> int:
    found = [end]
    if known.messages.length:
        found.append(position_of_message(*known.messages.first))
    if table == "events" and known.events.length:
        found.append(position_of_event(*known.events.first))
    return min(found)
