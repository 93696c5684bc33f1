"""Publishing a batch of items as clients send them: bare texts and bytes, and messages with options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from ..broker.interface import Broker
from ..errors import InvalidSetting, OpenQError, public_text
from ..model import ENCODING_BYTES, ENCODING_TEXT, Draft, Properties
from .formats import MSGPACK, Format
from .messages import NewMessage, NewMessages, Outcome, PublishedBatch
from .payloads import BINARIES
from .problem import Problem
from .structs import MAX_BATCH

Item = str | bytes | NewMessage


def publish_items(
    broker: Broker,
    queue_key: str,
    items: Sequence[Item],
    draft_of: Callable[[NewMessage], Draft],
    trace: Mapping[str, str] | None = None,
) -> PublishedBatch:
    """Plain bodies are stored as one record; other messages are published one by one, each with its own
    outcome. Raises the errors of the broker that concern all of them.

    `trace`: the trace context of the request, which bare bodies get; `draft_of` adds it to the others.
    """
    if not items:
        broker.settings(queue_key)
        return PublishedBatch(count=0)
    kinds = set(map(type, items))
    done: PublishedBatch | None = None
    if kinds == {bytes}:
        done = _publish_run(broker, queue_key, items, ENCODING_BYTES, trace)  # type: ignore[arg-type]
    elif kinds == {str}:
        bodies = [item.encode() for item in items if isinstance(item, str)]
        done = _publish_run(broker, queue_key, bodies, ENCODING_TEXT, trace)
    return done or _publish_each(broker, queue_key, items, draft_of, trace)


def count_new(published: PublishedBatch) -> int:
    """The messages of a batch that were stored: not those that are duplicates or were refused."""
    if published.results is UNSET:
        return published.count
    return published.count - sum(each.duplicate is True for each in published.results)


def _publish_run(
    broker: Broker,
    queue_key: str,
    bodies: Sequence[bytes],
    encoding: int,
    trace: Mapping[str, str] | None = None,
) -> PublishedBatch | None:
    """Publish as one record. None if the queue has rules that each message must pass individually."""
    seqs = broker.publish_bodies(queue_key, bodies, encoding, None if trace is None else Properties(trace))
    if seqs is None:
        return None
    return PublishedBatch(count=len(bodies), first_id=broker.inspect.id_of(seqs[0]))


def _publish_each(
    broker: Broker,
    queue_key: str,
    items: Sequence[Item],
    draft_of: Callable[[NewMessage], Draft],
    trace: Mapping[str, str] | None,
) -> PublishedBatch:
    drafts: list[Draft] = []
    results: list[Outcome | None] = []
    for item in items:
        try:
            if isinstance(item, NewMessage):
                draft = draft_of(item)
            elif isinstance(item, bytes):
                draft = Draft(item, attributes=trace)
            else:
                draft = Draft(item.encode(), ENCODING_TEXT, attributes=trace)
        except (InvalidSetting, Problem) as error:
            results.append(Outcome(code=error.code, detail=str(error)))
            continue
        results.append(None)
        drafts.append(draft)
    encodings = {draft.encoding for draft in drafts}
    if len(drafts) == len(items) and len(encodings) == 1 and all(draft.is_plain() for draft in drafts):
        done = _publish_run(broker, queue_key, [draft.body for draft in drafts], encodings.pop())
        if done is not None:
            return done
    outcomes = iter(zip(drafts, broker.publish_many(queue_key, drafts), strict=True))
    shown = [each if each is not None else _outcome(broker, queue_key, *next(outcomes)) for each in results]
    failed = sum(each.code is not UNSET for each in shown)
    return PublishedBatch(count=len(shown) - failed, failed=failed, results=shown)


def _outcome(broker: Broker, queue_key: str, draft: Draft, result: tuple[str, bool] | OpenQError) -> Outcome:
    if isinstance(result, OpenQError):
        error = publish_refusal(broker, queue_key, result, len(draft.body))
        return Outcome(code=error.code, detail=public_text(error))
    return Outcome(id=result[0], duplicate=True if result[1] else UNSET)


def publish_refusal(broker: Broker, queue_key: str, error: OpenQError, size: int) -> OpenQError | Problem:
    """The error of a message, `too_large` for a body over the limit of its queue."""
    if isinstance(error, InvalidSetting):
        limit = broker.settings(queue_key).max_body
        if limit is not None and size > limit:
            return Problem("too_large", str(error))
    return error


# -- reading ------------------------------------------------------------------------------------


def check_count(items: Sequence[object]) -> None:
    if len(items) > MAX_BATCH:
        raise Problem("batch_too_large", f"{len(items)} messages; the maximum is {MAX_BATCH} per request")


def read_items(raws: Sequence[Raw], read: Callable[[bytes], Any]) -> list[Any]:
    items: list[Any] = []
    try:
        for raw in raws:
            items.append(read(bytes(raw)))
    except Problem as error:
        # Counted from 0, as in the paths of errors in a bare list.
        raise Problem(error.code, f"messages[{len(items)}]: {error.detail}") from None
    return items


def read_json_item(format: Format, data: bytes) -> Any:
    return format.decode(data, str if data[:1] == b'"' else NewMessage)


def _array_start(data: bytes) -> int:
    """The offset of the first item of a msgpack array; 0 if this is not an array."""
    kind = data[0] if data else 0
    if 0x90 <= kind <= 0x9F:
        return 1
    return {0xDC: 3, 0xDD: 5}.get(kind, 0)


def read_msgpack_batch(data: bytes) -> list[Any]:
    start = _array_start(data)
    raws: list[Raw]
    if start:
        # Fast path: only bytes, only texts, or only messages, decoded at once.
        first = data[start] if len(data) > start else 0
        try:
            if first in BINARIES:
                return _read_bodies(data)
            if _is_map(first):
                return _read_messages(data)
            if _is_text(first):
                return _read_texts(data)
        except (msgspec.DecodeError, ValueError, RecursionError):
            pass  # mixed or invalid: decoded item by item
        raws = MSGPACK.decode(data, list[Raw])
    else:
        raws = MSGPACK.decode(data, NewMessages).messages
    check_count(raws)
    return read_items(raws, _read_msgpack_item)


_read_bodies: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[bytes]).decode
_read_texts: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[str]).decode
_read_messages: Callable[[bytes], list[Any]] = msgspec.msgpack.Decoder(list[NewMessage]).decode


def _is_map(kind: int) -> bool:
    return 0x80 <= kind <= 0x8F or kind in (0xDE, 0xDF)


def _is_text(kind: int) -> bool:
    return 0xA0 <= kind <= 0xBF or 0xD9 <= kind <= 0xDB


def _read_msgpack_item(data: bytes) -> Any:
    if data[0] in BINARIES:
        return MSGPACK.decode(data, bytes)
    return MSGPACK.decode(data, NewMessage if _is_map(data[0]) else str)
