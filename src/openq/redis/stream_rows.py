"""Convert entries of a queue's streams to Arrow batches: the tables of `openq.history.schema`.

The meaning of a row is documented there and in `openq.history.decode`, which does the same for a journal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from openq.engine.records import (
    DEAD_LETTER_NAMES,
    EXPIRED,
    MOVED,
    NACKED,
    REDRIVEN,
    RELEASED,
    REMOVE_NAMES,
    REMOVED_CANCELLED,
    REMOVED_EXPIRED,
)
from openq.history.error_signature import signature
from openq.history.property_columns import property_columns
from openq.history.property_values import PropertyValues, clean
from openq.history.schema import BODY_COLUMNS, arrow_schema
from openq.history.selection import Selection
from openq.history.tracker import hex_ids
from openq.redis.stream_positions import Id, position_of_event, position_of_message

_U32 = Struct("<I")
HAS_EXTRA, HAS_INFO = 2, 4  # flags of a record, see `openq.redis.records`
_MAX_US = (1 << 63) - 1
_FROM_EXTRA = ("type", "group", "dedup_id", "expires", "exchange", "routing_key")
_RETURNS = {NACKED: "nack", EXPIRED: "lease_expired", RELEASED: "release"}
_MOVES = {REDRIVEN: "redrive", MOVED: "move"}
_REMOVALS = {REMOVED_EXPIRED: "expire", REMOVED_CANCELLED: "cancel"}


class PublishedMessage(NamedTuple):
    """One message as it was published. `body` is None if bodies were not requested."""

    seq: int
    sent_ms: int
    fields: Mapping[str, Any]  # its extra fields, under their short names
    info: bytes | None
    size: int
    body: bytes | None


def head_size(record: bytes) -> int:
    """The number of bytes of a record before the body."""
    at = 2
    for flag in (HAS_EXTRA, HAS_INFO):
        if record[0] & flag:
            at += 4 + int(_U32.unpack_from(record, at)[0])
    return at


def parse_message(id: Id, head: bytes, size: int, body: bytes | None) -> PublishedMessage:
    flags, at = head[0], 2
    fields: Mapping[str, Any] = {}
    info = None
    if flags & HAS_EXTRA:
        end = at + 4 + int(_U32.unpack_from(head, at)[0])
        fields = json.loads(head[at + 4 : end])
        at = end
    if flags & HAS_INFO:
        info = head[at + 4 : at + 4 + int(_U32.unpack_from(head, at)[0])]
    return PublishedMessage(id[0], id[1], fields, info, size, body)


class EventRow(NamedTuple):
    """One row of the table events, from an entry of the stream `h`."""

    ms: int
    number: int  # within the millisecond
    item: int
    event: str
    seq: int | None = None
    consumer: str | None = None
    receipt: int | None = None
    delay_ms: int | None = None
    reason: str | None = None
    to_queue: str | None = None


def parse_event(id: Id, value: bytes) -> list[EventRow]:
    """The rows of one entry. Arrivals have none: the move that they belong to has one."""
    ms, number = id
    # Texts from clients may contain the separator, so they stand between parts that cannot.
    kind, _, rest = value.decode("utf-8", "replace").partition("\x1f")
    if kind == "L":
        first, until, others = rest.split("\x1f", 2)
        consumer, seqs = others.rsplit("\x1f", 1)
        delay = _delay(ms, until)
        return [
            EventRow(ms, number, item, "deliver", int(seq), consumer or None, int(first) + item, delay)
            for item, seq in enumerate(seqs.split(","))
        ]
    if kind == "A":
        return [EventRow(ms, number, item, "ack", int(seq)) for item, seq in enumerate(rest.split(","))]
    if kind == "X":
        until, seqs = rest.split("\x1f")
        delay = _delay(ms, until)
        return [
            EventRow(ms, number, item, "visibility_change", int(seq), delay_ms=delay)
            for item, seq in enumerate(seqs.split(","))
        ]
    if kind == "R":
        why, others = rest.split("\x1f", 1)
        reason, seq, due = others.rsplit("\x1f", 2)
        delay = max(0, int(due) - ms)
        return [
            EventRow(ms, number, 0, _RETURNS[int(why)], int(seq), delay_ms=delay, reason=reason or None),
        ]
    if kind == "M":
        why, others = rest.split("\x1f", 1)
        reason, seq, targets = others.rsplit("\x1f", 2)
        event = _MOVES.get(int(why), "dead_letter")
        text = reason or DEAD_LETTER_NAMES.get(int(why))
        return [
            EventRow(ms, number, item, event, int(seq), reason=text, to_queue=target)
            for item, target in enumerate(targets.split("\x1e"))
        ]
    if kind == "D":
        why, seqs = rest.split("\x1f")
        event = _REMOVALS.get(int(why), "drop")
        text = None if int(why) in _REMOVALS else REMOVE_NAMES.get(int(why))
        return [
            EventRow(ms, number, item, event, int(seq), reason=text)
            for item, seq in enumerate(seqs.split(","))
        ]
    if kind == "S":
        due, seq = rest.split("\x1f")
        return [EventRow(ms, number, 0, "reschedule", int(seq), delay_ms=max(0, int(due) - ms))]
    if kind == "E":
        return [EventRow(ms, number, 0, "edit", int(rest))]
    if kind == "P":
        # As in a journal, 1 means that messages in flight were kept.
        return [EventRow(ms, number, int(rest.partition("\x1f")[0] == "1"), "purge")]
    return []


def _delay(ms: int, until: str) -> int | None:
    """The length of a lease. A lease without a deadline lasts as long as its consumer is connected."""
    return max(0, int(until) - ms) if int(until) else None


class StreamRows:
    """Builds the batches of one selection."""

    def __init__(self, selection: Selection, id_prefix: str) -> None:
        self._selection = selection
        self._prefix = id_prefix
        self.columns = selection.read_columns
        self._schema = arrow_schema(selection.table, self.columns)

    @property
    def needs_bodies(self) -> bool:
        return self.wants(*BODY_COLUMNS)

    def wants(self, *names: str) -> bool:
        return any(name in self.columns for name in names)

    def _batch(
        self, count: int, makers: Mapping[str, Callable[[], Any]], ready: Mapping[str, pa.Array] | None = None
    ) -> pa.RecordBatch | None:
        arrays = []
        for field in self._schema:
            made = makers[field.name]() if field.name in makers else (ready or {}).get(field.name)
            if made is None:
                made = pa.nulls(count, field.type)
            elif not isinstance(made, pa.Array):
                made = pa.array(made, field.type)
            arrays.append(made if made.type == field.type else made.cast(field.type))
        batch = self._selection.keep(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        return batch if batch.num_rows else None

    # -- published messages

    def message_rows(self, queue: str, sent: Sequence[PublishedMessage]) -> pa.RecordBatch | None:
        """Rows of either table; None if no row is selected."""
        if self._selection.events and "publish" not in self._selection.events:
            return None
        count = len(sent)
        seqs = np.fromiter((each.seq for each in sent), np.int64, count)
        times = np.fromiter((each.sent_ms for each in sent), np.int64, count)

        def text(short: str) -> Callable[[], list[str | None]]:
            return lambda: [_text(each.fields.get(short)) for each in sent]

        makers: dict[str, Callable[[], Any]] = {
            "position": lambda: [position_of_message(each.seq, each.sent_ms) for each in sent],
            "item": lambda: np.zeros(count, np.int32),
            "seq": lambda: seqs,
            "ts": lambda: times * 1000,
            "queue": lambda: _repeated(queue, count),
            "message_id": lambda: self._ids(seqs, {each.seq: each.fields.get("i") for each in sent}),
            "event": lambda: _repeated("publish", count),
            "type": text("t"),
            "group": text("g"),
            "dedup_id": text("k"),
            "priority": lambda: [each.fields.get("p") or 0 for each in sent],
            "delay_us": lambda: [_us(_due_ms(each) - each.sent_ms) for each in sent],
            "expires": lambda: [_expires_us(each) for each in sent],
            "exchange": lambda: [_text((each.fields.get("R") or [None])[0]) for each in sent],
            "routing_key": lambda: [_text((each.fields.get("R") or [None, None])[1]) for each in sent],
            "size": lambda: [each.size for each in sent],
            "body": lambda: [each.body for each in sent],
            "body_sha256": lambda: [hashlib.sha256(each.body or b"").digest() for each in sent],
        }
        if not any(each.fields for each in sent):
            # Most messages are plain: they have no extra fields.
            for name in _FROM_EXTRA:
                del makers[name]
            makers["priority"] = lambda: np.zeros(count, np.int32)
            makers["delay_us"] = lambda: np.zeros(count, np.int64)
            makers["message_id"] = lambda: hex_ids(self._prefix, seqs)
        shown = [name for name in PropertyValues._fields if name in self.columns]
        if shown and any(each.info is not None for each in sent):
            found = property_columns(pa.array([each.info for each in sent], pa.binary()), shown.__contains__)
            return self._batch(count, makers, found)
        return self._batch(count, makers)

    def _ids(self, seqs: Any, own: Mapping[int, str | None]) -> pa.Array:
        """Ids are derived from the sequence, except for messages with an id of their own."""
        ids = hex_ids(self._prefix, seqs)
        if not any(own.values()):
            return ids
        listed = ids.to_pylist()
        return pa.array([_text(own.get(seq)) or id for seq, id in zip(seqs.tolist(), listed, strict=True)])

    # -- events

    def event_rows(
        self, queue: str, events: Sequence[EventRow], known: EventContext
    ) -> pa.RecordBatch | None:
        wanted = set(self._selection.events)
        if wanted:
            events = [each for each in events if each.event in wanted]
        if not events:
            return None
        count = len(events)
        seqs = np.fromiter((each.seq or 0 for each in events), np.int64, count)
        whole = np.fromiter((each.seq is None for each in events), np.bool_, count)

        def ids() -> pa.Array:
            found = self._ids(seqs, known.ids({each.seq for each in events if each.seq is not None}))
            return pa.array(np.where(whole, None, found.to_numpy(zero_copy_only=False)), pa.string())

        def signs(place: int) -> list[str | None]:
            return [signature(each.reason)[place] for each in events]

        def counts() -> list[int | None]:
            return [known.count(each) if each.event == "deliver" else None for each in events]

        makers: dict[str, Callable[[], Any]] = {
            "position": lambda: [position_of_event(each.ms, each.number) for each in events],
            "item": lambda: [each.item for each in events],
            "seq": lambda: pa.array(seqs, mask=whole),
            "ts": lambda: [each.ms * 1000 for each in events],
            "queue": lambda: _repeated(queue, count),
            "message_id": ids,
            "event": lambda: [each.event for each in events],
            "receive_count": counts,
            "consumer": lambda: [_text(each.consumer) for each in events],
            "receipt_hash": lambda: [
                None if each.receipt is None else f"{each.receipt:012x}" for each in events
            ],
            "delay_us": lambda: [None if each.delay_ms is None else _us(each.delay_ms) for each in events],
            "error_text": lambda: [_text(each.reason) for each in events],
            "error_type": lambda: signs(0),
            "error_signature": lambda: signs(1),
            "dlq_source": lambda: [queue if each.event == "dead_letter" else None for each in events],
            "to_queue": lambda: [_text(each.to_queue) for each in events],
            "to_seq": lambda: [known.sequence_there(each) for each in events],
        }
        return self._batch(count, makers)


class EventContext(Protocol):
    """Facts that an event does not contain; `openq.redis.stream_history` reads them from the store."""

    def ids(self, seqs: Iterable[int]) -> Mapping[int, str | None]:
        """The ids of those messages whose id is not derived from their sequence."""

    def count(self, event: EventRow) -> int:
        """The delivery count of this delivery."""

    def sequence_there(self, event: EventRow) -> int | None:
        """The sequence of a moved message in the queue that it moved to."""


def _repeated(value: str, count: int) -> pa.Array:
    return pa.array([value], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def _text(value: Any) -> str | None:
    return None if value is None else clean(value if isinstance(value, str) else str(value))


def _due_ms(sent: PublishedMessage) -> int:
    """The time when the message was first to be delivered, from its requested delay or time."""
    fields = sent.fields
    if fields.get("dr"):
        return int(sent.sent_ms + fields["dr"])
    return max(int(fields.get("d") or 0), sent.sent_ms)


def _expires_us(sent: PublishedMessage) -> int | None:
    fields = sent.fields
    if fields.get("er"):
        return _us(_due_ms(sent) + int(fields["er"]))
    return _us(int(fields["e"])) if fields.get("e") else None


def _us(ms: int) -> int:
    return min(ms * 1000, _MAX_US)
