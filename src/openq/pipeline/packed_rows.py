"""Arrow to packed rows and back, by whole columns: lengths and bytes are copied from buffer to buffer.

Only JSON columns (attributes, headers) are converted value by value.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import InvalidSetting, OpenQError
from ..history.schema import arrow_schema
from ..packed import MAGIC, MESSAGE_COLUMNS, NULL

PART_BYTES = 8 << 20
# -- to packed rows ---------------------------------------------------------------------------------


@dataclass
class PackedPart:
    data: bytes
    rows: int
    queues: list[str]


def parts(batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> Iterator[PackedPart]:
    """Rows as parts of about `PART_BYTES`; a longer row is a part of its own."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        for piece, piece_bytes in _pieces(batch.select(list(columns))):
            if held and size + piece_bytes > PART_BYTES:
                yield pack(held)
                held, size = [], 0
            held.append(piece)
            size += piece_bytes
    if held:
        yield pack(held)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, int]]:
    total = batch.nbytes
    if total <= PART_BYTES:
        if batch.num_rows:
            yield batch, total
        return
    # By the bodies, which make a batch large.
    body = batch.column(batch.schema.names.index("body"))
    ends = np.cumsum(pc.binary_length(body).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64))
    other = max(total - int(ends[-1]), 0) // batch.num_rows
    ends += other * np.arange(1, batch.num_rows + 1)
    start = 0
    while start < batch.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, before + PART_BYTES, side="right")), start + 1)
        yield batch.slice(start, stop - start), int(ends[stop - 1]) - before
        start = stop


def pack(batches: Sequence[pa.RecordBatch]) -> PackedPart:
    """Record batches as one part, copied from their buffers; only JSON goes through Python objects."""
    rows = sum(batch.num_rows for batch in batches)
    header: list[tuple[str, str]] = []
    pieces: list[Any] = []
    queues: list[str] = []
    for name in batches[0].schema.names:
        arrays = [batch.column(name) for batch in batches]
        if name == "delay":
            name, arrays = "delay_us", [_as_us(array) for array in arrays]
        kind = MESSAGE_COLUMNS[name]
        if name == "queue":
            queues = pc.unique(pa.chunked_array(arrays)).to_pylist()
            if None in queues:
                raise OpenQError("column queue is null in some rows: fill it, or give option queue")
        if kind == "int":
            pieces += _int_column(arrays)
        else:
            if kind == "json":
                arrays = [_as_json(array) for array in arrays]
            elif name == "body" and any(array.null_count for array in arrays):
                raise OpenQError("column body is null in some rows: filter them out, or give them a body")
            pieces += _sized_column(arrays)
        header.append((name, kind))
    head = json.dumps({"rows": rows, "columns": header}, separators=(",", ":")).encode()
    return PackedPart(b"".join((MAGIC, len(head).to_bytes(4, "little"), head, *pieces)), rows, queues)


def _sized_column(arrays: Sequence[pa.Array]) -> list[Any]:
    lengths = []
    data: list[Any] = []
    for array in arrays:
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        present = array.drop_null() if array.null_count else array
        ends = _offsets(present)
        sizes = np.diff(ends).astype("<u4")
        if array.null_count:
            every = np.full(len(array), NULL, "<u4")
            every[array.is_valid().to_numpy(zero_copy_only=False)] = sizes
            sizes = every
        lengths.append(sizes)
        values = present.buffers()[2]
        if values is not None and len(present):
            data.append(memoryview(values)[int(ends[0]) : int(ends[-1])])
    return [*lengths, *data]


def _offsets(array: pa.Array) -> Any:
    if not len(array):
        return np.zeros(1, np.int64)
    is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    every = np.frombuffer(array.buffers()[1], np.int64 if is_large else np.int32)
    return every[array.offset : array.offset + len(array) + 1]


def _int_column(arrays: Sequence[pa.Array]) -> list[Any]:
    valid = [array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8) for array in arrays]
    numbers = [
        array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).astype("<i8") for array in arrays
    ]
    return [*valid, *numbers]


def _as_us(seconds: pa.Array) -> pa.Array:
    return pc.round(pc.multiply(seconds.cast(pa.float64()), 1_000_000.0)).cast(pa.int64())


def _as_json(array: pa.Array) -> pa.Array:
    """Maps and structs as JSON text; the server accepts attributes in the form of the history too."""
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return array
    texts: list[str | None] = []
    for value in array.to_pylist():
        if value is None:
            texts.append(None)
            continue
        pairs = value.items() if isinstance(value, dict) else value
        texts.append(json.dumps({key: _plain(each) for key, each in pairs if each is not None}))
    return pa.array(texts, pa.string())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        if value.keys() == {"type", "string", "binary"}:
            binary = value["binary"]
            return {**value, "binary": None if binary is None else base64.b64encode(binary).decode()}
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


