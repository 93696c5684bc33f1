"""History from the records: timelines of single messages, and past messages to replay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..engine.queue import QueueState
from ..engine.records import (
    ACK,
    COPY,
    DELIVER,
    EDIT,
    EXTEND,
    ITEMS,
    MOVE,
    PUBLISH,
    PURGE,
    REMOVE,
    RESCHEDULE,
    RETURN,
    ROUTE,
    RUN,
    Record,
    decode,
    item_content,
    touched_messages,
)
from ..engine.routing import is_default
from ..engine.rules import own_seq
from ..errors import HistoryUnavailable, JournalDamaged
from ..model import DeliveryOptions, Draft, Properties, QueueSettings
from . import timeline
from .interface import TimelineStep

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..journal.file_journal import Journal


@dataclass(frozen=True, slots=True)
class HistoryRange:
    """A part of the history. Times are those of publishing; `until_ms` is not included."""

    since_ms: int = 0
    until_ms: int | None = None
    after_seq: int = 0
    segment: int | None = None  # only messages in this segment of the journal
    limit: int = 100
    max_bytes: int | None = None  # of bodies: the message that reaches it is the last one

    def is_full(self, found: Iterable[PastMessage]) -> bool:
        """Whether the limit of messages or bytes is reached."""
        sizes = [len(each.body) for each in found]
        return len(sizes) >= self.limit or (self.max_bytes is not None and sum(sizes) >= self.max_bytes)


@dataclass(slots=True)
class PastMessage:
    seq: int
    time_ms: int
    encoding: int
    body: bytes
    properties: Properties | None
    options: DeliveryOptions | None


class History(Protocol):
    def timeline(self, engine: Engine, queue: QueueState, message_id: str) -> list[TimelineStep]: ...

    def published(
        self,
        engine: Engine,
        queue: QueueState,
        since_ms: int | None,
        since_id: str | None,
        now_ms: int,
        include_purged: bool = False,
        until_ms: int | None = None,
    ) -> Iterator[Draft]:
        """The messages published to the queue from a point on, oldest first, each once.

        Messages that a purge removed are left out, unless they are requested.
        """
        ...

    def past(self, number: int, range_: HistoryRange) -> list[PastMessage]:
        """The messages published to the queue of that number, by sequence."""
        ...


_NO_LIMIT = 1 << 62


class MemoryHistory:
    """The last records of a broker without a disk."""

    def __init__(self, records: deque[Record]) -> None:
        self._records = records

    def timeline(self, engine: Engine, queue: QueueState, message_id: str) -> list[TimelineStep]:
        return _timeline(engine, queue, message_id, list(self._records))

    def published(
        self,
        engine: Engine,
        queue: QueueState,
        since_ms: int | None,
        since_id: str | None,
        now_ms: int,
        include_purged: bool = False,
        until_ms: int | None = None,
    ) -> Iterator[Draft]:
        records = list(self._records)
        purged = PurgedMessages()
        if not include_purged:
            for record in records:
                if record[0] == PURGE:
                    purged.add(PURGE, record[2] == queue.number, record[3])
                for number, seq in touched_messages(record):
                    purged.add(record[0], number == queue.number, seq)
        return _published(engine, queue, lambda: records, since_ms, since_id, now_ms, purged.seqs, until_ms)

    def past(self, number: int, range_: HistoryRange) -> list[PastMessage]:
        found: list[PastMessage] = []
        size = 0
        for record in list(self._records):
            if record[0] in _PUBLISHES and _within(record[1], range_):
                for each in _past(record, number):
                    if each.seq > range_.after_seq:
                        found.append(each)
                        size += len(each.body)
                        if len(found) >= range_.limit or size >= (range_.max_bytes or _NO_LIMIT):
                            return found
        return found


class FileHistory:
    """The records in the journal's segments, found through their sidecar indexes."""

    def __init__(self, journal: Journal, found: Callable[[JournalDamaged], None]) -> None:
        """`found` is called for damage. Damaged records are left out; the rest of the history stays valid."""
        self._journal = journal
        self._report_damage = found

    def timeline(self, engine: Engine, queue: QueueState, message_id: str) -> list[TimelineStep]:
        # A message that moved has one sequence number per queue it was in. Each is looked up where the one
        # before says that the message moved.
        known: dict[int, Record] = {}
        wanted = list(_seqs(engine, queue, message_id))
        looked: set[int] = set()
        while wanted:
            seq = wanted.pop()
            if seq in looked:
                continue
            looked.add(seq)
            for location, record in self._about(seq):
                if location not in known:
                    known[location] = record
                    wanted += _relatives(record, seq)
        if not looked:
            # The publisher chose the id and the message is gone: only its record has the id.
            for _, record in self._records(0):
                wanted = [seq for seq, options in _arrivals(record) if options and options.id == message_id]
                if wanted:
                    known = {location: each for seq in wanted for location, each in self._about(seq)}
                    break
        known.update(
            self._purges({number for each in known.values() for number, _ in touched_messages(each)})
        )
        return _timeline(engine, queue, message_id, [known[location] for location in sorted(known)])

    def _about(self, seq: int) -> Iterator[tuple[int, Record]]:
        """Every record that touches a message, with its location."""
        for segment in self._journal.segments():
            index = self._journal.index(segment.number, self._report_damage)
            for row in index.rows_for_seq(seq):
                location = segment.number << 32 | index.offsets[row]
                data = self._read(location)
                if data is None:
                    continue
                if data[0] in ITEMS:  # one message of a batch: as if it had been published alone
                    head = (PUBLISH, index.times[row], index.queues[row], seq)
                    yield location, (*head, *item_content(data))
                else:
                    yield location, decode(data)

    def published(
        self,
        engine: Engine,
        queue: QueueState,
        since_ms: int | None,
        since_id: str | None,
        now_ms: int,
        include_purged: bool = False,
        until_ms: int | None = None,
    ) -> Iterator[Draft]:
        purged = set() if include_purged else self._purged(queue.number, since_ms or 0)

        def records() -> Iterator[Record]:
            return (record for _, record in self._records(since_ms or 0))

        return _published(engine, queue, records, since_ms, since_id, now_ms, purged, until_ms)

    def _purged(self, number: int, since_ms: int) -> set[int]:
        """Messages that a purge of the queue removed, from the indexes alone."""
        found = PurgedMessages()
        for segment in self._journal.segments():
            if segment.last_ms is not None and segment.last_ms < since_ms:
                continue
            try:
                index = self._journal.index(segment.number)
            except HistoryUnavailable:
                continue  # freed meanwhile
            for kind, queue, seq in zip(index.kinds, index.queues, index.seqs, strict=True):
                if queue == number:
                    found.add(kind, True, seq)
        return found.seqs

    def _purges(self, numbers: set[int]) -> Iterator[tuple[int, Record]]:
        for segment in self._journal.segments():
            index = self._journal.index(segment.number)
            if PURGE not in index.kinds.tobytes():
                continue
            for row in range(index.count):
                if index.kinds[row] == PURGE and index.queues[row] in numbers:
                    location = segment.number << 32 | index.offsets[row]
                    yield location, decode(self._journal.read(location))

    def past(self, number: int, range_: HistoryRange) -> list[PastMessage]:
        """Through the indexes: only the requested messages are read from the segments."""
        found: list[PastMessage] = []
        for segment in self._journal.segments():
            if range_.segment not in (None, segment.number):
                continue
            if segment.sealed and segment.last_ms is not None and segment.last_ms < range_.since_ms:
                continue
            if range_.until_ms is not None and (segment.first_ms or 0) >= range_.until_ms:
                break
            try:
                found += self._past_of(segment.number, number, range_, found)
            except HistoryUnavailable:
                if range_.segment is not None:
                    raise
                continue  # freed meanwhile
            if range_.is_full(found):
                break
        return found

    def _past_of(
        self, segment: int, number: int, range_: HistoryRange, before: Sequence[PastMessage]
    ) -> list[PastMessage]:
        """The messages that follow those found `before`, as far as the limits of the range allow."""
        limit = range_.limit - len(before)
        room = (range_.max_bytes or _NO_LIMIT) - sum(len(each.body) for each in before)
        index = self._journal.index(segment, self._report_damage)
        seqs, times, kinds = index.seqs, index.times, index.kinds
        first = index.first_at_or_after(range_.since_ms)
        if range_.after_seq:
            # Where the last page ended: earlier messages of this segment were returned already.
            known = [row for row in index.rows_for_seq(range_.after_seq) if kinds[row] in _PUBLISHES]
            first = max(first, known[0] + 1) if known else first
        rows: list[int] = []
        for row in index.rows_for_queue(number, first):
            if kinds[row] in _PUBLISHES and seqs[row] > range_.after_seq:
                if not _within(times[row], range_) or len(rows) == limit or room <= 0:
                    break
                rows.append(row)
                room -= index.lengths[row]
        locations = [segment << 32 | index.offsets[row] for row in rows]
        data: Sequence[bytes | None]
        try:
            data = self._journal.read_many(locations)
        except JournalDamaged:
            data = [self._read(location) for location in locations]
        found: list[PastMessage] = []
        for row, each in zip(rows, data, strict=True):
            if each is None:
                continue
            if each[0] in ITEMS:
                found.append(PastMessage(seqs[row], times[row], *item_content(each)))
            else:
                found += (past for past in _past(decode(each), number) if past.seq == seqs[row])
        return found

    def _read(self, location: int) -> bytes | None:
        try:
            return self._journal.read(location)
        except JournalDamaged as error:
            self._report_damage(error)
            return None

    def _records(self, since_ms: int) -> Iterator[tuple[int, Record]]:
        start = 0
        for segment in self._journal.segments():
            if segment.last_ms is not None and segment.last_ms < since_ms:
                start = segment.number + 1 << 32
        for location, data in self._journal.replay(start, self._report_damage):
            yield location, decode(data)


