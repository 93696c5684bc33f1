"""Sends events to one endpoint: in order, at least once, from a durable position.

Theory of operation. A reader takes pages of `broker.events` in a thread; the events of a page are sent one
request after the other. A request that fails is repeated until it is delivered, or until `max_attempts`; the
events behind it wait, because their order is promised. The position of the last delivered event is stored a
moment later, so a crash repeats the events of that moment: their `webhook-id` is the same.

    reading -> page -> sending -> delivered -> (page empty) reading ... at the end: waiting for `watch`
                          ^          |
                          '- pause <-' failed
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from ..broker.events import Event, EventFilter, EventPage
from ..documents.events import event_document
from ..documents.values import iso
from ..errors import Closed, InvalidSetting, OpenQError
from ..model import ENCODING_JSON
from ..server.context import ServerContext
from .declarer import Declarer
from .delivery_log import DELIVERED, GONE, PAUSED, Attempt
from .formats import Item
from .http_client import EndpointClient
from .model import Webhook
from .outcomes import AttemptOutcome
from .positions import StoredPosition
from .requests import Requests

PAGE = 500
SAVE_S = 0.2
RETRY_S = 0.5
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 60.0

log = logging.getLogger("openq.webhooks")


class EventSender:
    """One webhook that sends events, while it is enabled and this server owns it."""

    def __init__(
        self,
        context: ServerContext,
        webhook: Webhook,
        client: EndpointClient,
        report: Callable[[Attempt], None],
        disable: Callable[[str], None],
    ) -> None:
        assert webhook.events is not None
        self.context = context
        self.webhook = webhook
        self._requests = Requests(context, webhook, client, report)
        self.breaker = self._requests.breaker
        self.trouble: str | None = None
        self.is_lost = False  # another server advances the position
        self._events = context.broker.events
        self._declarer = Declarer(context, webhook)
        selected = webhook.events
        self._filter = EventFilter(
            tuple(selected.queues),
            frozenset(selected.events),
            webhook.message_filter(),
        )
        self._disable = disable
        self._position = StoredPosition(context.broker.kv, webhook)
        self._after: str | None = None  # the last event that is done
        self._next: str | None = None  # where the page ends
        self._waiting: deque[Item] = deque()  # of the page, not delivered yet
        self._attempts = 0  # for the first of them
        self._alone = 0  # so many are sent by themselves, because their batch could not be written
        self._not_before_s = 0.0  # on the clock of the loop
        self._is_started = self._is_reading = self._is_at_end = False
        self._is_unsaved = self._is_saving = False
        self._unwatch: Callable[[], None] | None = None
        self._is_woken = False  # by `watch`, from any thread
        self._is_changed = False  # since the running read began
        self._timer: asyncio.TimerHandle | None = None
        self._saver: asyncio.TimerHandle | None = None
        self._is_stopping = False
        self._on_stopped: Callable[[], None] | None = None

    @property
    def running(self) -> int:
        """Requests: one or none."""
        return self._requests.running

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        self._read_page()

    def stop(self, then: Callable[[], None]) -> None:
        self._is_stopping = True
        self._on_stopped = then
        self.wake()

    def abort(self) -> None:
        self._requests.close()

    def wake(self) -> None:
        self.context.loop.call_soon(self._turn)

    def _turn(self) -> None:
        if not self._is_stopping:
            self._pump()
        elif not (self.running or self._is_reading or self._is_saving):
            if self._is_unsaved and not self.is_lost:
                self._save()
                return
            then, self._on_stopped = self._on_stopped, None
            if then is not None:
                for timer in (self._timer, self._saver):
                    if timer is not None:
                        timer.cancel()
                if self._unwatch is not None:
                    self._unwatch()
                self._requests.close()
                then()

    def _wake_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.context.loop.call_later(max(seconds, 0.001), self._turn)

    # -- reading --------------------------------------------------------------------------------

    def _read_page(self) -> None:
        self._is_reading, self._is_changed = True, False
        self.context.run(self._page if self._is_started else self._open, self._read)

    def _open(self) -> EventPage:
        """In a thread: the first page. Watched before it is read, so that nothing is missed in between."""
        if self._unwatch is None:
            self._unwatch = self._events.watch(self._on_change)
        if not self._is_started:
            self._after = self._next = self._position.load()
        page = self._page()
        self._is_started = True
        return page

    def _page(self) -> EventPage:
        """In a thread."""
        try:
            page = self._events.read(self._next, PAGE, self._filter)
        except InvalidSetting:
            # The store is another one than before: its history begins anew.
            page = self._events.read(None, PAGE, self._filter)
            if page.gap_until_ms is None:
                page.gap_until_ms = self.context.now_ms()
        self._declarer.refresh()
        page.events = [each for each in page.events if self._declarer.may_see(each)]
        return page

    def _on_change(self) -> None:
        """From any thread; many changes wake the loop once."""
        if not self._is_woken:
            self._is_woken = True
            try:
                self.context.loop.call_soon_threadsafe(self._changed)
            except RuntimeError:
                pass  # the loop is closed

    def _changed(self) -> None:
        self._is_woken = False
        self._is_at_end = False
        self._is_changed = True
        self._turn()

    def _read(self, page: EventPage | None, error: BaseException | None) -> None:
        self._is_reading = False
        if page is None:
            if not isinstance(error, Closed):
                self._report_trouble("cannot read events", error)
                self._wake_in(RETRY_S)
            if self._is_stopping:
                self.wake()
            return
        self.trouble = None
        if page.gap_until_ms is not None:
            self._waiting.append(self._gap(page.next, page.gap_until_ms))
        self._waiting += map(self._item, page.events)
        self._next = page.next
        # A change during the read may be behind its end.
        self._is_at_end = page.is_end and not self._is_woken and not self._is_changed
        if not self._waiting:
            self._advance(page.next)
        self._turn()

    def _report_trouble(self, what: str, error: BaseException | None) -> None:
        """Logged once, not at every attempt."""
        text = f"{what}: {error}" if isinstance(error, OpenQError) else f"{what}: internal error"
        if text != self.trouble:
            details = None if isinstance(error, OpenQError) else error
            log.error("webhook %r: %s", self.webhook.name, text, exc_info=details)
        self.trouble = text

    def _item(self, event: Event) -> Item:
        selected = self.webhook.events
        assert selected is not None
        return Item(
            id=event.id,
            queue=event.queue,
            type=f"openq.{event.event}",
            time_ms=event.time_ms,
            body=b"",
            encoding=ENCODING_JSON,
            document=event_document(event, selected.bodies),
        )

    def _gap(self, id: str, until_ms: int) -> Item:
        """Events were lost to the limits of history: the endpoint learns that they were."""
        document: dict[str, object] = {
            "id": f"gap-{id}",
            "event": "gap",
            "time": iso(until_ms),
            "queue": None,
            "detail": {},
        }
        return Item(f"gap-{id}", "", "openq.gap", until_ms, b"", ENCODING_JSON, document=document)

    # -- sending --------------------------------------------------------------------------------

    def _pump(self) -> None:
        if self.running or self._is_reading or self.is_lost:
            return
        if not self._waiting:
            if not self._is_at_end:
                self._read_page()
            return
        now_s = self.context.loop.time()
        if self._not_before_s > now_s:
            self._wake_in(self._not_before_s - now_s)
            return
        capacity, wait_s = self._requests.capacity(1)
        if capacity:
            self._send()
        else:
            self._wake_in(wait_s)

    def _send(self) -> None:
        count = min(1 if self._alone else self.webhook.batch, len(self._waiting))
        items = [self._waiting[at] for at in range(count)]
        self._attempts += 1
        if self._requests.post(items, self._attempts, partial(self._answered, items)):
            return
        if count > 1:
            self._alone = count  # one of them cannot be written: only that one is dropped
            self._attempts -= 1
        else:
            self._done(items)
        self.wake()

    def _answered(self, items: list[Item], outcome: AttemptOutcome) -> None:
        self._conclude(items, outcome)
        self._turn()

    def _conclude(self, items: list[Item], outcome: AttemptOutcome) -> None:
        now_ms = self.context.now_ms()
        if outcome.kind == DELIVERED:
            self.breaker.succeeded()
            self._done(items)
        elif self._is_stopping:
            pass  # the next sender begins with it
        elif outcome.kind == GONE:
            self._disable(outcome.reason)
        elif outcome.kind == PAUSED:
            self._attempts -= 1
            self.breaker.pause(now_ms + outcome.pause_ms)
        else:
            self.breaker.failed(now_ms)
            most = self.webhook.max_attempts
            if most is not None and self._attempts >= most:
                log.warning(
                    "webhook %r: events dropped after %d attempts: %s",
                    *(self.webhook.name, self._attempts, outcome.reason),
                )
                self._done(items)
                return
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(self._attempts - 1, 10), MAX_PAUSE_S)
            self._not_before_s = self.context.loop.time() + pause_s

    def _done(self, items: list[Item]) -> None:
        for _ in items:
            self._waiting.popleft()
        self._alone = max(0, self._alone - len(items))
        self._attempts = 0
        self._not_before_s = 0.0
        # The id of a gap is not a position: the page before it is.
        last = items[-1].id
        if not self._waiting:
            self._advance(self._next)
        elif not last.startswith("gap-"):
            self._advance(last)

    # -- the position ---------------------------------------------------------------------------

    def _advance(self, after: str | None) -> None:
        if after == self._after:
            return
        self._after = after
        self._is_unsaved = True
        if self._saver is None and not self._is_saving:
            self._saver = self.context.loop.call_later(SAVE_S, self._save)

    def _save(self) -> None:
        self._saver = None
        self._is_saving, self._is_unsaved = True, False
        after = self._after
        self.context.run(lambda: self._position.save(after), self._saved)

    def _saved(self, is_ours: bool | None, error: BaseException | None) -> None:
        self._is_saving = False
        if is_ours is None:
            if isinstance(error, Closed):
                return
            self._report_trouble("the position is not stored", error)
            self._is_unsaved = True
            if not self._is_stopping:
                self._saver = self.context.loop.call_later(RETRY_S, self._save)
                return
            self.is_lost = True  # it must not keep the server from stopping; events are repeated
        elif not is_ours:
            self.is_lost = True
            self.trouble = "another server sends these events"
        elif self._is_unsaved and not self._is_stopping:
            self._saver = self.context.loop.call_later(SAVE_S, self._save)
        self._turn()
