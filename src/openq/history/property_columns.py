"""Properties of many messages as columns: attributes, headers, and the columns that are named among them.

Each distinct value is read once. Where every message has properties of its own, `AmqpColumns` reads AMQP
properties all at once, and `property_values` reads all others one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from openq.engine.record_values import unpack_properties
from openq.history.amqp_columns import AmqpColumns
from openq.history.option_columns import slices, texts
from openq.history.property_values import (
    TRACE_NAMES,
    TYPES_NAME,
    PropertyValues,
    attribute_of,
    count_of,
    property_values,
    text_of,
    trace_of,
)
from openq.history.schema import arrow_schema
from openq.history.segments import Array

_TYPES = {name: arrow_schema("messages").field(name).type for name in PropertyValues._fields}
_AMQP_TAG, _NO_PUBLISHER, _AMQP_HEAD = 1, 0xFFFF, 3
_SAMPLE = 64
_MIN_VECTORIZED = 64  # from so many on, reading all at once is faster
# If none of these byte strings occurs in the data, the column is null.
_COLUMN_MARKERS = {
    "trace_id": (b"traceparent", b"AWSTraceHeader", b"mzn-", b"openq.trace", b"trace_id"),
    "replay_of": (b"openq.replay_of",),
    "replay_count": (b"openq.replay_count",),
    "batch": (b"openq.batch",),
}
_OPENQ_COLUMNS = ("replay_of", "replay_count", "batch")
# An attribute of one of these names fills a column.
_COLUMN_ATTRIBUTES = frozenset(("content_type", *(f"openq.{name}" for name in _OPENQ_COLUMNS), *TRACE_NAMES))
_decode_json = msgspec.json.Decoder().decode  # raises ValueError
_cache: dict[bytes, PropertyValues] = {}
_MAX_CACHED = 4096
_MAX_CACHED_BYTES = 1024


def property_columns(data: pa.BinaryArray, wanted: Callable[[str], bool]) -> dict[str, pa.Array]:
    """The wanted columns of `PropertyValues`, from stored properties; rows without properties are null."""
    names = [name for name in PropertyValues._fields if wanted(name)]
    if _COLUMN_MARKERS.keys() >= set(names):
        names = _mentioned(data, names)
    if not names:
        return {}
    if not data.null_count and _all_differ(data):
        return _DistinctProperties(data, names).columns()
    encoded = data.dictionary_encode()
    columns = _DistinctProperties(encoded.dictionary, names).columns()
    return {name: column.take(encoded.indices) for name, column in columns.items()}


def _all_differ(data: pa.BinaryArray) -> bool:
    """By a sample: looking for equal values would cost more than it saves."""
    some = data.take(pa.array(np.linspace(0, len(data) - 1, _SAMPLE).astype(np.int64)))
    return len(data) > 2 * _SAMPLE and len(some.unique()) == _SAMPLE


def _mentioned(data: pa.BinaryArray, names: list[str]) -> list[str]:
    raw = data.buffers()[2]
    whole = b"" if raw is None else raw.to_pybytes()
    return [name for name in names if any(sign in whole for sign in _COLUMN_MARKERS[name])]


class _DistinctProperties:
    """Distinct stored properties: those that `AmqpColumns` can read, and the rest."""

    def __init__(self, data: pa.BinaryArray, names: list[str]) -> None:
        self._data = data
        self._names = names
        count = len(data)
        self._offsets = np.frombuffer(data.buffers()[1], dtype=np.int32)[data.offset :][: count + 1].astype(
            np.int64
        )
        raw = data.buffers()[2]
        self._view: Array = np.frombuffer(b"" if raw is None else raw, dtype=np.uint8)
        self._sizes = np.diff(self._offsets)
        is_amqp = self._sizes > _AMQP_HEAD
        is_amqp[is_amqp] = self._view[self._offsets[:-1][is_amqp]] == _AMQP_TAG
        self._amqp_rows = np.flatnonzero(is_amqp)

    def columns(self) -> dict[str, pa.Array]:
        count = len(self._data)
        if len(self._amqp_rows) < _MIN_VECTORIZED:
            return self._one_by_one(self._data)
        made, odd = self._vectorized()
        # Where each row's value is: among the AMQP rows, or after them.
        places = np.full(count, -1, dtype=np.int64)
        places[self._amqp_rows[~odd]] = np.flatnonzero(~odd)
        rest = np.flatnonzero(places < 0)
        if not len(rest) and len(self._amqp_rows) == count:
            return made
        places[rest] = len(self._amqp_rows) + np.arange(len(rest))
        others = self._one_by_one(self._data.take(pa.array(rest)))
        order = pa.array(places)
        return {name: pa.concat_arrays([made[name], others[name]]).take(order) for name in self._names}

    def _vectorized(self) -> tuple[dict[str, pa.Array], Array]:
        heads = self._offsets[:-1][self._amqp_rows]
        ends = self._offsets[1:][self._amqp_rows]
        sizes = self._view[heads + 1].astype(np.int64) | self._view[heads + 2].astype(np.int64) << 8
        named = sizes != _NO_PUBLISHER
        sizes[~named] = 0
        starts = np.minimum(heads + _AMQP_HEAD + sizes, ends)
        amqp = AmqpColumns(self._view, starts, ends)
        # A publisher name that is longer than the value is malformed: leave it to the slow path.
        amqp.odd |= heads + _AMQP_HEAD + sizes > ends
        made: dict[str, pa.Array] = {}
        for name in self._names:
            if name == "attributes":
                made[name] = amqp.attributes()
            elif name == "headers":
                made[name] = amqp.headers()
            elif name == "content_type":
                made[name] = amqp.content_types()
            elif name == "trace_id":
                made[name] = amqp.traces()
            elif name == "producer":
                made[name] = texts(slices(self._view, heads + _AMQP_HEAD, starts - heads - _AMQP_HEAD, named))
            else:
                made[name] = amqp.header(f"openq.{name}")
        if "replay_count" in made and made["replay_count"].null_count == len(heads):
            made["replay_count"] = pa.nulls(len(heads), _TYPES["replay_count"])
        elif "replay_count" in made:
            counts = [count_of(each) for each in made["replay_count"].to_pylist()]
            made["replay_count"] = pa.array(counts, _TYPES["replay_count"])
        return made, amqp.odd

    def _one_by_one(self, data: pa.BinaryArray) -> dict[str, pa.Array]:
        rows = _PropertyRows("attributes" in self._names)
        if len(data) < _MIN_VECTORIZED:
            for each in data.to_pylist():
                rows.add(_property_values(each))
        else:
            for each in data.to_pylist():
                # Tagged bytes and escaped surrogates are left to the slow path.
                if each[:1] != b"[" or b'"$' in each or b"\\ud" in each or not rows.add_json(each):
                    rows.add(_property_values(each))
        return {name: rows.column(name) for name in self._names}


class _PropertyRows:
    """Columns that grow row by row; maps are flat lists of keys and values, which Arrow converts fast."""

    def __init__(self, shown: bool) -> None:
        self._shown = shown  # whether the attributes are selected
        self._count = 0
        self._keys: list[str] = []
        self._types: list[str] = []
        self._strings: list[str | None] = []
        self._binaries: dict[int, bytes] = {}
        self._ends: list[int] = []
        self._header_keys: list[str] = []
        self._header_values: list[str | None] = []
        self._header_ends: dict[int, int] = {}
        # Most messages have none of these: missing rows are null.
        self._others: dict[str, dict[int, Any]] = {
            name: {} for name in PropertyValues._fields if name not in ("attributes", "headers")
        }

    def add(self, row: PropertyValues) -> None:
        place = self._count
        self._count += 1
        for name, (kind, text, data) in row.attributes or ():
            if data is not None:
                self._binaries[len(self._keys)] = data
            self._keys.append(name)
            self._types.append(kind)
            self._strings.append(text)
        self._ends.append(len(self._keys))
        if row.headers:
            for name, text in row.headers:
                self._header_keys.append(name)
                self._header_values.append(text)
            self._header_ends[place] = len(self._header_keys)
        for name, values in self._others.items():
            value = getattr(row, name)
            if value is not None:
                values[place] = value

    def add_json(self, data: bytes) -> bool:
        """`add(property_values(...))` in a third of the time. False: the caller must use that."""
        try:
            attributes, publisher = _decode_json(data)
        except ValueError:
            return False
        place = self._count
        if attributes:
            if type(attributes) is not dict:
                return False
            kinds = attributes.pop(TYPES_NAME, None)
            if kinds is not None and type(kinds) is not dict:
                kinds = None
            keys, types, strings = self._keys.append, self._types.append, self._strings.append
            for name, value in attributes.items() if self._shown else ():
                text: str | None = value
                if type(value) is str:
                    kind = "String"
                elif value is None:
                    continue
                else:
                    kind, text, _ = attribute_of(value, None)
                if kinds:
                    given = kinds.get(name)
                    kind = given if type(given) is str else kind
                keys(name)
                types(kind)
                strings(text)
            if not _COLUMN_ATTRIBUTES.isdisjoint(attributes):
                self._add_known_attributes(place, attributes)
        self._ends.append(len(self._keys))
        if publisher is not None:
            self._others["producer"][place] = text_of(publisher)
        self._count += 1
        return True

    def _add_known_attributes(self, place: int, attributes: dict[str, Any]) -> None:
        others = self._others
        for name, known in (("content_type", "content_type"), *((n, f"openq.{n}") for n in _OPENQ_COLUMNS)):
            value = attributes.get(known)
            found = count_of(value) if name == "replay_count" else text_of(value)
            if found is not None:
                others[name][place] = found
        trace = trace_of(attributes)
        if trace is not None:
            others["trace_id"][place] = trace

    def column(self, name: str) -> pa.Array:
        if name == "attributes":
            return self._attributes()
        if name == "headers":
            ends = self._header_ends
            offsets = np.zeros(self._count + 1, dtype=np.int32)
            offsets[np.fromiter(ends, np.int64, len(ends)) + 1] = list(ends.values())
            keys, values = (pa.array(each, pa.string()) for each in (self._header_keys, self._header_values))
            return _map(np.maximum.accumulate(offsets), keys, values)
        found = self._others[name]
        if not found:
            return pa.nulls(self._count, _TYPES[name])
        return pa.array([found.get(place) for place in range(self._count)], _TYPES[name])

    def _attributes(self) -> pa.MapArray:
        binary = pa.nulls(len(self._keys), pa.binary())
        if self._binaries:
            binary = pa.array([self._binaries.get(each) for each in range(len(self._keys))], pa.binary())
        parts = [pa.array(self._types, pa.string()), pa.array(self._strings, pa.string()), binary]
        items = pa.StructArray.from_arrays(parts, fields=list(_TYPES["attributes"].item_type))
        return _map(np.array([0, *self._ends], dtype=np.int32), pa.array(self._keys, pa.string()), items)


def _map(offsets: Array, keys: pa.StringArray, items: pa.Array) -> pa.MapArray:
    """An empty map becomes null."""
    missing = np.append(offsets[1:] == offsets[:-1], False)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=missing), keys, items)


def _property_values(data: bytes) -> PropertyValues:
    known = _cache.get(data)
    if known is None:
        try:
            known = property_values(unpack_properties(data))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            known = PropertyValues()  # unreadable properties; the message itself is intact
        if len(data) <= _MAX_CACHED_BYTES:
            if len(_cache) >= _MAX_CACHED:
                _cache.clear()
            _cache[data] = known
    return known
