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
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
    run_state_machine_as_test,
)

from openq.broker.interface import only
from openq.engine.routing import Binding
from openq.errors import (
    MessageNotFoundError,
    OpenQError,
    QueueFull,
    QueueInUse,
    QueueNotFound,
    VisibilityTimeoutExpired,
)
from openq.model import NO_DEADLINE, DeliveryOptions, Draft, MessageFilter, QueueSettings
from tests.budget import examples
from tests.engine.model import Item, ModelQueue
from tests.engine.strategies import FANOUT, drafts, few, index, types
from tests.redis.model_machine import LEASES, KnownReceipt, ModelMachine, names, settings_of_queues
from tests.redis.servers import Server


class RedisAndModel(ModelMachine):
    # -- queues -------------------------------------------------------------------------------

    @rule(name=names, wanted=settings_of_queues)
    def create(self, name: str, wanted: QueueSettings) -> None:
        if name in self.model.queues:
            return
        self.broker.declare(name, wanted)
        self.model.queues[name] = ModelQueue(name, wanted, self.model)
        self.model.counters[name] = Counter()
        self.had_history.discard(name)
        self.note_history(queue_name=name, wanted=wanted)

    def note_history(self, queue_name: str, wanted: QueueSettings) -> None:
        if wanted.history_ms:
            self.had_history.add(queue_name)

    @rule(name=names, wanted=settings_of_queues)
    def change(self, name: str, wanted: QueueSettings) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        wanted = wanted.with_(fifo=queue.settings.fifo)
        changes = queue.settings != wanted
        self.broker.declare(name, wanted, change=True)
        queue.change(wanted, self.now)
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
        self.dropped.append(self.clients[0].get_queue(name).number)
        assert self.broker.delete(name) == len(queue.items)
        del self.model.queues[name]
        self.model.bound = [each for each in self.model.bound if each != name]

    @rule(name=names, waiting_only=st.booleans())
    def purge(self, name: str, waiting_only: bool) -> None:
        queue = self.queue(name)
        if queue is None or len(queue.items) < 3:
            return
        gone = queue.purge(waiting_only)
        assert self.broker.purge(name, waiting_only) == gone
        self.model.count(queue, "removed", gone)

    @rule(name=names)
    def bind(self, name: str) -> None:
        if self.queue(name) is not None:
            assert self.broker.exchanges.bind(Binding(FANOUT, name)) == (name not in self.model.bound)
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
        return draft.id in self.model.twins

    def find_queue(self, queue: ModelQueue, draft: Draft) -> str | None:
        found = self.model.duplicate(queue, draft.body, draft.dedup, draft.unique, draft.id, draft.group)
        if found is not None:
            self.model.count(queue, "deduplicated")
        return found

    @rule(name=names, draft=drafts())
    def publish(self, name: str, draft: Draft) -> None:
        if self.queue(name) is not None and not self.is_twin(draft):
            try:
                reported: str | OpenQError = self.broker.publish(name, copy.copy(draft))
            except OpenQError as error:
                reported = error
            self.follow_publish(name, [draft], [reported])

    @rule(name=names, some=st.lists(drafts(), min_size=1, max_size=5))
    def publish_many(self, name: str, some: list[Draft]) -> None:
        if self.queue(name) is not None and not any(map(self.is_twin, some)):
            results = self.broker.publish_many(name, [copy.copy(each) for each in some])
            ids = [each if isinstance(each, OpenQError) else each[0] for each in results]
            self.follow_publish(name, some, ids)

    def follow_publish(self, name: str, some: list[Draft], reported: list[str | OpenQError]) -> None:
        queue = self.model.queues[name]
        for draft, answer in zip(some, reported, strict=True):
            known = self.find_queue(queue, draft)
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
        options=st.sampled_from(
            (
                None,
                DeliveryOptions(type="t").mark_plain(),
                DeliveryOptions(route=("amq.direct", "key")).mark_plain(),
            )
        ),
    )
    def publish_plain(self, name: str, count: int, alone: bool, options: DeliveryOptions | None) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        bodies = [b"r" * (i % 3) for i in range(count)]
        broker = self.broker
        view = broker.get_queue(name)
        if view.settings != queue.settings or not view.is_plain:
            return  # the fast path has checked that it is open
        if alone:
            seqs = [broker.publish_body(name, body, 1, None, options) for body in bodies]
        else:
            seqs = broker.publish_bodies(name, bodies, 1, None, options) or []
        for body, seq in zip(bodies, seqs, strict=True):
            draft = Draft(body, type=None if options is None else options.type)
            self.enter(queue, draft, broker.inspect.id_of(seq), None if options is None else options.route)

    @rule(draft=drafts())
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
            same = self.find_queue(queue, draft)
            if same is not None:
                known = same
            elif queue.is_full(len(draft.body)):
                full = True
                self.refuse(queue, draft, route)
            else:
                targets.append(queue)
        if full and not targets:
            with pytest.raises(QueueFull):
                self.broker.exchanges.route(*route, copy.copy(draft))
            return
        message_id, reached = self.broker.exchanges.route(*route, copy.copy(draft))
        assert reached == [queue.name for queue in targets]
        if not targets:
            assert message_id == self.ids.get(known, known)
            return
        for queue in targets:
            self.enter(queue, draft, message_id, route)
        if len(targets) > 1 and self.model.sources:
            self.model.sources.add("")  # what has no time to live went on while others still got it
        for queue in targets:
            self.model.overflow(queue)

    # -- out ----------------------------------------------------------------------------------

    @rule(
        name=names,
        limit=few,
        lease_ms=st.sampled_from(LEASES),
        types=types,
        consumer=st.none() | st.just("me too"),
    )
    def receive(
        self, name: str, limit: int, lease_ms: int | None, types: frozenset[str] | None, consumer: str | None
    ) -> None:
        queue = self.queue(name)
        if queue is None:
            return
        wanted = self.model.receive(queue, limit, lease_ms, types)
        got = self.broker.receive(name, limit, lease_ms, consumer, MessageFilter.of(types))
        assert [
            (self.broker.inspect.message_id(d.entry), d.entry.body, d.until_ms, d.count) for d in got
        ] == [
            (
                self.real_id(item.id, self.broker.inspect.message_id(d.entry)),
                item.body,
                (item.lease or ())[1],
                item.count,
            )
            for item, d in zip(wanted, got, strict=True)
        ]
        for item, delivery in zip(wanted, got, strict=True):
            assert item.lease is not None
            self.numbers[item.lease[0]] = delivery.number
            self.receipts.append(KnownReceipt(name, item, delivery))

    def real_id(self, known: str, found: str) -> str:
        """An id that the broker chose where the model could not know: the same from then on."""
        if known.startswith("refused"):
            assert self.ids.setdefault(known, found) == found, f"{known} has two ids"
            return self.ids[known]
        return known

    def receipt(self, which: int) -> tuple[ModelQueue, KnownReceipt, Item | None] | None:
        receipt = self.receipts[-1 - which % len(self.receipts)]
        queue = self.queue(receipt.queue)
        if queue is None:
            if not self.is_over:
                self.receipts = [each for each in self.receipts if each.queue in self.model.queues]
            return None
        return queue, receipt, self.model.live(queue, receipt.seq, receipt.number)

    def refused(self, found: tuple[ModelQueue, KnownReceipt, Item | None], verb: Callable[[], Any]) -> bool:
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
    def check_lost(queue: ModelQueue, receipt: KnownReceipt, error: OpenQError | None) -> None:
        there = any(item.seq == receipt.seq for item in queue.items)
        assert type(error) is (VisibilityTimeoutExpired if there else MessageNotFoundError)

    def own_receipts(self, name: str, which: list[int]) -> list[KnownReceipt]:
        own = [each for each in self.receipts if each.queue == name]
        return [own[-1 - i % len(own)] for i in which] if own else []

    @precondition(lambda self: self.receipts)
    @rule(which=index)
    def ack(self, which: int) -> None:
        found = self.receipt(which)
        if found is None or self.refused(found, lambda: self.broker.ack_one(found[1].queue, *found[1].real)):
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
        if self.broker.ack(queue.name, [receipt.real], late=True) != [None]:
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
        if found is None or self.refused(
            found, lambda: only(self.broker.nack(found[1].queue, [found[1].real]))
        ):
            return
        queue, receipt, item = found
        assert item is not None
        wanted = self.model.give_back(queue, item, "nacked", delay_ms, reason)
        assert self.broker.nack(queue.name, [receipt.real], delay_ms, reason) == [wanted]

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
        if found is None or self.refused(
            found, lambda: only(self.broker.reject(found[1].queue, [found[1].real]))
        ):
            return
        queue, receipt, item = found
        assert item is not None
        wanted = self.model.reject(queue, item, reason)
        assert self.broker.reject(queue.name, [receipt.real], reason) == [wanted]

    @precondition(lambda self: self.receipts)
    @rule(which=index, lease_ms=st.sampled_from((NO_DEADLINE, 0, 1, 30)))
    def extend(self, which: int, lease_ms: int) -> None:
        found = self.receipt(which)
        if found is None or self.refused(
            found, lambda: only(self.broker.extend(found[1].queue, [found[1].real], lease_ms))
        ):
            return
        queue, receipt, item = found
        assert item is not None
        [until] = self.broker.extend(queue.name, [receipt.real], lease_ms)
        assert until == (0 if lease_ms == NO_DEADLINE else self.now + lease_ms)
        item.lease = (receipt.number, until)

    @precondition(lambda self: self.receipts)
    @rule(which=index, lease_ms=st.sampled_from((0, 1, 30)))
    def extend_late(self, which: int, lease_ms: int) -> None:
        found = self.receipt(which)
        if found is not None:
            queue, receipt, _ = found
            wanted = self.model.extend_late(queue, receipt.seq, receipt.number, lease_ms)
            [until] = self.broker.extend(queue.name, [receipt.real], lease_ms, late=True)
            assert (None if isinstance(until, OpenQError) else until) == wanted

    # -- mending ------------------------------------------------------------------------------

    def pick(self, name: str, which: int) -> tuple[ModelQueue, Item, str] | None:
        queue = self.queue(name)
        if queue is None or not queue.items:
            return None
        item = queue.items[which % len(queue.items)]
        if item.id in self.model.twins:
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
        if not self.in_use(item, self.broker.admin.cancel, name, message_id):
            self.broker.admin.cancel(name, message_id)
            self.model.take(queue, item)
        with pytest.raises(MessageNotFoundError):
            self.broker.admin.cancel(name, "nobody")

    @rule(name=names, which=index, draft=drafts())
    def edit(self, name: str, which: int, draft: Draft) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        _, item, message_id = picked
        if not self.in_use(item, self.broker.admin.edit, name, message_id, draft):
            self.broker.admin.edit(name, message_id, draft)
            item.body, item.type = draft.body, draft.type

    @rule(name=names, which=index, due=st.integers(-5, 12))
    def reschedule(self, name: str, which: int, due: int) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        queue, item, message_id = picked
        if self.in_use(item, self.broker.admin.reschedule, name, message_id, self.now + due):
            return
        self.broker.admin.reschedule(name, message_id, self.now + due)
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
        [error] = self.broker.admin.move(name, [message_id], to)
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
        assert self.broker.admin.redrive(name, to) == moved


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
