"""Where the parts of a message are in its record: delivery options, properties, body."""

from __future__ import annotations

import numpy as np

from openq.engine.records import COPY, EDIT, ROUTE, RUN
from openq.history.option_columns import HAS_OPTIONS, HAS_PROPERTIES, OptionColumns, gather_checked
from openq.history.segments import Array
from openq.journal.format import FRAME_BYTES

RECORD_HEAD_BYTES = 24  # bytes of a record before the fields of its kind
_VARIED_FLAG = 4


def option_starts(view: Array, base: int, rows: Array) -> Array:
    """Where the options or properties of each message begin in `view`, or its body if it has none."""
    at = rows["offset"].astype(np.int64) - base + FRAME_BYTES
    kinds = rows["kind"]
    starts = at + RECORD_HEAD_BYTES
    run = kinds == RUN
    if run.any():
        has_options = (rows["flags"][run] & ~np.uint8(_VARIED_FLAG)) != 0
        starts[run] = at[run] + np.where(has_options, 3, 2)
    route = kinds == ROUTE
    if route.any():
        starts[route] += 4 + 12 * gather_checked(view, starts[route], 4).astype(np.int64)
    starts[(kinds == EDIT) | (kinds == COPY)] += 8
    return starts


def read_options(view: Array, starts: Array, rows: Array) -> OptionColumns:
    has = (rows["flags"] & HAS_OPTIONS) != 0
    sizes = np.zeros(len(rows), dtype=np.int64)
    sizes[has] = gather_checked(view, starts[has], 4)
    return OptionColumns(view, starts + 4, sizes, has)


def payload_layout(
    view: Array, base: int, rows: Array, needs: Array
) -> tuple[OptionColumns | None, Array, Array, Array]:
    """Of the rows that are needed: the options, where the properties are (size -1: none), and where the
    bodies begin."""
    flags = np.where(needs, rows["flags"], 0)
    if needs.all():
        at = option_starts(view, base, rows)
    else:
        at = np.zeros(len(rows), dtype=np.int64)
        at[needs] = option_starts(view, base, rows[needs])
    options = None
    has = (flags & HAS_OPTIONS) != 0
    if has.any():
        sizes = gather_checked(view, at[has], 4).astype(np.int64)
        whole = np.zeros(len(rows), dtype=np.int64)
        whole[has] = sizes
        options = OptionColumns(view, at + 4, whole, has)
        at[has] += 4 + sizes
    property_sizes = np.full(len(rows), -1, dtype=np.int64)
    has = (flags & HAS_PROPERTIES) != 0
    starts = at + 4
    if has.any():
        property_sizes[has] = gather_checked(view, at[has], 4)
        at[has] += 4 + property_sizes[has]
    return options, starts, property_sizes, at
