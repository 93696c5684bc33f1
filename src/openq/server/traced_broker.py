"""The broker of a server that records spans: it passes every call on, and records those that are sampled.

Only a server with tracing on has one. A publish is sampled if its message carries a sampled `traceparent`; a
publish without one starts a trace with the probability `sample`. What follows (deliveries, acks, nacks) is
recorded for the messages of sampled traces and for no others. Messages are never changed: the context of a
trace that starts here stays here, for at most `MAX_KNOWN` messages.

Spans have the kind SERVER. One about a single traced message is a child of the message's span; one about
several has links to them.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from random import random
from typing import Any, NamedTuple, TypeVar, cast

from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, format_trace_id

from ..broker.interface import Broker, LoopSession, Receipt, Storage
from ..engine.times import MessageTimes
from ..errors import OpenQError
from ..model import Delivery, Draft, Properties
from ..trace_context import AMAZON, TRACEPARENT, TraceParent, parent_of, read_parent
from ..tracing.spans import MAX_LINKS, MessageSpans, failed, span_context

T = TypeVar("T")

MAX_KNOWN = 10_000  # traced messages that are remembered, each: until they are delivered, and in flight
# A header of AMQP properties; a text of another header that looks like one does no harm.
_AMQP_PARENT = re.compile(rb"traceparent[Sx]\0\0\0.([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})", re.S)
# Methods that are passed on most often: found without `__getattr__`.
_PASSED_ON = (
    *("find_queue", "get_queue", "settings", "now_ms", "waiting", "add_waiter", "remove_waiter", "receive"),
    *("commit_location", "drop_bodies", "extend", "release", "inspect"),
)


class _InFlight(NamedTuple):
    context: SpanContext
    message_id: str
    sent_ms: int
    delivered_ms: int


class TracedBroker:
    def __init__(self, broker: Broker, spans: MessageSpans, sample: float) -> None:
        self._inner = broker
        self._spans = spans
        self._sample = sample
        self._times: MessageTimes = broker.statistics.measure()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: LoopSession | None = None
        self._started: OrderedDict[int, SpanContext] = OrderedDict()  # by sequence: traces that start here
        self._in_flight: OrderedDict[Receipt, _InFlight] = OrderedDict()
        self._publish_body = broker.publish_body
        self._publish_bodies = broker.publish_bodies
        self._publish_many = broker.publish_many
        self._load = broker.load
        self._ack = broker.ack
        self._ack_one = broker.ack_one
        self.exchanges = _TracedExchanges(self, broker.exchanges)
        for name in _PASSED_ON:
            setattr(self, name, getattr(broker, name))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def storage(self) -> Storage:  # on Redis it can change
        return self._inner.storage

    def attach(self, loop: asyncio.AbstractEventLoop) -> LoopSession:
        self._loop, self._session = loop, self._inner.attach(loop)
        return self._session

    # -- publishing -----------------------------------------------------------------------------

    def publish_body(
        self,
        queue: str,
        body: bytes,
        encoding: int,
        properties: Properties | None = None,
        options: Any = None,
    ) -> int:
        parent = None if properties is None else _parent_of(properties)
        if (random() >= self._sample) if parent is None else not parent.is_sampled:
            return self._publish_body(queue, body, encoding, properties, options)
        span = self._start_publish(queue, [parent])
        seq = self._run(span, lambda: self._publish_body(queue, body, encoding, properties, options))
        if not seq:
            return seq  # the caller uses `publish_many`, which records it
        self._published(span, [seq], parent is None)
        return seq

    def publish_bodies(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties: Properties | Sequence[Properties] | None = None,
        options: Any = None,
    ) -> Sequence[int] | None:
        if properties is None:
            parents: list[TraceParent | None] = []
        elif isinstance(properties, Properties):
            parents = [_parent_of(properties)]
        else:
            parents = [_parent_of(each) for each in properties if _may_have_parent(each)]
        if not self._is_sampled(parents):
            return self._publish_bodies(queue, bodies, encoding, properties, options)
        span = self._start_publish(queue, parents, len(bodies))
        seqs = self._run(span, lambda: self._publish_bodies(queue, bodies, encoding, properties, options))
        if seqs is not None:
            self._published(span, seqs, not any(parents))
        return seqs

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        parents = [_parent_of_draft(draft) for draft in drafts]
        if not self._is_sampled(parents):
            return self._publish_many(queue, drafts)
        span = self._start_publish(queue, parents, len(drafts))
        results = self._run(span, lambda: self._publish_many(queue, drafts))
        ids = [each[0] for each in results if not isinstance(each, OpenQError)]
        errors = [each for each in results if isinstance(each, OpenQError)]
        if errors:
            failed(span, errors[0])
        self._published(span, self._seqs_of(ids), not any(parents), ids)
        return results

    def _is_sampled(self, parents: Sequence[TraceParent | None]) -> bool:
        if any(parents):
            return any(each is not None and each.is_sampled for each in parents)
        return random() < self._sample

    def _start_publish(
        self, queue: str, parents: Sequence[TraceParent | None], count: int | None = None
    ) -> Span:
        sampled = [span_context(each) for each in parents if each is not None and each.is_sampled]
        return self._start("send", "publish", queue, sampled, count if count != 1 else None)

    def _run(self, span: Span, call: Callable[[], T]) -> T:
        try:
            return call()
        except BaseException as error:
            failed(span, error)
            span.end()
            raise

    def _published(
        self, span: Span, seqs: Sequence[int], starts_here: bool, ids: Sequence[str] | None = None
    ) -> None:
        """End the span when the messages are durable."""
        if starts_here:
            context = span.get_span_context()
            for seq in seqs:
                self._started[seq] = context
            while len(self._started) > MAX_KNOWN:
                self._started.popitem(last=False)
        if ids is None:
            ids = [self._inner.inspect.id_of(seqs[0])] if len(seqs) == 1 else ()
        if len(ids) == 1:
            span.set_attribute("messaging.message.id", ids[0])

        def committed(error: OpenQError | None) -> None:
            if error is not None:
                failed(span, error)
            span.end()

        if self._session is not None and self._inner.storage.is_durable and self._is_on_loop():
            self._session.after_commit(committed)
        else:
            span.end()

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False  # a thread of the server

    def _seqs_of(self, ids: Sequence[str]) -> list[int]:
        """Of the ids that the store gave; a message whose publisher chose its id is not followed."""
        prefix = self._inner.storage.id_prefix
        return [
            int(each[len(prefix) :], 16)
            for each in ids
            if each.startswith(prefix) and len(each) == len(prefix) + 12
        ]

    # -- delivering -----------------------------------------------------------------------------

    def load(self, deliveries: list[Delivery], queue: str = "") -> list[Delivery]:
        readable = self._load(deliveries, queue)
        found: list[tuple[Delivery, SpanContext]] = []
        started = self._started
        untraced: Properties | None = None  # neighbours mostly share one object
        for delivery in readable:
            entry = delivery.entry
            properties = entry.properties
            if properties is not None and properties is not untraced:
                data = properties.amqp_properties  # as `_may_have_parent` does, without the call
                parent = None if data is not None and b"traceparent" not in data else _parent_of(properties)
                if parent is not None:
                    if parent.is_sampled:
                        found.append((delivery, span_context(parent)))
                    continue
                untraced = properties
            if started and entry.seq in started:
                found.append((delivery, started[entry.seq]))
        if found:
            self._delivered(queue, found, len(readable))
        return readable

    def _delivered(self, queue: str, found: list[tuple[Delivery, SpanContext]], count: int) -> None:
        span = self._start("receive", "receive", queue, [each for _, each in found], _many(count))
        message_id = self._inner.inspect.message_id
        for delivery, context in found:
            entry = delivery.entry
            self._in_flight[(entry.seq, delivery.number)] = _InFlight(
                context, message_id(entry), entry.sent_ms, delivery.delivered_ms
            )
            if delivery.count == 1:
                trace_id = format_trace_id(context.trace_id)
                wait_ms = delivery.delivered_ms - entry.sent_ms
                self._times.wait.keep_exemplar(wait_ms, trace_id, delivery.delivered_ms)
        while len(self._in_flight) > MAX_KNOWN:
            self._in_flight.popitem(last=False)
        if len(found) == 1:
            delivery = found[0][0]
            span.set_attributes(
                {
                    "messaging.message.id": message_id(delivery.entry),
                    "openq.receive_count": delivery.count,
                    "openq.wait_ms": delivery.delivered_ms - delivery.entry.sent_ms,
                }
            )
        span.end()

    # -- settling -------------------------------------------------------------------------------

    def ack(self, queue: str, receipts: Sequence[Receipt], *, late: bool = False) -> list[OpenQError | None]:
        held = self._take(receipts)
        if not held:
            return self._ack(queue, receipts, late=late)
        total = self._times.total  # of the protocol that acks: others may set theirs while this call waits
        span = self._start_settle("ack", queue, list(held.values()), len(receipts))
        results: list[OpenQError | None] = self._run(span, lambda: self._ack(queue, receipts, late=late))
        now_ms = self._inner.now_ms()
        for at, each in held.items():
            error = results[at]
            if error is not None:
                failed(span, error)
                continue
            trace_id = format_trace_id(each.context.trace_id)
            total.keep_exemplar(now_ms - each.sent_ms, trace_id, now_ms)
            self._times.processing.keep_exemplar(now_ms - each.delivered_ms, trace_id, now_ms)
        span.end()
        return results

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        if (seq, number) not in self._in_flight:
            self._ack_one(queue, seq, number)
            return
        [error] = self.ack(queue, [(seq, number)])
        if error is not None:
            raise error

    def nack(
        self,
        queue: str,
        receipts: Sequence[Receipt],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[str | OpenQError]:
        return self._return(
            "nack", queue, receipts, lambda: self._inner.nack(queue, receipts, delay_ms, reason)
        )

    def reject(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None
    ) -> list[str | OpenQError]:
        return self._return("reject", queue, receipts, lambda: self._inner.reject(queue, receipts, reason))

    def _return(
        self, name: str, queue: str, receipts: Sequence[Receipt], call: Callable[[], list[str | OpenQError]]
    ) -> list[str | OpenQError]:
        held = self._take(receipts)
        if not held:
            return call()
        span = self._start_settle(name, queue, list(held.values()), len(receipts))
        results: list[str | OpenQError] = self._run(span, call)
        outcomes = {each for each in results if isinstance(each, str)}
        if len(outcomes) == 1:
            span.set_attribute("openq.outcome", outcomes.pop())
        for at in held:
            result = results[at]
            if isinstance(result, OpenQError):
                failed(span, result)
        span.end()
        return results

    def _take(self, receipts: Sequence[Receipt]) -> dict[int, _InFlight]:
        """The traced ones among these, by their place."""
        in_flight = self._in_flight
        held: dict[int, _InFlight] = {}
        if not in_flight or in_flight.keys().isdisjoint(receipts):
            return held
        for at, receipt in enumerate(receipts):
            each = in_flight.pop(receipt, None)
            if each is not None:
                held[at] = each
        return held

    def _start_settle(self, name: str, queue: str, held: list[_InFlight], count: int) -> Span:
        span = self._start("settle", name, queue, [each.context for each in held], _many(count))
        if len(held) == 1:
            each = held[0]
            span.set_attribute("messaging.message.id", each.message_id)
            span.set_attribute("openq.processing_ms", self._inner.now_ms() - each.delivered_ms)
        return span

    def _start(self, type: str, name: str, queue: str, about: list[SpanContext], count: int | None) -> Span:
        parent, links = trace.INVALID_SPAN, None
        if len(about) == 1:
            parent = NonRecordingSpan(about[0])
        elif about:
            # The messages of one traced publish share their context.
            distinct = {(each.trace_id, each.span_id): each for each in about}
            links = [Link(each) for each in list(distinct.values())[:MAX_LINKS]]
        context = trace.set_span_in_context(parent)
        return self._spans.start(type, name, queue, SpanKind.SERVER, context, links, count)

    # -- exchanges ------------------------------------------------------------------------------

    def routed(self, name: str, draft: Draft, call: Callable[[], Any]) -> Any:
        """Publish through an exchange."""
        parent = _parent_of_draft(draft)
        if not self._is_sampled([parent]):
            return call()
        span = self._start_publish(name, [parent])
        result = self._run(span, call)
        self._published(span, self._seqs_of([result[0]]), parent is None, [result[0]])
        return result


class _TracedExchanges:
    def __init__(self, broker: TracedBroker, exchanges: Any) -> None:
        self._broker = broker
        self._inner = exchanges

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def route(self, exchange: str, key: str, draft: Draft) -> Any:
        return self._broker.routed(exchange, draft, lambda: self._inner.route(exchange, key, draft))

    def route_to(self, queues: Sequence[str], draft: Draft) -> Any:
        route = draft.route
        name = queues[0] if len(queues) == 1 or route is None else route[0]
        return self._broker.routed(name, draft, lambda: self._inner.route_to(queues, draft))


def traced_broker(broker: Broker, spans: MessageSpans, sample: float) -> Broker:
    return cast(Broker, TracedBroker(broker, spans, sample))


def _may_have_parent(properties: Properties) -> bool:
    data = properties.amqp_properties
    return data is None or b"traceparent" in data


def _parent_of(properties: Properties) -> TraceParent | None:
    """The context of a message; None if it has none that a span can be a child of."""
    data = properties.amqp_properties
    if data is not None:
        found = _AMQP_PARENT.search(data) if b"traceparent" in data else None
        return None if found is None else read_parent(found[1].decode("ascii"))
    return _parent_of_attributes(properties.attributes)


def _parent_of_attributes(attributes: Any) -> TraceParent | None:
    if TRACEPARENT not in attributes and AMAZON not in attributes:
        return None
    found = parent_of(attributes)
    return found if found is not None and found.span_id else None


def _parent_of_draft(draft: Draft) -> TraceParent | None:
    if draft.properties is not None:
        return _parent_of(draft.properties)
    return _parent_of_attributes(draft.attributes) if draft.attributes else None


def _many(count: int) -> int | None:
    return count if count != 1 else None
