"""What changed, as plain tuples, and their bytes.

The engine tells of every change with one tuple; re-applying all tuples in order rebuilds the
state exactly (`Engine.apply`). The first four fields are always the same, so that a journal
can index a record without understanding it:

    (kind, now_ms, queue number, sequence or 0, ...)

Tuples and not objects: in memory they are all the history there is, and cost 50 ns.
"""

from __future__ import annotations

import base64
import json
from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate
from struct import Struct
from typing import Any, cast

from ..errors import InvalidSetting
from ..model import Death, Extra, Info

PUBLISH = 1  # form, body, info, extra
RUN = 2  # form, bodies                        plain messages with consecutive sequences
ROUTE = 3  # form, body, info, extra, ((queue, seq), ...)
LEND = 4  # until_ms, consumer, seqs           the sequence field holds the first delivery number
ACK = 5  # seqs
RETURN = 6  # why, reason, ((seq, due_ms), ...)
EXTEND = 7  # until_ms, seqs
MOVE = 8  # why, reason, ((seq, to queue, new seq), ...)
REMOVE = 9  # why, seqs
PURGE = 10
EDIT = 11  # sent_ms, form, body, info, extra
RESCHEDULE = 12  # due_ms
COPY = 13  # sent_ms, form, body, info, extra   a live message rewritten to free an old segment
QUEUE = 14  # name, settings as JSON, created_ms
UNQUEUE = 15
EXCHANGE = 16  # operation as JSON
CHECKPOINT = 17  # all queues, exchanges and counters as JSON: first record of each segment
ITEM = 18  # one message inside a RUN, addressed by its own location

KIND_NAMES = {
    PUBLISH: "published",
    RUN: "published",
    ROUTE: "published",
    LEND: "delivered",
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
}

# Why a message came back to its queue.
NACKED = 1
EXPIRED = 2
RELEASED = 3  # its holder went away before it could look at it: not counted as a delivery
RETURN_NAMES = {NACKED: "nacked", EXPIRED: "lease expired", RELEASED: "released"}

# Why it moved to another queue.
DEAD_RECEIVES = 1
DEAD_REJECTED = 2
DEAD_EXPIRED = 3
DEAD_OVERFLOW = 4
REDRIVEN = 5
MOVED = 6
DEATH_NAMES = {
    DEAD_RECEIVES: "max_receives",
    DEAD_REJECTED: "rejected",
    DEAD_EXPIRED: "expired",
    DEAD_OVERFLOW: "overflow",
}
MOVE_NAMES = {**DEATH_NAMES, REDRIVEN: "redriven", MOVED: "moved"}

# Why it was removed without an ack.
GONE_EXPIRED = 1
GONE_OVERFLOW = 2
GONE_CANCELLED = 3
GONE_REJECTED = 4
REMOVE_NAMES = {
    GONE_EXPIRED: "expired",
    GONE_OVERFLOW: "overflow",
    GONE_CANCELLED: "cancelled",
    GONE_REJECTED: "rejected",
}

Record = tuple[Any, ...]

HEAD = Struct("<BBBxIQQ")  # kind, form, flags, queue, sequence, time
ROW = Struct("<QQIIIBBH")  # of an index: sequence, time, queue, offset, length, kind, flags, nothing
HEAD_SIZE = HEAD.size
_ITEM_HEAD = Struct("<IIBB")  # a frame of the journal (length, back) and its first two bytes
ITEM_HEAD_SIZE = _ITEM_HEAD.size
_FRAME_SIZE = 8  # length and back of the frame around each record
FIRST_ITEM = _FRAME_SIZE + HEAD_SIZE + 4  # from the frame of a RUN to the frame of its first item
_ITEM_BIT = 1 << 31
_U32 = Struct("<I")
_U64 = Struct("<Q")
_ROUTE_TARGET = Struct("<IQ")
_RETURNED = Struct("<QQ")
_MOVED = Struct("<QIQ")

