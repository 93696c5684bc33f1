"""Queues of asyncio that record spans; see `openq.client.traced`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import wraps
from types import TracebackType
from typing import Any

from ..client.message import Message as AnyMessage
from ..client.queues import RECEIVE_TIMEOUT
from ..client.traced import checked_attributes, end_span, spans_of, traced_items, untrace_queue
from .message import Message
from .processing import AsyncProcessing
from .queue import Queue


def trace_queue(queue: Queue) -> None:
    untrace_queue(queue.inner)  # one span for a call, not two
    queue.__class__ = _traced_class(type(queue))


_classes: dict[type, type] = {}  # by the class that is traced


def _traced_class(base: type[Queue]) -> type[Queue]:
    found = _classes.get(base)
    if found is None:
        found = type(base.__name__, (TracedMethods, base), {"__module__": base.__module__})
        _classes[base] = found
    return found


class TracedMethods(Queue):
    async def publish(self, body: Any, **options: Any) -> str:
        given = checked_attributes(options.get("attributes"))
        with spans_of(self).sending(self.name, given) as (span, attributes):
            message_id = await super().publish(body, **{**options, "attributes": attributes})
            span.set_attribute("messaging.message.id", message_id)
            return message_id

    async def publish_many(self, items: Iterable[Any]) -> list[str]:
        spans = spans_of(self)
        given, links = traced_items(spans, self.name, items)
        with spans.sending_batch(self.name, links):
            return await super().publish_many(given)

    async def receive(
        self,
        timeout: float | None = RECEIVE_TIMEOUT,
        *,
        visibility_timeout: float | None = None,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        consumer: str | None = None,
    ) -> Message | None:
        received = await self.receive_many(
            1,
            timeout,
            visibility_timeout=visibility_timeout,
            types=types,
            attributes=attributes,
            consumer=consumer,
        )
        return received[0] if received else None

    async def receive_many(
        self, max: int = 10, timeout: float | None = RECEIVE_TIMEOUT, **options: Any
    ) -> list[Message]:
        start_ns = time.time_ns()
        received = await super().receive_many(max, timeout, **options)
        if received:
            spans_of(self).received(self.name, received, start_ns)
        return received

    def processing(self, timeout: float | None = RECEIVE_TIMEOUT, **options: Any) -> AsyncProcessing:
        return _TracedProcessing(self, super().processing(timeout, **options))

    async def ack(self, target: AnyMessage | str) -> None:
        with spans_of(self).settling("ack", self.name, [target]):
            await super().ack(target)

    async def ack_many(self, targets: Iterable[AnyMessage | str]) -> None:
        targets = list(targets)
        with spans_of(self).settling("ack", self.name, targets):
            await super().ack_many(targets)

    async def nack(self, target: AnyMessage | str, *arguments: Any, **options: Any) -> str:
        with spans_of(self).settling("nack", self.name, [target]):
            return await super().nack(target, *arguments, **options)

    async def reject(self, target: AnyMessage | str, *arguments: Any, **options: Any) -> str:
        with spans_of(self).settling("reject", self.name, [target]):
            return await super().reject(target, *arguments, **options)


class _TracedProcessing(AsyncProcessing):
    def __init__(self, queue: Queue, plain: AsyncProcessing) -> None:
        self._plain = plain
        self._traced_queue = queue
        self._span: Any = None

    async def __aenter__(self) -> Message | None:
        start_ns = time.time_ns()
        message = await self._plain.__aenter__()
        if message is not None:
            spans, name = spans_of(self._traced_queue), self._traced_queue.name
            spans.received(name, [message], start_ns)
            self._span = spans.processing(name, [message])
            self._span.__enter__()
        return message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._plain.__aexit__(kind, error, trace)
        finally:
            if self._span is not None:
                end_span(self._span, kind, error, trace)


def traced_handler(
    queue: Any, handler: Callable[[Message], Awaitable[object]]
) -> Callable[[Message], Awaitable[object]]:
    spans = spans_of(queue)

    @wraps(handler)
    async def run(message: Message) -> object:
        with spans.processing(queue.name, [message]):
            return await handler(message)

    return run
