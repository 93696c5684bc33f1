"""Delivery options of many messages at once: group, priority, times, own id and others.

The options of a message are bytes in a fixed order before its body: numpy reads one field of all messages in
a few steps. Everything works on one verified buffer; offsets outside of it raise OutOfBounds.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import pyarrow as pa

from openq.engine.record_values import unpack_value
from openq.history.property_values import clean
from openq.history.segments import Array, gather

HAS_OPTIONS = 1
HAS_PROPERTIES = 2

_OPTIONS_HEAD = 7  # which fields follow, priority, receive count
_TEXTS = ("group", "type", "dedup", "unique", "id", "reason")
_NUMBERS = ("due_ms", "expires_ms", "number", "first_ms", "born_ms")
_DEATHS_BIT = 1 << 11
_ROUTE_BIT = 1 << 12


class OutOfBounds(Exception):
    """The index or a length points outside the verified bytes: they do not belong together."""


def gather_checked(view: Array, at: Array, size: int) -> Array:
    """`gather` for offsets that come from stored lengths."""
    if len(at) and (int(at.min()) < 0 or int(at.max()) + size > len(view)):
        raise OutOfBounds
    return gather(view, at, size)


def slices(view: Array, starts: Array, sizes: Array, valid: Array | None = None) -> pa.BinaryArray:
    """One binary array of many slices of a buffer. Rows that are not `valid` become null.

    The slices become elements of an array over the buffer itself, alternating with the bytes between them,
    and one `take` copies the slices. They must be in the order of the buffer for that; where they are not, or
    where a slice occurs twice, they are sorted first.
    """
    count = len(starts)
    chosen = np.arange(count) if valid is None else np.flatnonzero(valid)
    first = starts[chosen].astype(np.int64)
    last = first + sizes[chosen].astype(np.int64)
    if len(chosen) and (int(first.min()) < 0 or int(last.max()) > len(view) or bool((last < first).any())):
        raise OutOfBounds
    places = np.arange(len(chosen), dtype=np.int64)
    if bool((first[1:] < last[:-1]).any()):
        order = np.lexsort((last, first))
        first, last = first[order], last[order]
        fresh = np.ones(len(first), dtype=bool)
        fresh[1:] = (first[1:] != first[:-1]) | (last[1:] != last[:-1])
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.cumsum(fresh) - 1
        first, last = first[fresh], last[fresh]
        if bool((first[1:] < last[:-1]).any()):
            raise OutOfBounds
    offsets = np.empty(2 * len(first) + 1, dtype=np.int32)
    offsets[0:-1:2] = first
    offsets[1:-1:2] = last
    offsets[-1] = last[-1] if len(last) else 0
    whole = pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(view)]
    )
    if len(chosen) == count:
        return whole.take(pa.array(places * 2))
    indices = np.zeros(count, dtype=np.int64)
    indices[chosen] = places * 2
    mask = np.ones(count, dtype=bool)
    mask[chosen] = False
    return whole.take(pa.array(indices, mask=mask))


def texts(data: pa.BinaryArray) -> pa.StringArray:
    """As text; invalid UTF-8 becomes question marks."""
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [
                None if each is None else clean(each.decode("utf-8", "surrogatepass"))
                for each in data.to_pylist()
            ],
            pa.string(),
        )


class OptionColumns:
    """The options of some messages, one value for each row; rows without options have defaults."""

    def __init__(self, view: Array, starts: Array, sizes: Array, has: Array) -> None:
        self._view = view
        self._has = has
        self._count = len(has)
        self._at = starts[has].astype(np.int64)
        self._end = self._at + sizes[has].astype(np.int64)
        if len(self._at) and int((self._end - self._at).min()) < _OPTIONS_HEAD:
            raise OutOfBounds
        self._bits = gather_checked(view, self._at, 2)

    @cached_property
    def _fields(self) -> dict[str, tuple[Array, Array]]:
        """For each field: where its bytes begin, and their number (-1: absent)."""
        at = self._at + _OPTIONS_HEAD
        found: dict[str, tuple[Array, Array]] = {}
        for place, name in enumerate((*_TEXTS, *_NUMBERS, "deaths", "route")):
            has = (self._bits & (1 << place)) != 0
            sizes = np.full(len(at), -1, dtype=np.int64)
            if name in _NUMBERS:
                sizes[has] = 8
                found[name] = at, sizes
                at = at + np.where(has, 8, 0)
                continue
            sizes[has] = gather_checked(self._view, at[has], 4)
            found[name] = at + 4, sizes
            at = at + np.where(has, sizes + 4, 0)
            # A length that is too large must not misplace the next field.
            if bool((at > self._end).any()):
                raise OutOfBounds
        return found

    def _spread(self, values: Array, default: int) -> Array:
        out = np.full(self._count, default, dtype=np.int64)
        out[self._has] = values
        return out

    @property
    def priorities(self) -> Array:
        return self._spread(self._view[self._at + 2], 0)

    @property
    def counts(self) -> Array:
        return self._spread(gather_checked(self._view, self._at + 3, 4), 0)

    def has_field(self, name: str) -> Array:
        out = np.zeros(self._count, dtype=bool)
        out[self._has] = self._fields[name][1] >= 0
        return out

    def numbers(self, name: str) -> Array:
        """0 where the field is absent."""
        at, sizes = self._fields[name]
        has = sizes >= 0
        values = np.zeros(len(at), dtype=np.int64)
        values[has] = gather_checked(self._view, at[has], 8).astype(np.int64)
        return self._spread(values, 0)

    def texts(self, name: str) -> pa.StringArray:
        return texts(self.raw(name))

    def raw(self, name: str) -> pa.BinaryArray:
        at, sizes = self._fields[name]
        starts = self._spread(at, 0)
        lengths = self._spread(sizes, -1)
        valid = lengths >= 0
        if not valid.any():
            return pa.nulls(self._count, pa.binary())
        return slices(self._view, starts, lengths, valid)

    def routes(self) -> tuple[pa.StringArray, pa.StringArray]:
        """Exchange and routing key."""
        encoded = self.raw("route").dictionary_encode()
        pairs = [_route(each) for each in encoded.dictionary.to_pylist()]
        exchanges, keys = (pa.array([pair[i] for pair in pairs], pa.string()) for i in (0, 1))
        return exchanges.take(encoded.indices), keys.take(encoded.indices)


def _route(data: bytes) -> tuple[str, str]:
    try:
        exchange, key = unpack_value(data)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise OutOfBounds from None
    return clean(str(exchange)), clean(str(key))
