"""AMQP properties of many messages at once: numpy reads one field of all messages per step.

Clients give each message an id of its own, so hardly two messages have the same properties, and reading them
one by one takes many times as long as everything else. Unusual rows (a name twice, bytes that are not text,
tables that do not end) are marked `odd` and left to `property_values`. Both must agree, and a test compares
them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from openq import amqp_fields
from openq.amqp_fields import DEDUP_HEADER, GROUP_HEADER, MAX_ID_CHARS
from openq.history.option_columns import slices
from openq.history.property_values import TRACE_NAMES, TYPES_NAME, Attribute, attribute_of, text_of, trace_of
from openq.history.schema import arrow_schema
from openq.history.segments import Array
from openq.trace_context import AMAZON, AMAZON_HEADER

_MAX_ITEMS = 64  # of a table; each takes a step
_UNKNOWN, _SIZED = -2, -1


def _sizes() -> Array:
    """The size in bytes of a value of each kind."""
    table = np.full(256, _UNKNOWN, dtype=np.int64)
    for code, size in amqp_fields.FIXED_SIZES.items():
        table[code] = size
    for kind in "SxAF":
        table[ord(kind)] = _SIZED
    return table


_SIZES = _sizes()
_TEXT, _BYTES, _BOOL, _VOID = (ord(code) for code in "SxtV")
_INTEGERS = {
    **{ord(code): kind for code, kind in zip("bBsuIilL", "bBhHiIqq", strict=True)},
    ord("T"): "Q",
}
_KINDS = ("String", "Number", "Json", "Binary")
_STRING, _NUMBER, _JSON, _BINARY = range(4)
_OPENQ_HEADERS = ("openq.replay_of", "openq.replay_count", "openq.batch")
# Headers whose names mean something else among attributes.
_ODD_NAMES = frozenset((AMAZON, TYPES_NAME, *amqp_fields.ATTRIBUTE_PROPERTIES))
_ATTRIBUTE_FIELDS = list(arrow_schema("messages").field("attributes").type.item_type)


class AmqpColumns:
    """The properties at [starts, ends) of a buffer, in rising order. Rows that are `odd` have no values."""

    def __init__(self, view: Array, starts: Array, ends: Array) -> None:
        self._view = view
        self._count = len(starts)
        self.odd: Array = np.zeros(self._count, dtype=bool)
        self._fields = self._walk(starts.astype(np.int64), ends.astype(np.int64))
        self._walk_tables()
        self._read_names()
        self._read_values()

    # -- offsets --

    def _number(self, at: Array, kind: str) -> Array:
        """Numbers in network order; offsets beyond the buffer give any number, which later checks reject."""
        size = np.dtype(kind).itemsize
        last = len(self._view) - size
        if last < 0:
            return np.zeros(len(at), dtype=np.int64)
        all_places: Array = np.ndarray((last + 1,), dtype=f">{kind}", buffer=self._view, strides=(1,))
        found = all_places[np.minimum(at, last)]
        return found.astype(np.uint64 if kind == "Q" else np.int64)

    def _walk(self, at: Array, ends: Array) -> dict[str, tuple[Array, Array, Array]]:
        """For each property: the rows that have it, and where it begins and ends."""
        fine = ends - at >= 2
        flags = self._number(at, "H")
        at = at + 2
        found: dict[str, tuple[Array, Array, Array]] = {}
        for flag, name, kind in amqp_fields.FIELDS:
            rows = np.flatnonzero(fine & ((flags & flag) != 0))
            if not len(rows):
                continue
            first = at[rows]
            if kind == amqp_fields.SHORT_KIND:
                size = self._number(first, "B")
                first = first + 1
            elif kind == amqp_fields.TABLE_KIND:
                size = self._number(first, "I")
                first = first + 4
            else:
                size = np.full(len(rows), 1 if kind == amqp_fields.OCTET_KIND else 8)
            last = first + size
            at[rows] = last
            fine[rows] = last <= ends[rows]
            found[name] = rows, first, last
        self.odd |= ~fine | (at != ends)
        return {
            name: tuple(each[~self.odd[rows]] for each in (rows, first, last))  # type: ignore[misc]
            for name, (rows, first, last) in found.items()
        }

    def _walk_tables(self) -> None:
        """The headers: the first of all rows, then the second of all rows, ...; finally in the order of the
        rows."""
        nothing: Array = np.empty(0, dtype=np.int64)
        rows, at, end = self._fields.get("headers", (nothing, nothing, nothing))
        steps: list[tuple[Array, Array, Array, Array, Array]] = []
        for _ in range(_MAX_ITEMS):
            more = at < end
            if not more.all():
                rows, at, end = rows[more], at[more], end[more]
            if not len(rows):
                break
            kinds_at = at + 1 + self._number(at, "B")
            kinds = self._number(kinds_at, "B")
            first = kinds_at + 1
            size = _SIZES[kinds]
            sized = size == _SIZED
            if sized.any():
                first = np.where(sized, first + 4, first)
                size = np.where(sized, self._number(kinds_at + 1, "I"), size)
            last = first + size
            steps.append((rows, at + 1, kinds_at, first, last))
            bad = (kinds_at >= end) | (last > end) | (size == _UNKNOWN)
            if bad.any():
                self.odd[rows[bad]] = True
                rows, end, last = rows[~bad], end[~bad], last[~bad]
            at = last
        else:
            self.odd[rows[at < end]] = True
        if not steps:
            steps.append((nothing, nothing, nothing, nothing, nothing))
        counts = np.zeros(self._count, dtype=np.int64)
        for each in steps:
            counts[each[0]] += 1
        starts = np.cumsum(counts) - counts
        places = np.concatenate([starts[each[0]] + i for i, each in enumerate(steps)])
        made = []
        for which in range(5):
            column = np.empty(len(places), dtype=np.int64)
            column[places] = np.concatenate([each[which] for each in steps])
            made.append(column)
        self._keep(made)

    def _keep(self, items: list[Array]) -> None:
        """Drops the items of odd rows."""
        if self.odd.any():
            good = ~self.odd[items[0]]
            items = [each[good] for each in items]
        self._rows, self._names_at, self._kinds_at, self._first, self._last = items
        self._kinds = self._view[self._kinds_at]

    # -- values --

    def _read_names(self) -> None:
        encoded = slices(self._view, self._names_at, self._kinds_at - self._names_at).dictionary_encode()
        ids = encoded.indices.to_numpy().astype(np.int64)
        names: list[str] = []
        bad: list[int] = []
        for place, raw in enumerate(encoded.dictionary.to_pylist()):
            try:
                names.append(raw.decode())
                if names[-1] in _ODD_NAMES:
                    bad.append(place)
            except UnicodeDecodeError:
                names.append("")
                bad.append(place)
        if bad:
            self.odd[self._rows[np.isin(ids, bad)]] = True
        keys = np.sort(self._rows * max(1, len(names)) + ids)
        twice = keys[1:][keys[1:] == keys[:-1]]
        self.odd[twice // max(1, len(names))] = True
        self._names = names
        self._name_ids: dict[str, int] = {name: place for place, name in enumerate(names)}
        self._ids = ids
        if self.odd.any():
            self._ids = ids[~self.odd[self._rows]]
            self._keep([self._rows, self._names_at, self._kinds_at, self._first, self._last])

    def _read_values(self) -> None:
        """`_texts` has all texts; `_headers` and `_shown` are the numbers of a header's and an attribute's
        text."""
        kinds = self._kinds
        self._mark_odd_values()
        self._types: Array = np.full(len(kinds), _STRING, dtype=np.int8)
        self._headers: Array = np.full(len(kinds), -1, dtype=np.int64)  # -1: null
        mine = np.flatnonzero(kinds == _TEXT)
        fields = [
            (name, *self._fields[name]) for name in amqp_fields.ATTRIBUTE_PROPERTIES if name in self._fields
        ]
        spans = [(self._rows[mine], self._first[mine], self._last[mine])]
        spans += [span for name, *span in fields if name != "timestamp"]  # type: ignore[misc]
        rows, first, last = (np.concatenate([span[which] for span in spans]) for which in range(3))
        # In the order of the buffer, so that all are copied in one step.
        order = np.argsort(first, kind="stable")
        ranks = np.empty(len(order), dtype=np.int64)
        ranks[order] = np.arange(len(order))
        self._pool: list[pa.StringArray] = []
        self._add(self._checked_texts(rows[order], first[order], last[order]))
        done = len(mine)
        self._headers[mine] = ranks[:done]
        self._props: list[tuple[str, Array, Array]] = []
        for name, rows, first, _ in fields:
            if name == "timestamp":
                found = self._add(pa.array(self._number(first, "Q")).cast(pa.string()))
            else:
                found = ranks[done : done + len(rows)]
                done += len(rows)
            self._props.append((name, rows, found))
        for code, kind in _INTEGERS.items():
            mine = np.flatnonzero(kinds == code)
            if len(mine):
                self._headers[mine] = self._add(
                    pa.array(self._number(self._first[mine], kind)).cast(pa.string())
                )
                self._types[mine] = _NUMBER
        mine = np.flatnonzero(kinds == _BOOL)
        if len(mine):
            words = self._add(pa.array(["false", "true"]))
            self._headers[mine] = words[(self._view[self._first[mine]] != 0).astype(np.int64)]
            self._types[mine] = _JSON
        self._shown: Array = self._headers.copy()
        self._read_others()
        self._texts = pa.concat_arrays(self._pool)

    def _add(self, texts: pa.StringArray) -> Array:
        """Adds texts to the pool; their numbers."""
        place = sum(map(len, self._pool))
        self._pool.append(texts)
        return np.arange(place, place + len(texts))

    def _checked_texts(self, rows: Array, first: Array, last: Array) -> pa.StringArray:
        raw = slices(self._view, first, last - first)
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:
            found = [_utf8_or_none(each) for each in raw.to_pylist()]
            self.odd[rows[[place for place, text in enumerate(found) if text is None]]] = True
            return pa.array(found, pa.string())

    def _mark_odd_values(self) -> None:
        """Rows in which a header with a meaning of its own is not a text."""
        for name in (*TRACE_NAMES, *_OPENQ_HEADERS, GROUP_HEADER, DEDUP_HEADER):
            place = self._name_ids.get(name)
            if place is None:
                continue
            mine = np.flatnonzero(self._ids == place)
            kinds = self._kinds[mine]
            bad = kinds != _TEXT
            if name in (GROUP_HEADER, DEDUP_HEADER):
                # The limit is in characters, so a long value must be decoded to check it.
                bad |= self._last[mine] - self._first[mine] > MAX_ID_CHARS
            elif name in _OPENQ_HEADERS:
                bad &= ~np.isin(kinds, list(_INTEGERS))
            self.odd[self._rows[mine[bad]]] = True

    def _read_others(self) -> None:
        """Arrays, tables, fractions, bytes: each distinct value is decoded once."""
        simple = np.zeros(256, dtype=bool)
        simple[[_TEXT, _BOOL, _VOID, *_INTEGERS]] = True
        mine = np.flatnonzero(~simple[self._kinds])
        if not len(mine):
            return
        starts = self._kinds_at[mine]
        encoded = slices(self._view, starts, self._last[mine] - starts).dictionary_encode()
        ids = encoded.indices.to_numpy()
        texts: list[str | None] = []
        shown: list[Attribute] = []
        bad: list[int] = []
        for place, raw in enumerate(encoded.dictionary.to_pylist()):
            try:
                value = amqp_fields.decode_value(raw)
                texts.append(text_of(value))
                shown.append(attribute_of(amqp_fields.plain_value(value), None))
            except (ValueError, TypeError, RecursionError):
                texts.append(None)
                shown.append(("Json", None, None))
                bad.append(place)
        if bad:
            self.odd[self._rows[mine[np.isin(ids, bad)]]] = True
        self._headers[mine] = self._add(pa.array(texts, pa.string()))[ids]
        self._shown[mine] = self._add(pa.array([each[1] for each in shown], pa.string()))[ids]
        kinds = np.array([_KINDS.index(each[0]) for each in shown], dtype=np.int8)
        self._types[mine] = kinds[ids]
        # Bytes have no text among attributes.
        self._shown[self._kinds == _BYTES] = -1

    # -- as columns --

    def headers(self) -> pa.MapArray:
        keys = pa.array(self._names, pa.string()).take(pa.array(self._ids))
        return _map(self._count, self._rows, keys, self._take(self._headers))

    def attributes(self) -> pa.MapArray:
        hidden = np.array([name in amqp_fields.HIDDEN_HEADERS for name in self._names] + [False])
        show = ~hidden[self._ids] & (self._kinds != _VOID) & ~self._routing_headers()
        chosen = np.flatnonzero(show)
        rows, ids = [self._rows[chosen]], [self._ids[chosen]]
        values, types = [self._shown[chosen]], [self._types[chosen]]
        for place, (name, mine, found) in enumerate(self._props):
            rows.append(mine)
            ids.append(np.full(len(mine), len(self._names) + place))
            values.append(found)
            kind = _NUMBER if name == "timestamp" else _STRING
            types.append(np.full(len(mine), kind, dtype=np.int8))
        all_rows = np.concatenate(rows)
        order = np.argsort(all_rows, kind="stable")
        names = pa.array(
            [
                *(AMAZON if name == AMAZON_HEADER else name for name in self._names),
                *(name for name, _, _ in self._props),
            ],
            pa.string(),
        )
        keys = names.take(pa.array(np.concatenate(ids)[order]))
        kinds = np.concatenate(types)[order]
        binary = pa.nulls(len(order), pa.binary())
        if (kinds == _BINARY).any():
            of_item = np.full(len(order), -1, dtype=np.int64)
            of_item[: len(chosen)] = chosen
            of_item = of_item[order]
            holds = kinds == _BINARY
            item = np.where(holds, of_item, 0)
            binary = slices(self._view, self._first[item], self._last[item] - self._first[item], holds)
        parts = [
            pa.array(_KINDS, pa.string()).take(pa.array(kinds)),
            self._take(np.concatenate(values)[order]),
            binary,
        ]
        items = pa.StructArray.from_arrays(parts, fields=_ATTRIBUTE_FIELDS)
        return _map(self._count, all_rows[order], keys, items)

    def _routing_headers(self) -> Array:
        """Headers that became a message's group or deduplication id, and are therefore not attributes."""
        found: Array = np.zeros(len(self._rows), dtype=bool)
        for name in (GROUP_HEADER, DEDUP_HEADER):
            place = self._name_ids.get(name)
            if place is not None:
                size = self._last - self._first
                found |= (self._ids == place) & (self._kinds == _TEXT) & (size > 0)
        return found

    def header(self, name: str) -> pa.StringArray:
        """The text of one header, of all rows."""
        values: Array = np.full(self._count, -1, dtype=np.int64)
        place = self._name_ids.get(name)
        if place is not None:
            mine = np.flatnonzero(self._ids == place)
            values[self._rows[mine]] = self._headers[mine]
        return self._take(values)

    def content_types(self) -> pa.StringArray:
        values: Array = np.full(self._count, -1, dtype=np.int64)
        for name, rows, found in self._props:
            if name == "content_type":
                values[rows] = found
        return self._take(values)

    def traces(self) -> pa.StringArray:
        columns = {name: self.header(name) for name in TRACE_NAMES if name in self._name_ids}
        if not columns:
            return pa.nulls(self._count, pa.string())
        names = list(columns)
        rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
        return pa.array([trace_of(dict(zip(names, row, strict=True))) for row in rows], pa.string())

    def _take(self, values: Array) -> pa.StringArray:
        missing = values < 0
        return self._texts.take(pa.array(values, mask=missing if missing.any() else None))


def _utf8_or_none(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _map(count: int, rows: Array, keys: pa.Array, items: pa.Array) -> pa.MapArray:
    """A map column of items in the order of their rows. A row without items is null."""
    sizes = np.bincount(rows, minlength=count)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    missing = np.append(sizes == 0, False)
    return pa.MapArray.from_arrays(pa.array(offsets, mask=missing), keys, items)
