"""The engine and a journal in this process, behind the Broker verbs: queues, in, out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..broker.interface import QueueStats, Receipt
from ..broker.subscriptions import check_consumer
from ..broker.waiters import Waiter
from ..engine import admin
from ..engine.queue import QueueState
from ..engine.records import run_step
from ..errors import (
    Closed,
    HistoryUnavailable,
    JournalDamaged,
    MessageNotFoundError,
    OpenQError,
    VisibilityTimeoutExpired,
)
from ..model import Delivery, DeliveryOptions, Draft, Entry, Properties, QueueSettings
from .foundation import LARGE_BODY
from .migration import Carrying

if TYPE_CHECKING:
    from .staging import LocalStaging


class LocalBroker(Carrying):
    _staging: LocalStaging | None = None

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        with self._lock, self._interrupt_guard:
            if self._closed:
                raise Closed()
            now_ms = self._now()
            found = self.engine.queues.get(queue)
            if found is None or (change and found.settings != settings):
                self._require_settings_room(settings.notes)
            if change and found is not None:
                made = self.engine.change_queue(queue, settings, now_ms)
            else:
                made = self.engine.create_queue(queue, settings, now_ms)
            self._end_change()
            return made.settings

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        with self._lock, self._interrupt_guard:
            self._queue(queue)
            count = self.engine.delete_queue(queue, self._now(), if_empty=if_empty, if_unused=if_unused)
            self._end_change()
        self.subscriptions.drop_orphans()
        return count

    def queues(self) -> list[str]:
        with self._lock, self._interrupt_guard:
            return list(self.engine.queues)

    def settings(self, queue: str) -> QueueSettings:
        with self._lock, self._interrupt_guard:
            return self._queue(queue).settings

    def get_queue(self, queue: str) -> QueueState:
        """What is known of a queue, without the lock: for doors that look it up for every request.

        Only to be read: `number`, `settings`, `created_ms`. `known` is the same without an error.
        """
        if self._closed:
            raise self.halted or Closed()
        return self.engine.queue(queue)

    def stats(self, queue: str) -> QueueStats:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            now_ms = self._now()
            self.engine.advance(now_ms)
            self._end_change()
            oldest_ms = found.ready.oldest_ms()
            return QueueStats(
                queue,
                found.ready_count,
                len(found.delayed),
                len(found.leases),
                found.waiting_bytes,
                None if oldest_ms is None else now_ms - oldest_ms,
                self._waiters.count(queue),
                found.counters.as_dict(),
            )

    def purge(self, queue: str, waiting_only: bool = False) -> int:
        """`waiting_only` leaves what is with consumers alone; what is delayed goes as well."""
        with self._lock, self._interrupt_guard:
            count = admin.purge(self.engine, self._queue(queue), self._now(), waiting_only)
            self._end_change()
            return count

    def publish_body(
        self,
        queue: str,
        body: bytes,
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> int:
        """The short way, with at most a light extra. Its sequence, or 0 if it must go the long way."""
        with self._lock:
            try:
                found = self.engine.queues.get(queue)
                if (
                    found is None
                    or self._closed
                    or not found.is_plain
                    or (options is not None and not options.is_plain)
                ):
                    self._queue(queue)
                    return 0
                if self._journal is not None:
                    self._require_room(len(body))
                elif len(body) >= LARGE_BODY:
                    self._limit_memory(len(body))
                engine = self.engine
                seq = engine.publish_plain(found, body, encoding, self._now(), properties, options)
                if engine.woken:
                    self._serve_waiters()
                return seq
            except BaseException as error:  # instead of `_watch`: costs nothing when all is well
                self.on_interrupt(type(error))
                raise

    def publish(self, queue: str, draft: Draft) -> str:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self._require_room(len(draft.body))
            if self._journal is None:
                self._limit_memory(len(draft.body))
            message_id, _ = self.engine.publish(found, draft, self._now())
            self._end_change()
            return message_id

    def publish_many(self, queue: str, drafts: Sequence[Draft]) -> list[str | OpenQError]:
        """The id of each, or its error; one that is refused does not stop the others."""
        results = self.publish_each(queue, drafts)
        return [result if isinstance(result, OpenQError) else result[0] for result in results]

    def publish_each(self, queue: str, drafts: Sequence[Draft]) -> list[tuple[str, bool] | OpenQError]:
        """The same, with whether an id is that of an earlier message."""
        results: list[tuple[str, bool] | OpenQError] = []
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self._require_room(sum(len(draft.body) for draft in drafts))
            now_ms = self._now()
            for draft in drafts:
                if self._journal is None:
                    self._limit_memory(len(draft.body))
                try:
                    results.append(self.engine.publish(found, draft, now_ms))
                except OpenQError as error:
                    results.append(error)
            self._end_change()
        return results

    def publish_bodies(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties: Properties | None = None,
        options: DeliveryOptions | None = None,
    ) -> range | None:
        """Many bodies as one record. Their sequences, or None if they must go one by one.

        The info and the extra, if given, are those of each; only a light extra can be.
        """
        if not bodies:
            return range(0)
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            if not found.is_plain or (options is not None and not options.is_plain):
                return None
            total = sum(map(len, bodies))
            self._require_room(total + (22 + run_step(properties, options)) * len(bodies))
            if self._journal is None:
                self._limit_memory(total)
            seq = self.engine.publish_run(found, bodies, encoding, self._now(), properties, options)
            self._end_change()
            return range(seq, seq + len(bodies))

    def publish_with_properties(
        self,
        queue: str,
        bodies: Sequence[bytes],
        encoding: int,
        properties_each: Sequence[Properties],
        options: DeliveryOptions | None,
    ) -> bool:
        """Many bodies, each with an info of its own. False if they must go one by one."""
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            if not found.is_plain or (options is not None and not options.is_plain):
                return False
            total = sum(map(len, bodies))
            self._require_room(
                total + sum([256 + len(properties.amqp_properties or b"") for properties in properties_each])
            )
            if self._journal is None:
                self._limit_memory(total)
            engine = self.engine
            now_ms = self._now()
            for body, properties in zip(bodies, properties_each, strict=True):
                engine.publish_plain(found, body, encoding, now_ms, properties, options)
            self._end_change()
            return True

    def atomically(self, measure: Callable[[], int], put: Callable[[int], None]) -> None:
        """What `put(now_ms)` tells lies in one block of the journal: a crash leaves all of it or nothing.

        `measure` says first how many bytes of records that will be at most. Both are called under the lock.
        """
        with self._lock, self._interrupt_guard:
            if self._closed:
                raise self.halted or Closed()
            size = measure()
            self._require_room(size)
            if self._journal is None:
                self._limit_memory(size)
            else:
                self._journal.make_room(size)
            now_ms = self._now()
            self.engine.deferred_overflow = []
            try:
                put(now_ms)
            finally:
                self.engine.end_deferred_overflow(now_ms)
            self._end_change()

    @property
    def staging(self) -> LocalStaging:
        """Batches that come in parts. Made when first asked for: few need it."""
        if self._staging is None:
            from .staging import LocalStaging

            with self._lock:
                self._staging = self._staging or LocalStaging(self)
        return self._staging

    def route(self, exchange: str, key: str, draft: Draft) -> tuple[str, list[str]]:
        with self._lock, self._interrupt_guard:
            if self._closed:
                raise Closed()
            self._require_room(len(draft.body))
            if self._journal is None:
                self._limit_memory(len(draft.body))
            answer = self.engine.route(exchange, key, draft, self._now())
            self._end_change()
            return answer

    def routed_queues(
        self, exchange: str, keys: Sequence[str], headers: Mapping[str, object] | None
    ) -> list[QueueState]:
        """The queues to which these keys lead now, without the lock: for doors that ask for every message."""
        engine = self.engine
        names = engine.router.route(exchange, keys[0], headers)
        for key in keys[1:]:
            names += [name for name in engine.router.route(exchange, key, headers) if name not in names]
        return [queue for queue in map(engine.queues.get, names) if queue is not None]

    def route_to(self, queues: Sequence[str], draft: Draft) -> tuple[str, list[str], OpenQError | None]:
        """Into all of these queues as one record: the id, those reached, and the error of a full one."""
        with self._lock, self._interrupt_guard:
            if self._closed:
                raise Closed()
            self._require_room(len(draft.body))
            if self._journal is None:
                self._limit_memory(len(draft.body))
            answer = self.engine.route_to(queues, draft, self._now())
            self._end_change()
            return answer

    def receive(
        self,
        queue: str,
        limit: int = 1,
        lease_ms: int | None = None,
        consumer: str | None = None,
        types: Iterable[str] | None = None,
    ) -> list[Delivery]:
        if consumer is not None:
            check_consumer(consumer)
        with self._lock:
            try:
                engine = self.engine
                found = engine.queues.get(queue)
                if found is None or self._closed:
                    found = self._queue(queue)
                deliveries = engine.receive(found, limit, self._now(), lease_ms, consumer, types)
                if engine.woken or engine.timers.next_ms < self._ticker.at_ms:
                    self._serve_waiters()
                return deliveries
            except BaseException as error:  # instead of `_watch`: costs nothing when all is well
                self.on_interrupt(type(error))
                raise

    def add_waiter(self, queue: str, waiter: Waiter) -> list[Delivery] | None:
        """Messages at once, or None: then the waiter stands in line and is served later."""
        if waiter.consumer is not None:
            check_consumer(waiter.consumer)
        self._ticker.start()
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            deliveries = self.engine.receive(
                found, waiter.limit, self._now(), waiter.lease_ms, waiter.consumer, waiter.types
            )
            if not deliveries:
                self._waiters.add(queue, waiter)
                found.watched = True
            self._end_change()
            return deliveries or None

    def remove_waiter(self, queue: str, waiter: Waiter) -> bool:
        """Out of the line. False: it was served in the meantime."""
        with self._lock, self._interrupt_guard:
            left = self._waiters.remove(queue, waiter)
            found = self.engine.queues.get(queue)
            if found is not None:
                found.watched = self._waiters.count(queue) > 0
            return left

    def load(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Bodies from disk, where needed; and nothing leaves before its publish is durable.

        Returns what may be shown. The same list, unless a body cannot be read: that message is set aside.
        """
        journal = self._journal
        if journal is None or not deliveries:
            return deliveries
        newest = max(delivery.entry.location for delivery in deliveries)
        if self.engine.guarded:
            newest = self.commit_location(deliveries)
        if newest >= journal.durable_location and not self.relaxed:
            journal.wait(newest)
        try:
            self.load_bodies([delivery.entry for delivery in deliveries])
        except (JournalDamaged, HistoryUnavailable):
            return self.unreadable.load_each(deliveries)
        return deliveries

    def commit_location(self, deliveries: Sequence[Delivery]) -> int:
        """What is stored here must be on disk before anybody sees these: their publishes, and the record of
        their lease where an earlier delivery may have been forgotten."""
        newest = max(delivery.entry.location for delivery in deliveries)
        guarded = self.engine.guarded
        if not guarded:
            return newest
        with self._lock:
            journal = self._journal
            if journal is not None and self.engine.guard_location < journal.durable_location:
                guarded.clear()
            return max(newest, *[guarded.get(delivery.number, 0) for delivery in deliveries])

    def is_loaded(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether `load` would return at once, without waiting for a commit."""
        journal = self._journal
        if journal is None or self.relaxed or not deliveries:
            return True
        if self.engine.guarded:
            return self.commit_location(deliveries) < journal.durable_location
        return max(delivery.entry.location for delivery in deliveries) < journal.durable_location

    def drop_bodies(self, deliveries: Sequence[Delivery]) -> None:
        """Forget bodies that are on disk: somebody has them, and may keep them for long.

        The entries are replaced, not changed: whoever looks at one of them just now has it whole.
        """
        if self._journal is None or self.relaxed:
            return
        with self._lock:
            for delivery in deliveries:
                e = delivery.entry
                delivery.entry = Entry(
                    e.seq, e.sent_ms, e.location, e.size, e.encoding, None, e.properties, e.options
                )

    def ack(self, queue: str, receipts: Sequence[Receipt]) -> list[OpenQError | None]:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            results = self.engine.ack_many(found, receipts, self._now())
            self._end_change()
            return results

    def ack_one(self, queue: str, seq: int, number: int) -> None:
        with self._lock:
            try:
                engine = self.engine
                found = engine.queues.get(queue)
                if found is None or self._closed:
                    found = self._queue(queue)
                engine.ack(found, seq, number, self._now())
                if engine.woken:
                    self._serve_waiters()
            except BaseException as error:  # instead of `_watch`: costs nothing when all is well
                self.on_interrupt(type(error))
                raise

    def ack_late(self, queue: str, receipt: Receipt) -> bool:
        with self._lock, self._interrupt_guard:
            done = self.engine.ack_late(self._queue(queue), *receipt, self._now())
            self._end_change()
            return done

    def extend_late(self, queue: str, receipt: Receipt, lease_ms: int) -> int | None:
        with self._lock, self._interrupt_guard:
            until_ms = self.engine.extend_late(self._queue(queue), *receipt, self._now(), lease_ms)
            self._end_change()
            return until_ms

    def nack(
        self, queue: str, receipt: Receipt, delay_ms: int | None = None, reason: str | None = None
    ) -> str:
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            outcome = self.engine.nack(found, *receipt, self._now(), delay_ms, reason)
            self._end_change()
            return outcome

    def nack_many(
        self, queue: str, receipts: Sequence[Receipt], reason: str | None = None, delay_ms: int | None = 0
    ) -> int:
        """How many were given back; those whose lease is over already are passed over."""
        with self._lock, self._interrupt_guard:
            done = self.engine.nack_many(self._queue(queue), receipts, self._now(), delay_ms, reason)
            self._end_change()
            return done

    def reject_many(self, queue: str, receipts: Sequence[Receipt], reason: str | None = None) -> int:
        """How many went; those whose lease is over already are passed over."""
        with self._lock, self._interrupt_guard:
            done = self.engine.reject_many(self._queue(queue), receipts, self._now(), reason)
            self._end_change()
            return done

    def reject(self, queue: str, receipt: Receipt, reason: str | None = None) -> str:
        with self._lock, self._interrupt_guard:
            outcome = self.engine.reject(self._queue(queue), *receipt, self._now(), reason)
            self._end_change()
            return outcome

    def release(self, queue: str, receipts: Sequence[Receipt]) -> int:
        """Uncounted, back to their places; those whose lease is over already are passed over."""
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            done = 0
            for seq, number in receipts:
                try:
                    self.engine.release(found, seq, number, self._now())
                except (MessageNotFoundError, VisibilityTimeoutExpired):
                    continue
                done += 1
            self._end_change()
            return done

    def extend(self, queue: str, receipt: Receipt, lease_ms: int) -> int:
        with self._lock, self._interrupt_guard:
            until_ms = self.engine.extend(self._queue(queue), *receipt, self._now(), lease_ms)
            self._end_change()
            return until_ms
