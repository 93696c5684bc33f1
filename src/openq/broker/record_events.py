"""The events of one record of the engine, as a pure function.

A record about several messages has one event for each, numbered from 1 in the order of the record. Records
that change nothing a reader can see (COPY, CHECKPOINT, MARK, key-values, exchanges, schedules) have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ..engine import records as r
from ..engine.records import Record
from ..model import split_failure
from . import events as e
from .events import Event
from .history import PastMessage


class Names(Protocol):
    """What a record says only by number."""

    def queue_name(self, number: int) -> str: ...
    def message_id(self, number: int, seq: int) -> str: ...


_RETURNS = {r.NACKED: e.NACKED, r.EXPIRED: e.LEASE_EXPIRED, r.RELEASED: e.RELEASED}
_MOVES = {r.REDRIVEN: e.REDRIVEN, r.MOVED: e.MOVED}

# The events that records of a kind can have.
EVENTS_OF_KIND: Mapping[int, frozenset[str]] = {
    r.PUBLISH: frozenset((e.PUBLISHED,)),
    r.RUN: frozenset((e.PUBLISHED,)),
    r.ROUTE: frozenset((e.PUBLISHED,)),
    r.DELIVER: frozenset((e.DELIVERED,)),
    r.ACK: frozenset((e.ACKED,)),
    r.RETURN: frozenset(_RETURNS.values()),
    r.EXTEND: frozenset((e.EXTENDED,)),
    r.MOVE: frozenset((e.DEAD_LETTERED, e.REDRIVEN, e.MOVED)),
    r.REMOVE: frozenset((e.EXPIRED, e.REMOVED)),
    r.PURGE: frozenset((e.PURGED,)),
    r.EDIT: frozenset((e.EDITED,)),
    r.RESCHEDULE: frozenset((e.RESCHEDULED,)),
    r.QUEUE: frozenset((e.QUEUE_CREATED, e.QUEUE_CHANGED)),
    r.UNQUEUE: frozenset((e.QUEUE_DELETED,)),
    r.EVENT: frozenset((e.CONSUMER_JOINED, e.CONSUMER_LEFT, e.ALERT)),
}

IdAt = Callable[[int], str]  # the id of the event with that number in its record


def events_of(record: Record, names: Names, id_at: IdAt, first: int = 1) -> Iterator[Event]:
    """The events of a record, from the `first` on."""
    kind = record[0]
    make = _EVENTS.get(kind)
    return iter(()) if make is None else make(record, names, id_at, first)


def _published(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    _, now_ms, number, seq, encoding, body, properties, options = record
    message = PastMessage(seq, now_ms, encoding, body, properties, options)
    if first == 1:
        yield Event(
            id_at(1),
            e.PUBLISHED,
            now_ms,
            names.queue_name(number),
            names.message_id(number, seq),
            {},
            message,
        )


def _published_run(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    _, now_ms, number, seq, encoding, bodies, properties, options = record
    queue = names.queue_name(number)
    for i in range(first - 1, len(bodies)):
        message = PastMessage(seq + i, now_ms, encoding, bodies[i], properties, options)
        message_id = names.message_id(number, seq + i)
        yield Event(id_at(i + 1), e.PUBLISHED, now_ms, queue, message_id, {}, message)


def _routed(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    _, now_ms, _, _, encoding, body, properties, options, targets = record
    for i in range(first - 1, len(targets)):
        number, seq = targets[i]
        message = PastMessage(seq, now_ms, encoding, body, properties, options)
        queue, message_id = names.queue_name(number), names.message_id(number, seq)
        yield Event(id_at(i + 1), e.PUBLISHED, now_ms, queue, message_id, {}, message)


def _same_for_each(
    record: Record,
    names: Names,
    id_at: IdAt,
    first: int,
    event: str,
    seqs: Sequence[int],
    detail: Mapping[str, Any],
) -> Iterator[Event]:
    now_ms, number = record[1], record[2]
    queue = names.queue_name(number)
    for i in range(first - 1, len(seqs)):
        yield Event(id_at(i + 1), event, now_ms, queue, names.message_id(number, seqs[i]), detail)


def _delivered(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    detail = {"consumer": record[5], "until_ms": record[4]}
    return _same_for_each(record, names, id_at, first, e.DELIVERED, record[6], detail)


def _acked(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    return _same_for_each(record, names, id_at, first, e.ACKED, record[4], {})


def _extended(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    return _same_for_each(record, names, id_at, first, e.EXTENDED, record[5], {"until_ms": record[4]})


def _removed(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    why, seqs = record[4], record[5]
    if why == r.REMOVED_EXPIRED:
        return _same_for_each(record, names, id_at, first, e.EXPIRED, seqs, {})
    detail = {"why": r.REMOVE_NAMES[why]}
    return _same_for_each(record, names, id_at, first, e.REMOVED, seqs, detail)


def _returned(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    _, now_ms, number, _, why, reason, pairs = record
    queue = names.queue_name(number)
    text = split_failure(reason)[0]
    for i in range(first - 1, len(pairs)):
        seq, due_ms = pairs[i]
        detail: dict[str, Any] = {}
        if why == r.NACKED:
            detail["reason"] = text
        if why != r.RELEASED:
            detail["due_ms"] = due_ms
        yield Event(id_at(i + 1), _RETURNS[why], now_ms, queue, names.message_id(number, seq), detail)


def _moved(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    """A message that is dead-lettered to several queues has one event for each."""
    _, now_ms, number, _, why, reason, moves = record
    queue = names.queue_name(number)
    event = _MOVES.get(why, e.DEAD_LETTERED)
    for i in range(first - 1, len(moves)):
        seq, to, _ = moves[i]
        detail: dict[str, Any] = {"to": names.queue_name(to)}
        if event == e.DEAD_LETTERED:
            detail["why"] = r.DEAD_LETTER_NAMES[why]
            detail["reason"] = split_failure(reason)[0]
        yield Event(id_at(i + 1), event, now_ms, queue, names.message_id(number, seq), detail)


def _of_message(
    record: Record, names: Names, id_at: IdAt, first: int, event: str, detail: Mapping[str, Any]
) -> Iterator[Event]:
    return _same_for_each(record, names, id_at, first, event, (record[3],), detail)


def _edited(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    return _of_message(record, names, id_at, first, e.EDITED, {})


def _rescheduled(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    return _of_message(record, names, id_at, first, e.RESCHEDULED, {"due_ms": record[4]})


def _of_queue(
    record: Record, queue: str, id_at: IdAt, first: int, event: str, detail: Mapping[str, Any]
) -> Iterator[Event]:
    if first == 1:
        yield Event(id_at(1), event, record[1], queue, None, detail)


def _purged(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    detail = {"keeps_in_flight": bool(record[3])}
    return _of_queue(record, names.queue_name(record[2]), id_at, first, e.PURGED, detail)


def _queue(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    _, now_ms, _, existed, queue, settings, created_ms = record
    # Journals of earlier versions have no flag: there the times decide.
    event = e.QUEUE_CHANGED if existed or created_ms != now_ms else e.QUEUE_CREATED
    return _of_queue(record, queue, id_at, first, event, {"settings": settings})


def _deleted(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    return _of_queue(record, names.queue_name(record[2]), id_at, first, e.QUEUE_DELETED, {})


def _added(record: Record, names: Names, id_at: IdAt, first: int) -> Iterator[Event]:
    _, _, _, _, event, queue, detail = record
    return _of_queue(record, queue, id_at, first, event, detail)


_EVENTS: Mapping[int, Callable[[Record, Names, IdAt, int], Iterator[Event]]] = {
    r.PUBLISH: _published,
    r.RUN: _published_run,
    r.ROUTE: _routed,
    r.DELIVER: _delivered,
    r.ACK: _acked,
    r.RETURN: _returned,
    r.EXTEND: _extended,
    r.MOVE: _moved,
    r.REMOVE: _removed,
    r.PURGE: _purged,
    r.EDIT: _edited,
    r.RESCHEDULE: _rescheduled,
    r.QUEUE: _queue,
    r.UNQUEUE: _deleted,
    r.EVENT: _added,
}
