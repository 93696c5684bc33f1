"""Queues that record spans. `Queue` becomes one when it is made while tracing is on.

The methods are in a subclass, made for the class of the queue: while tracing is off, a queue has none of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from .message import Message, ReceivedMessage
from .publishing import check_attributes, item_keywords
from .queues import RECEIVE_TIMEOUT, Queue
from .receiving import Processing

if TYPE_CHECKING:
    from ..tracing.spans import MessageSpans


def trace_queue(queue: Queue) -> None:
    queue.__class__ = _traced_class(type(queue))


def untrace_queue(queue: Queue) -> None:
    """For a queue inside another object that records the spans."""
    if isinstance(queue, TracedMethods):
        queue.__class__ = type(queue).__mro__[2]


_classes: dict[type, type] = {}  # by the class that is traced


def _traced_class(base: type[Queue]) -> type[Queue]:
    found = _classes.get(base)
    if found is None:
        found = type(base.__name__, (TracedMethods, base), {"__module__": base.__module__})
        _classes[base] = found
    return found


def spans_of(queue: Any) -> MessageSpans:
    spans: MessageSpans | None = queue.core.tracing
    assert spans is not None, "only queues that were made while tracing is on are traced"
    return spans


class TracedMethods(Queue):
    """Before a class of queues in the order of its bases."""

    def publish(self, body: Any, **options: Any) -> str:
        with spans_of(self).sending(self.name, checked_attributes(options.get("attributes"))) as (
            span,
            attributes,
        ):
            message_id = super().publish(body, **{**options, "attributes": attributes})
            span.set_attribute("messaging.message.id", message_id)
            return message_id

    def publish_many(self, items: Iterable[Any]) -> list[str]:
        spans = spans_of(self)
        given, links = traced_items(spans, self.name, items)
        with spans.sending_batch(self.name, links):
            return super().publish_many(given)

    def receive(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> ReceivedMessage | None:
        received = self._receive(1, timeout, visibility_timeout, types, attributes, consumer)
        return received[0] if received else None

    def _receive(self, *arguments: Any) -> list[ReceivedMessage]:
        start_ns = time.time_ns()
        received = super()._receive(*arguments)
        if received:
            spans_of(self).received(self.name, received, start_ns)
        return received

    def processing(self, timeout: float | None = RECEIVE_TIMEOUT, **options: Any) -> Processing:
        plain = super().processing(timeout, **options)
        return _TracedProcessing(self, plain)

    def ack(self, target: Message | str) -> None:
        with spans_of(self).settling("ack", self.name, [target]):
            super().ack(target)

    def ack_many(self, targets: Iterable[Message | str]) -> None:
        targets = list(targets)
        with spans_of(self).settling("ack", self.name, targets):
            super().ack_many(targets)

    def nack(self, target: Message | str, *arguments: Any, **options: Any) -> str:
        with spans_of(self).settling("nack", self.name, [target]):
            return super().nack(target, *arguments, **options)

    def reject(self, target: Message | str, *arguments: Any, **options: Any) -> str:
        with spans_of(self).settling("reject", self.name, [target]):
            return super().reject(target, *arguments, **options)


class _TracedProcessing(Processing):
    """Processing with a span from the message's arrival to its settling."""

    def __init__(self, queue: Queue, plain: Processing) -> None:
        self._plain = plain
        self._traced_queue = queue
        self._span: Any = None

    def __enter__(self) -> ReceivedMessage | None:
        start_ns = time.time_ns()
        message = self._plain.__enter__()
        if message is not None:
            spans, name = spans_of(self._traced_queue), self._traced_queue.name
            spans.received(name, [message], start_ns)
            self._span = spans.processing(name, [message])
            self._span.__enter__()
        return message

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._plain.__exit__(kind, error, trace)
        finally:
            if self._span is not None:
                end_span(self._span, kind, error, trace)


def end_span(span: Any, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
    """End a span that was entered by hand; the error of the block goes its own way."""
    try:
        span.__exit__(kind, error, trace)
    except BaseException as raised:
        if raised is not error:
            raise


def traced_items(spans: MessageSpans, queue: str, items: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """The items of a batch, each with a context of its own, and the links to them."""
    given: list[Any] = []
    links: list[Any] = []
    for item in items:
        document = item_keywords(item)
        link, document["attributes"] = spans.created(queue, checked_attributes(document.get("attributes")))
        given.append(document)
        links.append(link)
    return given, links


def checked_attributes(attributes: Any) -> dict[str, Any] | None:
    return check_attributes(attributes) if attributes else None


def traced_handler(
    queue: Any, handler: Callable[[ReceivedMessage], object]
) -> Callable[[ReceivedMessage], object]:
    spans = spans_of(queue)

    @wraps(handler)
    def run(message: ReceivedMessage) -> object:
        with spans.processing(queue.name, [message]):
            return handler(message)

    return run
