"""A life of queues on Redis beside the same life in the model: how it begins, how time passes, how both are
compared after every step. What may happen in it is in `test_model.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from openq.clock import VirtualClock
from openq.model import NO_DEADLINE, Delivery, DeliveryOptions, Entry, QueueSettings
from openq.redis.broker import RedisBroker
from tests.engine.model import Item, Model, ModelQueue
from tests.engine.strategies import NAMES, queue_settings
from tests.redis.key_checks import check_gone, check_queue
from tests.redis.servers import Server

LEASES: tuple[int | None, ...] = (None, NO_DEADLINE, 0, 1, 5, 40)

names = st.sampled_from(("a", "a", "a", "b", "b", "c", "d"))  # much in a few places
settings_of_queues = queue_settings(names, limits=4, history_ms=(0, 86_400_000))


class CountingModel(Model):
    """The model with Redis's own moment for what has no time to live. It also counts what happens, and knows
    from which queues messages went on to others."""

    def __init__(self, settle: Callable[[ModelQueue], object]) -> None:
        super().__init__("")
        self.settle = settle  # what time brings about in a queue comes before what arrives there
        self.counters: dict[str, Counter[str]] = {}
        self.sources: set[str] = set()
        self.twins: set[str] = set()

    def count(self, q: ModelQueue, what: str, n: int = 1) -> None:
        self.counters[q.name][what] += n

    def enter(self, q: ModelQueue, item: Item, **options: Any) -> None:
        self.count(q, "published")
        self.note_twins(q, item)
        super().enter(q, item, **options)
        self.expire_zero_ttl(q, item)

    def arrive(self, target: ModelQueue, item: Item) -> None:
        self.settle(target)
        self.count(target, "moved_in")
        self.note_twins(target, item)
        super().arrive(target, item)
        self.expire_zero_ttl(target, item)

    def note_twins(self, q: ModelQueue, item: Item) -> None:
        """However short the life of the second: the first may have lost its name to it."""
        if any(other.id == item.id for other in q.items):
            self.twins.add(item.id)

    def expire_zero_ttl(self, q: ModelQueue, item: Item) -> None:
        if item.is_brief(self.now_ms):
            self.expire(q, item)

    def refuse(self, q: ModelQueue, item: Item) -> None:
        self.sources.add(q.name)
        super().refuse(q, item)

    def take(self, q: ModelQueue, item: Item) -> None:
        self.count(q, "removed")
        super().take(q, item)

    def die(
        self,
        q: ModelQueue,
        item: Item,
        targets: list[ModelQueue],
        kind: str,
        reason: str | None,
        depth: int = 0,
    ) -> None:
        if kind == "expired":
            self.count(q, "expired")
        if targets:
            self.sources.add(q.name)
            self.count(q, "removed", -1)
            self.count(q, "moved_out")
            self.count(q, "dead_lettered")
        super().die(q, item, targets, kind, reason, depth)

    def move(self, q: ModelQueue, item: Item, target: ModelQueue, *, redriven: bool = False) -> None:
        self.sources.add(q.name)
        self.count(q, "removed", -1)
        self.count(q, "moved_out")
        super().move(q, item, target, redriven=redriven)

    def ack(self, q: ModelQueue, item: Item) -> None:
        self.count(q, "removed", -1)
        self.count(q, "acked")
        self.take(q, item)

    def give_back(self, q: ModelQueue, item: Item, why: str, delay_ms: int | None, reason: str | None) -> str:
        ends = {"expired": "lease_expired", "released": "released"}
        self.count(q, ends.get(why, "nacked"))
        return super().give_back(q, item, why, delay_ms, reason)

    def reject(self, q: ModelQueue, item: Item, reason: str | None) -> str:
        self.count(q, "nacked")
        return super().reject(q, item, reason)

    def receive(
        self, q: ModelQueue, limit: int, lease_ms: int | None, types: frozenset[str] | None
    ) -> list[Item]:
        leased = super().receive(q, limit, lease_ms, types)
        self.count(q, "delivered", len(leased))
        self.count(q, "redelivered", sum(item.count > 1 for item in leased))
        if q.settings.max_receives is None:
            self.count(q, "stuck", sum(item.count == 10 for item in leased))
        return leased


class KnownReceipt:
    """One given out some time: how the model knows it, and how the broker does."""

    def __init__(self, queue: str, item: Item, delivery: Delivery) -> None:
        assert item.lease is not None
        self.queue = queue
        self.seq, self.number = item.seq, item.lease[0]
        self.real = (delivery.entry.seq, delivery.number)


class ModelMachine(RuleBasedStateMachine):
    server: Server  # of the test that runs it

    @initialize(seed=st.integers(0, 50), wanted=st.lists(settings_of_queues, min_size=3, max_size=4))
    def begin(self, seed: int, wanted: list[QueueSettings]) -> None:
        self.server.ask("FLUSHALL")
        self.clock = VirtualClock()
        self.opened = ExitStack()
        self.clients = [self.open(), self.open()]
        self.chance = Random(seed) if seed else None  # the simplest life has one client
        self.model = CountingModel(self.settle_queue)
        self.model.now_ms = self.clock.now_ms()
        self.receipts: list[KnownReceipt] = []
        self.numbers: dict[int, int] = {}  # delivery numbers of the model, and the broker's
        self.ids: dict[str, str] = {}  # ids that only the broker could choose
        self.dropped: list[int] = []
        self.had_history: set[str] = set()
        self.is_over = False
        for name, each in zip(NAMES, wanted, strict=False):
            self.create(name, each)

    def create(self, name: str, wanted: QueueSettings) -> None:
        raise NotImplementedError

    def open(self) -> RedisBroker:
        client = RedisBroker(self.server.url, profile="fast", clock=self.clock)
        self.opened.callback(client.close)
        return client

    @property
    def broker(self) -> RedisBroker:
        return self.clients[0 if self.chance is None else self.chance.randrange(2)]

    @property
    def now(self) -> int:
        return self.clock.now_ms()

    def queue(self, name: str) -> ModelQueue | None:
        return None if self.is_over else self.model.queues.get(name)

    def teardown(self) -> None:
        if not hasattr(self, "opened"):
            return
        with self.opened:
            self.clock.advance(0)
            for client in self.clients:
                client.queues()
            prefix = self.clients[0].registry.prefix
            for view in self.clients[0].registry.queues.values():
                check_queue(self.server, prefix, view, had_history=view.name in self.had_history)
            for number in self.dropped:
                check_gone(self.server, prefix, number)

    # -- time ---------------------------------------------------------------------------------

    @rule(ms=st.integers(1, 30))
    def tick(self, ms: int) -> None:
        if self.is_over:
            return
        end = self.now + ms
        while self.now < end and not self.is_over:
            self.clock.advance((min([end, *self.deadlines()]) - self.now) / 1000)
            self.settle()
            self.compare()

    def deadlines(self) -> Iterator[int]:
        for queue in self.model.queues.values():
            for item in queue.items:
                times = self.times(queue, item)
                yield from (at for at in times if at > self.now)

    def times(self, queue: ModelQueue, item: Item) -> list[int]:
        """When it comes due, expires, comes back, is too old; in the order in which that happens at once."""
        never = 1 << 62
        if item.lease is not None:
            return [never, never, item.lease[1] or never, never]
        if item.seq in queue.delayed:
            return [item.due_ms, item.expires_ms or never, never, never]
        kept_until = max(item.sent_ms, item.due_ms) + queue.settings.retention_ms
        return [never, item.expires_ms or never, never, kept_until]

    def settle(self) -> bool:
        """What this moment brings about; whether that was anything."""
        self.model.now_ms = self.now
        anything = False
        while any(self.settle_queue(queue) for queue in self.model.queues.values()):
            anything = True
        return anything

    def settle_queue(self, queue: ModelQueue) -> bool:
        anything = False
        while True:
            due = [
                (at, kind, item.seq, item)
                for item in queue.items
                for kind, at in enumerate(self.times(queue, item))
                if at <= self.now
            ]
            if not due:
                return anything
            anything = True
            _, kind, _, item = min(due)
            if kind == 0:
                queue.delayed.remove(item.seq)
                queue.refresh_turns()
            elif kind == 2:
                self.model.give_back(queue, item, "expired", None, None)
            if kind in (1, 3) or (kind == 0 and item.expires_ms and item.expires_ms <= self.now):
                self.model.expire(queue, item)

    # -- comparing ----------------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "model") or self.is_over:
            return
        if self.settle():
            self.clock.advance(0)
        self.compare()

    def compare(self) -> None:
        several = len(self.model.sources) > 1
        self.model.sources.clear()
        try:
            self.compare_all()
        except AssertionError:
            if not several:
                raise
            self.is_over = True

    def compare_all(self) -> None:
        assert sorted(self.broker.queues()) == sorted(self.model.queues)
        for name, queue in self.model.queues.items():
            self.compare_queue(queue, *self.look(name))

    def look(self, name: str) -> tuple[list[Entry], list[Entry], list[Delivery]]:
        broker = self.broker
        return (
            broker.inspect.entries(name, "ready"),
            broker.inspect.entries(name, "delayed"),
            broker.inspect.deliveries(name),
        )

    def compare_queue(
        self, queue: ModelQueue, ready: list[Entry], delayed: list[Entry], leased: list[Delivery]
    ) -> None:
        broker, name = self.broker, queue.name
        everything = sorted([*ready, *delayed, *(d.entry for d in leased)], key=lambda entry: entry.seq)
        items = sorted(queue.items, key=lambda item: item.seq)
        assert [(e.body, e.priority, e.group) for e in everything] == [
            (i.body, i.priority, i.group) for i in items
        ], name
        seqs = {item.seq: entry.seq for item, entry in zip(items, everything, strict=True)}
        leases = {delivery.entry.seq: delivery for delivery in leased}
        for item, entry in zip(items, everything, strict=True):
            self.compare_one(item, entry, leases.get(entry.seq))
        in_order = [seqs[i.seq] for i in queue.in_order() if i.seq not in queue.delayed]
        assert [entry.seq for entry in ready] == in_order, name
        assert [e.seq for e in delayed] == [
            seqs[i.seq]
            for i in sorted(queue.items, key=lambda i: (i.due_ms, i.seq))
            if i.seq in queue.delayed
        ]
        assert [entry.seq for entry in broker.inspect.peek(name, 2)] == in_order[:2]
        for limit in (1, 2):
            assert [entry.seq for entry in broker.inspect.peek(name, limit, rear=True)] == in_order[::-1][
                :limit
            ]
        self.compare_stats(queue)

    def compare_stats(self, queue: ModelQueue) -> None:
        stats = self.broker.stats(queue.name)
        ready, waiting = queue.ready(), queue.waiting()
        assert (stats.ready, stats.delayed, stats.in_flight) == (
            len(ready),
            len(queue.delayed),
            len(queue.leased()),
        )
        assert stats.waiting_bytes == sum(len(item.body) for item in waiting)
        wanted = self.model.counters[queue.name]
        assert stats.counters == {what: wanted[what] for what in stats.counters}, queue.name

    def compare_one(self, item: Item, entry: Entry, lease: Delivery | None) -> None:
        found = self.broker.inspect.message_id(entry)
        assert found == self.real_id(item.id, found)
        assert entry.sent_ms == item.sent_ms
        assert (lease is None) == (item.lease is None)
        options = entry.options or DeliveryOptions()
        if lease is not None and item.lease is not None:
            assert (lease.number, lease.until_ms) == (self.numbers[item.lease[0]], item.lease[1])
            assert lease.count == item.count
        else:
            assert options.count == item.count
        assert (options.type, options.expires_ms, options.reason) == (item.type, item.expires_ms, item.reason)
        assert (list(options.deaths), options.route) == (item.deaths, item.route)
        assert max(options.due_ms, entry.sent_ms) == max(item.due_ms, item.sent_ms)
