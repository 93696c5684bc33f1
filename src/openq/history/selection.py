"""Which rows of the history are wanted. Pure: readers use it to skip rows early, and `keep` decides.

All conditions are optional and are joined by AND. Lower bounds are inclusive; of the upper bounds `last_seq`
is inclusive, `until_us` and `end_position` are exclusive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fnmatch import translate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from openq.errors import InvalidSetting
from openq.history.schema import EVENTS, TABLES, column_names

_TEXT_FIELDS = ("queues", "ids", "events")
_NUMBER_FIELDS = ("since_us", "until_us", "first_seq", "last_seq", "first_position", "end_position")
_MAX_TEXTS = 1_000_000
_LIMIT = 1 << 63


@dataclass(frozen=True)
class Selection:
    """A part of one table: `queues` are names or patterns with * and ?; an empty list means all."""

    table: str = "messages"
    queues: tuple[str, ...] = ()
    since_us: int | None = None
    until_us: int | None = None
    first_seq: int | None = None
    last_seq: int | None = None
    first_position: int | None = None
    end_position: int | None = None
    ids: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    body: bool = True
    events: tuple[str, ...] = ()

    # -- as JSON --

    def to_json(self) -> dict[str, Any]:
        """The fields that differ from the default, as JSON values."""
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = list(value) if isinstance(value, tuple) else value
        return found

    @classmethod
    def from_json(cls, value: str | bytes | Mapping[str, Any]) -> Selection:
        """From the value of `to_json` or its text, which is not trusted. Raises InvalidSetting."""
        if isinstance(value, str | bytes):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                raise InvalidSetting("a selection must be a JSON object") from None
        if not isinstance(value, Mapping):
            raise InvalidSetting("a selection must be a JSON object")
        known = {field.name for field in fields(cls)}
        given: dict[str, Any] = {}
        for name, each in value.items():
            if name not in known:
                raise InvalidSetting(f"a selection has no {name!r}; it has {', '.join(sorted(known))}")
            given[name] = tuple(each) if isinstance(each, list) else each
        selection = cls(**given)
        selection.validate()
        return selection

    def validate(self) -> None:
        """Raises InvalidSetting."""
        if self.table not in TABLES:
            raise InvalidSetting(f"table must be {' or '.join(TABLES)}, not {self.table!r}")
        if not isinstance(self.body, bool):
            raise InvalidSetting(f"body must be true or false, not {self.body!r}")
        for name in _TEXT_FIELDS if self.columns is None else (*_TEXT_FIELDS, "columns"):
            texts = getattr(self, name)
            if not isinstance(texts, tuple) or not all(isinstance(text, str) and text for text in texts):
                raise InvalidSetting(f"{name} must be a list of non-empty texts")
            if len(texts) > _MAX_TEXTS:
                raise InvalidSetting(f"{name} holds {len(texts)} texts, the limit is {_MAX_TEXTS}")
        for name in _NUMBER_FIELDS:
            number = getattr(self, name)
            if number is None:
                continue
            if isinstance(number, bool) or not isinstance(number, int) or not -_LIMIT <= number < _LIMIT:
                raise InvalidSetting(f"{name} must be a 64-bit integer, not {number!r}")
        for low, high in (
            ("since_us", "until_us"),
            ("first_seq", "last_seq"),
            ("first_position", "end_position"),
        ):
            first, last = getattr(self, low), getattr(self, high)
            if first is not None and last is not None and first > last:
                raise InvalidSetting(f"{low} ({first}) is after {high} ({last}): nothing can match")
        for event in self.events:
            if event not in EVENTS:
                raise InvalidSetting(f"there is no event {event!r}; there are {', '.join(EVENTS)}")
        if self.events and self.table != "events":
            raise InvalidSetting("events selects rows of the table events; set table to events")
        column_names(self.table, self.columns, self.body)

    # -- meaning --

    @property
    def names(self) -> list[str]:
        """The columns of the result, in order."""
        return column_names(self.table, self.columns, self.body)

    @property
    def read_columns(self) -> list[str]:
        """The columns of the result, followed by those that `keep` needs besides."""
        needed = self.names
        for name, wanted in (
            ("queue", self.queues),
            ("ts", self.since_us is not None or self.until_us is not None),
            ("seq", self.first_seq is not None or self.last_seq is not None),
            ("position", self.first_position is not None or self.end_position is not None),
            ("message_id", self.ids),
            ("event", self.events),
        ):
            if wanted and name not in needed:
                needed.append(name)
        return needed

    def matches_queue(self, name: str) -> bool:
        return not self.queues or any(matches_pattern(pattern, name) for pattern in self.queues)

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Exactly the selected rows and columns of a batch that has at least `read_columns`."""
        masks = []
        if self.queues:
            encoded = batch.column("queue").dictionary_encode()
            wanted = [self.matches_queue(name) for name in encoded.dictionary.to_pylist()]
            if not all(wanted) or encoded.null_count:
                masks.append(pa.array(wanted, pa.bool_()).take(encoded.indices))
        for name, low, high, included in (
            ("ts", self.since_us, self.until_us, False),
            ("seq", self.first_seq, self.last_seq, True),
            ("position", self.first_position, self.end_position, False),
        ):
            if low is None and high is None:
                continue
            numbers = batch.column(name).cast(pa.int64())
            if low is not None:
                masks.append(pc.greater_equal(numbers, low))
            if high is not None:
                masks.append(pc.less_equal(numbers, high) if included else pc.less(numbers, high))
        for name, texts in (("message_id", self.ids), ("event", self.events)):
            if texts:
                masks.append(pc.is_in(batch.column(name), pa.array(texts, pa.string())))
        if masks:
            mask = masks[0]
            for each in masks[1:]:
                mask = pc.and_(mask, each)
            # Null (a purge has no sequence number) does not match.
            mask = mask.fill_null(False)
            if pc.all(mask).as_py() is False:
                batch = batch.filter(mask)
        names = self.names
        return batch if batch.schema.names == names else batch.select(names)


_patterns: dict[str, re.Pattern[str]] = {}


def matches_pattern(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    compiled = _patterns.get(pattern)
    if compiled is None:
        if len(_patterns) >= 1024:
            _patterns.clear()
        # `translate` makes atomic groups: no pattern backtracks for long.
        compiled = _patterns[pattern] = re.compile(translate(pattern.replace("[", "[[]")))
    return compiled.fullmatch(name) is not None
