"""Events as messages: what the exchanges `openq.events` route to queues.

A thread reads `broker.events` and publishes each event to the queues that its routing key leads to, while
there is a binding; without one there is no thread, and nothing is read. The position is a key-value: a
restart continues without a gap. It is stored after the messages, so a crash in between repeats the events of
one page. These have the same ids, and the queue's deduplication drops them as long as its window lasts.

Where several servers share a store, one of them sends: the owner of a key with a TTL, which it renews. A
server that lost it without noticing cannot advance the position, because it knows an old version.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..amqp_fields import AmqpProperties, Timestamp, encode
from ..broker.events import Event, Events
from ..broker.kv import SERVER_BUCKETS, KvPut
from ..documents.events import encode_event
from ..documents.values import iso
from ..engine.routing import Binding, is_events_exchange
from ..errors import Closed, InvalidSetting, KvConflict, OpenQError, QueueFull, QueueNotFound
from ..metrics import Family
from ..model import ENCODING_JSON, Draft, Properties, QueueSettings
from ..names import split_name
from .event_routes import LeftOut, exchange_of, routing_key, wanted_events

if TYPE_CHECKING:
    import asyncio

    from .context import ServerContext

log = logging.getLogger("openq.server")

BUCKET = SERVER_BUCKETS + "events"
POSITION, OWNER = "position", "owner"
PAGE = 500
OWNER_MS = 6_000
RENEW_S = 2.0
CHECK_S = 1.0  # how often a server without a running bridge looks for bindings of other servers
RETRY_S = 0.5
JOIN_S = 5.0
GAP = "gap"


class EventBridge:
    """`start`, `prepare`, `bound` and `stop` are called on the loop; the rest runs in a thread."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._broker = context.broker
        self._server = secrets.token_hex(8)
        self._has_peers = context.broker.cluster is not None
        self._timer: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._is_stopping = False
        self._is_failing = False  # reported once
        self._owner_version = 0
        self._owned_s = 0.0
        self._version = 0  # of the position
        self._after: str | None = None
        self._stored: str | None = None  # the position in key-values
        self._saved_s = 0.0
        self.sent = 0
        self.refused = 0
        self.gaps = 0

    @property
    def _events(self) -> Events:
        return self._broker.events

    @property
    def role(self) -> str:
        return "event-sender" if self.is_sending else ""

    @property
    def is_sending(self) -> bool:
        return self._thread is not None and (self._owned_s > 0 or not self._has_peers)

    # -- on the loop ----------------------------------------------------------------------------

    def start(self) -> None:
        self._timer = self._context.loop.call_later(CHECK_S, self.start)
        if self._broker.exchanges.router.event_sources():
            self._run()

    def prepare(self, binding: Binding) -> None:
        """Before a binding is made. The first one begins here: earlier events are left out."""
        if is_events_exchange(binding.source) and not self._broker.exchanges.router.event_sources():
            [known] = self._broker.kv.get_many(BUCKET, [POSITION])
            self._put(POSITION, self._events.end(), 0 if known is None else known.version)

    def bound(self, binding: Binding) -> None:
        """After it was made."""
        if is_events_exchange(binding.source):
            self._run()

    def _run(self) -> None:
        if self._thread is None and not self._is_stopping:
            self._thread = threading.Thread(target=self._work, name="openq-event-bridge", daemon=True)
            self._thread.start()
        self._wake.set()

    def stop(self) -> None:
        self._is_stopping = True
        self._wake.set()
        if self._timer is not None:
            self._timer.cancel()

    def join(self) -> None:
        """In a thread, before the broker is closed."""
        thread = self._thread
        if thread is not None:
            thread.join(JOIN_S)

    # -- the thread -----------------------------------------------------------------------------

    def _work(self) -> None:
        unwatch: Callable[[], None] | None = None
        try:
            while not self._is_stopping:
                try:
                    if unwatch is None:
                        unwatch = self._events.watch(self._wake.set)
                    if self._step():
                        return
                    if self._is_failing:
                        self._is_failing = False
                        log.warning("events are sent to queues again")
                except Closed:
                    return
                except OpenQError as error:
                    if not self._is_failing:
                        log.warning("events are not sent to queues, trying again: %s", error)
                    self._is_failing = True
                    self._version, self._after = 0, None
                    self._pause(RETRY_S)
                except Exception:
                    log.exception("sending events to queues failed; it continues")
                    self._version, self._after = 0, None
                    self._pause(1.0)
        finally:
            self._end(unwatch)

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _step(self) -> bool:
        """One page, or a wait. True: there is nothing more to do."""
        router = self._broker.exchanges.router
        if not router.event_sources():
            self._broker.exchanges.refresh()
            if not self._broker.exchanges.router.event_sources():
                self._forget()
                return True
        if not self._own():
            self._version, self._after = 0, None
            self._pause(RENEW_S)
            return False
        if self._after is None:
            self._load()
        self._wake.clear()
        if self._send_page():
            self._wake.wait(RENEW_S)
        return False

    def _end(self, unwatch: Callable[[], None] | None) -> None:
        try:
            if unwatch is not None:
                unwatch()
            if self._after is not None and self._version:
                self._save(self._after)
            if self._owner_version:
                self._broker.kv.delete_many(BUCKET, [OWNER], [self._owner_version])
        except OpenQError:
            pass  # it expires
        self._owner_version, self._owned_s = 0, 0.0
        self._version, self._after = 0, None
        self._thread = None

    # -- state in key-values --------------------------------------------------------------------

    def _put(self, key: str, value: str, version: int, ttl_ms: int | None = None) -> int:
        """The new version; 0 if the key has another one than the given."""
        [result] = self._broker.kv.put_many(BUCKET, [KvPut(key, value.encode(), ttl_ms, version)])
        if isinstance(result, KvConflict):
            return 0
        if isinstance(result, OpenQError):
            raise result
        return result

    def _own(self) -> bool:
        """Whether this server sends."""
        if not self._has_peers:
            return True
        now_s = time.monotonic()
        if now_s - self._owned_s < RENEW_S:
            return True
        version = self._put(OWNER, self._server, self._owner_version, OWNER_MS)
        if not version and self._owner_version:
            version = self._put(OWNER, self._server, 0, OWNER_MS)  # it expired
            self._version, self._after = 0, None
        self._owner_version = version
        self._owned_s = now_s if version else 0.0
        return version > 0

    def _load(self) -> None:
        [entry] = self._broker.kv.get_many(BUCKET, [POSITION])
        self._broker.kv.load([entry])
        if entry is None:
            # A binding that was made without a server.
            self._after = self._events.end()
            self._version = self._put(POSITION, self._after, 0)
        else:
            self._after, self._version = entry.value.decode(), entry.version
        self._stored = self._after

    def _is_current(self) -> bool:
        """Whether nobody else moved the position: another server, or a new first binding."""
        [entry] = self._broker.kv.get_many(BUCKET, [POSITION])
        return entry is not None and entry.version == self._version

    def _save(self, after: str) -> None:
        self._saved_s = time.monotonic()
        if after == self._stored:
            self._after = after
            return
        version = self._put(POSITION, after, self._version)
        if version:
            self._after, self._stored, self._version = after, after, version
        else:
            # Another server sends, or the last binding was removed meanwhile.
            self._after, self._version, self._owned_s = None, 0, 0.0

    def _forget(self) -> None:
        """The last binding is gone: the next one begins at its own time."""
        if self._own() and self._version:
            # Not the position that another binding has just begun with.
            self._broker.kv.delete_many(BUCKET, [POSITION], [self._version])
        self._version, self._after = 0, None

    # -- sending --------------------------------------------------------------------------------

    def _send_page(self) -> bool:
        """Returns whether that was the end for now."""
        exchanges = self._broker.exchanges
        router = exchanges.router
        after = self._after
        try:
            page = self._events.read(after, PAGE, wanted_events(router))
        except InvalidSetting:
            log.warning("the position of the events sent to queues is not of this store: it begins anew")
            self._save(self._events.end())
            return False
        batches: dict[str, list[Draft]] = {}
        left_out = LeftOut(router, self._settings)
        if page.gap_until_ms is not None:
            self.gaps += 1
            log.warning(
                "events until %s are not kept any more: queues do not get them", iso(page.gap_until_ms)
            )
            self._add_gap(batches, after, page.gap_until_ms)
        for event in page.events:
            if event.queue not in left_out:
                self._add(batches, event)
        if batches and not self._is_current():
            self._after, self._version = None, 0
            return False
        for queue, drafts in batches.items():
            self._publish(queue, drafts)
        if batches:
            self._broker.sync()  # before the position: it must not be ahead of them
        if batches or time.monotonic() - self._saved_s >= RENEW_S:
            self._save(page.next)
        else:
            self._after = page.next  # nothing was sent: the stored one will do for a while
        return page.is_end

    def _settings(self, queue: str) -> QueueSettings | None:
        found = self._broker.find_queue(queue)
        return None if found is None else found.settings

    def _add(self, batches: dict[str, list[Draft]], event: Event) -> None:
        exchange, key = exchange_of(event.queue), routing_key(event.queue, event.event)
        queue = split_name(event.queue)[1]
        targets = self._broker.exchanges.router.route(exchange, key, event_headers(event.event, queue))
        if not targets:
            return
        body = encode_event(event)
        properties = event_properties(event.id, event.event, queue, event.time_ms)
        for target in targets:
            batches.setdefault(target, []).append(
                self._draft(target, event.id, body, properties, (exchange, key), event.queue)
            )

    def _draft(
        self,
        target: str,
        id: str,
        body: bytes,
        properties: Properties,
        route: tuple[str, str],
        group: str,
    ) -> Draft:
        found = self._broker.find_queue(target)
        is_fifo = found is not None and found.fifo
        return Draft(
            body,
            ENCODING_JSON,
            id=id,
            dedup=id,
            group=(group or "server") if is_fifo else None,
            properties=properties,
            route=route,
        )

    def _add_gap(self, batches: dict[str, list[Draft]], after: str | None, until_ms: int) -> None:
        """Say it to every queue that gets events."""
        router = self._broker.exchanges.router
        start = "null" if after is None else f'"{after}"'
        body = f'{{"event":"gap","from":{start},"until":"{iso(until_ms)}"}}'.encode()
        id = f"gap-{after}"
        for source in router.event_sources():
            for target in _targets(router.bindings(source), router.bindings):
                properties = event_properties(id, GAP, "", until_ms)
                batches.setdefault(target, []).append(
                    self._draft(target, id, body, properties, (source, f".{GAP}"), "")
                )

    def _publish(self, queue: str, drafts: Sequence[Draft]) -> None:
        try:
            results = self._broker.publish_many(queue, list(drafts))
        except QueueNotFound:
            return  # deleted meanwhile, and its bindings with it
        for result in results:
            if isinstance(result, QueueFull | InvalidSetting):
                self.refused += 1  # as a publisher without confirms: the event is dropped for this queue
            elif isinstance(result, OpenQError):
                raise result
            else:
                self.sent += 1

    # -- metrics --------------------------------------------------------------------------------

    def families(self) -> list[Family]:
        return [
            Family(
                "openq_event_bridge_sending",
                "gauge",
                "Whether this server sends events to queues bound to openq.events.",
                [({}, int(self.is_sending))],
            ),
            Family(
                "openq_event_bridge_sent_total",
                "counter",
                "Messages about events that were published to queues.",
                [({}, self.sent)],
            ),
            Family(
                "openq_event_bridge_refused_total",
                "counter",
                "Messages about events that a queue refused, because it was full for example.",
                [({}, self.refused)],
            ),
            Family(
                "openq_event_bridge_gaps_total",
                "counter",
                "Gaps: events that were not kept any more when they should have been sent.",
                [({}, self.gaps)],
            ),
        ]


def _targets(
    bindings: Sequence[Binding], bindings_of: Callable[[str | None], list[Binding]]
) -> dict[str, None]:
    """The queues behind bindings, whatever their keys."""
    found: dict[str, None] = {}
    waiting = list(bindings)
    seen: set[str] = set()
    while waiting:
        binding = waiting.pop(0)
        if not binding.to_exchange:
            found[binding.destination] = None
        elif binding.destination not in seen:
            seen.add(binding.destination)
            waiting += bindings_of(binding.destination)
    return found


def event_headers(event: str, queue: str) -> dict[str, object]:
    return {"x-openq-event": event, "x-openq-queue": queue}


def event_properties(id: str, event: str, queue: str, time_ms: int) -> Properties:
    """The properties of the message about an event; other protocols show the headers as attributes."""
    return Properties(
        None,
        None,
        encode(
            AmqpProperties(
                content_type="application/json",
                headers=event_headers(event, queue),
                delivery_mode=2,
                message_id=id,
                timestamp=Timestamp(time_ms // 1000),
            )
        ),
    )
