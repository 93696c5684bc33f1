"""Rows in columns, as bytes: the neutral form in which many messages travel at once.

    b"OQP1" | u32 length of the header | header as JSON | one column after the other

The header is `{"rows": n, "columns": [["body", "bytes"], ...]}`. A column of kind bytes, text or json is
u32[n] lengths (0xFFFFFFFF for null) and then all values end to end; one of kind int is n bytes that say which
values are there, and then i64[n]. All numbers are little endian.

Whatever a sender claims is held against the bytes that are there before memory is spent on it.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from struct import Struct, iter_unpack
from typing import Any

from openq.errors import InvalidSetting

MAGIC = b"OQP1"
CONTENT_TYPE = "application/x-openq-rows"
KINDS = ("bytes", "text", "json", "int")
NULL = 0xFFFFFFFF

# The columns of messages to be published, and their kinds.
MESSAGE_COLUMNS = {
    "body": "bytes",
    "queue": "text",
    "message_id": "text",
    "type": "text",
    "group": "text",
    "dedup_id": "text",
    "delay_us": "int",
    "priority": "int",
    "attributes": "json",
    "headers": "json",
    "content_type": "text",
}

_U32 = Struct("<I")
_MAX_HEADER = 1 << 16
_MAX_COLUMNS = 100
_BIG_ENDIAN = sys.byteorder == "big"


class Part:
    """A part that was looked through: every column lies where it must. Values are made when asked for."""

    __slots__ = ("_data", "_places", "kinds", "rows")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.rows, columns = _header(data)
        self.kinds: dict[str, str] = {}
        self._places: dict[str, tuple[int, int]] = {}  # where a column begins, and where its values end
        (size,) = _U32.unpack_from(data, 4)
        start = 8 + size
        for name, kind in columns:
            table = self.rows * (9 if kind == "int" else 4)
            end = start + table
            if end > len(data):
                raise _bad(f"column {name!r} of {self.rows} rows is cut off")
            if kind != "int":
                end += _total(data[start:end])
            if end > len(data):
                raise _bad(f"the values of column {name!r} are cut off")
            self.kinds[name] = kind
            self._places[name] = start, end
            start = end
        if start != len(data):
            raise _bad(f"{len(data) - start} bytes behind the last column")

    def column(self, name: str) -> list[Any]:
        """The values, None for null; equal JSON values are one object. A column that is not there: empty."""
        kind = self.kinds.get(name)
        if kind is None or not self.rows:
            return []
        start, end = self._places[name]
        if kind == "int":
            return self._numbers(start, end)
        values = start + 4 * self.rows
        sizes = self._data[start:values]
        if kind == "bytes":
            return _slices(self._data, values, end, sizes)
        if _all_equal(self._data, values, end, sizes):
            # The same value in every row, as the name of the one queue mostly is.
            (length,) = _U32.unpack(sizes[:4])
            return _decoded(name, kind, [self._data[values : values + length]]) * self.rows
        return _decoded(name, kind, _slices(self._data, values, end, sizes))

    def sizes(self, name: str) -> array[int]:
        """How long each value of a column is, nulls as `NULL`; only for kinds that have lengths."""
        start, _ = self._places[name]
        return _array("I", self._data[start : start + 4 * self.rows])

    def _numbers(self, start: int, end: int) -> list[Any]:
        valid = self._data[start : start + self.rows]
        numbers = _array("q", self._data[start + self.rows : end]).tolist()
        if valid.count(1) == self.rows:
            return numbers
        return [number if there else None for number, there in zip(numbers, valid, strict=True)]


def unpack(data: bytes) -> dict[str, list[Any]]:
    """All columns by name. Raises InvalidSetting for anything that is not a whole, well-formed part."""
    part = Part(data)
    return {name: part.column(name) for name in part.kinds}


def pack(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, str] | None = None) -> bytes:
    """Columns of equal length as a part. What is not named in `kinds` has the kind of its values."""
    rows = len(next(iter(columns.values()), ()))
    header: list[tuple[str, str]] = []
    parts: list[bytes] = []
    for name, values in columns.items():
        if len(values) != rows:
            raise InvalidSetting(f"column {name!r} has {len(values)} rows, others have {rows}")
        kind = (kinds or {}).get(name) or _kind_of(values)
        header.append((name, kind))
        parts += _pack_int(name, values) if kind == "int" else _pack_sized(name, kind, values)
    head = json.dumps({"rows": rows, "columns": header}, separators=(",", ":")).encode()
    return b"".join((MAGIC, _U32.pack(len(head)), head, *parts))


def _kind_of(values: Iterable[Any]) -> str:
    first = next((value for value in values if value is not None), "")
    if isinstance(first, bytes | bytearray | memoryview):
        return "bytes"
    if isinstance(first, str):
        return "text"
    return "int" if isinstance(first, int) else "json"


def _pack_sized(name: str, kind: str, values: Sequence[Any]) -> list[bytes]:
    if kind not in KINDS:
        raise InvalidSetting(f"column {name!r}: a kind is one of {', '.join(KINDS)}, not {kind!r}")
    try:
        if kind == "text":
            values = [value if value is None else value.encode() for value in values]
        elif kind == "json":
            values = [None if value is None else json.dumps(value).encode() for value in values]
        data = b"".join([value for value in values if value is not None])
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidSetting(f"column {name!r}: a value that is not {kind}: {error}") from None
    sizes = array("I", [NULL if value is None else len(value) for value in values])
    if _BIG_ENDIAN:
        sizes.byteswap()
    return [sizes.tobytes(), data]


def _pack_int(name: str, values: Sequence[Any]) -> list[bytes]:
    try:
        numbers = array("q", [0 if value is None else value for value in values])
    except (TypeError, OverflowError):
        raise InvalidSetting(f"column {name!r}: a value that is not a number of 64 bits") from None
    if _BIG_ENDIAN:
        numbers.byteswap()
    return [bytes([value is not None for value in values]), numbers.tobytes()]


# -- looking through


def _bad(why: str) -> InvalidSetting:
    return InvalidSetting(f"not a part of packed rows: {why}")


def _header(data: bytes) -> tuple[int, list[tuple[str, str]]]:
    if len(data) < 8 or data[:4] != MAGIC:
        raise _bad(f"it does not begin with {MAGIC.decode()}")
    (size,) = _U32.unpack_from(data, 4)
    if size > _MAX_HEADER or 8 + size > len(data):
        raise _bad(f"a header of {size} bytes")
    try:
        head = data[8 : 8 + size]
        # Python 3.14 follows any depth of nesting: a list for each byte of the header.
        header = json.loads(head) if head.count(b"[") <= 1 + 20 * _MAX_COLUMNS else None
    except (ValueError, RecursionError):
        raise _bad("its header is no JSON") from None
    rows = header.get("rows") if isinstance(header, dict) else None
    columns = header.get("columns") if isinstance(header, dict) else None
    if type(rows) is not int or rows < 0 or not isinstance(columns, list) or len(columns) > _MAX_COLUMNS:
        raise _bad("its header does not tell rows and columns")
    if rows and not columns:
        raise _bad(f"{rows} rows without a column")
    seen: dict[str, str] = {}
    for column in columns:
        if not (isinstance(column, list) and len(column) == 2 and all(isinstance(x, str) for x in column)):
            raise _bad("a column is a name and a kind")
        name, kind = column
        if kind not in KINDS:
            raise _bad(f"column {name!r} of kind {kind!r}")
        if name in seen:
            raise _bad(f"column {name!r} twice")
        seen[name] = kind
    return rows, list(seen.items())


def _array(code: str, data: bytes) -> array[int]:
    numbers = array(code, data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def _total(sizes: bytes) -> int:
    """How many bytes the values of these lengths take."""
    if _same_lengths(sizes):
        (first,) = _U32.unpack(sizes[:4])
        return 0 if first == NULL else first * (len(sizes) // 4)
    lengths = _array("I", sizes)
    nulls = lengths.count(NULL) if b"\xff\xff\xff\xff" in sizes else 0
    return sum(lengths) - nulls * NULL


def _same_lengths(sizes: bytes) -> bool:
    """Whether all lengths are the same, at the speed of a comparison of bytes."""
    return len(sizes) >= 4 and sizes[4:] == sizes[:-4]


def _all_equal(data: bytes, start: int, end: int, sizes: bytes) -> bool:
    """Whether all values are the same and none is null."""
    if not _same_lengths(sizes):
        return False
    (size,) = _U32.unpack(sizes[:4])
    return size != NULL and data[start + size : end] == data[start : max(end - size, start)]


def _slices(data: bytes, start: int, end: int, sizes: bytes) -> list[Any]:
    count = len(sizes) // 4
    if _same_lengths(sizes):
        (size,) = _U32.unpack(sizes[:4])
        if size == NULL:
            return [None] * count
        if not size:
            return [b""] * count
        return list(chain.from_iterable(iter_unpack(f"{size}s", memoryview(data)[start:end])))
    lengths = _array("I", sizes)
    if b"\xff\xff\xff\xff" not in sizes or not lengths.count(NULL):
        ends = list(accumulate(lengths, initial=start))
        return [data[a:b] for a, b in pairwise(ends)]
    values: list[Any] = []
    for length in lengths:
        if length == NULL:
            values.append(None)
        else:
            values.append(data[start : start + length])
            start += length
    return values


def _decoded(name: str, kind: str, values: list[Any]) -> list[Any]:
    known: dict[bytes | None, Any] = {None: None}
    try:
        for value in dict.fromkeys(values):
            if value is not None:
                known[value] = value.decode() if kind == "text" else json.loads(value)
    except (ValueError, RecursionError):
        raise _bad(f"a value of column {name!r} is no {'text' if kind == 'text' else 'JSON'}") from None
    return [known[value] for value in values]
