"""Receiving and settling: leases, acks, nacks, rejects, extensions."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..broker.interface import Receipt
from ..broker.subscriptions import check_consumer
from ..broker.waiters import Waiter
from ..engine.records import NACKED, RELEASED
from ..errors import (
    MessageNotFoundError,
    OpenQError,
    StoreUnavailable,
    TooManyInFlight,
    VisibilityTimeoutExpired,
)
from ..model import MAX_SPAN_MS, NO_DEADLINE, Delivery, MessageFilter, span_error
from .net import greenlets
from .records import deliveries_of, encoded
from .registry import CachedQueue
from .selection import MessageSelection
from .store import RedisStore, chunks
from .upkeep import Upkeep
from .waiters import WATCH_MS, WaiterServiceRef

if TYPE_CHECKING:
    import asyncio

_PAGE = 1000  # receipts in one call
_MAX_NUMBER = 1 << 53
_MAX_DRAINS = 100  # receives in a row that find only messages on their way to other queues
_MAX_IDS = 100_000
_TRUSTED_S = WATCH_MS / 2000  # how long a queue is known to be watched
_MAX_SELECTIONS = 5  # of messages that others received before

# Limit, lease or "", consumer, selection as JSON or "", maximum in flight or "", maximum bytes or "".
ReceiveRequest = tuple[int, int | str, str, str, int | str, int | str]


class Receiver:
    def __init__(self, store: RedisStore, waiters: WaiterServiceRef, upkeep: Upkeep) -> None:
        self._store = store
        self._state = store.state
        self._view = store.view
        self._waiters = waiters
        self._upkeep = upkeep
        self._selection = MessageSelection(store)

    # -- receiving ------------------------------------------------------------------------------

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        wanted: MessageFilter | None = None,
        max_in_flight: int | None = None,
    ) -> list[Delivery]:
        if consumer is not None:
            check_consumer(consumer)
        if lease_ms is not None and not NO_DEADLINE <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        view = self._view(queue)
        deliveries: list[Delivery] = []
        for _ in range(_MAX_SELECTIONS):
            chosen, is_certain = self._selection.choose(view, wanted, limit)
            if chosen is not None:
                request = _request(limit, lease_ms, consumer, chosen, max_in_flight)
                deliveries = self._store.batched(self._receive_groups, view, request)
            if deliveries or is_certain:
                break
        if deliveries:
            self._received_in(view, deliveries, lease_ms, consumer)
        return deliveries

    def _received_in(
        self, view: CachedQueue, deliveries: list[Delivery], lease_ms: int | None, consumer: str | None
    ) -> None:
        if lease_ms == NO_DEADLINE:
            self._waiters.service.add_bound(view)
        elif self._store.batcher is not None:
            self._waiters.service.add_deadline(view, deliveries[0].until_ms)
        if self._state.listeners:
            self._emit_received(view, deliveries, consumer)

    def receive_soon(self, queue: str, limit: int, consumer: str | None) -> Awaitable[list[Delivery]] | None:
        """`receive` for coroutines, without a greenlet. None: it needs `receive`."""
        batcher, state = self._store.batcher, self._state
        if batcher is None or state.closed or state.listeners:
            return None
        view = state.registry.queues.get(queue)
        if view is None:
            return None

        def release(deliveries: list[Delivery]) -> None:
            if deliveries:
                receipts = [(each.entry.seq, each.number) for each in deliveries]
                greenlets.spawn(self.release, queue, receipts)

        future = batcher.ask(self._receive_groups, view, (limit, "", consumer or "", "", "", ""), release)
        return self._received(future, release)

    async def _received(
        self, future: asyncio.Future[list[Delivery]], release: Callable[[list[Delivery]], None]
    ) -> list[Delivery]:
        from asyncio import CancelledError

        try:
            return await future
        except CancelledError:
            # The deliveries may have arrived at the moment of the cancellation.
            if future.done() and not future.cancelled() and future.exception() is None:
                release(future.result())
            raise

    def _emit_received(self, view: CachedQueue, deliveries: list[Delivery], consumer: str | None) -> None:
        known = self._state.delivered_ids
        if len(known) > _MAX_IDS:
            known.clear()
        for delivery in deliveries:
            if delivery.entry.options is not None and delivery.entry.options.id is not None:
                known[delivery.entry.seq] = delivery.entry.options.id
        ids = [self._store.message_id(each.entry) for each in deliveries]
        self._store.emit("received", view.name, ids, consumer or "")

    def _receive_groups(
        self, view: CachedQueue, items: list[ReceiveRequest]
    ) -> list[list[Delivery] | TooManyInFlight]:
        """One call for several callers. Equal requests are sent as one, and their callers share its
        deliveries in the order of their requests."""
        requests: list[ReceiveRequest] = []
        sharers: list[list[int]] = []
        for limit, *terms in items:
            if requests and not view.fifo and not terms[2] and requests[-1][1:] == tuple(terms):
                requests[-1] = (requests[-1][0] + limit, *requests[-1][1:])
                sharers[-1].append(limit)
            else:
                requests.append((limit, *terms))  # type: ignore[arg-type]
                sharers.append([limit])
        now_ms, answers = self._receive(view, requests)
        found: list[list[Delivery] | TooManyInFlight] = []
        damaged: list[Receipt] = []
        for request, answer, limits in zip(requests, answers, sharers, strict=True):
            if answer and answer[0] == b"!":
                found += [TooManyInFlight(view.name, int(request[4])) for _ in limits]
                continue
            deliveries = self._deliveries(view, request, answer, now_ms, damaged)
            at = 0
            for limit in limits:
                found.append(deliveries[at : at + limit])
                at += limit
        self._set_aside(view, damaged)
        return found

    def _deliveries(
        self, view: CachedQueue, request: ReceiveRequest, answer: Any, now_ms: int, damaged: list[Receipt]
    ) -> list[Delivery]:
        deliveries = deliveries_of(answer, now_ms, request[2] or None, damaged)
        if self._state.delivery_times is not None:
            self._state.delivery_times.delivered(view, deliveries)
        return deliveries

    def _set_aside(self, view: CachedQueue, damaged: list[Receipt]) -> None:
        """They leave the queue and are reported, so that they do not block the messages behind them."""
        if damaged:
            flat = [each for receipt in damaged for each in receipt]
            self._store.ask_queue(view, "set_aside", self._store.token(), *flat)

    def _receive(
        self, view: CachedQueue, requests: list[ReceiveRequest], watch_ms: int | str = ""
    ) -> tuple[int, list[Any]]:
        """With `watch_ms`, a queue that has less than was asked for announces new messages for that time; the
        last answer is its next due time then."""
        store = self._store
        version = str(store.registry.version)
        flat = [watch_ms, *(part for request in requests for part in request)]
        binds = any(request[1] == NO_DEADLINE for request in requests)
        now_ms, answers = 0, []
        for _ in range(_MAX_DRAINS):
            outbox, now_ms, answers = self._fcall_receive(view, version, flat, binds)
            if not outbox or not store.try_drain(view) or any(answers[: len(requests)]):
                break
            # All messages met had used up their receives. Those without a dead-letter queue are delivered
            # after all, and the messages behind the others are free now.
            version = str(store.registry.version)
        return now_ms, answers

    def _fcall_receive(self, view: CachedQueue, version: str, flat: list[Any], binds: bool) -> Any:
        """A lease with a deadline expires by itself, so a call without a reply may be repeated. A lease that
        is bound to this process does not expire: messages leased by an unanswered call are released before
        the call is repeated."""
        store, state = self._store, self._state
        holder = (state.client, state.heartbeat_ms)
        if not binds:
            return store.fcall_queue(view, "receive", version, "", *holder, *flat)
        give_up_s = time.monotonic() + state.address.reconnect_s
        while True:
            token = store.token()
            try:
                return store.fcall_queue(view, "receive", version, token, *holder, *flat, idempotent=False)
            except StoreUnavailable as error:
                if not error.sent or time.monotonic() > give_up_s:
                    raise
            store.fcall_queue(view, "release_unanswered", token, state.client)

    # -- waiting --------------------------------------------------------------------------------

    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """Returns deliveries at once, or None: then the waiter is registered and served later."""
        self._view(queue)
        if waiter.on_ready is not None:
            return self._add_notified(queue, waiter)
        if not waiter.notify_only:
            deliveries = self._receive_for(queue, waiter)
            if deliveries:
                return deliveries
        # From now on the queue announces new messages; this call finds those that came in between.
        waiting = self._waiters.service.waiting
        if self.stand_by(queue, waiter) and waiting.remove(queue, waiter):
            deliveries = [] if waiter.notify_only else self._receive_for(queue, waiter)
            if deliveries or waiter.notify_only:
                return deliveries
            waiting.add(queue, waiter)
            # The announcement may have come while nobody waited: then the queue is not watched any more.
            self._waiters.service.wake(queue)
        return None

    def _add_notified(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """One call both receives and, if the queue has less than the waiter takes, has it announce new
        messages. So a waiter that comes back after such a call need not ask again, unless an announcement
        came in between."""
        service = self._waiters.service
        service.start()
        while True:
            view = self._view(queue)
            seen = (view, view.last_wake, self._store.registry.stores)
            if not _is_recent(waiter.seen_empty, seen):
                deliveries, is_empty = self._receive_or_watch(view, waiter)
                waiter.seen_empty = (seen, time.monotonic()) if is_empty else None
                if deliveries or not is_empty:
                    return deliveries
            service.waiting.add(queue, waiter)
            if view.last_wake == seen[1] or not service.waiting.remove(queue, waiter):
                return None

    def _receive_or_watch(self, view: CachedQueue, waiter: Waiter) -> tuple[list[Delivery], bool]:
        """The deliveries, and whether there are no more now."""
        wanted = waiter.wanted
        if wanted is not None and wanted.attributes:
            # They are read between the watch and the receive.
            self._waiters.service.add_deadline(view, self._upkeep.tick_queue(view, WATCH_MS).next_ms)
            deliveries = self._receive_for(view.name, waiter)
            return deliveries, not deliveries
        chosen, _ = self._selection.choose(view, wanted, waiter.limit)
        request = _request(
            waiter.limit, waiter.lease_ms, waiter.consumer, chosen or "", max_bytes=waiter.max_bytes
        )
        now_ms, answers = self._receive(view, [request], WATCH_MS)
        damaged: list[Receipt] = []
        deliveries = self._deliveries(view, request, answers[0], now_ms, damaged)
        self._set_aside(view, damaged)
        if deliveries:
            self._received_in(view, deliveries, waiter.lease_ms, waiter.consumer)
        is_empty = len(answers) > 1
        if is_empty:
            self._waiters.service.add_deadline(view, int(answers[1]))
        return deliveries, is_empty

    def stand_by(self, queue: str, waiter: Waiter) -> int:
        """Register a waiter. Returns how many messages were ready before the queue announced new ones."""
        view = self._view(queue)
        service = self._waiters.service
        service.start()
        service.waiting.add(queue, waiter)
        try:
            # Not done by the service: this caller waits on connections of its own.
            tick = self._upkeep.tick_queue(view, WATCH_MS)
        except BaseException:
            service.waiting.remove(queue, waiter)
            raise
        service.add_deadline(view, tick.next_ms)
        return tick.ready

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        return self._waiters.service.waiting.remove(queue, waiter)

    def tick_at(self, view: CachedQueue, at_ms: int) -> None:
        """Schedule the upkeep of a queue for the end of a lease, as no other call may trigger it."""
        if self._store.batcher is not None:
            self._waiters.service.add_deadline(view, at_ms)

    def _receive_for(self, queue: str, waiter: Waiter) -> list[Delivery]:
        return self.receive(queue, waiter.limit, waiter.lease_ms, waiter.consumer, waiter.wanted)

    # -- bodies: included in the deliveries -------------------------------------------------------

    def load(self, deliveries: list[Delivery], queue: str = "") -> list[Delivery]:
        return deliveries

    def commit_location(self, deliveries: Sequence[Delivery]) -> int | None:
        return None  # the lease is part of the call that delivered the messages

    def drop_bodies(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            delivery.entry = delivery.entry.without_body()

    # -- settling -------------------------------------------------------------------------------

    def ack(self, queue: str, receipts: Sequence[Receipt], *, late: bool = False) -> list[OpenQError | None]:
        view = self._view(queue)
        measured = self._state.delivery_times
        if measured is None:
            return self._ack(view, receipts, late)
        total = measured.times.total  # of the protocol that acks: others may set theirs while this call waits
        results = self._ack(view, receipts, late)
        acked = [seq for (seq, _), error in zip(receipts, results, strict=True) if error is None]
        measured.acked(view, acked, self._store.now_ms(), total)
        return results

    def _ack(self, view: CachedQueue, receipts: Sequence[Receipt], late: bool) -> list[OpenQError | None]:
        if late and len(receipts) == 1:
            return [self._ack_late(view, receipts[0])]  # it acks live deliveries too: one round trip
        results: list[OpenQError | None] = []
        for part in chunks(list(map(_valid_receipt, receipts)), _PAGE):
            flat = tuple([each for receipt in part for each in receipt])
            answers = self._store.batched(self._ack_groups, view, flat)
            for (seq, _), answer in zip(part, answers, strict=True):
                results.append(None if answer == 1 else _settle_error(view, seq, answer))
        if self._state.listeners:
            acked = [seq for (seq, _), error in zip(receipts, results, strict=True) if error is None]
            self._store.emit("acked", view.name, map(self._store.delivered_id, acked))
        if late:
            return [
                None if error is None else self._ack_late(view, receipt)
                for receipt, error in zip(receipts, results, strict=True)
            ]
        return results

    def _ack_late(self, view: CachedQueue, receipt: Receipt) -> OpenQError | None:
        if self._store.ask_queue(view, "ack_late", *receipt):
            return None
        return VisibilityTimeoutExpired(receipt[0], view.name)

    def _ack_groups(self, view: CachedQueue, groups: list[tuple[int, ...]]) -> list[list[Any]]:
        flat = groups[0] if len(groups) == 1 else [each for group in groups for each in group]
        answers = self._store.ask_queue(view, "ack", self._store.token(), *flat)
        self._store.confirm_batch()
        results: list[list[Any]] = []
        at = 0
        for group in groups:
            count = len(group) // 2
            results.append(answers[at : at + count])
            at += count
        return results

    def ack_soon(self, queue: str, seq: int, number: int) -> Awaitable[None] | None:
        """`ack` of one message for coroutines, without a greenlet. None: it needs `ack`."""
        batcher, state = self._store.batcher, self._state
        if batcher is None or state.closed or state.listeners:
            return None
        view = state.registry.queues.get(queue)
        if view is None:
            return None
        return self._acked(view, seq, batcher.ask(self._ack_groups, view, (seq, number)))

    async def _acked(self, view: CachedQueue, seq: int, answers: Awaitable[list[Any]]) -> None:
        answer = (await answers)[0]
        if answer != 1:
            raise _settle_error(view, seq, answer)

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        error = self.ack(queue, [(seq, number)])[0]
        if error is not None:
            raise error

    def nack(
        self,
        queue: str,
        receipts: Sequence[Receipt],
        delay_ms: int | None = None,
        reason: str | None = None,
    ) -> list[str | OpenQError]:
        return self._nack(queue, receipts, NACKED, delay_ms, reason)

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        return _count(self._nack(queue, receipts, RELEASED, 0, None))

    def _nack(
        self, queue: str, receipts: Sequence[Receipt], why: int, delay_ms: int | None, reason: str | None
    ) -> list[str | OpenQError]:
        if delay_ms is not None and not 0 <= delay_ms <= MAX_SPAN_MS:
            raise span_error("delay", delay_ms)
        head = (why, "" if delay_ms is None else delay_ms, _event_text(reason))
        return self._settle(self._view(queue), "back", head, receipts)

    def reject(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None
    ) -> list[str | OpenQError]:
        return self._settle(self._view(queue), "reject", (_event_text(reason),), receipts)

    def _settle(
        self, view: CachedQueue, name: str, head: tuple[Any, ...], receipts: Sequence[Receipt]
    ) -> list[str | OpenQError]:
        """Returns the outcome of each; moves to other queues are finished when this returns."""
        store = self._store
        results: list[str | OpenQError] = []
        for part in chunks(list(map(_valid_receipt, receipts)), _PAGE):
            flat = [each for receipt in part for each in receipt]
            outbox, _, answers = store.fcall_queue(view, name, store.token(), *head, *flat)
            outcomes = store.try_drain(view) if outbox else {}
            for (seq, _), answer in zip(part, answers, strict=True):
                if answer[:1] == b"?":
                    results.append(_settle_error(view, seq, answer))
                elif answer.isdigit():
                    results.append(outcomes.get(answer.decode(), "dead-lettered"))
                else:
                    results.append(answer.decode())
        if self._state.listeners:
            for (seq, _), result in zip(receipts, results, strict=True):
                if isinstance(result, str):
                    what = "requeued" if result == "returned" else result
                    store.emit(what, view.name, [store.delivered_id(seq)])
        return results

    def extend(
        self, queue: str, receipts: Sequence[Receipt], lease_ms: int, *, late: bool = False
    ) -> list[int | OpenQError]:
        if lease_ms < NO_DEADLINE or lease_ms > MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        view = self._view(queue)
        state = self._state
        holder = (state.client, state.heartbeat_ms)
        results: list[int | OpenQError] = []
        for part in chunks(list(map(_valid_receipt, receipts)), _PAGE):
            flat = [each for receipt in part for each in receipt]
            answers = self._store.ask_queue(view, "extend", lease_ms, *holder, *flat)
            for receipt, answer in zip(part, answers, strict=True):
                if answer[:1] != b"?":
                    results.append(int(answer))
                    continue
                error = _settle_error(view, receipt[0], answer)
                results.append((late and self._extend_late(view, receipt, lease_ms)) or error)
        if lease_ms == NO_DEADLINE and any(isinstance(each, int) for each in results):
            self._waiters.service.add_bound(view)
        return results

    def _extend_late(self, view: CachedQueue, receipt: Receipt, lease_ms: int) -> int:
        """The deadline; 0 if the message is gone or was delivered again."""
        if not 0 <= lease_ms <= MAX_SPAN_MS:
            raise span_error("lease", lease_ms)
        return int(self._store.ask_queue(view, "extend_late", *receipt, lease_ms))


def _request(
    limit: int,
    lease_ms: int | None,
    consumer: str | None,
    selection: str,
    max_in_flight: int | None = None,
    max_bytes: int | None = None,
) -> ReceiveRequest:
    return (
        limit,
        "" if lease_ms is None else lease_ms,
        _event_text(consumer),
        selection,
        "" if max_in_flight is None else max_in_flight,
        "" if max_bytes is None else max_bytes,
    )


def _is_recent(noted: Any, seen: object) -> bool:
    """Whether a queue that announces new messages was empty, and has announced none since."""
    return noted is not None and noted[0] == seen and time.monotonic() - noted[1] < _TRUSTED_S


def _settle_error(view: CachedQueue, seq: int, answer: bytes) -> OpenQError:
    if answer.endswith(b"gone"):
        return MessageNotFoundError(seq, view.name)
    return VisibilityTimeoutExpired(seq, view.name)


def _valid_receipt(receipt: Receipt) -> Receipt:
    """Numbers that Lua cannot represent become 0, which no message has."""
    seq, number = receipt
    return (seq if 0 <= seq < _MAX_NUMBER else 0), (number if 0 <= number < _MAX_NUMBER else 0)


def _event_text(text: str | None) -> str:
    """A reason or a consumer as events store it: without the separators of their fields."""
    return encoded((text or "").replace("\x1f", " ").replace("\x1e", " "))


def _count(results: list[str | OpenQError]) -> int:
    return sum(not isinstance(result, OpenQError) for result in results)