def _seqs(engine: Engine, queue: QueueState, message_id: str) -> set[int]:
    """The sequence of the message in its queue now, and the one that its id was made from."""
    return {engine.seq_of(queue, message_id), own_seq(engine.id_prefix, message_id)} - {0}


def _relatives(record: Record, seq: int) -> list[int]:
    if record[0] == MOVE:
        return [each for old, _, new in record[6] if seq in (old, new) for each in (old, new)]
    return []


def _arrivals(record: Record) -> list[tuple[int, DeliveryOptions | None]]:
    if record[0] == PUBLISH:
        return [(record[3], record[7])]
    if record[0] == ROUTE:
        return [(seq, record[7]) for _, seq in record[8]]
    return []


def _published(
    engine: Engine,
    queue: QueueState,
    records: Callable[[], Iterable[Record]],
    since_ms: int | None,
    since_id: str | None,
    now_ms: int,
    purged: set[int],
    until_ms: int | None,
) -> Iterator[Draft]:
    def past() -> Iterator[PastMessage]:
        for record in records():
            if record[0] in _PUBLISHES:
                yield from _past(record, queue.number)

    oldest_ms = max(since_ms or 0, now_ms - queue.settings.history_ms)
    left_out = purged_messages(past(), engine.id_prefix, purged.__contains__) if purged else None
    prefix, settings = engine.id_prefix, queue.settings
    return kept_drafts(past(), queue.name, settings, prefix, oldest_ms, since_id, left_out, until_ms)