_HAS_EXTRA = 1
_HAS_INFO = 2
_VARIED = 4  # a RUN whose items differ in size


# -- values -----------------------------------------------------------------------------------


_MAX_DEPTH = 64  # what can be written must also be readable, from any depth of the stack


def _tag(value: object, depth: int = 0) -> object:
    """JSON for values that may hold bytes. A dict that looks like a tag is wrapped: nothing is ambiguous."""
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if depth > _MAX_DEPTH:
        raise InvalidSetting(f"attributes or arguments nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        tagged = {str(key): _tag(item, depth + 1) for key, item in value.items()}
        return {"$dict": tagged} if any(key.startswith("$") for key in tagged) else tagged
    if isinstance(value, list | tuple):
        return [_tag(item, depth + 1) for item in value]
    return value


def _untag(value: object) -> object:
    if isinstance(value, dict):
        if "$bytes" in value:
            return base64.b64decode(value["$bytes"])
        inner = value.get("$dict", value)
        return {key: _untag(item) for key, item in inner.items()}
    if isinstance(value, list):
        return [_untag(item) for item in value]
    return value


def plain(value: object, depth: int = 0) -> Any:
    """A copy as a reader will get it, so that a message in memory is what it would be on disk."""
    if value is None or isinstance(value, str | bool | int | float | bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if depth > _MAX_DEPTH:
        raise InvalidSetting(f"attributes or arguments nested more than {_MAX_DEPTH} deep")
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    raise InvalidSetting(f"attributes and arguments hold JSON values or bytes, not {type(value).__name__}")


def pack_value(value: object) -> bytes:
    try:
        text = json.dumps(_tag(value), separators=(",", ":"), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidSetting):
            raise
        raise InvalidSetting(f"attributes and arguments hold JSON values or bytes: {error}") from None
    return text.encode("utf-8", "surrogatepass")


def unpack_value(data: bytes) -> Any:
    return _untag(json.loads(data.decode("utf-8", "surrogatepass")))


def _pack_info(info: Info) -> bytes:
    return pack_value([info.attributes and dict(info.attributes), info.publisher])


def _unpack_info(data: bytes) -> Info:
    attributes, publisher = unpack_value(data)
    return Info(attributes or {}, publisher)


_TEXTS = ("group", "type", "dedup", "unique", "id", "reason")
_NUMBERS = ("due_ms", "expires_ms", "number", "first_ms", "born_ms")
_EXTRA_HEAD = Struct("<HBI")  # which fields follow, priority, receive count
_DEATHS_BIT = 1 << 11
_ROUTE_BIT = 1 << 12


def pack_extra(extra: Extra) -> bytes:
    bits = 0
    parts = [b""]
    bit = 1
    for name in _TEXTS:
        text = getattr(extra, name)
        if text is not None:
            bits |= bit
            data = text.encode("utf-8", "surrogatepass")
            parts.append(_U32.pack(len(data)))
            parts.append(data)
        bit <<= 1
    for name in _NUMBERS:
        number = getattr(extra, name)
        if number:
            bits |= bit
            parts.append(_U64.pack(number))
        bit <<= 1
    for flag, value in ((_DEATHS_BIT, extra.deaths), (_ROUTE_BIT, extra.route)):
        if value:
            bits |= flag
            data = pack_value(value)
            parts.append(_U32.pack(len(data)))
            parts.append(data)
    parts[0] = _EXTRA_HEAD.pack(bits, extra.priority, extra.count)
    return b"".join(parts)


def unpack_extra(data: bytes) -> Extra:
    extra = Extra()
    bits, extra.priority, extra.count = _EXTRA_HEAD.unpack_from(data)
    position = _EXTRA_HEAD.size

    def take() -> bytes:
        nonlocal position
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        return data[position - size : position]

    bit = 1
    for name in _TEXTS:
        if bits & bit:
            setattr(extra, name, take().decode("utf-8", "surrogatepass"))
        bit <<= 1
    for name in _NUMBERS:
        if bits & bit:
            setattr(extra, name, _U64.unpack_from(data, position)[0])
            position += 8
        bit <<= 1
    if bits & _DEATHS_BIT:
        extra.deaths = tuple(cast(Death, tuple(death)) for death in unpack_value(take()))
    if bits & _ROUTE_BIT:
        exchange, key = unpack_value(take())
        extra.route = (exchange, key)
    return extra


def _pack_content(body: bytes, info: Info | None, extra: Extra | None) -> tuple[int, bytes]:
    flags = 0
    head = b""
    if extra is not None:
        flags |= _HAS_EXTRA
        data = pack_extra(extra)
        head = _U32.pack(len(data)) + data
    if info is not None:
        flags |= _HAS_INFO
        data = _pack_info(info)
        head += _U32.pack(len(data)) + data
    return flags, head + body


def _unpack_content(data: bytes, position: int, flags: int) -> tuple[bytes, Info | None, Extra | None]:
    info: Info | None = None
    extra: Extra | None = None
    if flags & _HAS_EXTRA:
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        extra = unpack_extra(data[position - size : position])
    if flags & _HAS_INFO:
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        info = _unpack_info(data[position - size : position])
    return data[position:], info, extra


# -- records ----------------------------------------------------------------------------------


def _pack_seqs(seqs: Sequence[int]) -> bytes:
    return Struct(f"<{len(seqs)}Q").pack(*seqs)


def _unpack_seqs(data: bytes, position: int) -> list[int]:
    return list(Struct(f"<{(len(data) - position) // 8}Q").unpack_from(data, position))


def _pack_text(text: str | None) -> bytes:
    data = b"" if text is None else b"\x01" + text.encode("utf-8", "surrogatepass")
    return _U32.pack(len(data)) + data


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
        form, body, info, extra = record[4:]
        if info is None and extra is None:
            return HEAD.pack(PUBLISH, form, 0, queue, seq, now_ms) + body  # type: ignore[no-any-return]
        flags, content = _pack_content(body, info, extra)
        return HEAD.pack(PUBLISH, form, flags, queue, seq, now_ms) + content
    if kind == ACK:
        return HEAD.pack(ACK, 0, 0, queue, seq, now_ms) + _pack_seqs(record[4])
    if kind == LEND:
        until_ms, consumer, seqs = record[4:]
        return b"".join(
            (
                HEAD.pack(LEND, 0, 0, queue, seq, now_ms),
                _U64.pack(until_ms),
                _pack_text(consumer),
                _pack_seqs(seqs),
            )
        )
    if kind == RUN:
        return _encode_run(record)
    return _ENCODERS[kind](record)


def _encode_run(record: Record) -> bytes:
    """Bodies as items. Those of one size share ready-made heads; others say their sizes in a table first."""
    kind, now_ms, queue, seq, form, bodies = record
    count = len(bodies)
    sizes = list(map(len, bodies))
    parts = [b""] * (2 * count)
    parts[1::2] = bodies
    if sizes.count(sizes[0]) == count:
        parts[0::2] = _equal_heads(sizes[0], form, count)
        return b"".join((HEAD.pack(kind, form, 0, queue, seq, now_ms), _U32.pack(count), *parts))
    pack = _ITEM_HEAD.pack
    backs = accumulate([size + ITEM_HEAD_SIZE for size in sizes], initial=run_first(count, True) | _ITEM_BIT)
    parts[0::2] = [pack(size + 2, back, ITEM, form) for size, back in zip(sizes, backs, strict=False)]
    head = HEAD.pack(kind, form, _VARIED, queue, seq, now_ms)
    return b"".join((head, _U32.pack(count), array("I", sizes).tobytes(), *parts))


_heads: dict[tuple[int, int], list[bytes]] = {}


def _equal_heads(size: int, form: int, count: int) -> list[bytes]:
    """The heads of items of one size do not depend on the record they are in."""
    heads = _heads.get((size, form))
    if heads is None or len(heads) < count:
        if len(_heads) >= 64:
            _heads.clear()
        first, step = FIRST_ITEM | _ITEM_BIT, size + ITEM_HEAD_SIZE
        backs = range(first, first + step * count, step)
        heads = _heads[size, form] = [_ITEM_HEAD.pack(size + 2, back, ITEM, form) for back in backs]
    return heads[:count]


def run_first(count: int, varied: bool) -> int:
    """From the frame of a RUN to the frame of its first item."""
    return FIRST_ITEM + 4 * count if varied else FIRST_ITEM


def _encode_route(record: Record) -> bytes:
    kind, now_ms, queue, seq, form, body, info, extra, targets = record
    flags, content = _pack_content(body, info, extra)
    return b"".join(
        (
            HEAD.pack(kind, form, flags, queue, seq, now_ms),
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
    kind, now_ms, queue, seq, sent_ms, form, body, info, extra = record
    flags, content = _pack_content(body, info, extra)
    return HEAD.pack(kind, form, flags, queue, seq, now_ms) + _U64.pack(sent_ms) + content


def _encode_json(record: Record) -> bytes:
    return HEAD.pack(record[0], 0, 0, record[2], record[3], record[1]) + pack_value(list(record[4:]))


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
}


def decode(data: bytes) -> Record:
    kind, form, flags, queue, seq, now_ms = HEAD.unpack_from(data)
    head = (kind, now_ms, queue, seq)
    position = HEAD_SIZE
    if kind == PUBLISH:
        if not flags:
            return (*head, form, data[HEAD_SIZE:], None, None)
        body, info, extra = _unpack_content(data, position, flags)
        return (*head, form, body, info, extra)
    if kind == ACK:
        return (*head, _unpack_seqs(data, position))
    if kind == LEND:
        (until_ms,) = _U64.unpack_from(data, position)
        consumer, position = _unpack_text(data, position + 8)
        return (*head, until_ms, consumer, _unpack_seqs(data, position))
    if kind == RUN:
        starts, sizes = _run_layout(data)
        pairs = zip(starts, sizes, strict=True)
        return (*head, form, tuple([data[start + 2 : start + 2 + size] for start, size in pairs]))
    if kind == ROUTE:
        (count,) = _U32.unpack_from(data, position)
        position += 4
        targets = []
        for _ in range(count):
            targets.append(_ROUTE_TARGET.unpack_from(data, position))
            position += _ROUTE_TARGET.size
        body, info, extra = _unpack_content(data, position, flags)
        return (*head, form, body, info, extra, tuple(targets))
    if kind == RETURN:
        reason, position = _unpack_text(data, position)
        return (*head, form, reason, tuple(_RETURNED.iter_unpack(data[position:])))
    if kind == EXTEND:
        return (*head, _U64.unpack_from(data, position)[0], _unpack_seqs(data, position + 8))
    if kind == MOVE:
        reason, position = _unpack_text(data, position)
        return (*head, form, reason, tuple(_MOVED.iter_unpack(data[position:])))
    if kind == REMOVE:
        return (*head, form, _unpack_seqs(data, position))
    if kind in (PURGE, UNQUEUE):
        return head
    if kind == RESCHEDULE:
        return (*head, _U64.unpack_from(data, position)[0])
    if kind in (EDIT, COPY):
        (sent_ms,) = _U64.unpack_from(data, position)
        return (*head, sent_ms, form, *_unpack_content(data, position + 8, flags))
    if kind in (QUEUE, EXCHANGE, CHECKPOINT):
        return (*head, *unpack_value(data[position:]))
    raise ValueError(f"unknown record kind {kind}")


def _run_layout(data: bytes) -> tuple[Sequence[int], Sequence[int]]:
    """For each item of a RUN: where its bytes begin in the record, and the size of its body."""
    (count,) = _U32.unpack_from(data, HEAD_SIZE)
    if data[2] & _VARIED:
        table = HEAD_SIZE + 4
        sizes: Sequence[int] = array("I", data[table : table + 4 * count])
        first = run_first(count, True)
        starts = list(accumulate([size + ITEM_HEAD_SIZE for size in sizes], initial=first))
        return starts[:-1], sizes
    (length,) = _U32.unpack_from(data, HEAD_SIZE + 4)
    size = length - 2
    step = size + ITEM_HEAD_SIZE
    return range(FIRST_ITEM, FIRST_ITEM + step * count, step), [size] * count


def content(data: bytes) -> tuple[int, bytes, Info | None]:
    """Form, body and info from the record or item that a location points to."""
    kind = data[0]
    if kind == ITEM:
        return data[1], data[2:], None
    flags = data[2]
    if kind == PUBLISH and not flags:
        return data[1], data[HEAD_SIZE:], None
    position = HEAD_SIZE
    if kind == ROUTE:
        (count,) = _U32.unpack_from(data, position)
        position += 4 + count * _ROUTE_TARGET.size
    elif kind in (EDIT, COPY):
        position += 8
    body, info, _ = _unpack_content(data, position, flags)
    return data[1], body, info


def touched(record: Record) -> list[tuple[int, int]]:
    """Which messages a record is about: (queue number, sequence) pairs."""
    kind, _, queue, seq = record[:4]
    if kind in (PUBLISH, EDIT, RESCHEDULE, COPY):
        return [(queue, seq)]
    if kind == RUN:
        return [(queue, seq + i) for i in range(len(record[5]))]
    if kind == ROUTE:
        return list(record[8])
    if kind in (LEND, ACK, EXTEND, REMOVE):
        return [(queue, each) for each in record[-1]]
    if kind == RETURN:
        return [(queue, each) for each, _ in record[6]]
    if kind == MOVE:
        return [pair for each, to, new in record[6] for pair in ((queue, each), (to, new))]
    return []


def index_rows(data: bytes, offset: int) -> bytes:
    """Rows of the sidecar index for the record whose frame is at `offset`: one per message touched.

    Packed here and not row by row by the journal: this runs for every record ever written, beside the
    real work, and is half of what a restart or a replay saves.
    """
    kind, _, flags, queue, seq, now_ms = HEAD.unpack_from(data)
    size = len(data)
    if kind == PUBLISH:
        return ROW.pack(seq, now_ms, queue, offset, size, kind, flags, 0)
    if kind == RUN:
        return _run_rows(data, offset, seq, now_ms, queue, flags)
    if kind in _SEQS_AT:
        position = HEAD_SIZE + _SEQS_AT[kind]
        if kind == LEND:
            position += _U32.unpack_from(data, position - 4)[0]
        pack = ROW.pack
        if size == position + 8:
            return pack(_U64.unpack_from(data, position)[0], now_ms, queue, offset, size, kind, flags, 0)
        seqs = _unpack_seqs(data, position)
        return b"".join([pack(each, now_ms, queue, offset, size, kind, flags, 0) for each in seqs])
    pairs = touched(decode(data)) or [(queue, seq)]
    return b"".join([ROW.pack(each, now_ms, number, offset, size, kind, flags, 0) for number, each in pairs])


# Where the list of sequences begins in records that end with one; for LEND, the name's length is before it.
_SEQS_AT = {ACK: 0, LEND: 12, EXTEND: 8, REMOVE: 0}


def _run_rows(data: bytes, offset: int, seq: int, now_ms: int, queue: int, flags: int) -> bytes:
    """The columns of all rows at once: a row is four words of eight bytes."""
    starts, sizes = _run_layout(data)
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
        words[3::4] = array("Q", [sizes[0] + 2 | rest]) * count
    else:
        words[2::4] = array("Q", [base + (start << 32) for start in starts])
        words[3::4] = array("Q", [size + 2 | rest for size in sizes])
    return words.tobytes()
