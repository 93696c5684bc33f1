"""Entries of the streams of a store as events: their order, their ids, and their content. Pure.

The events of a store are in three kinds of streams, which may be on several nodes: `m` and `h` of each queue,
and one of the store (queues and consumers). Their common measure is time, so a position begins with the
millisecond on Redis's clock. Within a millisecond come first the events of the store, then published
messages, then what happened to messages, and last the deletion of queues; each by the number in its stream
and by queue. In `h` that number is a time, too. An entry with several events numbers them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..broker import events
from ..engine.records import (
    DEAD_LETTER_NAMES,
    EXPIRED,
    MOVED,
    NACKED,
    REDRIVEN,
    RELEASED,
    REMOVE_NAMES,
    REMOVED_EXPIRED,
)
from ..errors import InvalidSetting
from ..model import split_failure

OF_STORE, OF_MESSAGE, OF_QUEUE, DELETION = 1, 2, 3, 4  # kinds of entries, in the order of a position
_ID = re.compile(r"([0-9A-Za-z]{1,16})\.(\d{1,15})\.([0-4])\.(\d{1,18})\.(\d{1,15})\.(\d{1,6})")
_RETURNS = {NACKED: events.NACKED, EXPIRED: events.LEASE_EXPIRED, RELEASED: events.RELEASED}
_MOVES = {REDRIVEN: events.REDRIVEN, MOVED: events.MOVED}
_QUEUE_EVENTS = {"N": events.QUEUE_CREATED, "C": events.QUEUE_CHANGED, "D": events.QUEUE_DELETED}

# The events that the streams `h` and `m` contain; all others are in the stream of the store.
STORE_EVENTS = frozenset(
    (*_QUEUE_EVENTS.values(), events.CONSUMER_JOINED, events.CONSUMER_LEFT, events.ALERT)
)
HISTORY_EVENTS = frozenset(events.EVENT_NAMES) - STORE_EVENTS - {events.PUBLISHED}


class Position(NamedTuple):
    """The place of an event. Kind 0 is no event but the beginning of a millisecond."""

    ms: int
    kind: int = 0
    number: int = 0  # a sequence in `m`, the number within the millisecond elsewhere
    queue: int = 0
    item: int = 0

    def id(self, store: str) -> str:
        """The id of the event; `store` is the beginning of the store's name."""
        return f"{store}.{self.ms}.{self.kind}.{self.number}.{self.queue}.{self.item}"


def parse_id(text: str) -> tuple[str, Position]:
    """The store and the position of an event id."""
    found = _ID.fullmatch(text)
    if found is None:
        raise InvalidSetting(f"{text[:80]!r} is not the id of an event of this store")
    store, *numbers = found.groups()
    return store, Position(*map(int, numbers))


class Happening(NamedTuple):
    """One event of an entry; the store adds the id of the message and the queue's name."""

    event: str
    seq: int  # 0: it is about no message
    detail: Mapping[str, Any]
    own_id: str | None = None  # None: the entry has none


class Arrival(NamedTuple):
    """A message that came from another queue; the move that it belongs to is the event."""

    seq: int
    own_id: str


_NOTHING: Mapping[str, Any] = {}


def parse_history(value: bytes) -> list[Happening] | Arrival:
    """The events of an entry in `h`. Raises ValueError, IndexError or KeyError if it is damaged."""
    # Texts from clients may contain the separator, so they stand between parts that cannot.
    kind, _, rest = value.decode("utf-8", "replace").partition("\x1f")
    if kind == "L":
        _, until, others = rest.split("\x1f", 2)
        consumer, seqs = others.rsplit("\x1f", 1)
        detail = {"consumer": consumer or None, "until_ms": int(until)}
        return [Happening(events.DELIVERED, int(seq), detail) for seq in seqs.split(",")]
    if kind == "A":
        return [Happening(events.ACKED, int(seq), _NOTHING) for seq in rest.split(",")]
    if kind == "X":
        until, seqs = rest.split("\x1f")
        detail = {"until_ms": int(until)}
        return [Happening(events.EXTENDED, int(seq), detail) for seq in seqs.split(",")]
    if kind == "R":
        why, others = rest.split("\x1f", 1)
        reason, seq, due = others.rsplit("\x1f", 2)
        return [Happening(_RETURNS[int(why)], int(seq), _returned(int(why), reason, int(due)))]
    if kind == "M":
        why, others = rest.split("\x1f", 1)
        reason, seq, targets = others.rsplit("\x1f", 2)
        return [_moved(int(why), reason, int(seq), target) for target in targets.split("\x1e")]
    if kind == "D":
        why, seqs = rest.split("\x1f")
        if int(why) == REMOVED_EXPIRED:
            return [Happening(events.EXPIRED, int(seq), _NOTHING) for seq in seqs.split(",")]
        detail = {"why": REMOVE_NAMES[int(why)]}
        return [Happening(events.REMOVED, int(seq), detail) for seq in seqs.split(",")]
    if kind == "S":
        due, seq = rest.split("\x1f")
        return [Happening(events.RESCHEDULED, int(seq), {"due_ms": int(due)})]
    if kind == "E":
        return [Happening(events.EDITED, int(rest), _NOTHING)]
    if kind == "P":
        return [Happening(events.PURGED, 0, {"keeps_in_flight": rest.partition("\x1f")[0] == "1"})]
    if kind == "I":
        _, seq, own_id = rest.split("\x1f", 2)
        return Arrival(int(seq), own_id)
    if kind == "N":
        seq, own_id = rest.split("\x1f", 1)
        return [Happening(events.PUBLISHED, int(seq), _NOTHING, own_id)]
    return []  # of a later version


def _returned(why: int, reason: str, due_ms: int) -> Mapping[str, Any]:
    if why == RELEASED:
        return _NOTHING
    if why == EXPIRED:
        return {"due_ms": due_ms}
    return {"reason": split_failure(reason or None)[0], "due_ms": due_ms}


def _moved(why: int, reason: str, seq: int, target: str) -> Happening:
    if why in _MOVES:
        return Happening(_MOVES[why], seq, {"to": target})
    detail = {"to": target, "why": DEAD_LETTER_NAMES[why], "reason": split_failure(reason or None)[0]}
    return Happening(events.DEAD_LETTERED, seq, detail)


class StoreEntry(NamedTuple):
    """An entry in the stream of the store. `number` is that of a deleted queue, else 0."""

    event: str
    queue: str
    detail: Mapping[str, Any]
    number: int = 0


def parse_store(value: bytes) -> StoreEntry | None:
    """None: of a later version. Raises ValueError, KeyError or AttributeError if it is damaged."""
    kind, _, rest = value.decode("utf-8", "replace").partition("\x1f")
    if kind == "A":
        event, queue, detail = rest.split("\x1f", 2)
        return StoreEntry(event, queue, json.loads(detail))
    if kind not in _QUEUE_EVENTS:
        return None
    queue, data = rest.split("\x1f", 1)
    if kind == "D":
        return StoreEntry(events.QUEUE_DELETED, queue, _NOTHING, int(data))
    return StoreEntry(_QUEUE_EVENTS[kind], queue, {"settings": json.loads(data)["settings"]})
