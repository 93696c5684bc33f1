"""Out of a queue to its AMQP consumers: fairly, by priority, and never more than each can take.

All consumers of a queue share one place in the broker's line, so that they take turns message by message
however many messages come at once. Everything here runs on the loop.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from ...broker.base import Receipt
from ...broker.waiters import Waiter
from ...errors import Closed, OpenQError, OutOfRoom, QueueNotFound, StoreError
from ...model import NO_DEADLINE, Delivery
from ...names import split_name
from ..site import Site

if TYPE_CHECKING:
    from .outgoing import Route

CHUNK = 500  # messages taken from the broker at a time
CHUNKS = 4  # of them before others have their turn
CHUNK_BYTES = 4 * 1024 * 1024  # and no more than this, or one: they are all in memory at once
UNLIMITED = 1 << 30
RETRY_S = 0.5

log = logging.getLogger("openq.amqp")


class Taker(Protocol):
    """The channel of a consumer, as an outlet sees it."""

    lent: int  # deliveries of all its consumers that are not settled

    def room(self) -> int: ...
    def flush(self) -> None: ...
    def deliver(self, consumer: Consumer, deliveries: list[Delivery]) -> None: ...
    def cancelled(self, consumer: Consumer) -> None: ...


class House(Protocol):
    """The door, as an outlet sees it."""

    site: Site

    def served(self, outlet: Outlet, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""

    def forget(self, outlet: Outlet) -> None: ...
    def return_later(self, full: str, receipts: list[Receipt]) -> None: ...
    def leads(self, outlet: Outlet) -> bool:
        """Whether no other server has a consumer of it that goes before."""


class Consumer:
    __slots__ = (
        "arguments",
        "channel",
        "exclusive",
        "gone",
        "label",
        "no_ack",
        "outlet",
        "prefetch",
        "priority",
        "routes",
        "tag",
        "unacked",
    )

    def __init__(
        self,
        channel: Taker,
        outlet: Outlet,
        tag: str,
        label: str,
        *,
        no_ack: bool,
        exclusive: bool,
        priority: int,
        prefetch: int,
        arguments: bytes,
    ) -> None:
        self.channel = channel
        self.outlet = outlet
        self.tag = tag
        self.label = label
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.priority = priority
        self.prefetch = prefetch  # 0 = as much as it likes
        self.arguments = arguments  # encoded: a table of many small values takes 30 times as much memory
        self.unacked = 0
        self.gone = False
        self.routes: dict[tuple[str, str] | None, Route] = {}

    def room(self) -> int:
        if self.no_ack:
            return UNLIMITED if self.channel.room() else 0
        own = self.prefetch - self.unacked if self.prefetch else UNLIMITED
        return min(own, self.channel.room()) if own > 0 else 0

    def reserve(self, count: int) -> None:
        """Room that is spoken for: by deliveries on their way, and until they are settled."""
        if not self.no_ack:
            self.unacked += count
            self.channel.lent += count


class Outlet:
    """One queue with consumers. `full` is the engine's name."""

    def __init__(self, house: House, full: str, single_active: bool) -> None:
        self.site = house.site
        self._house = house
        self.full = full
        self.account, self.queue = split_name(full)
        self.single_active = single_active
        self.since_ms = 0  # when the first of them came
        self.consumers: list[Consumer] = []  # by priority, then in the order they came
        self._chosen: Consumer | None = None  # of a queue with a single active one
        self.counting = 0  # see `outgoing`
        self._turn = 0
        self._waiting = False
        self._loading = False
        self._is_retrying = False
        self._spent: list[Receipt] = []  # given for good, and the store does not know it yet
        self._is_pumping = self._is_wanted = False  # see `pump`
        self._is_heavy = False  # what waits is more than may be taken at once
        self._waiter = Waiter(1, NO_DEADLINE, None, None, self._arrived)

    def add(self, consumer: Consumer) -> None:
        at = len(self.consumers)
        if not at:
            self.since_ms = self.site.now_ms()
        while at and self.consumers[at - 1].priority < consumer.priority:
            at -= 1
        self.consumers.insert(at, consumer)

    def remove(self, consumer: Consumer) -> None:
        consumer.gone = True
        self.consumers.remove(consumer)
        if consumer is self._chosen:
            self._chosen = None
        if not self.consumers:
            self._stand_down()

    @property
    def exclusive(self) -> bool:
        return len(self.consumers) == 1 and self.consumers[0].exclusive  # where one is, there is no other

    def _active(self) -> list[Consumer]:
        if not self.single_active:
            return self.consumers
        if not self._house.leads(self):
            return []
        if self._chosen is None and self.consumers:
            self._chosen = self.consumers[0]  # it stays until it goes, whoever comes
        return [] if self._chosen is None else [self._chosen]

    def is_active(self, consumer: Consumer) -> bool:
        return not self.single_active or consumer is self._chosen

    def _room(self) -> int:
        room = 0
        for consumer in self._active():
            room += consumer.room()
            if room >= CHUNK:
                return CHUNK
        return room

    def _most(self) -> int:
        """How many to take, going by the mean size of what waits."""
        count, size = self.site.broker.waiting(self.full)
        self._is_heavy = size > CHUNK_BYTES
        return max(1, CHUNK_BYTES * max(count, 1) // size) if self._is_heavy else CHUNK

    def pump(self) -> None:
        """Take what is there, as much as the consumers have room for; then stand in line."""
        if not self.site.broker.waits:
            self._pump()
            return
        # While the store is waited for nobody else takes from it: messages would overtake each other.
        self._is_wanted = True
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            while self._is_wanted:
                self._is_wanted = False
                self._pump()
        finally:
            self._is_pumping = False

    def _pump(self) -> None:
        taken = 0
        while not self._loading:
            room = self._room()
            if taken == CHUNKS and room > 0:
                # Others have their turn on the loop, however fast this client reads.
                if not self._is_retrying:
                    self._is_retrying = True
                    self.site.loop.call_soon(self.site.enter, self._try_again)
                return
            if room > 0 and taken:
                # Only what was written tells whether a client takes it.
                for consumer in self._active():
                    consumer.channel.flush()
                room = self._room()
            if room <= 0:
                self._stand_down()
                return
            if self._waiting:
                self._waiter.limit = room
                return
            self._waiter.limit = min(room, self._most())
            self._waiter.consumer = self.consumers[0].label if len(self.consumers) == 1 else "amqp"
            self._waiting = True
            try:
                deliveries = self.site.broker.attend(self.full, self._waiter)
            except (QueueNotFound, Closed):
                self._waiting = False
                self.end()
                return
            except OpenQError as error:  # a disk that is full to the last byte, or broken
                self._waiting = False
                self._try_later(error)
                return
            if deliveries is None:
                if self._waiting and self._room() <= 0:  # a broker that waits: it was otherwise before
                    self._stand_down()
                return
            self._waiting = False
            if self._is_heavy or self.site.broker.waits:
                deliveries = self._light(deliveries)
            self.take(deliveries)
            taken += 1

    def _try_later(self, error: OpenQError) -> None:
        if not self._is_retrying:
            log.error("queue %r: nothing can be handed out now: %s", self.full, error)
            self._is_retrying = True
            self.site.loop.call_later(RETRY_S, self.site.enter, self._try_again)

    def _try_again(self) -> None:
        self._is_retrying = False
        if self._spent:
            self._ack_spent()
        if self.consumers:
            self.pump()

    def _light(self, deliveries: list[Delivery]) -> list[Delivery]:
        """As many of them as may be in memory at once. The rest goes back to its place."""
        total = 0
        for at, delivery in enumerate(deliveries):
            total += delivery.entry.size
            if total > CHUNK_BYTES and at:
                self._give_back(deliveries[at:])
                return deliveries[:at]
        return deliveries

    def _stand_down(self) -> None:
        if self._waiting and self.site.broker.leave(self.full, self._waiter):
            self._waiting = False  # else it was served in this very moment, and `arrived` is on its way
            if self.site.broker.waits and self._room() > 0:
                self.pump()  # somebody came meanwhile, and took it for granted that we stood in line

    def _arrived(self, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        self._house.served(self, deliveries)

    def arrived(self, deliveries: list[Delivery]) -> None:
        self._waiting = False
        if not deliveries:
            self.end()  # the queue is gone, or the broker closes
            return
        is_first, self._is_pumping = not self._is_pumping, True
        try:
            self.take(self._light(deliveries))
        finally:
            if is_first:
                self._is_pumping = False
        self.pump()

    def take(self, deliveries: list[Delivery]) -> None:
        """No message before its publish is on disk; one such wait at a time keeps them in order."""
        if self.site.broker.is_loaded(deliveries):
            self._hand_out(deliveries)
            return
        self._loading = True

        def committed(error: OpenQError | None) -> None:
            self._loading = False
            if error is None:
                self._hand_out(deliveries)
                self.pump()

        self.site.after_commit(committed, self.site.broker.safe_at(deliveries))

    def _hand_out(self, deliveries: list[Delivery]) -> None:
        """The store is not waited for before all of it is given: in between, consumers might go."""
        rest = self._share_out(deliveries)
        if rest:
            self._give_back(rest)
        if self._spent:
            self._ack_spent()

    def _share_out(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that nobody has room for."""
        consumers = self._active()
        if len(consumers) == 1:
            consumer = consumers[0]
            count = max(0, min(consumer.room(), len(deliveries)))
            rest = deliveries[count:]
            if count:
                consumer.reserve(count)
                self._give(consumer, deliveries[:count] if rest else deliveries)
            return rest
        rest = []
        shares: dict[Consumer, list[Delivery]] = {}
        for at, delivery in enumerate(deliveries):
            chosen = self._next(consumers, shares)
            if chosen is None:
                rest = deliveries[at:]
                break
            shares.setdefault(chosen, []).append(delivery)
            if chosen.label != delivery.consumer:
                delivery.consumer = chosen.label
            chosen.reserve(1)
        for consumer, share in shares.items():
            self._give(consumer, share)
        return rest

    def _next(self, consumers: list[Consumer], shares: dict[Consumer, list[Delivery]]) -> Consumer | None:
        """Whose turn it is: the highest priority that has room; of equals, the one after the last."""
        count = len(consumers)
        best: Consumer | None = None
        best_at = 0
        for step in range(count):
            at = (self._turn + step) % count
            consumer = consumers[at]
            if best is not None and consumer.priority <= best.priority:
                continue
            if consumer.room() - (len(shares.get(consumer, ())) if consumer.no_ack else 0) > 0:
                best, best_at = consumer, at
                if consumer.priority == consumers[0].priority:
                    break  # there is none higher
        if best is not None:
            self._turn = best_at + 1
        return best

    def _give(self, consumer: Consumer, deliveries: list[Delivery]) -> None:
        broker = self.site.broker
        try:
            readable = broker.load(deliveries)
        except OpenQError as error:
            consumer.reserve(-len(deliveries))
            self._give_back(deliveries)
            self._try_later(error)
            return
        if len(readable) < len(deliveries):  # the others are set aside
            consumer.reserve(len(readable) - len(deliveries))
            deliveries = readable
        if consumer.no_ack and deliveries and broker.waits:
            self._spent += [(each.entry.seq, each.number) for each in deliveries]
        elif consumer.no_ack and deliveries:
            try:
                broker.ack(self.full, [(each.entry.seq, each.number) for each in deliveries])
            except OpenQError as error:
                self._give_back(deliveries)
                self._try_later(error)
                return
        if deliveries:
            consumer.channel.deliver(consumer, deliveries)

    def _ack_spent(self) -> None:
        """What was given to who never acknowledges. Rather twice, if the store fails now, than never."""
        spent, self._spent = self._spent, []
        try:
            self.site.broker.ack(self.full, spent)
        except QueueNotFound:
            pass
        except OpenQError as error:
            self._spent += spent
            self._try_later(error)

    def _give_back(self, deliveries: list[Delivery]) -> None:
        receipts = [(each.entry.seq, each.number) for each in deliveries]
        try:
            self.site.broker.release(self.full, receipts)
        except (OutOfRoom, StoreError):
            self._house.return_later(self.full, receipts)
        except OpenQError:
            pass  # the queue is gone, or the broker is: nothing is held any more

    def end(self) -> None:
        """The queue is gone: whoever consumed from it is told."""
        self._house.forget(self)
        for consumer in list(self.consumers):
            self.remove(consumer)
            consumer.channel.cancelled(consumer)
