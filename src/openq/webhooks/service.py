"""All webhooks of a server.

service.py       reads the records, starts and stops senders, keeps logs; `owners.py`: one server for each
sender.py        messages of a queue; `event_sender.py`: events, as far as `declarer.py` allows
requests.py      the requests of one webhook: breaker, rate, attempts
formats.py       requests and signatures (`signing.py`); `endpoint.py`: URL and headers
http_client.py   connections; `addresses.py`: which addresses are allowed
outcomes.py      what a response means; `breaker.py`: when to stop trying; `settling.py`: acks and nacks
store.py         records and state in key-values; `model.py`: the record and its rules
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from ..broker.events import ALERT
from ..documents.values import iso
from ..errors import Closed, OpenQError
from ..metrics import Family
from ..names import DEFAULT_ACCOUNT, split_name
from ..server.connection_info import WEBHOOK, ConnectionInfo, ConsumerInfo, IdOf
from ..server.context import ServerContext
from .addresses import AddressRules
from .breaker import CLOSED, HALF_OPEN, OPEN, Breaker
from .delivery_log import DELIVERED, FAILED, Attempt, Counts, DeliveryLog, LogPart, store_part
from .endpoint import read_url
from .event_sender import EventSender
from .http_client import EndpointClient, Resolve, resolve_name
from .model import Webhook
from .owners import RENEW_S, Ownership
from .sender import MessageSender
from .store import Stored, WebhookStore

log = logging.getLogger("openq.webhooks")

FLUSH_S = 2.0  # of the delivery logs
STOP_S = 5.0  # for requests that run when a webhook is changed
MAX_SERIES = 1_000

DISABLED, RUNNING, PAUSED, WAITING, ELSEWHERE = "disabled", "running", "paused", "waiting", "elsewhere"
_BREAKER_VALUES = {CLOSED: 0, HALF_OPEN: 1, OPEN: 2}


class Status(NamedTuple):
    """How a webhook is doing, as this server knows it."""

    state: str
    breaker: str = CLOSED
    until_ms: int = 0  # the end of a pause
    in_flight: int = 0  # requests
    trouble: str | None = None
    delivered: int = 0  # messages, by this server
    failed: int = 0
    last: Attempt | None = None
    last_failure: Attempt | None = None
    owner: str | None = None  # the server that sends it, where several share the store


class Sender(Protocol):
    """Sends what one webhook sends, on the loop."""

    breaker: Breaker
    trouble: str | None  # why it cannot go on
    is_lost: bool  # it has to be started anew

    @property
    def running(self) -> int:
        """Requests."""

    def start(self) -> None: ...
    def stop(self, then: Callable[[], None]) -> None:
        """Begin nothing more; `then` is called when the running requests are answered and settled."""

    def abort(self) -> None:
        """End the running requests."""


class _Entry:
    """A webhook that this server knows."""

    def __init__(self, name: str) -> None:
        self.stored: Stored | None = None
        self.sender: Sender | None = None
        self.owner: str | None = None
        self.is_stopping = False  # its sender waits for running requests
        self.counts = Counts()
        self.log = DeliveryLog(name)
        self.number = 0


class WebhookService:
    def __init__(self, context: ServerContext, resolve: Resolve = resolve_name) -> None:
        self.context = context
        self.rules = AddressRules(context.config.webhook_allow)
        self.store = WebhookStore(context.broker.kv)
        self.resolve = resolve
        self._entries: dict[str, _Entry] = {}
        self._owned: set[str] = set()
        shared = context.broker.cluster is not None
        label = f"{socket.gethostname()}/{os.getpid()}/{os.urandom(4).hex()}"
        self.ownership = Ownership(context.broker.kv, label) if shared else None
        self._is_reading = self._is_changed = False
        self._is_stopped = False
        self._timers: list[asyncio.TimerHandle] = []
        self._flusher: asyncio.TimerHandle | None = None
        self._log_trouble: str | None = None

    @property
    def role(self) -> str:
        """What this server does for all servers of the store."""
        return (
            "webhook-sender" if any(each.sender is not None for each in list(self._entries.values())) else ""
        )

    # -- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """On the loop."""
        self.refresh()

    def changed(self) -> None:
        """A record was changed by this server. From any thread."""
        try:
            self.context.loop.call_soon_threadsafe(self.refresh)
        except RuntimeError:
            pass  # the loop is closed

    def refresh(self) -> None:
        """Read the records again; one read at a time."""
        if self._is_stopped:
            return
        self._is_changed = True
        if not self._is_reading:
            self._is_reading, self._is_changed = True, False
            self.context.run(self._read, self._apply)

    def _refresh_later(self) -> None:
        if not self._is_stopped:
            self._timers = [self.context.loop.call_later(RENEW_S, self.refresh)]

    def stop(self) -> None:
        """Take no more messages and events. `is_idle` says when the running requests are answered."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        for entry in self._entries.values():
            self._stop_sender(entry)

    @property
    def is_idle(self) -> bool:
        return all(entry.sender is None for entry in self._entries.values())

    def close(self) -> None:
        """End the running requests; their messages are released. On the loop."""
        if self._flusher is not None:
            self._flusher.cancel()
        for entry in self._entries.values():
            if entry.sender is not None:
                entry.sender.abort()

    def leave(self) -> None:
        """Store the rest of the logs and give up what this server owns, in a thread, before the broker is
        closed."""
        self.store_parts(self.take_parts())
        if self.ownership is not None:
            for name in self.ownership.names:
                self.ownership.release(name)

    # -- records --------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Stored], set[str], dict[str, str]]:
        """In a thread: the records, the names that this server owns, and the owners of the others."""
        records = self.store.list()
        if self.ownership is None:
            return records, {each.webhook.name for each in records}, {}
        now_ms = self.context.now_ms()
        wanted = {each.webhook.name for each in records if each.webhook.enabled}
        for name in self.ownership.names:
            if name not in wanted:
                self.ownership.release(name)
        owned = self.ownership.claim(sorted(wanted), now_ms)
        return records, owned, self.ownership.owners(sorted(wanted - owned))

    def _apply(
        self, found: tuple[list[Stored], set[str], dict[str, str]] | None, error: BaseException | None
    ) -> None:
        self._is_reading = False
        if self._is_stopped:
            return
        if found is not None:
            self._reconcile(*found)
        elif not isinstance(error, Closed):
            log.error("webhooks: %s", error, exc_info=None if isinstance(error, OpenQError) else error)
        if self._is_changed:
            self.refresh()
        elif self.ownership is not None or found is None:
            self._refresh_later()

    def _reconcile(self, records: list[Stored], owned: set[str], owners: dict[str, str]) -> None:
        self._owned = owned
        known = {each.webhook.name: each for each in records}
        for name, stored in known.items():
            entry = self._entries.setdefault(name, _Entry(name))
            is_changed = entry.stored is None or entry.stored.version != stored.version
            entry.stored = stored
            entry.owner = owners.get(name)
            is_wanted = stored.webhook.enabled and name in owned
            if entry.sender is not None and (is_changed or not is_wanted or entry.sender.is_lost):
                self._stop_sender(entry)
            if entry.sender is None and is_wanted:
                self._start_sender(entry)
        for name in self._entries.keys() - known.keys():
            entry = self._entries[name]
            entry.stored = None
            self._stop_sender(entry)
            if entry.sender is None:
                del self._entries[name]

    def _start_sender(self, entry: _Entry) -> None:
        assert entry.stored is not None
        webhook = entry.stored.webhook

        def report(attempt: Attempt) -> None:
            entry.counts.add(attempt)
            entry.log.add(attempt)
            if self._flusher is None and not self._is_stopped:
                self._flusher = self.context.loop.call_later(FLUSH_S, self._flush)

        def disable(reason: str) -> None:
            self._stop_sender(entry)
            log.warning("webhook %r is disabled: %s", webhook.name, reason)
            self.context.run(lambda: self._disable(webhook, reason), self._disabled)

        client = self.client(webhook)
        if webhook.events is None:
            entry.sender = MessageSender(self.context, webhook, client, report, disable)
        else:
            entry.sender = EventSender(self.context, webhook, client, report, disable)
        entry.sender.start()

    def _stop_sender(self, entry: _Entry) -> None:
        """Its running requests are answered first: two senders at once would exceed the concurrency."""
        sender = entry.sender
        if sender is None or entry.is_stopping:
            return
        entry.is_stopping = True

        def stopped() -> None:
            limit.cancel()
            entry.sender = None
            entry.is_stopping = False
            self.refresh()

        limit = self.context.loop.call_later(STOP_S, sender.abort)
        sender.stop(stopped)

    def _disable(self, webhook: Webhook, reason: str) -> None:
        """In a thread: its endpoint is gone. Nobody asked for it, so it is an alert too."""
        self.disable(webhook.name, reason, is_gone=True)
        text = f"webhook {split_name(webhook.name)[1]!r} is disabled: {reason}"
        self.context.broker.events.add(ALERT, webhook.queue or "", {"text": text})

    def disable(self, name: str, reason: str | None, *, is_gone: bool = False) -> Webhook:
        """In a thread."""

        def change(known: Webhook | None) -> Webhook:
            if known is None:
                return self.store.get(name)  # raises WebhookNotFound
            return msgspec.structs.replace(known, enabled=False, reason=reason, is_gone=is_gone)

        changed = self.store.change(name, change)
        self.changed()
        return changed

    def enable(self, name: str) -> Webhook:
        """In a thread."""

        def change(known: Webhook | None) -> Webhook:
            if known is None:
                return self.store.get(name)
            return msgspec.structs.replace(known, enabled=True, reason=None, is_gone=False)

        changed = self.store.change(name, change)
        self.changed()
        return changed

    def _disabled(self, _: None, error: BaseException | None) -> None:
        if error is not None:
            log.error("webhooks: cannot disable: %s", error)

    def client(self, webhook: Webhook) -> EndpointClient:
        return EndpointClient(self.context.loop, read_url(webhook.url), self.rules, self.resolve)

    # -- what happens ---------------------------------------------------------------------------

    def status(self, webhook: Webhook) -> Status:
        """From any thread."""
        entry = self._entries.get(webhook.name)
        if entry is None:
            return Status(self._idle_state(webhook))
        sender = entry.sender
        counts = entry.counts.messages
        status = Status(
            self._idle_state(webhook),
            delivered=counts.get(DELIVERED, 0),
            failed=counts.get(FAILED, 0),
            last=entry.log.last,
            last_failure=entry.log.last_failure,
            owner=entry.owner,
        )
        if sender is None or not webhook.enabled:
            return status
        breaker = sender.breaker
        is_paused = breaker.until_ms > self.context.now_ms()
        return status._replace(
            state=WAITING if sender.trouble is not None else PAUSED if is_paused else RUNNING,
            breaker=breaker.state,
            until_ms=breaker.until_ms if is_paused else 0,
            in_flight=sender.running,
            trouble=sender.trouble,
        )

    def described(self, id_of: IdOf) -> list[ConnectionInfo]:
        """From any thread: the webhooks whose messages this server sends, each as a consumer of its queue."""
        return [
            _describe(entry, sender, id_of)
            for entry in list(self._entries.values())
            if isinstance(sender := entry.sender, MessageSender)
        ]

    def states_for(self, queue_key: str) -> list[str]:
        """From any thread: what the webhooks of a queue do, for people who may not see more of them."""
        found = [entry.stored.webhook for entry in list(self._entries.values()) if entry.stored is not None]
        return [
            f"webhook {split_name(each.name)[1]} {self._state_text(each)}"
            for each in found
            if each.queue == queue_key
        ]

    def _state_text(self, webhook: Webhook) -> str:
        status = self.status(webhook)
        if status.state == DISABLED:
            return "is disabled"
        if status.state == ELSEWHERE:
            return f"is sent by {status.owner or 'another server'}"
        if status.state == PAUSED:
            return f"is paused until {iso(status.until_ms)}"
        if status.in_flight >= webhook.concurrency:
            return "has as many requests running as it may"
        return "takes none now"

    def _idle_state(self, webhook: Webhook) -> str:
        if not webhook.enabled:
            return DISABLED
        return ELSEWHERE if self.ownership is not None and webhook.name not in self._owned else WAITING

    def _flush(self) -> None:
        self._flusher = None
        parts = self.take_parts()
        if parts:
            self.context.run(lambda: self.store_parts(parts), self._flushed)

    def _flushed(self, _: None, error: BaseException | None) -> None:
        text = None if error is None or isinstance(error, Closed) else str(error)
        if text is not None and text != self._log_trouble:
            log.error("webhooks: attempts are not in the delivery log: %s", text)
        self._log_trouble = text

    def take_parts(self) -> list[tuple[str, LogPart]]:
        """The attempts that are not stored yet, for `store_parts`. On the loop."""
        found = [(entry.log.name, entry.log.take()) for entry in list(self._entries.values())]
        return [(name, part) for name, part in found if part is not None]

    def store_parts(self, parts: list[tuple[str, LogPart]]) -> None:
        """In a thread."""
        for name, part in parts:
            store_part(self.context.broker.kv, name, part, self.context.now_ms())

    # -- metrics --------------------------------------------------------------------------------

    def families(self, all_accounts: bool) -> list[Family]:
        shown = [
            ({"account": account, "webhook": short}, entry)
            for name, entry in sorted(self._entries.items())[:MAX_SERIES]
            for account, short in [split_name(name)]
            if all_accounts or account == DEFAULT_ACCOUNT
        ]

        def rows(value: Callable[[_Entry], float]) -> list[tuple[dict[str, str], float]]:
            return [(labels, value(entry)) for labels, entry in shown]

        return [
            Family(
                "openq_webhook_requests_total",
                "counter",
                "Requests to the endpoints of webhooks, by class of the status; none: there was no response.",
                [
                    ({**labels, "status": kind}, count)
                    for labels, entry in shown
                    for kind, count in sorted(entry.counts.requests.items())
                ],
            ),
            Family(
                "openq_webhook_messages_total",
                "counter",
                "Messages and events in these requests, by outcome: delivered, failed, paused (429 and 503 "
                "with Retry-After), gone (410).",
                [
                    ({**labels, "outcome": kind}, count)
                    for labels, entry in shown
                    for kind, count in sorted(entry.counts.messages.items())
                ],
            ),
            Family(
                "openq_webhook_retries_total",
                "counter",
                "Requests that were not the first for their message or event.",
                rows(lambda entry: entry.counts.retries),
            ),
            Family(
                "openq_webhook_duration_seconds",
                "histogram",
                "Time from sending a request to the end of its response.",
                [(labels, entry.counts.durations()) for labels, entry in shown],
            ),
            Family(
                "openq_webhook_in_flight",
                "gauge",
                "Requests that are running.",
                rows(lambda entry: 0 if entry.sender is None else entry.sender.running),
            ),
            Family(
                "openq_webhook_breaker_state",
                "gauge",
                "Circuit breaker of the endpoint: 0 closed, 1 half-open, 2 open.",
                rows(lambda entry: _BREAKER_VALUES[entry.sender.breaker.state] if entry.sender else 0),
            ),
            Family(
                "openq_webhook_enabled",
                "gauge",
                "1: the webhook is enabled; 0: it is disabled, by an operator or by an answer 410.",
                rows(lambda entry: int(entry.stored is not None and entry.stored.webhook.enabled)),
            ),
        ]


def _describe(entry: _Entry, sender: MessageSender, id_of: IdOf) -> ConnectionInfo:
    webhook = sender.webhook
    account, name = split_name(webhook.name)
    assert webhook.queue is not None
    consumer = ConsumerInfo(
        queue_key=webhook.queue,
        name=name,
        since_ms=webhook.created_ms,
        in_flight=sender.held,
        credit=webhook.concurrency * webhook.batch,
    )
    return ConnectionInfo(
        id=id_of(entry),
        protocol=WEBHOOK,
        user=webhook.declared_by or "",
        account=account,
        peer="",
        port=0,
        tls=webhook.url.startswith("https:"),
        since_ms=webhook.created_ms,
        in_flight=sender.held,
        consumers=[consumer],
    )
