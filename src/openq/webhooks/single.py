"""Requests beside the sender of a webhook: a sample to try an endpoint, and past messages once more."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

import msgspec

from ..broker.history import HistoryRange, PastMessage
from ..documents.values import iso
from ..errors import OpenQError
from ..limits import parse_rate
from ..model import ENCODING_JSON
from ..names import split_name
from .delivery_log import DELIVERED, Attempt
from .formats import Item, RequestBuilder, WebhookRequest
from .http_client import EndpointClient, Response
from .model import Webhook
from .outcomes import AttemptOutcome, SentRequest, judge
from .requests import TokenBucket
from .service import WebhookService

PAGE = 200
PAGE_BYTES = 4 << 20
MAX_ATTEMPTS = 5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0


class ReplayFailed(OpenQError):
    code = "replay_failed"

    def __init__(self, request_id: str, outcome: AttemptOutcome, done: int) -> None:
        super().__init__(
            f"{request_id} was not delivered in {MAX_ATTEMPTS} attempts: {outcome.reason}; "
            f"{done} messages were sent again before"
        )


class Cancelled(Exception):
    pass


def sample_item(webhook: Webhook, now_ms: int) -> Item:
    data = {"webhook": split_name(webhook.name)[1]}
    body = {"type": "openq.test", "timestamp": iso(now_ms), "data": data}
    return Item(
        id=f"test{os.urandom(8).hex()}",
        queue=webhook.queue or "",
        type="openq.test",
        time_ms=now_ms,
        body=msgspec.json.encode(body),
        encoding=ENCODING_JSON,
        document=None if webhook.events is None else body,
    )


def send_sample(service: WebhookService, webhook: Webhook, then: Callable[[Attempt], None]) -> None:
    """On the loop, also if the webhook is disabled. The queue and the circuit breaker do not notice."""
    now_ms = service.context.now_ms()
    request = RequestBuilder(webhook).build([sample_item(webhook, now_ms)], now_ms)
    client = service.client(webhook)
    sent = SentRequest(request.id, now_ms, service.context.loop.time())

    def answered(response: Response | None, error: str) -> None:
        client.close()
        then(sent.attempt(judge(response, error, time.time()), service.context.loop.time()))

    client.post(request.head, request.body, webhook.timeout_ms / 1000, answered)


class Replay:
    """Sends past messages of the queue again, in a thread of a task. The queue itself is not changed."""

    def __init__(
        self,
        service: WebhookService,
        webhook: Webhook,
        span: HistoryRange,
        ids: set[str] | None,
        rate: str | None,
        is_wanted: Callable[[int], bool],
        cancelled: threading.Event,
    ) -> None:
        assert webhook.queue is not None
        self._service = service
        self._webhook = webhook
        self._queue = webhook.queue
        self._span = span
        self._ids = ids
        self._bucket = None if rate is None else TokenBucket(parse_rate(rate))
        self._is_wanted = is_wanted  # called with the count so far
        self._cancelled = cancelled
        self._builder = RequestBuilder(webhook)
        self._done = 0

    def run(self) -> int:
        """How many messages were delivered. Raises ReplayFailed."""
        client = self._service.client(self._webhook)
        running: list[tuple[list[Item], Future[AttemptOutcome], WebhookRequest]] = []
        try:
            for items in self._batches():
                self._wait_for_rate()
                running.append(self._post(client, items))
                if len(running) >= self._webhook.concurrency:
                    self._finish(client, *running.pop(0))
            while running:
                self._finish(client, *running.pop(0))
        except Cancelled:
            pass
        finally:
            self._service.context.loop.call_soon_threadsafe(client.close)
        return self._done

    def _batches(self) -> Iterator[list[Item]]:
        batch: list[Item] = []
        for item in self._items():
            batch.append(item)
            if len(batch) == self._webhook.batch:
                yield batch
                batch = []
        if batch:
            yield batch

    def _items(self) -> Iterator[Item]:
        broker = self._service.context.broker
        wanted = None if self._ids is None else set(self._ids)
        filter = self._webhook.message_filter()
        span = self._span
        while page := broker.inspect.past(self._queue, span):
            for past in page:
                item = _past_item(self._queue, past, broker.storage.id_prefix)
                if wanted is None:
                    if filter is None or (
                        filter.has_type(past.options) and filter.has_attributes(past.properties)
                    ):
                        yield item
                elif item.id in wanted:
                    wanted.discard(item.id)
                    yield item
                    if not wanted:
                        return
            span = HistoryRange(
                since_ms=span.since_ms,
                until_ms=span.until_ms,
                after_seq=page[-1].seq,
                limit=span.limit,
                max_bytes=span.max_bytes,
            )

    def _post(
        self, client: EndpointClient, items: list[Item]
    ) -> tuple[list[Item], Future[AttemptOutcome], WebhookRequest]:
        request = self._builder.build(items, self._service.context.now_ms())
        future: Future[AttemptOutcome] = Future()

        def answered(response: Response | None, error: str) -> None:
            future.set_result(judge(response, error, time.time()))

        post = partial(client.post, request.head, request.body, self._webhook.timeout_ms / 1000, answered)
        self._service.context.loop.call_soon_threadsafe(post)
        return items, future, request

    def _finish(
        self,
        client: EndpointClient,
        items: list[Item],
        future: Future[AttemptOutcome],
        request: WebhookRequest,
    ) -> None:
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, MAX_ATTEMPTS + 1):
            outcome = future.result(self._webhook.timeout_ms / 1000 + 10)
            if outcome.kind == DELIVERED:
                self._done += len(items)
                if not self._is_wanted(self._done):
                    raise Cancelled
                return
            if attempt == MAX_ATTEMPTS:
                break
            if self._cancelled.wait(min(max(outcome.pause_ms / 1000, pause_s), MAX_PAUSE_S)):
                raise Cancelled
            pause_s *= 2
            _, future, request = self._post(client, items)
        raise ReplayFailed(request.id, outcome, self._done)

    def _wait_for_rate(self) -> None:
        bucket = self._bucket
        while bucket is not None:
            now_ms = self._service.context.now_ms()
            if bucket.available(now_ms) > 0:
                bucket.take(now_ms)
                return
            if self._cancelled.wait(max(0.001, (bucket.next_ms() - now_ms) / 1000)):
                raise Cancelled


def _past_item(queue: str, past: PastMessage, prefix: str) -> Item:
    options = past.options
    item = Item(
        id=(None if options is None else options.id) or f"{prefix}{past.seq:012x}",
        queue=queue,
        type=None if options is None else options.type,
        time_ms=(0 if options is None else options.born_ms) or past.time_ms,
        body=past.body,
        encoding=past.encoding,
        properties=past.properties,
    )
    return item if options is None else item._replace(options=options)
