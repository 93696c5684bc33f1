"""Decodes rows of the table `messages`: one for each message that was published."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from openq.engine.records import ROUTE, RUN
from openq.history.decode_table import PUBLISH_KINDS, TableDecoder, delays_us, times_column
from openq.history.layout import RECORD_HEAD_BYTES, payload_layout
from openq.history.option_columns import HAS_OPTIONS, HAS_PROPERTIES, OptionColumns, OutOfBounds, slices
from openq.history.property_columns import property_columns
from openq.history.schema import BODY_COLUMNS
from openq.history.segments import Array
from openq.history.tracker import hex_ids
from openq.journal.format import FRAME_BYTES

_OPTION_COLUMNS = ("message_id", "type", "group", "dedup_id", "priority", "delay_us", "expires")
_ROUTE_COLUMNS = ("exchange", "routing_key")
_PROPERTY_COLUMNS = (
    "content_type",
    "attributes",
    "headers",
    "trace_id",
    "producer",
    "replay_of",
    "replay_count",
    "batch",
)
_VARIABLE_COLUMNS = frozenset((*_OPTION_COLUMNS, *_ROUTE_COLUMNS, *_PROPERTY_COLUMNS, "size"))


class MessageDecoder(TableDecoder):
    kinds = PUBLISH_KINDS

    def _needs_bytes(self, chosen: Array) -> Array:
        if self.is_wanted(*BODY_COLUMNS):
            return np.ones(len(chosen), dtype=bool)
        odd: Array = (chosen["kind"] == ROUTE) & self.is_wanted("size")
        if _VARIABLE_COLUMNS.intersection(self.columns):
            odd |= (chosen["flags"] & (HAS_OPTIONS | HAS_PROPERTIES)) != 0
        return odd

    def _weights(self, chosen: Array) -> Array | None:
        return chosen["length"].astype(np.int64) if self.is_wanted(*BODY_COLUMNS) else None

    def _pick_ids(self, part: Array, mask: Array) -> Array:
        if self.selection.ids:
            # A message with options may have an id of its own: it must be read.
            mask &= np.isin(part["seq"], self._possible_seqs()) | ((part["flags"] & HAS_OPTIONS) != 0)
        return mask

    def _columns(self, rows: Array, part: Array, chosen: Array) -> dict[str, pa.Array]:
        made = self._index_columns(chosen)
        count = len(chosen)
        seqs = chosen["seq"].astype(np.int64)
        needs = self._needs_bytes(chosen)
        sizes = chosen["length"].astype(np.int64) - np.where(chosen["kind"] == RUN, 2, RECORD_HEAD_BYTES)
        options: OptionColumns | None = None
        if needs.any():
            view, base = self.source.load(chosen[needs] if not needs.all() else chosen)
            options, property_starts, property_sizes, bodies = payload_layout(view, base, chosen, needs)
            ends = chosen["offset"].astype(np.int64) - base + FRAME_BYTES + chosen["length"]
            sizes = np.where(needs, ends - bodies, sizes)
            if len(sizes) and int(sizes.min()) < 0:
                raise OutOfBounds
            if self.is_wanted(*BODY_COLUMNS):
                body = slices(view, bodies, sizes)
                if self.is_wanted("body"):
                    made["body"] = body
                if self.is_wanted("body_sha256"):
                    made["body_sha256"] = _sha256(body)
            if self.is_wanted(*_PROPERTY_COLUMNS):
                has = property_sizes >= 0
                if has.any():
                    data = slices(view, property_starts, property_sizes, has)
                    made.update(property_columns(data, self.columns.__contains__))
        if self.is_wanted("size"):
            made["size"] = pa.array(sizes.astype(np.int32))
        self._option_columns(made, options, chosen, seqs)
        if self.is_wanted("priority") and "priority" not in made:
            made["priority"] = pa.array(np.zeros(count, dtype=np.int32))
        if self.is_wanted("delay_us") and "delay_us" not in made:
            made["delay_us"] = pa.array(np.zeros(count, dtype=np.int64))
        return made

    def _option_columns(
        self, made: dict[str, pa.Array], options: OptionColumns | None, chosen: Array, seqs: Array
    ) -> None:
        if self.is_wanted("message_id"):
            made["message_id"] = hex_ids(self.context.id_prefix, seqs)
        if options is None:
            return
        if self.is_wanted("message_id") and options.has_field("id").any():
            made["message_id"] = pc.coalesce(options.texts("id"), made["message_id"])
        for column, field in (("type", "type"), ("group", "group"), ("dedup_id", "dedup")):
            if self.is_wanted(column) and options.has_field(field).any():
                made[column] = options.texts(field)
        if self.is_wanted("priority"):
            made["priority"] = pa.array(options.priorities.astype(np.int32))
        if self.is_wanted("delay_us"):
            made["delay_us"] = pa.array(delays_us(options, chosen))
        if self.is_wanted("expires") and options.has_field("expires_ms").any():
            made["expires"] = times_column(options.numbers("expires_ms"), options.has_field("expires_ms"))
        if self.is_wanted(*_ROUTE_COLUMNS) and options.has_field("route").any():
            made["exchange"], made["routing_key"] = options.routes()


def _sha256(bodies: pa.BinaryArray) -> pa.BinaryArray:
    count = len(bodies)
    ends = np.frombuffer(bodies.buffers()[1], dtype=np.int32)[bodies.offset :][: count + 1].tolist()
    raw = bodies.buffers()[2]
    whole = memoryview(b"" if raw is None else raw)
    digest = hashlib.sha256
    found = b"".join([digest(whole[i:j]).digest() for i, j in pairwise(ends)])
    offsets = np.arange(0, 32 * (count + 1), 32, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(found)])
