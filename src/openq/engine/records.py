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
from typing import Any

from ..errors import InvalidSetting
from ..model import Death, Extra, Info

PUBLISH = 1  # form, body, info, extra
RUN = 2  # form, bodies, info, extra           consecutive sequences; info and extra are those of each
ROUTE = 3  # form, body, info, extra, ((queue, seq), ...)
LEND = 4  # until_ms, consumer, seqs           the sequence field holds the first delivery number
ACK = 5  # seqs
RETURN = 6  # why, reason, ((seq, due_ms), ...)
EXTEND = 7  # until_ms, seqs
MOVE = 8  # why, reason, ((seq, to queue, new seq), ...)
REMOVE = 9  # why, seqs
PURGE = 10  # the sequence field is 1 if only what waits goes
EDIT = 11  # sent_ms, form, body, info, extra
RESCHEDULE = 12  # due_ms
COPY = 13  # sent_ms, form, body, info, extra   a live message rewritten to free an old segment
QUEUE = 14  # name, settings as JSON, created_ms
UNQUEUE = 15
EXCHANGE = 16  # operation as JSON
CHECKPOINT = 17  # all queues, exchanges and counters as JSON: first record of each segment
ITEM = 18  # one message inside a RUN, addressed by its own location
ITEM_STAMPED = 19  # the same with an info or an extra, so that it can be read without the others
MARK = 20  # job, owner, batch, rows, whether they are all, rejected   see marks.py
ITEMS = (ITEM, ITEM_STAMPED)

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
    MARK: "marked",
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
GONE_RECEIVES = 5
GONE_DAMAGED = 6  # its body cannot be read; see broker/unreadable.py
REMOVE_NAMES = {
    GONE_EXPIRED: "expired",
    GONE_OVERFLOW: "overflow",
    GONE_CANCELLED: "cancelled",
    GONE_REJECTED: "rejected",
    GONE_RECEIVES: "max_receives",
    GONE_DAMAGED: "damaged",
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
_U16 = Struct("<H")
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


_WIRE = 1  # the first byte of an info in a protocol's own bytes; one in JSON begins with a bracket
_WIRE_HEAD = Struct("<BH")  # that byte, and the length of the publisher's name
_NOBODY = 0xFFFF
_OWN_WIRE = Struct("<IBH")  # the length of an info, and its `_WIRE_HEAD`
# What many messages share is one object again when they are read one by one. Both are emptied when full.
_SHARED = 1024
_SHARED_BYTES = 512
_shared_infos: dict[bytes, Info] = {}
_shared_extras: dict[bytes, Extra] = {}


def pack_info(info: Info) -> bytes:
    if info.packed is not None:
        return info.packed
    if info.wire is None:
        return pack_value([info.attributes and dict(info.attributes), info.publisher])
    if info.publisher is None:
        packed = _WIRE_HEAD.pack(_WIRE, _NOBODY) + info.wire
    else:
        name = info.publisher.encode("utf-8", "surrogatepass")
        if len(name) >= _NOBODY:
            raise InvalidSetting(f"a publisher's name of {len(name)} bytes")
        packed = _WIRE_HEAD.pack(_WIRE, len(name)) + name + info.wire
    info.packed = packed
    return packed


def unpack_info(data: bytes) -> Info:
    if data[0] != _WIRE:
        attributes, publisher = unpack_value(data)
        return Info(attributes or {}, publisher)
    info = _shared_infos.get(data)
    if info is not None:
        return info
    (size,) = _U16.unpack_from(data, 1)
    if size == _NOBODY:
        info = Info(None, None, data[3:])
    else:
        info = Info(None, data[3 : 3 + size].decode("utf-8", "surrogatepass"), data[3 + size :])
    if len(data) <= _SHARED_BYTES:
        info.packed = data
        if len(_shared_infos) >= _SHARED:
            _shared_infos.clear()
        _shared_infos[data] = info
    return info


_TEXTS = ("group", "type", "dedup", "unique", "id", "failure")
_NUMBERS = ("due_ms", "expires_ms", "number", "first_ms", "born_ms")
_EXTRA_HEAD = Struct("<HBI")  # which fields follow, priority, receive count
_DEATHS_BIT = 1 << 11
_ROUTE_BIT = 1 << 12


def _death(fields: Sequence[Any]) -> Death:
    return Death.told(*fields) if len(fields) == 4 else Death(*fields)


def pack_extra(extra: Extra) -> bytes:
    if extra.packed is not None:
        return extra.packed
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
    packed = b"".join(parts)
    if extra.light:
        # Shared by many; one of a single message would only lie there beside its bytes on disk.
        extra.packed = packed
    return packed


def unpack_extra(data: bytes) -> Extra:
    shared = _shared_extras.get(data)
    if shared is not None:
        return shared
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
        extra.deaths = tuple(map(_death, unpack_value(take())))
    if bits & _ROUTE_BIT:
        exchange, key = unpack_value(take())
        extra.route = (exchange, key)
    if extra.lighten().light and len(data) <= _SHARED_BYTES:
        extra.packed = data
        if len(_shared_extras) >= _SHARED:
            _shared_extras.clear()
        _shared_extras[data] = extra
    return extra


def _pack_stamp(info: Info | None, extra: Extra | None) -> tuple[int, bytes]:
    """All of a message but its body, as it stands before that; the flags say what there is."""
    flags = 0
    stamp = b""
    if extra is not None:
        flags |= _HAS_EXTRA
        data = pack_extra(extra)
        stamp = _U32.pack(len(data)) + data
    if info is not None:
        flags |= _HAS_INFO
        data = pack_info(info)
        stamp += _U32.pack(len(data)) + data
    return flags, stamp


def _stamp_end(data: bytes, position: int, flags: int) -> int:
    """Where the body begins."""
    if flags & _HAS_EXTRA:
        position += 4 + _U32.unpack_from(data, position)[0]
    if flags & _HAS_INFO:
        position += 4 + _U32.unpack_from(data, position)[0]
    return position


def _pack_content(body: bytes, info: Info | None, extra: Extra | None) -> tuple[int, bytes]:
    flags, stamp = _pack_stamp(info, extra)
    return flags, stamp + body


def _unpack_read(data: bytes, position: int, flags: int) -> tuple[bytes, Info | None]:
    """`_unpack_content` for a reader who knows the extra already."""
    if flags & _HAS_EXTRA:
        position += 4 + _U32.unpack_from(data, position)[0]
    if not flags & _HAS_INFO:
        return data[position:], None
    (size,) = _U32.unpack_from(data, position)
    position += 4
    return data[position + size :], unpack_info(data[position : position + size])


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
        info = unpack_info(data[position - size : position])
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
        if extra is None and info.packed is None and info.wire is not None and info.publisher is None:
            # Properties of its own and nothing else: as `_pack_content` does it, without the calls between.
            wire = info.wire
            head = HEAD.pack(PUBLISH, form, _HAS_INFO, queue, seq, now_ms)
            return b"".join((head, _OWN_WIRE.pack(_WIRE_HEAD.size + len(wire), _WIRE, _NOBODY), wire, body))
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
    kind, now_ms, queue, seq, form, bodies, info, extra = record
    count = len(bodies)
    sizes = list(map(len, bodies))
    if info is None and extra is None:
        flags, stamp, item = 0, b"", ITEM
        parts = [b""] * (2 * count)
        parts[1::2] = bodies
    else:
        flags, stamp = _pack_stamp(info, extra)
        stamp = bytes((flags,)) + stamp
        item = ITEM_STAMPED
        parts = [stamp] * (3 * count)
        parts[2::3] = bodies
    each = len(parts) // count
    if sizes.count(sizes[0]) == count:
        parts[0::each] = _equal_heads(sizes[0] + len(stamp), item, form, count)
        return b"".join((HEAD.pack(kind, form, flags, queue, seq, now_ms), _U32.pack(count), *parts))
    pack = _ITEM_HEAD.pack
    step = ITEM_HEAD_SIZE + len(stamp)
    backs = accumulate([size + step for size in sizes], initial=run_first(count, True) | _ITEM_BIT)
    length = 2 + len(stamp)
    parts[0::each] = [pack(size + length, back, item, form) for size, back in zip(sizes, backs, strict=False)]
    head = HEAD.pack(kind, form, flags | _VARIED, queue, seq, now_ms)
    return b"".join((head, _U32.pack(count), array("I", sizes).tobytes(), *parts))


_heads: dict[tuple[int, int, int], list[bytes]] = {}


def _equal_heads(size: int, item: int, form: int, count: int) -> list[bytes]:
    """The heads of items of one size do not depend on the record they are in."""
    heads = _heads.get((size, item, form))
    if heads is None or len(heads) < count:
        if len(_heads) >= 64:
            _heads.clear()
        first, step = FIRST_ITEM | _ITEM_BIT, size + ITEM_HEAD_SIZE
        backs = range(first, first + step * count, step)
        heads = _heads[size, item, form] = [_ITEM_HEAD.pack(size + 2, back, item, form) for back in backs]
    return heads[:count]


def run_step(info: Info | None, extra: Extra | None) -> int:
    """How far the frames of two items of a RUN are apart, without the body of the first."""
    if info is None and extra is None:
        return ITEM_HEAD_SIZE
    return ITEM_HEAD_SIZE + 1 + len(_pack_stamp(info, extra)[1])


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
    MARK: _encode_json,
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
        starts, sizes, before = _run_layout(data)
        pairs = zip(starts, sizes, strict=True)
        bodies = [data[start + before : start + before + size] for start, size in pairs]
        if before == 2:
            return (*head, form, tuple(bodies), None, None)
        end = starts[0] + before
        _, info, extra = _unpack_content(data[:end], starts[0] + 3, flags)
        _keep_packed(data, starts[0] + 3, flags, info, extra)
        return (*head, form, tuple(bodies), info, extra)
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
    if kind in (QUEUE, EXCHANGE, CHECKPOINT, MARK):
        return (*head, *unpack_value(data[position:]))
    raise ValueError(f"unknown record kind {kind}")


def _keep_packed(data: bytes, position: int, flags: int, info: Info | None, extra: Extra | None) -> None:
    """The very bytes: where the items of a RUN lie follows from their length."""
    if extra is not None:
        (size,) = _U32.unpack_from(data, position)
        position += 4 + size
        extra.packed = extra.packed or data[position - size : position]
    if info is not None:
        (size,) = _U32.unpack_from(data, position)
        info.packed = info.packed or data[position + 4 : position + 4 + size]


def _run_layout(data: bytes) -> tuple[Sequence[int], Sequence[int], int]:
    """For each item of a RUN: where its bytes begin in the record, and the size of its body.

    Last, how many bytes of an item come before its body.
    """
    (count,) = _U32.unpack_from(data, HEAD_SIZE)
    flags = data[2]
    varied = bool(flags & _VARIED)
    first = run_first(count, varied)
    before = _stamp_end(data, first + 3, flags) - first if flags & ~_VARIED else 2
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


def content(data: bytes) -> tuple[int, bytes, Info | None]:
    """Form, body and info from the record or item that a location points to."""
    kind = data[0]
    if kind == ITEM:
        return data[1], data[2:], None
    flags = data[2]
    if kind == ITEM_STAMPED:
        body, info = _unpack_read(data, 3, flags)
        return data[1], body, info
    if kind == PUBLISH and not flags:
        return data[1], data[HEAD_SIZE:], None
    position = HEAD_SIZE
    if kind == ROUTE:
        (count,) = _U32.unpack_from(data, position)
        position += 4 + count * _ROUTE_TARGET.size
    elif kind in (EDIT, COPY):
        position += 8
    body, info = _unpack_read(data, position, flags)
    return data[1], body, info


def item_content(data: bytes) -> tuple[int, bytes, Info | None, Extra | None]:
    """Form, body, info and extra of one message inside a RUN."""
    if data[0] == ITEM:
        return data[1], data[2:], None, None
    return (data[1], *_unpack_content(data, 3, data[2]))


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


def made_seqs(data: bytes) -> tuple[int, int] | None:
    """The sequences that a record gave out, as first and last + 1; None for a record that gave out none.

    A checkpoint gives out none, and says which comes next: (next, next).
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
