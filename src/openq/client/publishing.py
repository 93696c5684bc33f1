"""The keywords of `publish`, checked and turned into a draft."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from ..errors import InvalidSetting
from ..model import Draft
from .checks import nonempty_or_none, utf8
from .codecs import Codec
from .message import Message
from .settings import unknown_keyword
from .times import moment_ms, to_ms


class PublishOptions(TypedDict, total=False):
    """The keywords of `publish`."""

    delay: float  # seconds before it may be received; without it the queue's own delay
    at: datetime | float | str  # an absolute time instead of a delay
    priority: int  # 0 to 255, higher first
    group: str | None  # messages of a group are delivered one after the other (FIFO queues)
    dedup_id: str | None  # published again within the window: the id of the first is returned
    unique_key: str | None  # while a message with this key is in the queue, another is not added
    message_type: str | None
    attributes: Mapping[str, Any] | None
    id: str | None  # chosen by the publisher; a message whose id is in the queue is not added again
    ttl: float | None  # seconds until it is removed if it was not received
    publisher: str | None


def make_draft(
    codec: Codec,
    body: Any,
    *,
    delay: float | None = None,
    at: datetime | float | str | None = None,
    priority: int = 0,
    group: str | None = None,
    dedup_id: str | None = None,
    unique_key: str | None = None,
    message_type: str | None = None,
    attributes: Mapping[str, Any] | None = None,
    id: str | None = None,
    ttl: float | None = None,
    publisher: str | None = None,
    **unknown: Any,
) -> Draft:
    for keyword in unknown:
        raise unknown_keyword("publish", keyword, PublishOptions.__annotations__)
    data, encoding = codec.encode(body)
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidSetting(f"priority must be a whole number from 0 to 255, not {priority!r}")
    if at is not None and delay is not None:
        raise InvalidSetting("give either delay or at, not both")
    return Draft(
        data,
        encoding,
        delay_ms=None if delay is None else to_ms(delay, "delay"),
        due_ms=0 if at is None else max(moment_ms(at, "at"), 1),
        priority=priority,
        group=nonempty_or_none(group, "group"),
        type=nonempty_or_none(message_type, "message_type"),
        dedup=nonempty_or_none(dedup_id, "dedup_id"),
        unique=nonempty_or_none(unique_key, "unique_key"),
        ttl_ms=None if ttl is None else to_ms(ttl, "ttl"),
        id=nonempty_or_none(id, "id"),
        attributes=check_attributes(attributes) if attributes else None,
        publisher=nonempty_or_none(publisher, "publisher"),
    )


def make_item(codec: Codec, item: Any) -> Draft:
    """One item of a batch: a body, a `Message`, or a dict of `body` and keywords of `publish`."""
    if not isinstance(item, Message) and not is_item(item):
        return make_draft(codec, item)
    options = item_keywords(item)
    return make_draft(codec, options.pop("body"), **options)


def item_keywords(item: Any) -> dict[str, Any]:
    """An item of a batch as `body` and keywords of `publish`."""
    if isinstance(item, Message):
        return {
            "body": item.body,
            "id": item.id or None,
            "priority": item.priority,
            "group": item.group,
            "message_type": item.message_type,
            "attributes": item.attributes,
        }
    return dict(item) if is_item(item) else {"body": item}


def is_item(item: Any) -> bool:
    """A dict is a body, unless it has the key `body` and every other key is a keyword of `publish`."""
    return isinstance(item, dict) and "body" in item and item.keys() <= _ITEM_KEYS


_ITEM_KEYS = {"body", *PublishOptions.__annotations__}


# Far below Python's recursion limit, however deep the stack of the reader is.
_MAX_ATTRIBUTE_DEPTH = 64
_MAX_INT_BITS = 13_000  # Python refuses to write integers of more than 4300 digits as text


def check_attributes(attributes: Mapping[str, Any], name: str = "attributes") -> dict[str, Any]:
    """A copy, so that later changes of the caller's dict do not reach the queue."""
    if not isinstance(attributes, Mapping):
        raise InvalidSetting(f"{name} must be a dict, not {attributes!r}")
    copy = _copy_value(attributes, name)
    assert isinstance(copy, dict)
    return copy


def _copy_value(value: Any, where: str, depth: int = 0) -> Any:
    if value is None or isinstance(value, bool | bytes):
        return value
    if isinstance(value, str):
        return utf8(value, where)
    if isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise InvalidSetting(f"{where} is too large a number")
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if depth >= _MAX_ATTRIBUTE_DEPTH:
        raise InvalidSetting(f"attributes are nested too deeply: more than {_MAX_ATTRIBUTE_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [_copy_value(each, f"{where}[{i}]", depth + 1) for i, each in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidSetting(f"{where}: the key {key!r} is not text")
            utf8(key, f"{where}: the key {key!r}")
        return {key: _copy_value(each, f"{where}[{key!r}]", depth + 1) for key, each in value.items()}
    raise InvalidSetting(f"{where} must be text, a number, bytes, a list or a dict, not {value!r}")
