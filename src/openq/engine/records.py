"""Records: every change as a plain tuple, and its bytes.

The engine logs every change as one tuple. Applying all tuples in order rebuilds the state exactly
(`replay.apply`). The first four fields are always the same, so that a journal can index a record
without decoding the rest:

    (kind, now_ms, queue number, sequence or 0, ...)

They are tuples and not objects, because in memory they are the only history, and a tuple costs 50 ns.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from struct import Struct
from typing import Any

from ..model import DeliveryOptions, Properties
from .record_values import (
    AMQP_HEAD,
    AMQP_MARK,
    NO_PUBLISHER,
    OWN_AMQP,
    pack_options,
    pack_properties,
    pack_value,
    unpack_options,
    unpack_properties,
    unpack_value,
)

PUBLISH = 1  # encoding, body, properties, options
RUN = 2  # encoding, bodies, properties, options   consecutive sequences; all share properties and options
ROUTE = 3  # encoding, body, properties, options, ((queue, seq), ...)
DELIVER = 4  # until_ms, consumer, seqs           the sequence field holds the first delivery number
ACK = 5  # seqs
RETURN = 6  # why, reason, ((seq, due_ms), ...)
EXTEND = 7  # until_ms, seqs
MOVE = 8  # why, reason, ((seq, to queue, new seq), ...)
REMOVE = 9  # why, seqs
PURGE = 10  # the sequence field is 1 if messages in flight are kept
EDIT = 11  # sent_ms, encoding, body, properties, options
RESCHEDULE = 12  # due_ms
COPY = 13  # sent_ms, encoding, body, properties, options   a live message rewritten to free an old segment
QUEUE = 14  # name, settings as JSON, created_ms   the sequence field is 1 if the queue existed
UNQUEUE = 15
EXCHANGE = 16  # operation as JSON
CHECKPOINT = 17  # all queues, exchanges and counters as JSON: first record of each segment
ITEM = 18  # one message inside a RUN, addressed by its own location
ITEM_WITH_METADATA = 19  # the same with properties or options, so that it can be read without the others
MARK = 20  # job, owner, batch, rows, whether they are all, rejected   see progress.py
SCHEDULE = 21  # operation, name, document or changes as JSON   see schedules.py
KV_PUT = 22  # bucket, ((key, version, changed_ms, expires_ms, value), ...)   see key_values.py
KV_DELETE = 23  # bucket, keys
EVENT = 24  # name, queue key, detail as JSON   consumers and alerts: for readers of events, no state
ITEMS = (ITEM, ITEM_WITH_METADATA)

KIND_NAMES = {
    PUBLISH: "published",
    RUN: "published",
    ROUTE: "published",
    DELIVER: "delivered",
    ACK: "acked",
    RETURN: "returned",
    EXTEND: "extended",
    MOVE: "moved",
    REMOVE: "removed",
    PURGE: "purged",
    EDIT: "edited",
    RESCHEDULE: "rescheduled",
    COPY: "copied",
    QUEUE: "queue",
    UNQUEUE: "queue deleted",
    EXCHANGE: "exchange",
    CHECKPOINT: "checkpoint",
    MARK: "marked",
    KV_PUT: "values put",
    KV_DELETE: "values deleted",
    SCHEDULE: "schedule",
    EVENT: "event",
}

# Why a message returned to its queue.
NACKED = 1
EXPIRED = 2
RELEASED = 3  # its consumer disconnected before it saw the message: not counted as a delivery
RETURN_NAMES = {NACKED: "nacked", EXPIRED: "lease expired", RELEASED: "released"}

# Why a message moved to another queue.
DEAD_RECEIVES = 1
DEAD_REJECTED = 2
DEAD_EXPIRED = 3
DEAD_OVERFLOW = 4
REDRIVEN = 5
MOVED = 6
DEAD_LETTER_NAMES = {
    DEAD_RECEIVES: "max_receives",
    DEAD_REJECTED: "rejected",
    DEAD_EXPIRED: "expired",
    DEAD_OVERFLOW: "overflow",
}
MOVE_NAMES = {**DEAD_LETTER_NAMES, REDRIVEN: "redriven", MOVED: "moved"}

# Why a message was removed without an ack.
REMOVED_EXPIRED = 1
REMOVED_OVERFLOW = 2
REMOVED_CANCELLED = 3
REMOVED_REJECTED = 4
REMOVED_RECEIVES = 5
REMOVED_DAMAGED = 6  # its body cannot be read; see local/unreadable.py
REMOVE_NAMES = {
    REMOVED_EXPIRED: "expired",
    REMOVED_OVERFLOW: "overflow",
    REMOVED_CANCELLED: "cancelled",
    REMOVED_REJECTED: "rejected",
    REMOVED_RECEIVES: "max_receives",
    REMOVED_DAMAGED: "damaged",
}

Record = tuple[Any, ...]

HEAD = Struct("<BBBxIQQ")  # kind, encoding, flags, queue, sequence, time
ROW = Struct("<QQIIIBBH")  # of an index: sequence, time, queue, offset, length, kind, flags, unused
HEAD_SIZE = HEAD.size
_ITEM_HEAD = Struct("<IIBB")  # a frame of the journal (length, back) and its first two bytes
ITEM_HEAD_SIZE = _ITEM_HEAD.size
_FRAME_SIZE = 8  # length and back of the frame around each record
FIRST_ITEM = _FRAME_SIZE + HEAD_SIZE + 4  # from the frame of a RUN to the frame of its first item
_ITEM_BIT = 1 << 31
_U16 = Struct("<H")
_U32 = Struct("<I")
_U64 = Struct("<Q")
_ACK_ONE = Struct(HEAD.format + "Q")
_DELIVER_HEAD = Struct(HEAD.format + "Q")
_ROUTE_TARGET = Struct("<IQ")
_RETURNED = Struct("<QQ")
_MOVED = Struct("<QIQ")
_KV_ROW = Struct("<QQQHI")  # version, changed, expires, length of the key and of the value

LARGE_BODY = 32 << 10  # from this size on a body is written without being copied into a record

_HAS_OPTIONS = 1
_HAS_PROPERTIES = 2
_VARIED = 4  # a RUN whose items differ in size


def _pack_metadata(properties: Properties | None, options: DeliveryOptions | None) -> tuple[int, bytes]:
    """Pack properties and options as they precede the body. The flags say which of them are present."""
    flags = 0
    metadata = b""
    if options is not None:
        flags |= _HAS_OPTIONS
        data = pack_options(options)
        metadata = _U32.pack(len(data)) + data
    if properties is not None:
        flags |= _HAS_PROPERTIES
        data = pack_properties(properties)
        metadata += _U32.pack(len(data)) + data
    return flags, metadata


def _metadata_end(data: bytes, position: int, flags: int) -> int:
    """The position at which the body begins."""
    if flags & _HAS_OPTIONS:
        position += 4 + _U32.unpack_from(data, position)[0]
    if flags & _HAS_PROPERTIES:
        position += 4 + _U32.unpack_from(data, position)[0]
    return position


def _pack_content(
    body: bytes, properties: Properties | None, options: DeliveryOptions | None
) -> tuple[int, bytes]:
    flags, metadata = _pack_metadata(properties, options)
    return flags, metadata + body


def _unpack_read(data: bytes, position: int, flags: int) -> tuple[bytes, Properties | None]:
    """`_unpack_content` for a reader that already has the options."""
    if flags & _HAS_OPTIONS:
        position += 4 + _U32.unpack_from(data, position)[0]
    if not flags & _HAS_PROPERTIES:
        return data[position:], None
    (size,) = _U32.unpack_from(data, position)
    position += 4
    return data[position + size :], unpack_properties(data[position : position + size])


def _unpack_content(
    data: bytes, position: int, flags: int
) -> tuple[bytes, Properties | None, DeliveryOptions | None]:
    properties: Properties | None = None
    options: DeliveryOptions | None = None
    if flags & _HAS_OPTIONS:
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        options = unpack_options(data[position - size : position])
    if flags & _HAS_PROPERTIES:
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        properties = unpack_properties(data[position - size : position])
    return data[position:], properties, options


# -- records ----------------------------------------------------------------------------------


@lru_cache
def _seqs_format(count: int) -> Struct:
    """Making a format takes longer than packing a record with it."""
    return Struct(f"<{count}Q")


def _pack_seqs(seqs: Sequence[int]) -> bytes:
    if len(seqs) == 1:
        return _U64.pack(seqs[0])
    return _seqs_format(len(seqs)).pack(*seqs)


def _unpack_seqs(data: bytes, position: int) -> list[int]:
    return list(Struct(f"<{(len(data) - position) // 8}Q").unpack_from(data, position))


def _pack_text(text: str | None) -> bytes:
    data = b"" if text is None else b"\x01" + text.encode("utf-8", "surrogatepass")
    return _U32.pack(len(data)) + data


_pack_consumer = lru_cache(1024)(_pack_text)  # the same few names come again and again


def _unpack_text(data: bytes, position: int) -> tuple[str | None, int]:
    (size,) = _U32.unpack_from(data, position)
    position += 4 + size
    if not size:
        return None, position
    return data[position - size + 1 : position].decode("utf-8", "surrogatepass"), position


def encode(record: Record) -> bytes:
    """The bytes of a record. `decode(encode(record)) == record` for every record the engine makes."""
    kind, now_ms, queue, seq = record[:4]
    if kind == PUBLISH:
        encoding, body, properties, options = record[4:]
        if properties is None and options is None:
            return HEAD.pack(PUBLISH, encoding, 0, queue, seq, now_ms) + body  # type: ignore[no-any-return]
        if (
            options is None
            and properties.packed is None
            and properties.amqp_properties is not None
            and properties.publisher is None
        ):
            # AMQP properties and nothing else: as `_pack_content` does, without the calls.
            amqp_properties = properties.amqp_properties
            head = HEAD.pack(PUBLISH, encoding, _HAS_PROPERTIES, queue, seq, now_ms)
            return b"".join(
                (
                    head,
                    OWN_AMQP.pack(AMQP_HEAD.size + len(amqp_properties), AMQP_MARK, NO_PUBLISHER),
                    amqp_properties,
                    body,
                )
            )
        flags, content = _pack_content(body, properties, options)
        return HEAD.pack(PUBLISH, encoding, flags, queue, seq, now_ms) + content
    if kind == ACK:
        seqs = record[4]
        if len(seqs) == 1:
            return _ACK_ONE.pack(ACK, 0, 0, queue, seq, now_ms, seqs[0])
        return HEAD.pack(ACK, 0, 0, queue, seq, now_ms) + _pack_seqs(seqs)
    if kind == DELIVER:
        until_ms, consumer, seqs = record[4:]
        head = _DELIVER_HEAD.pack(DELIVER, 0, 0, queue, seq, now_ms, until_ms)
        return head + _pack_consumer(consumer) + _pack_seqs(seqs)
    if kind == RUN:
        return b"".join(run_pieces(record))
    return _ENCODERS[kind](record)


def large_pieces(record: Record) -> list[bytes] | None:
    """The bytes of a PUBLISH or RUN in pieces, if its bodies are too large to be copied into one."""
    bodies = record[5]
    if record[0] == PUBLISH:
        if len(bodies) < LARGE_BODY:
            return None
        return [encode((*record[:5], b"", *record[6:])), bodies]
    # The first body stands for the others: a run has mostly messages of one kind.
    return run_pieces(record) if len(bodies[0]) >= LARGE_BODY else None


def run_pieces(record: Record) -> list[bytes]:
    """Encode bodies as items.

    Items of one size share prepared heads. For items of different sizes, a table of sizes comes first.
    """
    kind, now_ms, queue, seq, encoding, bodies, properties, options = record
    count = len(bodies)
    sizes = list(map(len, bodies))
    if properties is None and options is None:
        flags, metadata, item = 0, b"", ITEM
        parts = [b""] * (2 * count)
        parts[1::2] = bodies
    else:
        flags, metadata = _pack_metadata(properties, options)
        metadata = bytes((flags,)) + metadata
        item = ITEM_WITH_METADATA
        parts = [metadata] * (3 * count)
        parts[2::3] = bodies
    each = len(parts) // count
    if sizes.count(sizes[0]) == count:
        parts[0::each] = _equal_heads(sizes[0] + len(metadata), item, encoding, count)
        return [HEAD.pack(kind, encoding, flags, queue, seq, now_ms) + _U32.pack(count), *parts]
    pack = _ITEM_HEAD.pack
    step = ITEM_HEAD_SIZE + len(metadata)
    backs = accumulate([size + step for size in sizes], initial=run_first(count, True) | _ITEM_BIT)
    length = 2 + len(metadata)
    parts[0::each] = [
        pack(size + length, back, item, encoding) for size, back in zip(sizes, backs, strict=False)
    ]
    head = HEAD.pack(kind, encoding, flags | _VARIED, queue, seq, now_ms)
    return [head + _U32.pack(count) + array("I", sizes).tobytes(), *parts]


_heads: dict[tuple[int, int, int], list[bytes]] = {}


def _equal_heads(size: int, item: int, encoding: int, count: int) -> list[bytes]:
    """The heads of items of one size. They do not depend on the record, so they are cached."""
    heads = _heads.get((size, item, encoding))
    if heads is None or len(heads) < count:
        if len(_heads) >= 64:
            _heads.clear()
        first, step = FIRST_ITEM | _ITEM_BIT, size + ITEM_HEAD_SIZE
        backs = range(first, first + step * count, step)
        heads = _heads[size, item, encoding] = [
            _ITEM_HEAD.pack(size + 2, back, item, encoding) for back in backs
        ]
    return heads[:count]


def run_step(properties: Properties | None, options: DeliveryOptions | None) -> int:
    """The distance between the frames of two items of a RUN, without the body of the first."""
    if properties is None and options is None:
        return ITEM_HEAD_SIZE
    return ITEM_HEAD_SIZE + 1 + len(_pack_metadata(properties, options)[1])


def run_first(count: int, varied: bool) -> int:
    """The distance from the frame of a RUN to the frame of its first item."""
    return FIRST_ITEM + 4 * count if varied else FIRST_ITEM


def _encode_route(record: Record) -> bytes:
    kind, now_ms, queue, seq, encoding, body, properties, options, targets = record
    flags, content = _pack_content(body, properties, options)
    return b"".join(
        (
            HEAD.pack(kind, encoding, flags, queue, seq, now_ms),
            _U32.pack(len(targets)),
            *(_ROUTE_TARGET.pack(*target) for target in targets),
            content,
        )
    )


def _encode_return(record: Record) -> bytes:
    kind, now_ms, queue, seq, why, reason, pairs = record
    head = HEAD.pack(kind, why, 0, queue, seq, now_ms) + _pack_text(reason)
    return head + b"".join(_RETURNED.pack(*pair) for pair in pairs)


def _encode_extend(record: Record) -> bytes:
    kind, now_ms, queue, seq, until_ms, seqs = record
    return HEAD.pack(kind, 0, 0, queue, seq, now_ms) + _U64.pack(until_ms) + _pack_seqs(seqs)


def _encode_move(record: Record) -> bytes:
    kind, now_ms, queue, seq, why, reason, moves = record
    head = HEAD.pack(kind, why, 0, queue, seq, now_ms) + _pack_text(reason)
    return head + b"".join(_MOVED.pack(*move) for move in moves)


def _encode_remove(record: Record) -> bytes:
    kind, now_ms, queue, seq, why, seqs = record
    return HEAD.pack(kind, why, 0, queue, seq, now_ms) + _pack_seqs(seqs)


def _encode_bare(record: Record) -> bytes:
    kind, now_ms, queue, seq = record
    return HEAD.pack(kind, 0, 0, queue, seq, now_ms)


def _encode_reschedule(record: Record) -> bytes:
    kind, now_ms, queue, seq, due_ms = record
    return HEAD.pack(kind, 0, 0, queue, seq, now_ms) + _U64.pack(due_ms)


def _encode_copy(record: Record) -> bytes:
    kind, now_ms, queue, seq, sent_ms, encoding, body, properties, options = record
    flags, content = _pack_content(body, properties, options)
    return HEAD.pack(kind, encoding, flags, queue, seq, now_ms) + _U64.pack(sent_ms) + content


def _encode_json(record: Record) -> bytes:
    return HEAD.pack(record[0], 0, 0, record[2], record[3], record[1]) + pack_value(list(record[4:]))


def _encode_values(record: Record) -> bytes:
    kind, now_ms, queue, seq, bucket, rows = record
    parts = [HEAD.pack(kind, 0, 0, queue, seq, now_ms), _pack_name(bucket)]
    for key, version, changed_ms, expires_ms, value in rows:
        name = key.encode("utf-8", "surrogatepass")
        parts += (_KV_ROW.pack(version, changed_ms, expires_ms, len(name), len(value)), name, value)
    return b"".join(parts)


def _encode_keys(record: Record) -> bytes:
    kind, now_ms, queue, seq, bucket, keys = record
    return b"".join(
        (HEAD.pack(kind, 0, 0, queue, seq, now_ms), _pack_name(bucket), *(_pack_name(key) for key in keys))
    )


def _pack_name(name: str) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    return _U16.pack(len(data)) + data


def _unpack_names(data: bytes, position: int) -> list[str]:
    names = []
    while position < len(data):
        (size,) = _U16.unpack_from(data, position)
        position += 2 + size
        names.append(data[position - size : position].decode("utf-8", "surrogatepass"))
    return names


def _unpack_values(data: bytes, position: int) -> tuple[str, tuple[tuple[str, int, int, int, bytes], ...]]:
    (size,) = _U16.unpack_from(data, position)
    position += 2 + size
    bucket = data[position - size : position].decode("utf-8", "surrogatepass")
    rows = []
    while position < len(data):
        version, changed_ms, expires_ms, key_size, size = _KV_ROW.unpack_from(data, position)
        position += _KV_ROW.size
        key = data[position : position + key_size].decode("utf-8", "surrogatepass")
        position += key_size + size
        rows.append((key, version, changed_ms, expires_ms, data[position - size : position]))
    return bucket, tuple(rows)


_ENCODERS = {
    ROUTE: _encode_route,
    RETURN: _encode_return,
    EXTEND: _encode_extend,
    MOVE: _encode_move,
    REMOVE: _encode_remove,
    PURGE: _encode_bare,
    UNQUEUE: _encode_bare,
    EDIT: _encode_copy,
    RESCHEDULE: _encode_reschedule,
    COPY: _encode_copy,
    QUEUE: _encode_json,
    EXCHANGE: _encode_json,
    CHECKPOINT: _encode_json,
    MARK: _encode_json,
    KV_PUT: _encode_values,
    KV_DELETE: _encode_keys,
    SCHEDULE: _encode_json,
    EVENT: _encode_json,
}


def decode(data: bytes) -> Record:
    kind, encoding, flags, queue, seq, now_ms = HEAD.unpack_from(data)
    head = (kind, now_ms, queue, seq)
    position = HEAD_SIZE
    if kind == PUBLISH:
        if not flags:
            return (*head, encoding, data[HEAD_SIZE:], None, None)
        body, properties, options = _unpack_content(data, position, flags)
        return (*head, encoding, body, properties, options)
    if kind == ACK:
        return (*head, _unpack_seqs(data, position))
    if kind == DELIVER:
        (until_ms,) = _U64.unpack_from(data, position)
        consumer, position = _unpack_text(data, position + 8)
        return (*head, until_ms, consumer, _unpack_seqs(data, position))
    if kind == RUN:
        starts, sizes, before = _run_layout(data)
        pairs = zip(starts, sizes, strict=True)
        bodies = [data[start + before : start + before + size] for start, size in pairs]
        if before == 2:
            return (*head, encoding, tuple(bodies), None, None)
        end = starts[0] + before
        _, properties, options = _unpack_content(data[:end], starts[0] + 3, flags)
        _keep_packed(data, starts[0] + 3, flags, properties, options)
        return (*head, encoding, tuple(bodies), properties, options)
    if kind == ROUTE:
        (count,) = _U32.unpack_from(data, position)
        position += 4
        targets = []
        for _ in range(count):
            targets.append(_ROUTE_TARGET.unpack_from(data, position))
            position += _ROUTE_TARGET.size
        body, properties, options = _unpack_content(data, position, flags)
        return (*head, encoding, body, properties, options, tuple(targets))
    if kind == RETURN:
        reason, position = _unpack_text(data, position)
        return (*head, encoding, reason, tuple(_RETURNED.iter_unpack(data[position:])))
    if kind == EXTEND:
        return (*head, _U64.unpack_from(data, position)[0], _unpack_seqs(data, position + 8))
    if kind == MOVE:
        reason, position = _unpack_text(data, position)
        return (*head, encoding, reason, tuple(_MOVED.iter_unpack(data[position:])))
    if kind == REMOVE:
        return (*head, encoding, _unpack_seqs(data, position))
    if kind in (PURGE, UNQUEUE):
        return head
    if kind == RESCHEDULE:
        return (*head, _U64.unpack_from(data, position)[0])
    if kind in (EDIT, COPY):
        (sent_ms,) = _U64.unpack_from(data, position)
        return (*head, sent_ms, encoding, *_unpack_content(data, position + 8, flags))
    if kind in (QUEUE, EXCHANGE, CHECKPOINT, MARK, SCHEDULE, EVENT):
        return (*head, *unpack_value(data[position:]))
    if kind == KV_PUT:
        return (*head, *_unpack_values(data, position))
    if kind == KV_DELETE:
        bucket, *keys = _unpack_names(data, position)
        return (*head, bucket, tuple(keys))
    raise ValueError(f"unknown record kind {kind}")


def _keep_packed(
    data: bytes, position: int, flags: int, properties: Properties | None, options: DeliveryOptions | None
) -> None:
    """Keep the exact bytes: the locations of the items of a RUN follow from their length."""
    if options is not None:
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        options.packed = options.packed or data[position - size : position]
    if properties is not None:
        (size,) = _U32.unpack_from(data, position)
        properties.packed = properties.packed or data[position + 4 : position + 4 + size]


def _run_layout(data: bytes) -> tuple[Sequence[int], Sequence[int], int]:
    """For each item of a RUN: where its bytes begin in the record, and the size of its body.

    The third value is the number of bytes in an item before its body.
    """
    (count,) = _U32.unpack_from(data, HEAD_SIZE)
    flags = data[2]
    varied = bool(flags & _VARIED)
    first = run_first(count, varied)
    before = _metadata_end(data, first + 3, flags) - first if flags & ~_VARIED else 2
    step = ITEM_HEAD_SIZE - 2 + before
    if varied:
        table = HEAD_SIZE + 4
        sizes: Sequence[int] = array("I", data[table : table + 4 * count])
        starts = list(accumulate([size + step for size in sizes], initial=first))
        return starts[:-1], sizes, before
    (length,) = _U32.unpack_from(data, HEAD_SIZE + 4)
    size = length - before
    step += size
    return range(first, first + step * count, step), [size] * count, before


def content(data: bytes) -> tuple[int, bytes, Properties | None]:
    """Encoding, body and properties from the record or item at a location."""
    kind = data[0]
    if kind == ITEM:
        return data[1], data[2:], None
    flags = data[2]
    if kind == ITEM_WITH_METADATA:
        body, properties = _unpack_read(data, 3, flags)
        return data[1], body, properties
    if kind == PUBLISH and not flags:
        return data[1], data[HEAD_SIZE:], None
    position = HEAD_SIZE
    if kind == ROUTE:
        (count,) = _U32.unpack_from(data, position)
        position += 4 + count * _ROUTE_TARGET.size
    elif kind in (EDIT, COPY):
        position += 8
    body, properties = _unpack_read(data, position, flags)
    return data[1], body, properties


def item_content(data: bytes) -> tuple[int, bytes, Properties | None, DeliveryOptions | None]:
    """Encoding, body, properties and options of one message inside a RUN."""
    if data[0] == ITEM:
        return data[1], data[2:], None, None
    return (data[1], *_unpack_content(data, 3, data[2]))


def touched_messages(record: Record) -> list[tuple[int, int]]:
    """The messages that a record is about: (queue number, sequence) pairs."""
    kind, _, queue, seq = record[:4]
    if kind in (PUBLISH, EDIT, RESCHEDULE, COPY):
        return [(queue, seq)]
    if kind == RUN:
        return [(queue, seq + i) for i in range(len(record[5]))]
    if kind == ROUTE:
        return list(record[8])
    if kind in (DELIVER, ACK, EXTEND, REMOVE):
        return [(queue, each) for each in record[-1]]
    if kind == RETURN:
        return [(queue, each) for each, _ in record[6]]
    if kind == MOVE:
        return [pair for each, to, new in record[6] for pair in ((queue, each), (to, new))]
    return []


def assigned_seqs(data: bytes) -> tuple[int, int] | None:
    """The sequences that a record assigned, as first and last + 1; None for a record that assigned none.

    A checkpoint assigns none and holds the next one: (next, next).
    """
    kind, _, _, _, seq, _ = HEAD.unpack_from(data)
    if kind == PUBLISH:
        return seq, seq + 1
    if kind == RUN:
        return seq, seq + len(_run_layout(data)[1])
    if kind == ROUTE:
        seqs = [each for _, each in decode(data)[8]]
    elif kind == MOVE:
        seqs = [new for _, _, new in decode(data)[6]]
    elif kind == CHECKPOINT:
        return (decode(data)[4]["seq"],) * 2
    else:
        return None
    return (min(seqs), max(seqs) + 1) if seqs else None


def index_rows(data: bytes, offset: int) -> bytes:
    """Rows of the sidecar index for the record whose frame is at `offset`: one per message touched.

    They are packed here and not row by row in the journal: this runs for every record ever written, in
    addition to the real work, and is half of the cost that a restart or a replay saves.
    """
    kind, _, flags, queue, seq, now_ms = HEAD.unpack_from(data)
    size = len(data)
    if kind == PUBLISH:
        return ROW.pack(seq, now_ms, queue, offset, size, kind, flags, 0)
    if kind == RUN:
        return _run_rows(data, offset, seq, now_ms, queue, flags)
    if kind in _SEQS_AT:
        position = HEAD_SIZE + _SEQS_AT[kind]
        if kind == DELIVER:
            position += _U32.unpack_from(data, position - 4)[0]
        pack = ROW.pack
        if size == position + 8:
            return pack(_U64.unpack_from(data, position)[0], now_ms, queue, offset, size, kind, flags, 0)
        seqs = _unpack_seqs(data, position)
        return b"".join([pack(each, now_ms, queue, offset, size, kind, flags, 0) for each in seqs])
    if kind in (KV_PUT, KV_DELETE):
        return ROW.pack(seq, now_ms, queue, offset, size, kind, flags, 0)
    pairs = touched_messages(decode(data)) or [(queue, seq)]
    return b"".join([ROW.pack(each, now_ms, number, offset, size, kind, flags, 0) for number, each in pairs])


# Where the list of sequences begins in records that end with one. For DELIVER, the length of the name
# precedes it.
_SEQS_AT = {ACK: 0, DELIVER: 12, EXTEND: 8, REMOVE: 0}


def _run_rows(data: bytes, offset: int, seq: int, now_ms: int, queue: int, flags: int) -> bytes:
    """Build the columns of all rows at once. A row is four words of eight bytes."""
    starts, sizes, before = _run_layout(data)
    count = len(sizes)
    words = array("Q", bytes(ROW.size * count))
    words[0::4] = array("Q", range(seq, seq + count))
    words[1::4] = array("Q", [now_ms]) * count
    base = queue | offset << 32
    rest = RUN << 32 | flags << 40
    if isinstance(starts, range):
        step = starts.step << 32
        base += starts.start << 32
        words[2::4] = array("Q", range(base, base + step * count, step))
        words[3::4] = array("Q", [sizes[0] + before | rest]) * count
    else:
        words[2::4] = array("Q", [base + (start << 32) for start in starts])
        words[3::4] = array("Q", [size + before | rest for size in sizes])
    return words.tobytes()
