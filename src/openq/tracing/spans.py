"""Spans of messages, by OpenTelemetry's semantic conventions for messaging systems.

    publish QUEUE   send     PRODUCER  one message, which carries the context of this span
    create QUEUE    create   PRODUCER  each message of a batch, which carries the context of this span
    publish QUEUE   send     CLIENT    the batch, with a link to each of them
    receive QUEUE   receive  CLIENT    with a link to each message
    process QUEUE   process  CONSUMER  a handler: child of the message's span; of a batch with links instead
    ack QUEUE       settle   CLIENT    also nack and reject; with a link to each message

Nothing of a message but its id, its queue and its size is in a span: no body, no attribute, no credential.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
)

from .._version import __version__
from ..trace_context import AMAZON, TraceParent, parent_of, read_amazon

SYSTEM = "openq"
CLOSE_S = 3.0
MAX_LINKS = 128  # what the SDK keeps by default
CARRIED = ("traceparent", "tracestate", "baggage")

Attributes = dict[str, Any]


class MessageSpans:
    """Makes the spans of one process. `is_own`: the provider was made for OpenQ and is closed with it."""

    def __init__(self, provider: Any = None, is_own: bool = False) -> None:
        self._provider = provider
        self._is_own = is_own
        if provider is None:
            self._tracer = trace.get_tracer("openq", __version__)
        else:
            self._tracer = provider.get_tracer("openq", __version__)

    def close(self) -> None:
        """Export what was recorded, for a short time: an unreachable collector must not hold up an exit."""
        if not self._is_own:
            return
        closing = threading.Thread(target=self._provider.shutdown, name="openq-spans", daemon=True)
        try:
            closing.start()
        except RuntimeError:  # the interpreter ends
            self._provider.shutdown()
        else:
            closing.join(CLOSE_S)

    def flush(self, timeout_s: float = 5.0) -> None:
        """Export the spans that have ended."""
        flush = getattr(self._provider or trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(round(timeout_s * 1000))

    # -- publishing -----------------------------------------------------------------------------

    @contextmanager
    def sending(self, queue: str, attributes: Mapping[str, Any] | None) -> Iterator[tuple[Span, Attributes]]:
        """Publish one message, with the attributes that are given here."""
        carried = {} if attributes is None else dict(attributes)
        with self._span("send", "publish", queue, SpanKind.PRODUCER, self.context_of(carried)) as span:
            yield span, self.inject(span, carried)

    def created(self, queue: str, attributes: Mapping[str, Any] | None) -> tuple[Link, Attributes]:
        """One message of a batch: its span, and the attributes with which it is published."""
        carried = {} if attributes is None else dict(attributes)
        span = self.start("create", "create", queue, SpanKind.PRODUCER, self.context_of(carried))
        span.end()
        return Link(span.get_span_context()), self.inject(span, carried)

    @contextmanager
    def sending_batch(self, queue: str, links: Sequence[Link]) -> Iterator[Span]:
        with self._span("send", "publish", queue, SpanKind.CLIENT, None, links, len(links)) as span:
            yield span

    def inject(self, span: Span, carried: Attributes) -> Attributes:
        carried.pop("tracestate", None)  # that of the span, if any
        propagate.inject(carried, context=trace.set_span_in_context(span))
        return carried

    # -- consuming ------------------------------------------------------------------------------

    def received(self, queue: str, messages: Sequence[Any], start_ns: int) -> None:
        """Record that these came, by a call that began at `start_ns`."""
        about = self._around(messages), self.links_of(messages), _batch_size(messages)
        span = self.start("receive", "receive", queue, SpanKind.CLIENT, *about, start_ns)
        describe(span, messages)
        span.end()

    @contextmanager
    def processing(
        self, queue: str, messages: Sequence[Any], attributes: Mapping[str, Any] | None = None
    ) -> Iterator[Span]:
        """Run a handler. Its exceptions are recorded and raised."""
        with self._span(
            "process", "process", queue, SpanKind.CONSUMER, *self.parent_and_links(messages)
        ) as span:
            describe(span, messages)
            if attributes:
                span.set_attributes(attributes)
            try:
                yield span
            except Exception as error:
                span.record_exception(error)
                raise

    @contextmanager
    def settling(self, name: str, queue: str, messages: Sequence[Any]) -> Iterator[Span]:
        about = self._around(messages), self.links_of(messages), _batch_size(messages)
        with self._span("settle", name, queue, SpanKind.CLIENT, *about) as span:
            describe(span, messages)
            yield span

    # -- parts ----------------------------------------------------------------------------------

    def start(
        self,
        type: str,
        name: str,
        queue: str,
        kind: SpanKind,
        parent: contexts.Context | None = None,
        links: Sequence[Link] | None = None,
        count: int | None = None,
        start_ns: int | None = None,
    ) -> Span:
        attributes: Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.type": type,
            "messaging.operation.name": name,
            "messaging.destination.name": queue,
        }
        if count is not None:
            attributes["messaging.batch.message_count"] = count
        return self._tracer.start_span(
            f"{name} {queue}", parent, kind, attributes, links or None, start_ns, record_exception=False
        )

    @contextmanager
    def _span(
        self,
        type: str,
        name: str,
        queue: str,
        kind: SpanKind,
        parent: contexts.Context | None = None,
        links: Sequence[Link] | None = None,
        count: int | None = None,
    ) -> Iterator[Span]:
        """A span that is the current one meanwhile."""
        span = self.start(type, name, queue, kind, parent, links, count)
        token = contexts.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        except BaseException as error:
            failed(span, error)
            raise
        finally:
            contexts.detach(token)
            span.end()

    def _around(self, messages: Sequence[Any]) -> contexts.Context | None:
        """The context of a call: the current one (None), or that of the only message where there is none."""
        if len(messages) != 1 or trace.get_current_span().get_span_context().is_valid:
            return None
        attributes = getattr(messages[0], "attributes", None)
        return self.context_of(attributes) if attributes else None

    def context_of(self, attributes: Mapping[str, Any]) -> contexts.Context | None:
        """The context that a message carries, by the propagators that are set, else by X-Ray's header."""
        carrier = {name: value for name, value in attributes.items() if isinstance(value, str)}
        if not carrier:
            return None
        found = propagate.extract(carrier, contexts.Context())
        if trace.get_current_span(found).get_span_context().is_valid:
            return found
        parent = read_amazon(carrier.get(AMAZON))
        if parent is None or not parent.span_id:
            return None
        return trace.set_span_in_context(NonRecordingSpan(span_context(parent)), found)

    def parent_and_links(
        self, messages: Sequence[Any]
    ) -> tuple[contexts.Context | None, list[Link] | None, int | None]:
        """One message is the parent of its processing; several are linked to it."""
        if len(messages) != 1:
            return None, self.links_of(messages), len(messages)
        context = self.context_of(messages[0].attributes)
        return context, self.links_of(messages) if context is not None else None, None

    def links_of(self, messages: Iterable[Any]) -> list[Link]:
        links: list[Link] = []
        for message in messages:
            attributes = getattr(message, "attributes", None)
            parent = parent_of(attributes) if attributes else None
            if parent is not None and parent.span_id:
                links.append(Link(span_context(parent)))
                if len(links) == MAX_LINKS:
                    break
        return links


def describe(span: Span, messages: Sequence[Any]) -> None:
    """The id, if it is one message; ids of a batch are in its links."""
    if len(messages) == 1 and span.is_recording():
        target = messages[0]
        span.set_attribute("messaging.message.id", target if isinstance(target, str) else target.id)


def failed(span: Span, error: BaseException) -> None:
    """Only the type: the text of an error may name what a trace must not show."""
    if span.is_recording():
        name = type(error).__qualname__
        span.set_attribute("error.type", name)
        span.set_status(Status(StatusCode.ERROR, name))


def span_context(parent: TraceParent) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED if parent.is_sampled else TraceFlags.DEFAULT)
    state = TraceState.from_header([parent.state]) if parent.state else None
    return SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), True, flags, state)


def _batch_size(messages: Sequence[Any]) -> int | None:
    return len(messages) if len(messages) != 1 else None
