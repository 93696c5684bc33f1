"""Packed rows as messages: the meaning of each column, and which rows are alike.

Rows that differ only in their bodies are one `MessageSlice` without drafts: they become one record. A part is
always read the same way. Whether a queue accepts a row is not checked here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .. import amqp_fields
from ..engine.publishing import check_draft
from ..engine.record_values import pack_value, plain_copy
from ..engine.records import HEAD_SIZE, run_step
from ..errors import InvalidSetting, OpenQError
from ..model import MAX_SPAN_MS, DeliveryOptions, Draft, Properties, check_name, plain_options
from ..names import qualified_name, split_name
from ..packed import MESSAGE_COLUMNS, NULL, Part

REASON, INTENDED = "rejected_reason", "rejected_queue"  # attributes of a row that became a dead letter

_MAX_TEXT = 1024  # characters of an id, a group, a type
MAX_REASON = 500
DRAFT_WEIGHT = 8  # one row with a draft costs as much as this many plain rows
_FRAME = 8
_PUBLISH = _FRAME + HEAD_SIZE + 8 + 128  # upper bound for a record without its texts, properties and body
_SQS_TYPES = "openq.sqs-types"
_STRUCT = {"type", "string", "binary"}


@dataclass(slots=True)
class MessageSlice:
    """Consecutive rows for one queue. Without `drafts` they differ only in their bodies."""

    row: int  # number of the first row within its part
    queue: str
    bodies: list[bytes]
    properties: Properties | None = None
    type: str | None = None
    drafts: list[Draft] | None = None

    @property
    def weight(self) -> int:
        return len(self.bodies) * (1 if self.drafts is None else DRAFT_WEIGHT)

    @property
    def options(self) -> DeliveryOptions | None:
        return None if self.type is None else plain_options(None, self.type)

    def cut(self, start: int, end: int) -> MessageSlice:
        drafts = None if self.drafts is None else self.drafts[start:end]
        return MessageSlice(
            self.row + start, self.queue, self.bodies[start:end], self.properties, self.type, drafts
        )

    def pieces(self, most_weight: int, most_bytes: int) -> Iterator[MessageSlice]:
        """Slices within these limits. A single row may exceed them."""
        max_rows = max(1, most_weight // (1 if self.drafts is None else DRAFT_WEIGHT))
        ends = list(accumulate(map(len, self.bodies), initial=0))
        start, count = 0, len(self.bodies)
        while start < count:
            end = min(start + max_rows, count)
            while end > start + 1 and ends[end] - ends[start] > most_bytes:
                end = start + max(1, (end - start) // 2)
            yield self if end - start == count else self.cut(start, end)
            start = end

    def each(self) -> list[Draft]:
        if self.drafts is not None:
            return self.drafts
        return [Draft(body, type=self.type, properties=self.properties) for body in self.bodies]

    def record_bytes(self, as_run: bool) -> int:
        """An upper bound for the bytes of its records, frames included."""
        total = sum(map(len, self.bodies))
        count = len(self.bodies)
        if as_run and self.drafts is None:
            return total + _PUBLISH + count * (4 + run_step(self.properties, self.options))
        if self.drafts is None:
            return total + count * (_PUBLISH + _properties_bytes(self.properties) + _text_bytes(self.type))
        return total + sum(
            _PUBLISH
            + _properties_bytes(each.properties)
            + sum(map(_text_bytes, (each.id, each.type, each.group, each.dedup)))
            for each in self.drafts
        )


@dataclass(slots=True)
class BadRow:
    row: int
    why: OpenQError


def _properties_bytes(properties: Properties | None) -> int:
    return 0 if properties is None else 8 + len(properties.amqp_properties or properties.packed or b"")


def _text_bytes(text: str | None) -> int:
    return 0 if text is None else 4 + 4 * len(text)


def check_columns(part: Part) -> None:
    for name, kind in part.kinds.items():
        wanted = MESSAGE_COLUMNS.get(name)
        if wanted is None:
            raise InvalidSetting(f"a column {name[:100]!r}; known are {', '.join(MESSAGE_COLUMNS)}")
        if kind != wanted:
            raise InvalidSetting(f"column {name!r} must be {wanted}, not {kind}")
    if "body" not in part.kinds:
        raise InvalidSetting("a part needs a column `body`")


def plain_queue(part: Part, account: str, queue: str | None) -> str | None:
    """The one queue of a part whose rows are only bodies; None if the part must be read row by row."""
    if not part.rows or not part.kinds.keys() <= {"body", "queue"} or part.sizes("body").count(NULL):
        return None
    if "queue" in part.kinds:
        names = part.column("queue")
        if names[0] is None or names.count(names[0]) != len(names):
            return None
        try:
            return _queue_key(account, names[0])
        except InvalidSetting:
            return None
    return queue


def _queue_key(account: str, name: str) -> str:
    return check_name(qualified_name(account, name))


def read_rows(
    part: Part,
    account: str,
    queue: str | None,
    rejected: Mapping[int, str] | None = None,
    dead_letter: str | None = None,
) -> Iterator[MessageSlice | BadRow]:
    """The rows in order. `queue` (a queue key) is for rows that name none.

    The `rejected` rows, by number, are returned as the dead letters they become.
    """
    one = plain_queue(part, account, queue)
    if one is not None and not rejected:
        yield MessageSlice(0, one, part.column("body"))
        return
    reader = _RowReader(part, account, queue)
    open_slice: MessageSlice | None = None
    for row in range(part.rows):
        try:
            if rejected and row in rejected:
                assert dead_letter is not None
                found = reader.dead_letter(row, rejected[row], dead_letter)
            else:
                found = reader.message(row)
        except OpenQError as error:
            if open_slice is not None:
                yield open_slice
                open_slice = None
            yield BadRow(row, error)
            continue
        if open_slice is not None and _joins(open_slice, found):
            open_slice.bodies += found.bodies
            if open_slice.drafts is not None:
                open_slice.drafts += found.drafts or ()
        else:
            if open_slice is not None:
                yield open_slice
            open_slice = found
    if open_slice is not None:
        yield open_slice


def _joins(before: MessageSlice, after: MessageSlice) -> bool:
    if before.queue != after.queue:
        return False
    if before.drafts is not None or after.drafts is not None:
        return before.drafts is not None and after.drafts is not None
    return before.properties is after.properties and before.type == after.type


class _RowReader:
    """Reads one row after the other from columns. Values that many rows share are built once."""

    def __init__(self, part: Part, account: str, queue: str | None) -> None:
        def column(name: str) -> list[Any]:
            return part.column(name) or [None] * part.rows

        self._account = account
        self._queue = queue
        self._bodies = column("body")
        self._queues = column("queue")
        self._types = column("type")
        self._heavy = [column(name) for name in ("message_id", "group", "dedup_id", "delay_us", "priority")]
        self._about = [column(name) for name in ("attributes", "headers", "content_type")]
        self._names: dict[str, str] = {}
        self._properties_cache: dict[tuple[int, int, str | None], Properties | None] = {}

    def message(self, row: int) -> MessageSlice:
        body = self._bodies[row]
        if body is None:
            raise InvalidSetting("the body is null")
        queue = self._target(row)
        properties = self._properties(row)
        kind = self._types[row]
        _check_text("type", kind)
        heavy = [column[row] for column in self._heavy]
        if heavy.count(None) == len(heavy):
            return MessageSlice(row, queue, [body], properties, kind)
        message_id, group, dedup, delay_us, priority = heavy
        for name, text in (("message_id", message_id), ("group", group), ("dedup_id", dedup)):
            _check_text(name, text)
        delay_ms = None if delay_us is None else -(-delay_us // 1000)
        if delay_us is not None and not 0 <= delay_us <= 1000 * MAX_SPAN_MS:
            raise InvalidSetting(f"delay_us must not be negative, nor of millions of years: {delay_us}")
        draft = Draft(
            body,
            delay_ms=delay_ms,
            priority=priority or 0,
            group=group,
            type=kind,
            dedup=dedup,
            id=message_id,
            properties=properties,
        )
        check_draft(draft, 0)
        return MessageSlice(row, queue, [body], drafts=[draft])

    def dead_letter(self, row: int, why: str, queue: str) -> MessageSlice:
        attributes: dict[str, object] = {}
        try:
            attributes = _read_attributes(self._about[0][row])
        except InvalidSetting:
            pass  # that may be the reason why the row was rejected
        attributes = {
            **attributes,
            REASON: why[:MAX_REASON],
            INTENDED: self._intended(row),
        }
        body = self._bodies[row] or b""
        return MessageSlice(row, queue, [body], drafts=[Draft(body, properties=json_properties(attributes))])

    def _intended(self, row: int) -> str:
        return self._queues[row] or split_name(self._queue or "")[1]

    def _target(self, row: int) -> str:
        name = self._queues[row]
        if name is None:
            if self._queue is None:
                raise InvalidSetting("the row names no queue, nor does the commit")
            return self._queue
        queue_key = self._names.get(name)
        if queue_key is None:
            queue_key = self._names[name] = _queue_key(self._account, name)
        return queue_key

    def _properties(self, row: int) -> Properties | None:
        attributes, headers, content_type = (column[row] for column in self._about)
        if attributes is None and headers is None and content_type is None:
            return None
        key = (id(attributes), id(headers), content_type)
        if key not in self._properties_cache:
            self._properties_cache[key] = row_properties(attributes, headers, content_type)
        return self._properties_cache[key]


def _check_text(name: str, text: str | None) -> None:
    if text is not None and len(text) > _MAX_TEXT:
        raise InvalidSetting(f"{name} has {len(text)} characters, at most {_MAX_TEXT} are taken")


def row_properties(attributes: Any, headers: Any, content_type: str | None) -> Properties | None:
    """Headers or a content type are stored as AMQP properties, because every protocol shows both.

    Without them only the attributes are stored.
    """
    attributes_given = _read_attributes(attributes)
    if headers is None and content_type is None:
        return json_properties(attributes_given) if attributes_given else None
    if headers is not None and not isinstance(headers, dict):
        raise InvalidSetting("headers must be an object of names and values")
    table = {**attributes_given, **(headers or {})}
    amqp_properties = amqp_fields.encode(
        amqp_fields.AmqpProperties(content_type=content_type, headers=table or None, delivery_mode=2)
    )
    return Properties.from_amqp(amqp_properties)


def json_properties(attributes: Mapping[str, object]) -> Properties:
    properties = Properties(plain_copy(attributes))
    properties.packed = pack_value([dict(properties.attributes), None])
    return properties


def _read_attributes(attributes_given: Any) -> dict[str, object]:
    """Attributes by name.

    A value is a JSON value, bytes as `{"$base64": ...}`, or the form of the table `messages`: a type and a
    value.
    """
    if attributes_given is None:
        return {}
    if not isinstance(attributes_given, dict):
        raise InvalidSetting("attributes must be an object of names and values")
    found: dict[str, object] = {}
    types: dict[str, str] = {}
    for name, value in attributes_given.items():
        if not name or len(name) > _MAX_TEXT:
            raise InvalidSetting(f"an attribute's name has 1 to {_MAX_TEXT} characters")
        if isinstance(value, dict) and value and value.keys() <= _STRUCT:
            kind = value.get("type")
            if value.get("binary") is not None:
                value = _bytes_of(value["binary"])
            else:
                value = value.get("string")
            if isinstance(kind, str) and kind not in ("String", "Binary"):
                value, kind = _typed(value, kind)
                if kind is not None:
                    types[name] = kind
        elif isinstance(value, dict) and value.keys() == {"$base64"}:
            value = _bytes_of(value["$base64"])
        found[name] = value
    if types:
        found.setdefault(_SQS_TYPES, types)
    return found


_NUMBERS: tuple[Callable[[str], object], ...] = (int, float)


def _typed(value: object, kind: str) -> tuple[object, str | None]:
    """A number is converted if its text is exactly that number. Any other type is kept by its name."""
    if kind == "Number" and isinstance(value, str):
        for read in _NUMBERS:
            try:
                number = read(value)
            except ValueError:
                continue
            if str(number) == value:
                return number, None
    return value, kind


def _bytes_of(text: object) -> bytes:
    try:
        return base64.b64decode(text, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise InvalidSetting("the bytes of an attribute must be base64") from None
