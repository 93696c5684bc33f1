"""Receiving with a wait, on the loop: the long polls of SQS and REST.

Deliveries are either sent to the client or released: a client that disconnects while it waits loses nothing.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Sequence

from ..broker.interface import Broker
from ..broker.waiters import Waiter
from ..errors import ConnectionClosed, OpenQError
from ..model import Delivery, Entry, MessageFilter
from .context import ServerContext
from .http_request import HttpRequest

Then = Callable[[list[Delivery], OpenQError | None], None]

UNCHECKED_COUNT = 10  # maximum number of messages received without an estimate of their size


def count_fitting(entries: Sequence[Entry], max_bytes: int) -> int:
    """How many of these fit into one reply, at least one."""
    size = 0
    for count, entry in enumerate(entries):
        size += entry.size
        if size > max_bytes and count:
            return count
    return len(entries)


def estimate_fitting(broker: Broker, queue: str, limit: int, max_bytes: int) -> int:
    """Like `count_fitting`, before they are received: estimated by the mean size of the waiting messages."""
    if limit <= UNCHECKED_COUNT:
        return limit
    _, count, size = broker.waiting(queue)
    return min(limit, max(1, max_bytes * max(count, 1) // size)) if size > max_bytes else limit


def receive(
    context: ServerContext,
    request: HttpRequest,
    queue: str,
    limit: int,
    lease_ms: int | None,
    consumer: str | None,
    wanted: MessageFilter | None,
    wait_s: float,
    then: Then,
    max_bytes: int,
    max_in_flight: int | None = None,
) -> None:
    """Receive as soon as there are messages; nothing after `wait_s`. `queue` is the qualified name.

    `then` is called once, on the loop, with deliveries to send. Their bodies have at most `max_bytes`
    together, unless it is one message; no others are leased. Raises the errors of the broker.
    """
    broker = context.broker
    if broker.storage.waits:
        # From here on messages may be leased: a disconnect must be noticed.
        request.notice_disconnect()
    limit = estimate_fitting(broker, queue, limit, max_bytes)
    deliveries = broker.receive(queue, limit, lease_ms, consumer, wanted, max_in_flight)

    def again() -> None:
        try:
            receive(
                context,
                request,
                queue,
                limit,
                lease_ms,
                consumer,
                wanted,
                wait_s,
                then,
                max_bytes,
                max_in_flight,
            )
        except OpenQError as error:
            request.run_guarded(then, [], error)

    if deliveries or wait_s <= 0:
        load_and_answer(context, request, queue, deliveries, then, max_bytes, again)
    else:
        waiter = Waiter(limit, lease_ms, consumer, wanted, _unset_deliver)
        MessagePoll(context, request, queue, waiter, then, max_bytes, again).start(wait_s)


def load_and_answer(
    context: ServerContext,
    request: HttpRequest,
    queue: str,
    deliveries: list[Delivery],
    then: Then,
    max_bytes: int,
    again: Callable[[], None] | None = None,
) -> None:
    """Load the bodies and call `then`, once the publishes of these messages are durable.

    `again` is called instead of `then` if none of them can be read: the next messages are received.
    """
    broker = context.broker
    if len(deliveries) > 1 and sum([each.entry.size for each in deliveries]) > max_bytes:
        count = count_fitting([each.entry for each in deliveries], max_bytes)
        deliveries, rest = deliveries[:count], deliveries[count:]
        release_deliveries(context, queue, rest)

    def loaded(error: OpenQError | None = None) -> None:
        if request.gone:
            release_deliveries(context, queue, deliveries)
            return
        readable: list[Delivery] = []
        if error is None:
            try:
                readable = broker.load(deliveries, queue)
            except OpenQError as failure:
                error = failure
        if error is not None:
            # The client gets an error and does not know of them.
            release_deliveries(context, queue, deliveries)
            request.run_guarded(then, [], error)
        elif deliveries and not readable and again is not None:
            again()
        else:
            traffic = context.traffic
            (traffic.rest if request.target.startswith(_REST) else traffic.sqs).delivered += len(readable)
            if not request.run_guarded(then, readable, None):
                release_deliveries(context, queue, readable)

    location = broker.commit_location(deliveries)
    if location is None:
        loaded()
    else:
        # Messages are leased: a disconnect must be noticed.
        request.notice_disconnect()
        context.after_commit(loaded, location)


def release_deliveries(context: ServerContext, queue: str, deliveries: list[Delivery]) -> None:
    try:
        context.broker.release(queue, [(each.entry.seq, each.number) for each in deliveries])
    except OpenQError:
        pass  # the queue is deleted, or the broker closed: nothing is leased any more


_REST = b"/api/"  # where the paths of REST begin; others are of SQS


def _unset_deliver(deliveries: list[Delivery]) -> None:
    raise AssertionError("set by MessagePoll.start")


class MessagePoll:
    """One request that waits for messages."""

    __slots__ = (
        "_again",
        "_context",
        "_max_bytes",
        "_over",
        "_then",
        "_timer",
        "_waiter",
        "number",
        "queue_key",
        "request",
        "since_ms",
    )

    def __init__(
        self,
        context: ServerContext,
        request: HttpRequest,
        queue: str,
        waiter: Waiter,
        then: Then,
        max_bytes: int,
        again: Callable[[], None],
    ) -> None:
        self._max_bytes = max_bytes
        self._again = again
        self._context = context
        self.request = request
        self.queue_key = queue
        self.number = 0  # see `connections.py`
        self.since_ms = context.now_ms()
        self._waiter = waiter
        self._then = then
        self._timer: TimerHandle | None = None
        self._over = False

    def start(self, wait_s: float) -> None:
        context = self._context
        self._waiter.deliver = self._deliver
        deliveries = context.broker.add_waiter(self.queue_key, self._waiter)
        if deliveries is not None:
            self._over = True
            load_and_answer(
                context, self.request, self.queue_key, deliveries, self._then, self._max_bytes, self._again
            )
            return
        if self._over:
            return  # served while `add_waiter` was suspended
        self._timer = context.loop.call_later(wait_s, self.end)
        self.request.waited = True
        self.request.on_gone = self.end
        context.long_polls.add(self)
        if self.request.gone:
            self._end()

    @property
    def consumer(self) -> str:
        return self._waiter.consumer or ""

    @property
    def limit(self) -> int:
        return self._waiter.limit

    def close(self, reason: str) -> None:
        """Answer with an error that has the reason, and close the connection."""
        self._context.enter(self._close, reason)

    def _close(self, reason: str) -> None:
        if self._over or not self._context.broker.remove_waiter(self.queue_key, self._waiter):
            return  # served just now
        self._finish()
        if not self.request.gone:
            self.request.keep_alive = False
            self.request.run_guarded(self._then, [], ConnectionClosed(reason))

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        try:
            self._context.loop.call_soon_threadsafe(self._context.enter, self._served, deliveries)
        except RuntimeError:
            pass  # the loop is closed; the leases expire

    def _served(self, deliveries: list[Delivery]) -> None:
        self._finish()
        load_and_answer(
            self._context, self.request, self.queue_key, deliveries, self._then, self._max_bytes, self._again
        )

    def end(self) -> None:
        """Timeout, disconnect, or stop of the server."""
        self._context.enter(self._end)

    def _end(self) -> None:
        if self._over or not self._context.broker.remove_waiter(self.queue_key, self._waiter):
            return  # served just now: `_served` is scheduled
        self._finish()
        if not self.request.gone:
            self.request.run_guarded(self._then, [], None)

    def _finish(self) -> None:
        self._over = True
        self.request.on_gone = None
        if self._timer is not None:
            self._timer.cancel()
        self._context.long_polls.discard(self)