def purged_messages(
    past: Iterable[PastMessage], id_prefix: str, is_purged: Callable[[int], bool]
) -> Callable[[PastMessage], bool]:
    """Whether a message was purged, by its sequence in the queue.

    A message that was replayed was published several times: its last outcome counts for all.
    """
    last = {each.options.id: each.seq for each in past if each.options is not None and each.options.id}
    return lambda message: is_purged(last.get(_id_of(message, id_prefix), message.seq))


def _id_of(message: PastMessage, id_prefix: str) -> str:
    options = message.options
    return options.id if options is not None and options.id else f"{id_prefix}{message.seq:012x}"


def kept_drafts(
    past: Iterable[PastMessage],
    queue: str,
    settings: QueueSettings,
    id_prefix: str,
    oldest_ms: int,
    since_id: str | None,
    left_out: Callable[[PastMessage], bool] | None = None,
    until_ms: int | None = None,
) -> Iterator[Draft]:
    """The past messages of a queue that can be published again, oldest first, each once."""
    if not settings.history_ms:
        raise HistoryUnavailable(f"queue {queue!r} keeps no history; set history to more than 0")
    begun = since_id is None
    from_seq = 0 if since_id is None else own_seq(id_prefix, since_id)
    seen: set[str] = set()
    for message in past:
        message_id = _id_of(message, id_prefix)
        begun = begun or message_id == since_id or 0 < from_seq <= message.seq
        if left_out is not None and left_out(message):
            continue
        if until_ms is not None and message.time_ms >= until_ms:
            continue  # records are only about in the order of time
        if begun and message.time_ms >= oldest_ms and message_id not in seen:
            seen.add(message_id)
            yield _draft(message_id, message)
    if not begun:
        raise HistoryUnavailable(
            f"message {since_id} is not in the kept history of queue {queue!r}; "
            "use a point in time, or keep a longer history"
        )


