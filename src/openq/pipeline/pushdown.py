"""Filter pushdown: a narrower selection, and fewer rows to copy to Java.

Spark applies every filter again, so this may keep too many rows and must never keep too few.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..history.moments import to_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

    from ..history.selection import Selection

_ORDER = {
    "EqualTo": "equal",
    "EqualNullSafe": "equal",
    "GreaterThan": "greater",
    "GreaterThanOrEqual": "greater_equal",
    "LessThan": "less",
    "LessThanOrEqual": "less_equal",
}
_TEXT = {
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "match_substring",
}
_LIMIT = 1 << 63


@dataclass(frozen=True)
class ColumnFilter:
    """One filter on one column, in plain values, which are pickled to the executors."""

    kind: str  # the name of the class in Spark
    column: str
    value: Any = None
    negated: bool = False


def column_filters(filters: Iterable[Filter]) -> list[ColumnFilter]:
    """The filters of Spark on a top-level column."""
    found = []
    for each in filters:
        negated = type(each).__name__ == "Not"
        inner: Any = each.child if negated else each  # type: ignore[attr-defined]
        path: tuple[str, ...] = getattr(inner, "attribute", ())
        if len(path) == 1:
            found.append(ColumnFilter(type(inner).__name__, path[0], getattr(inner, "value", None), negated))
    return found


def narrow_selection(selection: Selection, found: Iterable[ColumnFilter]) -> Selection | None:
    """The selection narrowed by the filters; None if no row can match."""
    for term in found:
        if term.negated:
            continue
        if term.column in ("queue", "message_id", "event"):
            texts = _texts(term)
            if texts is None:
                continue
            narrower = _listed(selection, term.column, texts)
            if narrower is None:
                return None
            selection = narrower
        elif term.column in ("ts", "seq", "position"):
            low, high = _range(term)
            selection = _between(selection, term.column, low, high)
    for low_name, high_name, least in (
        ("since_us", "until_us", 1),
        ("first_seq", "last_seq", 0),
        ("first_position", "end_position", 1),
    ):
        low, high = getattr(selection, low_name), getattr(selection, high_name)
        if low is not None and high is not None and high - low < least:
            return None
    return selection


def _texts(term: ColumnFilter) -> tuple[str, ...] | None:
    values = (
        [term.value]
        if term.kind in ("EqualTo", "EqualNullSafe")
        else term.value
        if term.kind == "In"
        else None
    )
    if values is None:
        return None
    # `queue <=> NULL` has no text.
    return tuple(dict.fromkeys(value for value in values if isinstance(value, str))) or None


def _listed(selection: Selection, column: str, texts: tuple[str, ...]) -> Selection | None:
    if column == "queue":
        # A star is a pattern in a selection, but not in SQL; no queue name has one.
        names = tuple(t for t in texts if t and not set("*?") & set(t) and selection.matches_queue(t))
        return replace(selection, queues=names) if names else None
    if column == "message_id":
        ids = tuple(t for t in texts if t and (not selection.ids or t in selection.ids))
        return replace(selection, ids=ids) if ids else None
    from ..history.schema import EVENTS

    events = tuple(t for t in texts if t in EVENTS and (not selection.events or t in selection.events))
    return replace(selection, events=events) if events else None


def _range(term: ColumnFilter) -> tuple[int | None, int | None]:
    """The smallest and the largest integer that can match, inclusive."""
    if term.kind == "In":
        numbers = [number for value in term.value if (number := _number(value)) is not None]
        if len(numbers) < len([value for value in term.value if value is not None]) or not numbers:
            return None, None
        return min(numbers), max(numbers)
    number = _number(term.value)
    if number is None:
        return None, None
    match term.kind:
        case "EqualTo" | "EqualNullSafe":
            return number, number
        case "GreaterThan":
            return number + 1, None
        case "GreaterThanOrEqual":
            return number, None
        case "LessThan":
            return None, number - 1
        case "LessThanOrEqual":
            return None, number
    return None, None


def _number(value: Any) -> int | None:
    if isinstance(value, datetime):
        return to_us(value)
    if isinstance(value, int) and not isinstance(value, bool) and -_LIMIT < value < _LIMIT - 1:
        return value
    return None


def _between(selection: Selection, column: str, low: int | None, high: int | None) -> Selection:
    low_name, high_name, after = {
        "ts": ("since_us", "until_us", 1),
        "seq": ("first_seq", "last_seq", 0),
        "position": ("first_position", "end_position", 1),
    }[column]
    changed: dict[str, Any] = {}
    if low is not None:
        held = getattr(selection, low_name)
        changed[low_name] = low if held is None else max(low, held)
    if high is not None:
        held = getattr(selection, high_name)
        changed[high_name] = high + after if held is None else min(high + after, held)
    return replace(selection, **changed)


def filter_batch(batch: pa.RecordBatch, found: Iterable[ColumnFilter]) -> pa.RecordBatch:
    """The rows of a batch that may match; filters that Arrow cannot apply are left to Spark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for term in found:
        if term.column not in batch.schema.names:
            continue
        try:
            mask = _mask(batch.column(term.column), term)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError):
            continue
        if mask is not None:
            # As in SQL, null does not match, also when negated.
            batch = batch.filter(pc.invert(mask) if term.negated else mask)
    return batch


def _mask(column: pa.Array, term: ColumnFilter) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if term.kind == "IsNull":
        return pc.is_null(column)
    if term.kind == "IsNotNull":
        return pc.is_valid(column)
    if term.kind == "In":
        values = [value for value in term.value if value is not None]
        if term.negated and len(values) < len(term.value):
            return None
        found = pc.is_in(column, pa.array(values, column.type))
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
    if term.kind in _TEXT:
        return getattr(pc, _TEXT[term.kind])(column, term.value)
    if term.kind not in _ORDER:
        return None
    if term.value is None:
        return pc.is_null(column) if term.kind == "EqualNullSafe" else None
    mask = getattr(pc, _ORDER[term.kind])(column, pa.scalar(term.value, column.type))
    return mask.fill_null(False) if term.kind == "EqualNullSafe" else mask
