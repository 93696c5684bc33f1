"""The requests of one webhook: how many may run, what they are made of, and what their responses mean.

Senders of messages and of events share this part. It knows the endpoint, its circuit breaker and its rate;
what becomes of messages and events is the sender's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from ..limits import Rate, parse_rate
from ..server.context import ServerContext
from .breaker import Breaker
from .delivery_log import Attempt
from .formats import Item, RequestBuilder
from .http_client import EndpointClient, Response
from .model import Webhook
from .outcomes import AttemptOutcome, SentRequest, judge

log = logging.getLogger("openq.webhooks")


class TokenBucket:
    """The requests that a rate allows."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._used_until = 0

    def available(self, now_ms: int) -> int:
        now = now_ms * self._rate.units
        return (now + self._rate.burst * self._rate.step - max(self._used_until, now)) // self._rate.step

    def take(self, now_ms: int) -> None:
        self._used_until = max(self._used_until, now_ms * self._rate.units) + self._rate.step

    def next_ms(self) -> int:
        return self._rate.next_ms(self._used_until)


class Requests:
    """On the loop."""

    def __init__(
        self,
        context: ServerContext,
        webhook: Webhook,
        client: EndpointClient,
        report: Callable[[Attempt], None],
    ) -> None:
        self.breaker = Breaker(webhook.failures)
        self.running = 0
        self._context = context
        self._webhook = webhook
        self._client = client
        self._report = report
        self._builder = RequestBuilder(webhook)
        self._bucket = None if webhook.rate is None else TokenBucket(parse_rate(webhook.rate))

    def capacity(self, limit: int) -> tuple[int, float]:
        """How many requests may be started now, where `limit` may run at once; and a time in seconds.

        The time counts if the number is 0: a pause or the rate allows the next request then. If the time is
        0 too, the answer of a running request does.
        """
        now_ms = self._context.now_ms()
        capacity = self.breaker.capacity(limit, self.running, now_ms)
        if not capacity:
            return 0, max(self.breaker.until_ms - now_ms, 0) / 1000
        if self._bucket is not None:
            capacity = min(capacity, self._bucket.available(now_ms))
            if not capacity:
                return 0, (self._bucket.next_ms() - now_ms) / 1000
        return capacity, 0.0

    def post(self, items: list[Item], number: int, then: Callable[[AttemptOutcome], None]) -> bool:
        """Send one request, the attempt with this number. False: the items cannot be written as a request."""
        now_ms = self._context.now_ms()
        try:
            request = self._builder.build(items, now_ms)
        except Exception:
            log.exception("webhook %r: %s cannot be sent", self._webhook.name, items[0].id)
            return False
        if self._bucket is not None:
            self._bucket.take(now_ms)
        self.running += 1
        sent = SentRequest(request.id, now_ms, self._context.loop.time())
        answered = partial(self._answered, sent, number, len(items), then)
        self._client.post(request.head, request.body, self._webhook.timeout_ms / 1000, answered)
        return True

    def _answered(
        self,
        sent: SentRequest,
        number: int,
        count: int,
        then: Callable[[AttemptOutcome], None],
        response: Response | None,
        error: str,
    ) -> None:
        self.running -= 1
        outcome = judge(response, error, time.time())
        self._report(sent.attempt(outcome, self._context.loop.time(), number, messages=count))
        then(outcome)

    def close(self) -> None:
        """End those that run."""
        self._client.close()
