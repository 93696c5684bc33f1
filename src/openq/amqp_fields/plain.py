"""Which properties concern nobody but the consumer: found out without decoding them.

Messages of one program mostly have properties of one shape: the same fields and headers, with values of the
same lengths. `PlainShapes` walks through the first of them, and knows the others by a mask over their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import error as StructError

from .shown import DEDUP_HEADER, DELAY_HEADERS, GROUP_HEADER
from .tables import ARRAY, BYTES, FIXED_SIZES, MAX_DEPTH, TABLE, TEXT, U32

# Headers that say more than an attribute: of a message with one of them, or with a property that a queue
# acts upon, `is_plain` says no.
_INTERPRETED_HEADERS = frozenset(
    name.encode() for name in ("CC", "BCC", GROUP_HEADER, DEDUP_HEADER, *DELAY_HEADERS)
)
_INTERPRETED_FLAGS = 0x0133  # expiration, type, user_id, and flags that are nobody's
_DIRECT_REPLY = b"\x15amq.rabbitmq.reply-to"
_MAX_SHAPE_BYTES = 512  # longer properties are walked through each time
_MAX_SHAPES = 64

Spans = list[tuple[int, int]]  # places of values of any content: start and end


def is_plain(amqp_properties: bytes, values: Spans | None = None) -> bool:
    """Whether these are properties in order that concern nobody but the consumer. `values` gets the places of
    the values that do not matter for that, except for the address of direct replies.

    A look without making anything of it: a third of what `decode` costs. No is no verdict: `decode` has to
    say what is the matter.
    """
    size = len(amqp_properties)
    if size < 2:
        return False
    flags = amqp_properties[0] << 8 | amqp_properties[1]
    if flags & _INTERPRETED_FLAGS:
        return False
    at = 2
    if values is None:
        values = []
    try:
        for flag in (0x8000, 0x4000):
            if flags & flag:
                at = _after_short(amqp_properties, at, values)
        if flags & 0x2000:
            end = at + 4 + U32.unpack_from(amqp_properties, at)[0]
            if end > size or not _is_plain_table(amqp_properties, at + 4, end, 0, values):
                return False
            at = end
        if flags & 0x1000:
            if amqp_properties[at] not in (1, 2):
                return False
            at += 1
        if flags & 0x0800:
            if amqp_properties[at]:  # a priority
                return False
            at += 1
        for flag in (0x0400, 0x0200, 0x0080):
            if flags & flag:
                at = _after_short(amqp_properties, at, values)
        if flags & 0x0040:
            values.append((at, at + 8))
            at += 8
        for flag in (0x0008, 0x0004):
            if flags & flag:
                at = _after_short(amqp_properties, at, values)
    except (IndexError, StructError):
        return False
    return at == size and _DIRECT_REPLY not in amqp_properties


def _after_short(data: bytes, at: int, values: Spans) -> int:
    end = at + 1 + data[at]
    values.append((at + 1, end))
    return end


def _is_plain_table(data: bytes, at: int, end: int, depth: int, values: Spans) -> bool:
    while at < end:
        start = at + 1
        at = start + data[at]
        if at >= end or (not depth and data[start:at] in _INTERPRETED_HEADERS):
            return False
        at = _after_value(data, at, end, depth, values)
        if not at:
            return False
    return at == end


def _after_value(data: bytes, at: int, end: int, depth: int, values: Spans) -> int:
    """Where a value ends whose kind is at `at`; 0 if it does not end in time, or is of no known kind."""
    kind = data[at]
    if kind in (TEXT, BYTES):
        if at + 5 > end:
            return 0
        start = at + 5
        at = start + U32.unpack_from(data, at + 1)[0]
        values.append((start, at))
        return at if at <= end else 0
    size = FIXED_SIZES.get(kind)
    if size is not None:
        start = at + 1
        at = start + size
        values.append((start, at))
        return at if at <= end else 0
    if (kind != TABLE and kind != ARRAY) or at + 5 > end or depth >= MAX_DEPTH:
        return 0
    stop: int = at + 5 + U32.unpack_from(data, at + 1)[0]
    if stop > end:
        return 0
    at += 5
    if kind == TABLE:
        return stop if _is_plain_table(data, at, stop, depth + 1, values) else 0
    while at < stop:
        at = _after_value(data, at, stop, depth + 1, values)
        if not at:
            return 0
    return stop


class PlainShapes:
    """Shapes of properties that were plain, the last one of each size."""

    def __init__(self) -> None:
        # Size -> a mask over all bytes but those of values, and these bytes.
        self._by_size: dict[int, tuple[int, int]] = {}

    def plain_until(self, all_properties: Sequence[bytes], at: int) -> int:
        """The first index from `at` on whose properties are not plain, or the count of all."""
        known = self._by_size.get
        number = int.from_bytes
        for place in range(at, len(all_properties)):
            each = all_properties[place]
            shape = known(len(each))
            if (
                shape is None or number(each, "big") & shape[0] != shape[1] or _DIRECT_REPLY in each
            ) and not self._learn(each):
                return place
        return len(all_properties)

    def _learn(self, amqp_properties: bytes) -> bool:
        values: Spans = []
        if not is_plain(amqp_properties, values):
            return False
        size = len(amqp_properties)
        if size <= _MAX_SHAPE_BYTES:
            mask = bytearray(b"\xff" * size)
            for start, end in values:
                mask[start:end] = bytes(end - start)
            if len(self._by_size) >= _MAX_SHAPES:
                self._by_size.clear()
            wanted = int.from_bytes(mask, "big")
            self._by_size[size] = wanted, int.from_bytes(amqp_properties, "big") & wanted
        return True
