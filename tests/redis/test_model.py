"""The broker on Redis against the model that the engine is compared with, over random lives of random queues.

Two clients take turns at random; neither hears of what the other does but through Redis. After every step
contents, order, counts and counters agree, and in the end the keys in Redis agree with each other.

Where Redis may differ, by design:
- What time brings about, it brings about at once (a lease of no time is over with the verb that gave it, a
  shorter retention counts when it is set), and in one order: due, expired, leases, retention; by sequence.
- What has no time to live and finds nobody waiting is gone at once: it pushes nobody out of a full queue.
- A step in which messages of several queues go on to others (dead letters that push out dead letters) may
  bring them there in another order, because queues may live on different nodes. Such an example is compared
  no further; its keys are still looked at.
- Of two messages of one id in one queue, the id names one.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from openq.clock import VirtualClock
from openq.engine.routing import Binding
from openq.errors import (
    MessageNotFoundError,
    OpenQError,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    VisibilityTimeoutExpired,
)
from openq.model import NO_DEADLINE, Delivery, Draft, Entry, Extra, QueueSettings, RetryPolicy
from openq.redis.broker import RedisBroker
from tests.engine.model import Item, Model, ModelQueue
from tests.engine.support import examples
from tests.redis.inspecting import check_gone, check_queue
from tests.redis.servers import Server

NAMES = ("a", "b", "c", "d")
FANOUT = "amq.fanout"
LEASES: tuple[int | None, ...] = (None, NO_DEADLINE, 0, 1, 5, 40)

names = st.sampled_from(("a", "a", "a", "b", "b", "c", "d"))  # much in a few places
few = st.integers(1, 4)
index = st.integers(0, 1 << 16)

retries = st.one_of(
    st.just(RetryPolicy()),
    st.builds(RetryPolicy, kind=st.just("fixed"), base_ms=st.integers(0, 6)),
    st.builds(RetryPolicy, kind=st.just("exponential"), base_ms=st.integers(1, 3), max_ms=st.just(9)),
)


@st.composite
def queue_settings(draw: st.DrawFn) -> QueueSettings:
    return QueueSettings(
        fifo=draw(st.booleans()),
        visibility_ms=draw(st.integers(1, 20)),
        delay_ms=draw(st.sampled_from((0, 0, 0, 3))),
        retention_ms=draw(st.sampled_from((10_000, 10_000, 25))),
        ttl_ms=draw(st.sampled_from((None, None, None, 9, 0))),
        max_receives=draw(st.sampled_from((None, 1, 2))),
        exhausted=draw(st.sampled_from(("keep", "keep", "drop"))),
        dead_letter=draw(st.none() | names),
        dead_letter_exchange=draw(st.sampled_from((None, None, None, FANOUT))),
        dead_letter_key=draw(st.sampled_from((None, "dead"))),
        dead_letter_expired=draw(st.booleans()),
        max_length=draw(st.sampled_from((None, None, None, 3))),
        max_bytes=draw(st.sampled_from((None, None, None, 9))),
        overflow=draw(st.sampled_from(("drop-head", "reject", "dead-letter", "reject-dead-letter"))),
        max_priority=draw(st.sampled_from((None, None, 0, 1))),
        dedup_window_ms=draw(st.sampled_from((0, 6, 20))),
        dedup_by_content=draw(st.sampled_from((False, False, False, True))),
        dedup_per_group=draw(st.booleans()),
        retry=draw(retries),
        paused=draw(st.sampled_from((False, False, False, True))),
        history_ms=draw(st.sampled_from((0, 86_400_000))),
    )


drafts = st.builds(
    Draft,
    body=st.sampled_from((b"", b"x", b"yy", b"three")),
    form=st.integers(0, 3),
    delay_ms=st.none() | st.sampled_from((0, 2, 15)),
    priority=st.sampled_from((0, 0, 0, 1, 255)),
    group=st.sampled_from((None, None, "g", "h")),
    type=st.sampled_from((None, "t", "u")),
    dedup=st.sampled_from((None, None, None, "d", "e")),
    unique=st.sampled_from((None, None, None, "only")),
    ttl_ms=st.none() | st.sampled_from((0, 1, 8, 60)),
    id=st.sampled_from((None, None, None, "mine", "other")),
    attributes=st.none() | st.just({"k": b"v"}),
    publisher=st.none() | st.just("someone"),
)


class Counted(Model):
    """The model with Redis's own moment for what has no time to live. It also counts what happens, and knows
    from which queues messages went on to others."""

    def __init__(self) -> None:
        super().__init__("")
        self.counters: dict[str, Counter[str]] = {}
        self.sources: set[str] = set()

    def count(self, q: ModelQueue, what: str, n: int = 1) -> None:
        self.counters[q.name][what] += n

    def enter(self, q: ModelQueue, item: Item, **options: Any) -> None:
        self.count(q, "published")
        super().enter(q, item, **options)
        self.end_brief(q, item)

    def arrive(self, target: ModelQueue, item: Item) -> None:
        self.count(target, "moved_in")
        super().arrive(target, item)
        self.end_brief(target, item)

    def end_brief(self, q: ModelQueue, item: Item) -> None:
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
        told = super().give_back(q, item, why, delay_ms, reason)
        if told == "returned" and why != "released":
            self.count(q, "lease_expired" if why == "expired" else "nacked")
        return told

    def receive(
        self, q: ModelQueue, limit: int, lease_ms: int | None, types: frozenset[str] | None
    ) -> list[Item]:
        lent = super().receive(q, limit, lease_ms, types)
        self.count(q, "delivered", len(lent))
        self.count(q, "redelivered", sum(item.count > 1 for item in lent))
        if q.settings.max_receives is None:
            self.count(q, "stuck", sum(item.count == 10 for item in lent))
        return lent


class Receipt:
    """One given out some time: how the model knows it, and how the broker does."""

    def __init__(self, queue: str, item: Item, delivery: Delivery) -> None:
        assert item.lease is not None
        self.queue = queue
        self.seq, self.number = item.seq, item.lease[0]
        self.real = (delivery.entry.seq, delivery.number)


class RedisAndModel(RuleBasedStateMachine):
    server: Server  # of the test that runs it

    @initialize(seed=st.integers(0, 50), wanted=st.lists(queue_settings(), min_size=3, max_size=4))
    def begin(self, seed: int, wanted: list[QueueSettings]) -> None:
        self.server.ask("FLUSHALL")
        self.clock = VirtualClock()
        self.opened = ExitStack()
        self.clients = [self.open(), self.open()]
        self.chance = Random(seed) if seed else None  # the simplest life has one client
        self.model = Counted()
        self.model.now_ms = self.clock.now_ms()
        self.receipts: list[Receipt] = []
        self.numbers: dict[int, int] = {}  # delivery numbers of the model, and the broker's
        self.ids: dict[str, str] = {}  # ids that only the broker could choose
        self.twins: set[str] = set()
        self.dropped: list[int] = []
        self.had_history: set[str] = set()
        self.is_over = False
        for name, each in zip(NAMES, wanted, strict=False):
            self.create(name, each)

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

    # -- queues -------------------------------------------------------------------------------

    @rule(name=names, wanted=queue_settings())
    def create(self, name: str, wanted: QueueSettings) -> None:
        if name in self.model.queues:
            return
        self.broker.declare(name, wanted)
        self.model.queues[name] = ModelQueue(name, wanted)
        self.model.counters[name] = Counter()
        self.had_history.discard(name)
        self.note_history(queue_name=name, wanted=wanted)

    def note_history(self, queue_name: str, wanted: QueueSettings) -> None:
        if wanted.history_ms:
            self.had_history.add(queue_name)

    @rule(name=names, wanted=queue_settings())
    def change(self, name: str, wanted: QueueSettings) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        wanted = wanted.with_(fifo=queue.settings.fifo)
        changes = queue.settings != wanted
        self.broker.declare(name, wanted, change=True)
        queue.change(wanted)
        self.note_history(name, wanted)
        self.settle_queue(queue)
        if changes:
            self.model.overflow(queue)  # a lower limit counts at once

    @rule(name=names, chance=st.integers(0, 9))
    def delete(self, name: str, chance: int) -> None:
        queue = self.queue(name)
        if queue is None or chance:
            return
        self.clients[0].queues()
        self.dropped.append(self.clients[0].about(name).number)
        assert self.broker.delete(name) == len(queue.items)
        del self.model.queues[name]
        self.model.bound = [each for each in self.model.bound if each != name]

    @rule(name=names, waiting_only=st.booleans())
    def purge(self, name: str, waiting_only: bool) -> None:
        queue = self.queue(name)
        if queue is None or len(queue.items) < 3:
            return
        gone = queue.waiting() if waiting_only else list(queue.items)
        assert self.broker.purge(name, waiting_only) == len(gone)
        self.model.count(queue, "removed", len(gone))
        queue.items = [item for item in queue.items if item not in gone]
        queue.delayed.clear()
        queue.turns.clear()

    @rule(name=names)
    def bind(self, name: str) -> None:
        if self.queue(name) is not None:
            assert self.broker.bind(Binding(FANOUT, name)) == (name not in self.model.bound)
            if name not in self.model.bound:
                self.model.bound.append(name)

    @rule(name=names)
    def ask_for_what_is_not_there(self, name: str) -> None:
        if not self.is_over and name not in self.model.queues:
            with pytest.raises(QueueNotFound):
                self.broker.publish(name, Draft(b"x"))
            with pytest.raises(QueueNotFound):
                self.broker.receive(name)

    # -- in -----------------------------------------------------------------------------------

    def is_twin(self, draft: Draft) -> bool:
        return draft.id in self.twins

    def known(self, queue: ModelQueue, draft: Draft) -> str | None:
        found = self.model.duplicate(queue, draft.body, draft.dedup, draft.unique, draft.id, draft.group)
        if found is not None:
            self.model.count(queue, "deduplicated")
        return found

    @rule(name=names, draft=drafts)
    def publish(self, name: str, draft: Draft) -> None:
        if self.queue(name) is not None and not self.is_twin(draft):
            try:
                told: str | OpenQError = self.broker.publish(name, copy.copy(draft))
            except OpenQError as error:
                told = error
            self.follow_publish(name, [draft], [told])

    @rule(name=names, some=st.lists(drafts, min_size=1, max_size=5))
    def publish_many(self, name: str, some: list[Draft]) -> None:
        if self.queue(name) is not None and not any(map(self.is_twin, some)):
            told = self.broker.publish_many(name, [copy.copy(each) for each in some])
            self.follow_publish(name, some, told)

    def follow_publish(self, name: str, some: list[Draft], told: list[str | OpenQError]) -> None:
        queue = self.model.queues[name]
        for draft, answer in zip(some, told, strict=True):
            known = self.known(queue, draft)
            if known is None and queue.is_full(len(draft.body)):
                assert isinstance(answer, QueueFull)
                self.refuse(queue, draft)
            else:
                assert isinstance(answer, str), answer
                if known is not None:
                    assert answer == self.ids.get(known, known)
                else:
                    assert draft.id in (None, answer)
                    self.enter(queue, draft, answer)
                    self.model.overflow(queue)

    def enter(
        self, queue: ModelQueue, draft: Draft, message_id: str, route: tuple[str, str] | None = None
    ) -> None:
        item = self.item(draft, message_id)
        item.route = route
        self.model.enter(queue, item, delay_ms=draft.delay_ms, ttl_ms=draft.ttl_ms, dedup=draft.dedup)

    def item(self, draft: Draft, message_id: str) -> Item:
        self.model.seq += 1
        how = (draft.priority, draft.group, draft.type)
        return Item(message_id, self.model.seq - 1, draft.body, self.now, *how, unique=draft.unique)

    def refuse(self, queue: ModelQueue, draft: Draft, route: tuple[str, str] | None = None) -> None:
        """What a full queue does not take may become a dead letter all the same."""
        message_id = draft.id or f"refused {self.model.seq}"
        refused = Item(message_id, 0, draft.body, self.now, draft.priority, draft.group, draft.type)
        refused.route = route
        self.model.refuse(queue, refused)

    @rule(
        name=names,
        count=few | st.just(20),
        alone=st.booleans(),
        extra=st.sampled_from((None, Extra(type="t").lighten(), Extra(route=("amq.direct", "key")).lighten())),
    )
    def publish_plain(self, name: str, count: int, alone: bool, extra: Extra | None) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        bodies = [b"r" * (i % 3) for i in range(count)]
        broker = self.broker
        view = broker.about(name)
        if view.settings != queue.settings or not view.simple:
            return  # whoever takes the short way has looked whether it is open
        if alone:
            seqs = [broker.publish_body(name, body, 1, None, extra) for body in bodies]
        else:
            seqs = broker.publish_bodies(name, bodies, 1, None, extra) or []
        for body, seq in zip(bodies, seqs, strict=True):
            draft = Draft(body, type=None if extra is None else extra.type)
            self.enter(queue, draft, broker.id_of(seq), None if extra is None else extra.route)

    @rule(draft=drafts)
    def route(self, draft: Draft) -> None:
        """Into every queue that is bound, has not got it and is not full; as one message with one id."""
        if self.is_over or self.is_twin(draft):
            return
        route = (FANOUT, "key")
        targets: list[ModelQueue] = []
        known = ""
        full = False
        for name in self.model.bound:
            queue = self.model.queues[name]
            same = self.known(queue, draft)
            if same is not None:
                known = same
            elif queue.is_full(len(draft.body)):
                full = True
                self.refuse(queue, draft, route)
            else:
                targets.append(queue)
        if full and not targets:
            with pytest.raises(QueueFull):
                self.broker.route(*route, copy.copy(draft))
            return
        message_id, reached = self.broker.route(*route, copy.copy(draft))
        assert reached == [queue.name for queue in targets]
        if not targets:
            assert message_id == self.ids.get(known, known)
            return
        for queue in targets:
            self.enter(queue, draft, message_id, route)
        for queue in targets:
            self.model.overflow(queue)

    # -- out ----------------------------------------------------------------------------------

    @rule(
        name=names,
        limit=few,
        lease_ms=st.sampled_from(LEASES),
        types=st.sampled_from((None, None, None, frozenset("t"), frozenset(("t", "u")))),
        consumer=st.none() | st.just("me too"),
    )
    def receive(
        self, name: str, limit: int, lease_ms: int | None, types: frozenset[str] | None, consumer: str | None
    ) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        wanted = self.model.receive(queue, limit, lease_ms, types)
        got = self.broker.receive(name, limit, lease_ms, consumer, types)
        assert [(self.broker.message_id(d.entry), d.entry.body, d.until_ms, d.count) for d in got] == [
            (self.real_id(item.id, self.broker.message_id(d.entry)), item.body, (item.lease or ())[1], item.count)
            for item, d in zip(wanted, got, strict=True)
        ]
        for item, delivery in zip(wanted, got, strict=True):
            assert item.lease is not None
            self.numbers[item.lease[0]] = delivery.number
            self.receipts.append(Receipt(name, item, delivery))

    def real_id(self, known: str, found: str) -> str:
        """An id that the broker chose where the model could not know: the same from then on."""
        if known.startswith("refused"):
            assert self.ids.setdefault(known, found) == found, f"{known} has two ids"
            return self.ids[known]
        return known

    def receipt(self, which: int) -> tuple[ModelQueue, Receipt, Item | None] | None:
        receipt = self.receipts[-1 - which % len(self.receipts)]
        queue = self.queue(receipt.queue)
        if queue is None:
            if not self.is_over:
                self.receipts = [each for each in self.receipts if each.queue in self.model.queues]
            return None
        return queue, receipt, self.model.live(queue, receipt.seq, receipt.number)

    def refused(self, found: tuple[ModelQueue, Receipt, Item | None], verb: Callable[[], Any]) -> bool:
        """A receipt that is not live any more touches nothing, and says what became of its message."""
        queue, receipt, item = found
        if item is not None:
            return False
        try:
            verb()
        except OpenQError as error:
            self.check_lost(queue, receipt, error)
            return True
        raise AssertionError("an old receipt still counts")

    @staticmethod
    def check_lost(queue: ModelQueue, receipt: Receipt, error: OpenQError | None) -> None:
        there = any(item.seq == receipt.seq for item in queue.items)
        assert type(error) is (VisibilityTimeoutExpired if there else MessageNotFoundError)

    def own_receipts(self, name: str, which: list[int]) -> list[Receipt]:
        own = [each for each in self.receipts if each.queue == name]
        return [own[-1 - i % len(own)] for i in which] if own else []

    @precondition(lambda self: self.receipts)
    @rule(which=index)
    def ack(self, which: int) -> None:
        found = self.receipt(which)
        if found is None or self.refused(
            found, lambda: self.broker.ack_one(found[1].queue, *found[1].real)
        ):
            return
        queue, receipt, item = found
        self.broker.ack_one(queue.name, *receipt.real)
        assert item is not None
        self.model.ack(queue, item)

    @precondition(lambda self: self.receipts)
    @rule(name=names, which=st.lists(index, max_size=5))
    def ack_many(self, name: str, which: list[int]) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        chosen = self.own_receipts(name, which)
        results = self.broker.ack(name, [each.real for each in chosen])
        for each, result in zip(chosen, results, strict=True):
            item = self.model.live(queue, each.seq, each.number)
            if item is None:
                self.check_lost(queue, each, result)
            else:
                assert result is None
                self.model.ack(queue, item)

    @precondition(lambda self: self.receipts)
    @rule(which=index)
    def ack_late(self, which: int) -> None:
        chosen = self.receipt(which)
        if chosen is None:
            return
        queue, receipt, item = chosen
        found = item or self.model.find(queue.name, receipt.seq)
        free = found is not None and (item is not None or found.lease is None)
        if not self.broker.ack_late(queue.name, receipt.real):
            # A release leaves no trace of its delivery, so its receipt is not known any more.
            assert not free or found is None or found.lease is None
            return
        assert found is not None
        assert free
        self.model.ack(queue, found)

    @precondition(lambda self: self.receipts)
    @rule(which=index, delay_ms=st.none() | st.sampled_from((0, 4)), reason=st.none() | st.just("bad"))
    def nack(self, which: int, delay_ms: int | None, reason: str | None) -> None:
        found = self.receipt(which)
        if found is None or self.refused(found, lambda: self.broker.nack(found[1].queue, found[1].real)):
            return
        queue, receipt, item = found
        assert item is not None
        wanted = self.model.give_back(queue, item, "nacked", delay_ms, reason)
        assert self.broker.nack(queue.name, receipt.real, delay_ms, reason) == wanted

    @precondition(lambda self: self.receipts)
    @rule(name=names, which=st.lists(index, max_size=4))
    def release(self, name: str, which: list[int]) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        chosen = self.own_receipts(name, which)
        live = 0
        for each in chosen:
            item = self.model.live(queue, each.seq, each.number)
            if item is not None:
                live += 1
                self.model.give_back(queue, item, "released", 0, None)
        assert self.broker.release(name, [each.real for each in chosen]) == live

    @precondition(lambda self: self.receipts)
    @rule(which=index, reason=st.none() | st.just("no"))
    def reject(self, which: int, reason: str | None) -> None:
        found = self.receipt(which)
        if found is None or self.refused(found, lambda: self.broker.reject(found[1].queue, found[1].real)):
            return
        queue, receipt, item = found
        assert item is not None
        wanted = self.model.reject(queue, item, reason)
        assert self.broker.reject(queue.name, receipt.real, reason) == wanted

    @precondition(lambda self: self.receipts)
    @rule(which=index, lease_ms=st.sampled_from((NO_DEADLINE, 0, 1, 30)))
    def extend(self, which: int, lease_ms: int) -> None:
        found = self.receipt(which)
        if found is None or self.refused(
            found, lambda: self.broker.extend(found[1].queue, found[1].real, lease_ms)
        ):
            return
        queue, receipt, item = found
        assert item is not None
        until = self.broker.extend(queue.name, receipt.real, lease_ms)
        assert until == (0 if lease_ms == NO_DEADLINE else self.now + lease_ms)
        item.lease = (receipt.number, until)

    # -- mending ------------------------------------------------------------------------------

    def pick(self, name: str, which: int) -> tuple[ModelQueue, Item, str] | None:
        queue = self.queue(name)
        if queue is None or not queue.items:
            return None
        item = queue.items[which % len(queue.items)]
        if item.id in self.twins:
            return None
        return queue, item, self.ids.get(item.id, item.id)

    def in_use(self, item: Item, verb: Callable[..., Any], *args: Any) -> bool:
        if item.lease is None:
            return False
        with pytest.raises(QueueInUse):
            verb(*args)
        return True

    @rule(name=names, which=index)
    def cancel(self, name: str, which: int) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        queue, item, message_id = picked
        if not self.in_use(item, self.broker.cancel, name, message_id):
            self.broker.cancel(name, message_id)
            self.model.take(queue, item)
        with pytest.raises(MessageNotFoundError):
            self.broker.cancel(name, "nobody")

    @rule(name=names, which=index, draft=drafts)
    def edit(self, name: str, which: int, draft: Draft) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        _, item, message_id = picked
        if not self.in_use(item, self.broker.edit, name, message_id, draft):
            self.broker.edit(name, message_id, draft)
            item.body, item.type = draft.body, draft.type

    @rule(name=names, which=index, due=st.integers(-5, 12))
    def reschedule(self, name: str, which: int, due: int) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        queue, item, message_id = picked
        if self.in_use(item, self.broker.reschedule, name, message_id, self.now + due):
            return
        self.broker.reschedule(name, message_id, self.now + due)
        # Taken out and put in again: its group may lose its turn for it.
        queue.items.remove(item)
        queue.refresh_turns()
        queue.items.append(item)
        queue.delayed.discard(item.seq)
        item.due_ms = self.now + due if due > 0 else 0
        if item.due_ms:
            queue.delayed.add(item.seq)
        queue.refresh_turns()

    @rule(name=names, to=names, which=index)
    def move(self, name: str, to: str, which: int) -> None:
        picked = self.pick(name, which)
        if picked is None or to not in self.model.queues:
            return
        queue, item, message_id = picked
        [error] = self.broker.move(name, [message_id], to)
        assert (error is None) == (item.lease is None and to != name)
        if error is None:
            self.model.move(queue, item, self.model.queues[to])

    @rule(name=names, to=st.none() | names)
    def redrive(self, name: str, to: str | None) -> None:
        queue = self.queue(name)
        if queue is None or (to is not None and to not in self.model.queues):
            return
        chosen = sorted(queue.ready(), key=lambda i: (0 if queue.settings.fifo else -queue.rank(i), i.seq))
        moved = 0
        for item in chosen:
            target = to or (item.deaths[0].queue if item.deaths else None)
            if target is None or target not in self.model.queues or target == name or item not in queue.items:
                continue
            self.model.move(queue, item, self.model.queues[target], redriven=bool(item.deaths))
            moved += 1
        assert self.broker.redrive(name, to) == moved

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
        while any([self.settle_queue(queue) for queue in self.model.queues.values()]):
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
        return broker.entries(name, "ready"), broker.entries(name, "delayed"), broker.deliveries(name)

    def compare_queue(
        self, queue: ModelQueue, ready: list[Entry], delayed: list[Entry], lent: list[Delivery]
    ) -> None:
        broker, name = self.broker, queue.name
        everything = sorted([*ready, *delayed, *(d.entry for d in lent)], key=lambda entry: entry.seq)
        items = sorted(queue.items, key=lambda item: item.seq)
        assert [(e.body, e.priority, e.group) for e in everything] == [
            (i.body, i.priority, i.group) for i in items
        ], name
        seqs = {item.seq: entry.seq for item, entry in zip(items, everything, strict=True)}
        leases = {delivery.entry.seq: delivery for delivery in lent}
        for item, entry in zip(items, everything, strict=True):
            self.compare_one(item, entry, leases.get(entry.seq))
        in_order = [seqs[i.seq] for i in queue.in_order() if i.seq not in queue.delayed]
        assert [entry.seq for entry in ready] == in_order, name
        assert [e.seq for e in delayed] == [
            seqs[i.seq]
            for i in sorted(queue.items, key=lambda i: (i.due_ms, i.seq))
            if i.seq in queue.delayed
        ]
        assert [entry.seq for entry in broker.peek(name, 2)] == in_order[:2]
        for limit in (1, 2):
            assert [entry.seq for entry in broker.peek(name, limit, rear=True)] == in_order[::-1][:limit]
        ids = Counter(item.id for item in queue.items)
        self.twins |= {each for each, count in ids.items() if count > 1}
        self.compare_stats(queue)

    def compare_stats(self, queue: ModelQueue) -> None:
        stats = self.broker.stats(queue.name)
        ready, waiting = queue.ready(), queue.waiting()
        assert (stats.ready, stats.delayed, stats.in_flight) == (
            len(ready),
            len(queue.delayed),
            len(queue.lent()),
        )
        assert stats.waiting_bytes == sum(len(item.body) for item in waiting)
        wanted = self.model.counters[queue.name]
        assert stats.counters == {what: wanted[what] for what in stats.counters}, queue.name

    def compare_one(self, item: Item, entry: Entry, lease: Delivery | None) -> None:
        found = self.broker.message_id(entry)
        assert found == self.real_id(item.id, found)
        assert entry.sent_ms == item.sent_ms
        assert (lease is None) == (item.lease is None)
        extra = entry.extra or Extra()
        if lease is not None and item.lease is not None:
            assert (lease.number, lease.until_ms) == (self.numbers[item.lease[0]], item.lease[1])
            assert lease.count == item.count
        else:
            assert extra.count == item.count
        assert (extra.type, extra.expires_ms, extra.reason) == (item.type, item.expires_ms, item.reason)
        assert (list(extra.deaths), extra.route) == (item.deaths, item.route)
        assert max(extra.due_ms, entry.sent_ms) == max(item.due_ms, item.sent_ms)


def test_whatever_happens_to_queues_redis_does_as_the_model_does(redis_server: Server) -> None:
    class Here(RedisAndModel):
        server = redis_server

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples(25),
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
            deadline=None,
            report_multiple_bugs=False,
        ),
    )