def _draft(message_id: str, message: PastMessage) -> Draft:
    draft = Draft(message.body, message.encoding, delay_ms=0, id=message_id)
    options = message.options
    if options is not None:
        draft.priority, draft.group, draft.type = options.priority, options.group, options.type
    if message.properties is not None:
        draft.properties = message.properties
    return draft


def _messages(
    record: Record, number: int
) -> Iterator[tuple[int, int, bytes, Properties | None, DeliveryOptions | None]]:
    kind, _, queue, seq = record[:4]
    if kind == ROUTE:
        for each, each_seq in record[8]:
            if each == number:
                yield each_seq, record[4], record[5], record[6], record[7]
    elif queue == number:
        if kind == PUBLISH:
            yield seq, record[4], record[5], record[6], record[7]
        else:
            for i, body in enumerate(record[5]):
                yield seq + i, record[4], body, record[6], record[7]


_PUBLISHES = (PUBLISH, RUN, ROUTE)
_SETTLES = (ACK, REMOVE, MOVE)


class PurgedMessages:
    """Which messages of one queue its purges removed. It is fed with the events of the queue, in order.

    A purge did not remove messages that were settled before it or published after it.
    """

    def __init__(self) -> None:
        self.seqs: set[int] = set()
        self._here: set[int] = set()
        self._in_flight: set[int] = set()

    def add(self, kind: int, is_here: bool, seq: int) -> None:
        """`seq` of a purge is 1 if it kept messages in flight."""
        if not is_here:
            return
        if kind in _PUBLISHES:
            self._here.add(seq)
        elif kind == DELIVER:
            self._in_flight.add(seq)
        elif kind == RETURN:
            self._in_flight.discard(seq)
        elif kind in _SETTLES:
            self._here.discard(seq)
            self._in_flight.discard(seq)
        elif kind == PURGE:
            gone = self._here - self._in_flight if seq else self._here
            self.seqs |= gone
            self._here = self._here - gone
            if not seq:
                self._in_flight.clear()


def _within(time_ms: int, range_: HistoryRange) -> bool:
    return range_.since_ms <= time_ms and (range_.until_ms is None or time_ms < range_.until_ms)


