"""Sends the messages of one queue to one endpoint.

Theory of operation. Everything happens in turns on the loop; a turn settles what was answered since the last
one, then takes as many messages as may be sent now:

    take     lease through a waiter of the broker, like any consumer; leases have no deadline, because every
             request has one. If the process dies, they end and the messages return.
    send     one request for each message or batch; nothing that is leased waits for anything
    settle   2xx acks; 410 releases and disables the webhook; 429 and 503 with Retry-After pause the endpoint
             and return the message for that time; everything else nacks with the status as the reason: the
             queue's back-off and its dead-letter queue do the rest

How many may be sent is limited by concurrency, rate and circuit breaker. While it is none, no waiter is in
the queue and the messages are there for other consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ..broker.waiters import Waiter
from ..errors import Closed, OpenQError, QueueNotFound
from ..model import NO_DEADLINE, Delivery
from ..names import split_name
from ..server.context import ServerContext
from ..server.long_polls import count_fitting, estimate_fitting
from .breaker import OPEN
from .delivery_log import DELIVERED, GONE, PAUSED, Attempt
from .formats import item_of
from .http_client import EndpointClient
from .model import Webhook
from .outcomes import AttemptOutcome
from .requests import Requests
from .settling import Settlements

RETRY_S = 0.5  # after an error of the store, or while the queue does not exist
MAX_BYTES = 16 << 20  # of bodies that are taken at once; a single message may be larger
SHORT_BACKOFF_S = 0.01

log = logging.getLogger("openq.webhooks")


class MessageSender:
    """One webhook that sends messages, while it is enabled and this server owns it."""

    def __init__(
        self,
        context: ServerContext,
        webhook: Webhook,
        client: EndpointClient,
        report: Callable[[Attempt], None],
        disable: Callable[[str], None],
    ) -> None:
        assert webhook.queue is not None
        self.context = context
        self.webhook = webhook
        self._requests = Requests(context, webhook, client, report)
        self.breaker = self._requests.breaker
        self.trouble: str | None = None  # why it cannot take messages
        self.is_lost = False
        self.held = 0  # messages of the running requests
        self._queue = webhook.queue
        self._disable = disable
        self._settlements = Settlements(context.broker, webhook.queue, context.traffic.webhooks)
        self._label = f"webhook:{split_name(webhook.name)[1]}"
        self._waiter = Waiter(1, NO_DEADLINE, self._label, webhook.message_filter(), self._on_served)
        self._is_waiting = False  # the waiter is in the queue
        self._is_loading = False  # taken messages are not durable yet
        self._is_stopping = False
        self._is_scheduled = self._is_in_turn = self._is_requested = False
        self._timer: asyncio.TimerHandle | None = None
        self._on_stopped: Callable[[], None] | None = None

    @property
    def running(self) -> int:
        """Requests."""
        return self._requests.running

    # -- turns ----------------------------------------------------------------------------------

    def start(self) -> None:
        self.context.consumer_events.joined(self._queue, self._label, "webhook")
        self.wake()

    def stop(self, then: Callable[[], None]) -> None:
        """Take no more messages; `then` is called when the running requests are answered and settled."""
        self._is_stopping = True
        self._on_stopped = then
        self.wake()

    def abort(self) -> None:
        """End the running requests. Their messages are released: a sender that stops says nothing of them."""
        self._requests.close()

    def wake(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.context.loop.call_soon(self.context.enter, self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        self._is_requested = True
        if self._is_in_turn:  # suspended in a call to the store: it goes on afterwards
            return
        self._is_in_turn = True
        try:
            while self._is_requested:
                self._is_requested = False
                if self._settlements and not self._settle():
                    self._wake_in(RETRY_S)
                    return
                self._take()
        finally:
            self._is_in_turn = False
        is_busy = self.running or self._is_waiting or self._is_loading or self._settlements
        if self._is_stopping and not is_busy:
            then, self._on_stopped = self._on_stopped, None
            if then is not None:
                if self._timer is not None:
                    self._timer.cancel()
                self._requests.close()
                self.context.consumer_events.left(self._queue, self._label, "webhook")
                then()

    def _wake_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.context.loop.call_later(max(seconds, SHORT_BACKOFF_S), self.wake)

    def _settle(self) -> bool:
        is_settled = self._settlements.flush()
        self.context.after_commit(_ignore)  # starts the commit
        return is_settled

    # -- taking messages ------------------------------------------------------------------------

    def _capacity(self) -> int:
        """How many requests may be started now."""
        if self._is_stopping:
            return 0
        capacity, wait_s = self._requests.capacity(self.webhook.concurrency)
        if wait_s:
            self._wake_in(wait_s)
        return capacity

    def _take(self) -> None:
        broker = self.context.broker
        while not self._is_loading:
            limit = self._capacity() * self.webhook.batch
            if limit <= 0:
                self._stop_waiting()
                return
            if self._is_waiting:
                self._waiter.limit = limit
                return
            try:
                self._waiter.limit = estimate_fitting(broker, self._queue, limit, MAX_BYTES)
                self._is_waiting = True
                deliveries = broker.add_waiter(self._queue, self._waiter)
            except Closed:
                self._is_waiting = False
                return
            except OpenQError as error:
                self._is_waiting = False
                self._in_trouble(error)
                return
            self.trouble = None
            if deliveries is None:
                return
            self._is_waiting = False
            self._send_when_durable(deliveries)

    def _in_trouble(self, error: OpenQError) -> None:
        if self.trouble is None and not isinstance(error, QueueNotFound):
            log.error("webhook %r: no messages: %s", self.webhook.name, error)
        self.trouble = str(error)
        self._wake_in(RETRY_S)

    def _stop_waiting(self) -> None:
        if self._is_waiting and self.context.broker.remove_waiter(self._queue, self._waiter):
            self._is_waiting = False  # otherwise it was just served: `_deliveries` will be called

    def _on_served(self, deliveries: list[Delivery]) -> None:
        """Called with the broker's lock held, in any thread."""
        try:
            self.context.loop.call_soon_threadsafe(self.context.enter, self._deliveries, deliveries)
        except RuntimeError:
            pass  # the loop is closed; the leases end with the process

    def _deliveries(self, deliveries: list[Delivery]) -> None:
        self._is_waiting = False
        if deliveries:
            self._send_when_durable(deliveries)
        elif not self._is_stopping:
            self._in_trouble(QueueNotFound(self._queue))  # deleted, or the broker closes
        self.wake()

    def _send_when_durable(self, deliveries: list[Delivery]) -> None:
        location = self.context.broker.commit_location(deliveries)
        if location is None:
            self._send_all(deliveries)
            return
        self._is_loading = True

        def committed(error: OpenQError | None) -> None:
            self._is_loading = False
            if error is None:
                self._send_all(deliveries)
            self.wake()

        self.context.after_commit(committed, location)

    # -- sending --------------------------------------------------------------------------------

    def _send_all(self, deliveries: list[Delivery]) -> None:
        if self._is_stopping:
            self._release(deliveries)
            return
        count = count_fitting([each.entry for each in deliveries], MAX_BYTES)
        if count < len(deliveries):
            self._release(deliveries[count:])
            deliveries = deliveries[:count]
        try:
            readable = self.context.broker.load(deliveries, self._queue)
        except OpenQError as error:
            self._release(deliveries)
            self._in_trouble(error)
            return
        size = self.webhook.batch
        for at in range(0, len(readable), size):
            self._send(readable[at : at + size])

    def _release(self, deliveries: list[Delivery]) -> None:
        self._settlements.release(deliveries)
        self.wake()

    def _send(self, deliveries: list[Delivery]) -> None:
        prefix = self.context.broker.storage.id_prefix
        items = [item_of(self._queue, each, prefix) for each in deliveries]
        if self._requests.post(items, deliveries[0].count, partial(self._conclude, deliveries)):
            self.held += len(deliveries)
            self.context.traffic.webhooks.delivered += len(deliveries)
        else:
            # It must not keep its lease, nor the others from being sent.
            self._settlements.nack(deliveries, None, "the webhook cannot write this message as a request")
            self.wake()

    def _conclude(self, deliveries: list[Delivery], outcome: AttemptOutcome) -> None:
        self.held -= len(deliveries)
        now_ms = self.context.now_ms()
        if outcome.kind == DELIVERED:
            self.breaker.succeeded()
            self._settlements.ack(deliveries)
        elif outcome.kind == GONE:
            self._settlements.release(deliveries)
            if not self._is_stopping:
                self._disable(outcome.reason)
        elif outcome.kind == PAUSED:
            self.breaker.pause(now_ms + outcome.pause_ms)
            self._settlements.nack(deliveries, outcome.pause_ms, outcome.reason)
        elif outcome.status is None and self._is_stopping:
            self._settlements.release(deliveries)  # ended by us: it says nothing about the message
        else:
            if self.breaker.failed(now_ms) and self.breaker.state == OPEN:
                wait_s = (self.breaker.until_ms - now_ms) / 1000
                log.warning(
                    "webhook %r: pause of %g s after failures: %s", self.webhook.name, wait_s, outcome.reason
                )
            self._settlements.nack(deliveries, None, outcome.reason)
        self.wake()


def _ignore(error: OpenQError | None) -> None:
    """An error of the disk is reported by the broker; a message whose ack was lost is sent again."""
