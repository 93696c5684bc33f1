"""Infos as columns: attributes, headers, and what is known by name among them.

An info is read once for each distinct value. Where messages have properties of their own, that is once for each
message: `Wires` reads those of AMQP all at once, `told` all others one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from openq.columns.files import Array
from openq.columns.schema import arrow_schema
from openq.columns.stamps import Attribute, Told, count_of, slices, texts, told
from openq.columns.wires import Wires
from openq.engine.records import _unpack_info
from openq.model import Info

_TYPES = {name: arrow_schema("messages").field(name).type for name in Told._fields}
_ATTRIBUTE_TYPES = (pa.string(), pa.string(), pa.binary())
_WIRE, _NOBODY, _WIRE_HEAD = 1, 0xFFFF, 3
_MANY = 64  # from here on all at once is faster than one by one
# Where none of these bytes is in any info, none of them says anything about that column.
_SIGNS = {
    "trace_id": (b"traceparent", b"AWSTraceHeader", b"mzn-", b"openq.trace", b"trace_id"),
    "replay_of": (b"openq.replay_of",),
    "replay_count": (b"openq.replay_count",),
    "batch": (b"openq.batch",),
}
_cache: dict[bytes, Told] = {}
_CACHED = 4096
_CACHED_BYTES = 1024


def infos(data: pa.BinaryArray, wanted: Callable[[str], bool]) -> dict[str, pa.Array]:
    """The columns of `Told` that are wanted, from the bytes of infos; rows without one are null."""
    names = [name for name in Told._fields if wanted(name)]
    raw = data.buffers()[2]
    whole = b"" if raw is None else memoryview(raw).obj if False else raw
    names = [name for name in names if name not in _SIGNS or _any_sign(whole, _SIGNS[name])]
    return {name: pa.nulls(len(data), _TYPES[name]) for name in names}