def _past(record: Record, number: int) -> Iterator[PastMessage]:
    for seq, encoding, body, properties, options in _messages(record, number):
        yield PastMessage(seq, record[1], encoding, body, properties, options)


# -- timelines --------------------------------------------------------------------------------


def _timeline(
    engine: Engine, queue: QueueState, message_id: str, records: Iterable[Record]
) -> list[TimelineStep]:
    seqs = _seqs(engine, queue, message_id)
    steps: list[TimelineStep] = []
    places: dict[int, PurgedMessages] = {}  # by queue
    for record in records:
        if record[0] == PURGE:
            place = places.get(record[2])
            before = len(place.seqs) if place is not None else 0
            if place is not None:
                place.add(PURGE, True, record[3])
                if len(place.seqs) > before:
                    steps.append(TimelineStep(record[1], "purged", _name(engine, record[2])))
            continue
        for seq, options in _arrivals(record):
            if options is not None and options.id == message_id:
                seqs.add(seq)
        if record[0] == MOVE:
            seqs.update(new for old, _, new in record[6] if old in seqs)
        about = [(number, seq) for number, seq in touched_messages(record) if seq in seqs]
        if record[0] != COPY and about:
            steps.append(_step(engine, record, seqs))
            for number, seq in about:
                arrives = record[0] == MOVE and any(new == seq for _, _, new in record[6])
                place = places.setdefault(number, PurgedMessages())
                place.add(PUBLISH if arrives else record[0], True, seq)
    return steps


def _name(engine: Engine, number: int) -> str:
    found = engine.numbered.get(number)
    return found.name if found is not None else f"(deleted queue {number})"


def _through(route: tuple[str, str]) -> str:
    return f"through exchange {route[0]!r} with key {route[1]!r}"


def _step(engine: Engine, record: Record, seqs: set[int]) -> TimelineStep:
    kind, now_ms, number = record[:3]
    queue = _name(engine, number)
    if kind in (PUBLISH, RUN):
        publisher = None if record[6] is None else record[6].publisher
        route = None if record[7] is None else record[7].route
        parts = [f"by {publisher}"] if publisher else []
        if route is not None and not is_default(route[0]):
            parts.append(_through(route))
        return timeline.published(now_ms, queue, ", ".join(parts), record[6])
    if kind == ROUTE:
        names = ", ".join(q.name for target, _ in record[8] if (q := engine.numbered.get(target)) is not None)
        deaths = record[7].deaths
        if deaths and deaths[0].time_ms == now_ms:  # its queue was full and never held it
            return TimelineStep(now_ms, "dead-lettered", deaths[0].queue, f"to {names} ({deaths[0].kind})")
        through = f"{_through(record[7].route or ('', ''))} to {names}"
        return timeline.published(now_ms, queue, through, record[6])
    if kind == DELIVER:
        return timeline.delivered(now_ms, queue, record[5], record[4])
    if kind == ACK:
        return TimelineStep(now_ms, "acked", queue)
    if kind == RETURN:
        due_ms = next((due_ms for seq, due_ms in record[6] if seq in seqs), 0)
        return timeline.returned(now_ms, queue, record[4], record[5], due_ms)
    if kind == EXTEND:
        return timeline.extended(now_ms, queue, record[4])
    if kind == MOVE:
        target = next((to for old, to, new in record[6] if old in seqs or new in seqs), 0)
        to = engine.numbered.get(target)
        where = to.name if to is not None else "a deleted queue"
        return timeline.moved(now_ms, queue, record[4], record[5], where)
    if kind == REMOVE:
        return timeline.removed(now_ms, queue, record[4])
    if kind == RESCHEDULE:
        return timeline.rescheduled(now_ms, queue, record[4])
    return TimelineStep(now_ms, "edited" if kind == EDIT else "changed", queue)