# -- from packed rows -------------------------------------------------------------------------------


def unpack_to_arrow(data: bytes, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Packed rows as the requested columns of `messages`; missing columns are null."""
    rows, columns = _columns(data)
    if not rows:
        return
    types = {field.name: field.type for field in arrow_schema("messages")}
    types["receive_count"] = pa.int32()
    arrays = []
    for name in names:
        arrays.append(_column(data, rows, columns, name, types[name]))
    yield pa.RecordBatch.from_arrays(arrays, names=list(names))


def _columns(data: bytes) -> tuple[int, dict[str, tuple[str, int, int]]]:
    """The number of rows, and of each column its kind, its start and its end."""
    if data[:4] != MAGIC:
        raise InvalidSetting(f"not packed rows: they do not begin with {MAGIC.decode()}")
    size = int.from_bytes(data[4:8], "little")
    header = json.loads(data[8 : 8 + size])
    rows: int = header["rows"]
    start = 8 + size
    found: dict[str, tuple[str, int, int]] = {}
    for name, kind in header["columns"]:
        if kind == "int":
            end = start + 9 * rows
        else:
            lengths = np.frombuffer(data, "<u4", rows, start)
            end = start + 4 * rows + int(lengths[lengths != NULL].sum(dtype=np.int64))
        found[name] = kind, start, end
        start = end
    if start > len(data):
        raise InvalidSetting("not packed rows: they are truncated")
    return rows, found


def _column(
    data: bytes, rows: int, columns: Mapping[str, tuple[str, int, int]], name: str, wanted: pa.DataType
) -> pa.Array:
    if name in ("ts", "expires") and f"{name}_us" in columns:
        return _ints(data, rows, columns[f"{name}_us"][1]).cast(wanted)
    if name not in columns:
        if name == "size" and "body" in columns:
            lengths = np.frombuffer(data, "<u4", rows, columns["body"][1]).astype(np.int32)
            return pa.array(lengths, wanted)
        if name == "body_sha256" and "body" in columns:
            return _digests(_sized(data, rows, *columns["body"][1:], pa.binary()))
        return pa.nulls(rows, wanted)
    kind, start, end = columns[name]
    if kind == "int":
        return _ints(data, rows, start).cast(wanted)
    if kind == "json":
        texts = _sized(data, rows, start, end, pa.string())
        return texts if wanted == pa.string() else _maps(texts, name, wanted)
    return _sized(data, rows, start, end, wanted)


def _ints(data: bytes, rows: int, start: int) -> pa.Array:
    valid = np.frombuffer(data, np.uint8, rows, start)
    numbers = np.frombuffer(data, "<i8", rows, start + rows)
    return pa.array(numbers, pa.int64(), mask=None if valid.all() else valid == 0)


def _sized(data: bytes, rows: int, start: int, end: int, wanted: pa.DataType) -> pa.Array:
    lengths = np.frombuffer(data, "<u4", rows, start)
    absent = lengths == NULL
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.where(absent, 0, lengths), out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidSetting("packed rows of more than 2 GiB in one column")
    valid = None
    if absent.any():
        valid = pa.py_buffer(np.packbits(~absent, bitorder="little").tobytes())
    values = pa.py_buffer(data).slice(start + 4 * rows, end - start - 4 * rows)
    return pa.Array.from_buffers(wanted, rows, [valid, pa.py_buffer(offsets.astype(np.int32)), values])


def _digests(bodies: pa.Array) -> pa.Array:
    from hashlib import sha256

    return pa.array(
        [None if body is None else sha256(body).digest() for body in bodies.to_pylist()], pa.binary()
    )


def _maps(texts: pa.Array, name: str, wanted: pa.DataType) -> pa.Array:
    if texts.null_count == len(texts):
        return pa.nulls(len(texts), wanted)
    made = _typed if name == "attributes" else _as_text
    values: list[Any] = []
    for text in texts.to_pylist():
        found = None if text is None else json.loads(text)
        values.append(None if found is None else [(key, made(each)) for key, each in found.items()])
    return pa.array(values, wanted)


def _typed(value: Any) -> dict[str, Any]:
    """An attribute in the form of the history."""
    if isinstance(value, dict) and "type" in value and value.keys() <= {"type", "string", "binary"}:
        binary = value.get("binary")
        return {
            "type": value["type"],
            "string": value.get("string"),
            "binary": None if binary is None else base64.b64decode(binary),
        }
    if isinstance(value, dict) and value.keys() == {"$base64"}:
        return {"type": "Binary", "string": None, "binary": base64.b64decode(value["$base64"])}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return {"type": "Number", "string": str(value), "binary": None}
    return {"type": "String", "string": _as_text(value), "binary": None}


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)
