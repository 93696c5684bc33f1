"""The engine against a model that is slow and obviously right, over random lives of random queues.

After every step contents, order and counts agree; and the state is the same again when it is rebuilt from the
records, from a snapshot, from a snapshot and the records after it, and from the end of a journal whose
beginning was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from openq.engine import admin, progress
from openq.engine.engine import Engine
from openq.engine.queue import QueueState
from openq.engine.records import (
    COPY,
    DEAD_OVERFLOW,
    DELIVER,
    MOVE,
    REMOVE,
    REMOVED_OVERFLOW,
    RETURN,
    Record,
    content,
    decode,
)
from openq.engine.replay import checkpoint
from openq.engine.routing import Binding
from openq.errors import MessageNotFoundError, OpenQError, QueueFull, QueueInUse, VisibilityTimeoutExpired
from openq.model import NO_DEADLINE, DeliveryOptions, Draft, Entry, MessageFilter, Properties, QueueSettings
from tests.budget import examples

from .comparison import Watched, assert_agree, without_twins
from .model import Item, Model, ModelQueue
from .strategies import FANOUT, NAMES, drafts, few, index, queue_settings, types
from .support import (
    PREFIX,
    Tape,
    assert_same,
    dump,
    from_snapshot,
    settled,
    through_snapshot,
)

# Shared by many messages, as a protocol does: a change in place is detected.
WIRE_INFO = Properties.from_amqp(b"\x80\x00\x03a/b", "someone")
INFOS = (None, WIRE_INFO, Properties({"k": b"v"}))
LIGHT_EXTRAS = (
    None,
    DeliveryOptions(type="t").mark_plain(),
    DeliveryOptions(route=("amq.direct", "key")).mark_plain(),
)
LEASES: tuple[int | None, ...] = (None, NO_DEADLINE, 1, 5, 40)


class _AnyError:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenQError)


ANY_ERROR = _AnyError()
names = st.sampled_from(NAMES)
maybe_ms = st.none() | st.integers(1, 12)

settings_of_queues = queue_settings(names, limits=3, rates=(None, "500/s", "250/s burst 2"))
any_draft = drafts(properties=st.sampled_from((None, None, WIRE_INFO)))


@pytest.fixture(autouse=True, scope="module")
def small_pages() -> Iterator[None]:
    """Few messages fill a page of delayed ones, so that every rule meets pages too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("openq.engine.delayed.PAGE", 3)
        yield


class EngineAndModel(RuleBasedStateMachine):
    @initialize(stored=st.booleans(), wanted=st.lists(settings_of_queues, min_size=3, max_size=4))
    def begin(self, stored: bool, wanted: list[QueueSettings]) -> None:
        self.filters: dict[frozenset[str] | None, MessageFilter | None] = {}
        self.tape = Tape(stored=stored)
        self.events: list[Any] = []
        self.engine = Watched(self.events, self.log_record)
        self.model = Model(PREFIX)
        self.now = self.model.now_ms = 1_000
        self.receipts: list[tuple[str, int, int]] = []
        self.snapshots: list[tuple[int, list[bytes]]] = []
        self.start: tuple[int, int] | None = None  # record number and location of a checkpoint
        self.complete_start: int | None = None  # one before which no live message lies any more
        for name, each in zip(NAMES, wanted, strict=False):
            self.create(name, each)

    def log_record(self, record: Record) -> int:
        location = self.tape(record)
        self.events.append(record)
        return location

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            assert_agree(self.engine, self.model, self.now)

        live = self.state(self.engine)
        assert_same(self.state(settled(self.tape.rebuilt(), self.now)), live)
        if self.tape.stored:  # what is only in memory has no snapshots
            for number, chunks in self.snapshots[-4:]:
                restored = settled(self.tape.rebuilt(number, from_snapshot(chunks)), self.now)
                assert_same(without_twins(self.state(restored)), without_twins(live))
            if self.complete_start is not None:
                suffix = settled(self.tape.rebuilt(self.complete_start), self.now)
                wanted = self.state(self.engine, exact=False)
                assert_same(without_twins(self.state(suffix, exact=False)), without_twins(wanted))

    def state(self, engine: Engine, *, exact: bool = True) -> dict[str, Any]:
        return dump(self.tape, engine, self.now, exact=exact)

    # -- queues -------------------------------------------------------------------------------

    @rule(name=names, wanted=settings_of_queues)
    def create(self, name: str, wanted: QueueSettings) -> None:
        if name in self.model.queues:
            return
        self.engine.create_queue(name, wanted, self.now)
        self.model.queues[name] = ModelQueue(name, wanted, self.model)

    @rule(name=names, wanted=settings_of_queues)
    def change(self, name: str, wanted: QueueSettings) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        wanted = wanted.with_(fifo=queue.settings.fifo)
        changes = queue.settings != wanted
        self.engine.change_queue(name, wanted, self.now)
        queue.change(wanted, self.now)
        if changes:
            self.model.overflow(queue)  # a lower limit counts at once
        self.tick(1)  # a shorter retention takes effect with the next moment

    @rule(name=names, chance=st.integers(0, 9))
    def delete(self, name: str, chance: int) -> None:
        queue = self.model.queues.get(name)
        if queue is None or chance:
            return
        assert self.engine.delete_queue(name, self.now) == len(queue.items)
        del self.model.queues[name]
        self.model.bound = [each for each in self.model.bound if each != name]

    @rule(name=names, waiting_only=st.booleans())
    def purge(self, name: str, waiting_only: bool) -> None:
        queue = self.model.queues.get(name)
        if queue is None or len(queue.items) < 3:
            return
        gone = queue.purge(waiting_only)
        assert admin.purge(self.engine, self.engine.queue(name), self.now, waiting_only) == gone

    # -- in -----------------------------------------------------------------------------------

    @rule(name=names, draft=any_draft)
    def publish(self, name: str, draft: Draft) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        known = self.model.duplicate(queue, draft.body, draft.dedup, draft.unique, draft.id, draft.group)
        if known is None and queue.is_full(len(draft.body)):
            if queue.settings.overflow == "reject":
                assert isinstance(self.attempt(self.engine.publish, name, draft, self.now), QueueFull)
                return
            self.refuse(queue, draft)
            with pytest.raises(QueueFull):
                self.engine.publish(self.engine.queue(name), draft, self.now)
            return
        message_id, duplicate = self.engine.publish(self.engine.queue(name), draft, self.now)
        assert duplicate == (known is not None)
        if known is not None:
            assert message_id == known
            return
        item = self.item(draft, message_id)
        assert message_id == draft.id or message_id == f"{PREFIX}{item.seq:012x}"
        self.model.enter(queue, item, delay_ms=draft.delay_ms, ttl_ms=draft.ttl_ms, dedup=draft.dedup)
        self.model.overflow(queue)

    def refuse(self, queue: ModelQueue, draft: Draft, route: tuple[str, str] | None = None) -> None:
        """What a full queue does not take may become a dead letter all the same."""
        message_id = draft.id or f"{PREFIX}{self.model.seq:012x}"
        refused = Item(message_id, 0, draft.body, self.now, draft.priority, draft.group, draft.type)
        refused.route = route
        self.model.refuse(queue, refused)

    def item(self, draft: Draft, message_id: str) -> Item:
        self.model.seq += 1
        return Item(
            message_id,
            self.model.seq - 1,
            draft.body,
            self.now,
            draft.priority,
            draft.group,
            draft.type,
            unique=draft.unique,
        )

    @rule(
        name=names,
        count=few | st.just(20),
        alone=st.booleans(),
        properties=st.sampled_from(INFOS),
        options=st.sampled_from(LIGHT_EXTRAS),
    )
    def publish_plain(
        self,
        name: str,
        count: int,
        alone: bool,
        properties: Properties | None,
        options: DeliveryOptions | None,
    ) -> None:
        queue = self.engine.queues.get(name)
        if queue is None or not queue.is_plain:
            return
        bodies = [b"r" * (i % 3) for i in range(count)]
        if alone:
            for body in bodies:
                self.engine.publish_plain(queue, body, 1, self.now, properties, options)
        else:
            self.engine.publish_run(queue, bodies, 1, self.now, properties, options)
        for body in bodies:
            draft = Draft(body, type=None if options is None else options.type)
            item = self.item(draft, f"{PREFIX}{self.model.seq:012x}")
            item.route = None if options is None else options.route
            self.model.enter(self.model.queues[name], item)

    @rule(name=names)
    def bind(self, name: str) -> None:
        if name in self.model.queues:
            new = admin.bind(self.engine, Binding(FANOUT, name), self.now)
            assert new == (name not in self.model.bound)
            if new:
                self.model.bound.append(name)

    @rule(draft=any_draft)
    def route(self, draft: Draft) -> None:
        """Into every queue that is bound, has not got it and is not full; as one message with one id."""
        route = (FANOUT, "key")
        targets = []
        known = ""
        full = False
        buried = False
        for name in self.model.bound:
            queue = self.model.queues[name]
            same = self.model.duplicate(queue, draft.body, draft.dedup, draft.unique, draft.id, draft.group)
            if same is not None:
                known = same
            elif queue.is_full(len(draft.body)):
                full = True
                buried = buried or queue.settings.overflow == "reject-dead-letter"
                self.refuse(queue, draft, route)
            else:
                targets.append(queue)
        if full and not targets:
            if buried:
                with pytest.raises(QueueFull):
                    self.engine.route(*route, draft, self.now)
            else:
                assert isinstance(self.attempt(self.engine.route, *route, draft, self.now), QueueFull)
            return
        message_id, reached = self.engine.route(*route, draft, self.now)
        assert reached == [queue.name for queue in targets]
        if not targets:
            assert message_id == known
            return
        for queue in targets:
            item = self.item(draft, message_id)
            item.route = route
            self.model.enter(
                queue,
                item,
                delay_ms=draft.delay_ms,
                ttl_ms=draft.ttl_ms,
                dedup=draft.dedup,
            )
        for queue in targets:
            self.model.overflow(queue)

    # -- out ----------------------------------------------------------------------------------

    @rule(
        name=names,
        limit=few,
        lease_ms=st.sampled_from(LEASES),
        types=types,
        consumer=st.none() | st.just("me"),
    )
    def receive(
        self, name: str, limit: int, lease_ms: int | None, types: frozenset[str] | None, consumer: str | None
    ) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        wanted = self.model.receive(queue, limit, lease_ms, types)
        kept = self.filters.setdefault(types, MessageFilter.of(types))  # it remembers how far it has looked
        got = self.engine.receive(self.engine.queue(name), limit, self.now, lease_ms, consumer, kept)
        assert [(d.entry.seq, d.number, d.until_ms, d.count) for d in got] == [
            (item.seq, *(item.lease or ()), item.count) for item in wanted
        ]
        self.receipts += [(name, delivery.entry.seq, delivery.number) for delivery in got]

    def receipt(self, which: int) -> tuple[ModelQueue, QueueState, int, int, Item | None]:
        """One given out some time, live or not."""
        name, seq, number = self.receipts[-1 - which % len(self.receipts)]
        queue = self.model.queues.get(name)
        if queue is None:
            self.receipts = [each for each in self.receipts if each[0] in self.model.queues]
            queue = ModelQueue(name, QueueSettings(), self.model)
            return queue, QueueState(name, 999, QueueSettings(), 0), seq, number, None
        return queue, self.engine.queue(name), seq, number, self.model.live(queue, seq, number)

    def refused(self, queue: ModelQueue, seq: int, verb: Callable[..., Any], *args: Any) -> None:
        """A receipt that is not live any more touches nothing, and says what became of its message."""
        error = self.attempt(verb, *args)
        there = any(item.seq == seq for item in queue.items)
        assert isinstance(error, VisibilityTimeoutExpired if there else MessageNotFoundError)

    @precondition(lambda self: self.receipts)
    @rule(which=index)
    def ack(self, which: int) -> None:
        queue, real, seq, number, item = self.receipt(which)
        if item is None:
            self.refused(queue, seq, self.engine.ack, real, seq, number, self.now)
            return
        self.engine.ack(real, seq, number, self.now)
        self.model.take(queue, item)

    @precondition(lambda self: self.receipts)
    @rule(name=names, which=st.lists(index, max_size=5))
    def ack_many(self, name: str, which: list[int]) -> None:
        queue = self.model.queues.get(name)
        own = [each for each in self.receipts if each[0] == name]
        if queue is None or not own:
            return
        chosen = [own[-1 - i % len(own)][1:] for i in which]
        results = self.engine.ack_many(self.engine.queue(name), chosen, self.now)
        for (seq, number), result in zip(chosen, results, strict=True):
            item = self.model.live(queue, seq, number)
            assert (item is None) == (result is not None)
            if item is not None:
                self.model.take(queue, item)

    @precondition(lambda self: self.receipts)
    @rule(which=index)
    def ack_late(self, which: int) -> None:
        queue, real, seq, number, item = self.receipt(which)
        if queue.name not in self.model.queues:
            return
        found = item or self.model.find(queue.name, seq)
        free = found is not None and (item is not None or found.lease is None)
        done = self.engine.ack_late(real, seq, number, self.now)
        if not done:
            # A release leaves no trace of its delivery, so its receipt is not known any more.
            assert not free or found is None or found.lease is None
            return
        assert found is not None
        assert free
        self.model.take(queue, found)

    @precondition(lambda self: self.receipts)
    @rule(which=index, delay_ms=st.none() | st.sampled_from((0, 4)), reason=st.none() | st.just("bad"))
    def nack(self, which: int, delay_ms: int | None, reason: str | None) -> None:
        queue, real, seq, number, item = self.receipt(which)
        if item is None:
            self.refused(queue, seq, self.engine.nack, real, seq, number, self.now)
            return
        wanted = self.model.give_back(queue, item, "nacked", delay_ms, reason)
        assert self.engine.nack(real, seq, number, self.now, delay_ms, reason) == wanted

    @precondition(lambda self: self.receipts)
    @rule(which=index)
    def release(self, which: int) -> None:
        queue, real, seq, number, item = self.receipt(which)
        if item is None:
            self.refused(queue, seq, self.engine.release, real, seq, number, self.now)
            return
        self.engine.release(real, seq, number, self.now)
        self.model.give_back(queue, item, "released", 0, None)

    @precondition(lambda self: self.receipts)
    @rule(which=index, reason=st.none() | st.just("no"))
    def reject(self, which: int, reason: str | None) -> None:
        queue, real, seq, number, item = self.receipt(which)
        if item is None:
            self.refused(queue, seq, self.engine.reject, real, seq, number, self.now)
            return
        wanted = self.model.reject(queue, item, reason)
        assert self.engine.reject(real, seq, number, self.now, reason) == wanted

    def own_receipts(self, name: str, which: list[int]) -> list[tuple[int, int]]:
        own = [each for each in self.receipts if each[0] == name]
        return [own[-1 - i % len(own)][1:] for i in which] if own else []

    @precondition(lambda self: self.receipts)
    @rule(
        name=names,
        which=st.lists(index, max_size=5),
        delay_ms=st.none() | st.sampled_from((0, 4)),
        reason=st.none() | st.just("bad"),
    )
    def nack_many(self, name: str, which: list[int], delay_ms: int | None, reason: str | None) -> None:
        """One after the other; those that go back do so when those that die are gone."""
        queue = self.model.queues.get(name)
        if queue is None:
            return
        chosen = list(dict.fromkeys(self.own_receipts(name, which)))
        live = {each: item for each in chosen if (item := self.model.live(queue, *each)) is not None}
        found = list(live.values())
        limit = queue.settings.max_receives
        dying = [
            item
            for item in found
            if item.is_over(queue.settings.retention_ms, self.now) or (limit and item.count >= limit)
        ]
        wanted = {
            each: self.model.give_back(queue, item, "nacked", delay_ms, reason)
            for each, item in sorted(live.items(), key=lambda pair: pair[1] not in dying)
        }
        results = self.engine.nack_many(self.engine.queue(name), chosen * 2, self.now, delay_ms, reason)
        assert results[: len(chosen)] == [wanted.get(each, ANY_ERROR) for each in chosen]
        assert results[len(chosen) :] == [ANY_ERROR] * len(chosen)

    @precondition(lambda self: self.receipts)
    @rule(name=names, which=st.lists(index, max_size=5), reason=st.none() | st.just("no"))
    def reject_many(self, name: str, which: list[int], reason: str | None) -> None:
        queue = self.model.queues.get(name)
        if queue is None:
            return
        chosen = list(dict.fromkeys(self.own_receipts(name, which)))
        live = {each: item for each in chosen if (item := self.model.live(queue, *each)) is not None}
        wanted = {each: self.model.reject(queue, item, reason) for each, item in live.items()}
        results = self.engine.reject_many(self.engine.queue(name), chosen * 2, self.now, reason)
        assert results[: len(chosen)] == [wanted.get(each, ANY_ERROR) for each in chosen]
        assert results[len(chosen) :] == [ANY_ERROR] * len(chosen)

    @precondition(lambda self: self.receipts)
    @rule(which=index, lease_ms=st.sampled_from((NO_DEADLINE, 1, 30)))
    def extend(self, which: int, lease_ms: int) -> None:
        queue, real, seq, number, item = self.receipt(which)
        if item is None:
            self.refused(queue, seq, self.engine.extend, real, seq, number, self.now, lease_ms)
            return
        until = self.engine.extend(real, seq, number, self.now, lease_ms)
        assert until == (0 if lease_ms == NO_DEADLINE else self.now + lease_ms)
        item.lease = (number, until)

    @precondition(lambda self: self.receipts)
    @rule(which=index, lease_ms=st.sampled_from((1, 30)))
    def extend_late(self, which: int, lease_ms: int) -> None:
        queue, real, seq, number, _ = self.receipt(which)
        if queue.name in self.model.queues:
            wanted = self.model.extend_late(queue, seq, number, lease_ms)
            assert self.engine.extend_late(real, seq, number, self.now, lease_ms) == wanted

    # -- mending ------------------------------------------------------------------------------

    def pick(self, name: str, which: int) -> tuple[ModelQueue, QueueState, Item] | None:
        queue = self.model.queues.get(name)
        if queue is None or not queue.items:
            return None
        item = queue.items[which % len(queue.items)]
        # Two messages of one id (routed to two queues, then brought together): the id names the newer.
        if any(other.id == item.id and other is not item for other in queue.items):
            return None
        if self.engine.seq_of(self.engine.queue(name), item.id) != item.seq:
            return None  # it had such a twin, and keeps being without a name
        return queue, self.engine.queue(name), item

    def in_use(self, item: Item, verb: Callable[..., Any], *args: Any) -> bool:
        if item.lease is None:
            return False
        assert isinstance(self.attempt(verb, *args), QueueInUse)
        return True

    @rule(name=names, which=index)
    def cancel(self, name: str, which: int) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        queue, real, item = picked
        if not self.in_use(item, admin.cancel, self.engine, real, item.id, self.now):
            admin.cancel(self.engine, real, item.id, self.now)
            self.model.take(queue, item)

    @rule(name=names, which=index, draft=any_draft)
    def edit(self, name: str, which: int, draft: Draft) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        _, real, item = picked
        if not self.in_use(item, admin.edit, self.engine, real, item.id, self.now, draft):
            admin.edit(self.engine, real, item.id, self.now, draft)
            item.body, item.type = draft.body, draft.type

    @rule(name=names, which=index, due=st.integers(-5, 12))
    def reschedule(self, name: str, which: int, due: int) -> None:
        picked = self.pick(name, which)
        if picked is None:
            return
        queue, real, item = picked
        if self.in_use(item, admin.reschedule, self.engine, real, item.id, self.now + due, self.now):
            return
        if item.is_brief(self.now):
            return  # a broker lets nobody near it before it is over
        admin.reschedule(self.engine, real, item.id, self.now + due, self.now)
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
        queue, real, item = picked
        [error] = admin.move(self.engine, real, [item.id], self.engine.queue(to), self.now)
        assert (error is None) == (item.lease is None and to != name)
        if error is None:
            self.model.move(queue, item, self.model.queues[to])

    @rule(name=names, to=st.none() | names)
    def redrive(self, name: str, to: str | None) -> None:
        queue = self.model.queues.get(name)
        if queue is None or (to is not None and to not in self.model.queues):
            return
        real = self.engine.queue(name)
        chosen = [entry for entry in admin.browse(self.engine, real, "ready") if entry.options is not None]
        entries = [entry for entry in chosen if entry.options is not None and entry.options.deaths]
        moved = 0
        for entry in entries:
            item = self.model.find(name, entry.seq)
            if item is None:
                continue  # an overflow on the way took it
            target = to or item.deaths[0].queue
            if target in self.model.queues and target != name:
                self.model.move(queue, item, self.model.queues[target], redriven=True)
                moved += 1
        assert admin.redrive(self.engine, real, entries, to, self.now) == moved

    # -- time ---------------------------------------------------------------------------------

    @rule(ms=st.integers(1, 30))
    def tick(self, ms: int) -> None:
        for _ in range(ms):
            self.now += 1
            self.model.now_ms = self.now
            self.events.clear()
            self.engine.advance(self.now)
            for event in self.events:
                self.follow(event)
            for queue in self.model.queues.values():
                for item in queue.items:
                    if item.lease is not None:
                        assert not 0 < item.lease[1] <= self.now, "a lease outlived its deadline"
                    else:
                        over = item.is_over(queue.settings.retention_ms, self.now)
                        assert not over or item.is_brief(self.now), "older than allowed"
                        assert item.seq not in queue.delayed or item.due_ms > self.now, "due, and not ready"

    def follow(self, event: Any) -> None:
        """Time brought this about: the model agrees that it was time, and does the same."""
        if isinstance(event[0], str):
            name, seq = event
            item = self.model.find(name, seq)
            assert item is not None
            assert item.due_ms <= self.now
            self.model.queues[name].delayed.remove(seq)
            self.model.queues[name].refresh_turns()
            return
        kind, number, seqs = event[0], event[2], []
        if kind == RETURN:
            seqs = [seq for seq, _ in event[6]]
        elif kind == MOVE and event[4] != DEAD_OVERFLOW:
            seqs = [event[3]]
        elif kind == REMOVE and event[4] != REMOVED_OVERFLOW:
            seqs = event[5]
        else:
            assert kind in (MOVE, REMOVE)  # what overflowed through it; the model does so itself
        queue = self.model.queues[self.engine.numbered[number].name]
        for seq in seqs:
            item = self.model.find(queue.name, seq)
            assert item is not None
            if item.lease is not None:
                assert 0 < item.lease[1] <= self.now
                self.model.give_back(queue, item, "expired", None, None)
            else:
                assert item.is_over(queue.settings.retention_ms, self.now)
                self.model.expire(queue, item)

    @rule()
    def rebuild_timers(self) -> None:
        self.engine.rebuild_timers()

    @rule(job=st.sampled_from("ab"), batch=st.integers(0, 3), is_last=st.booleans())
    def mark(self, job: str, batch: int, is_last: bool) -> None:
        progress.record_progress(self.engine, job, "", batch, batch + 1, is_last, 0, self.now)

    # -- restarts -----------------------------------------------------------------------------

    @rule()
    def snapshot(self) -> None:
        if self.tape.stored:
            chunks = through_snapshot(self.engine, self.now)
            restored = settled(from_snapshot(chunks), self.now)
            assert_same(without_twins(self.state(restored)), without_twins(self.state(self.engine)))
            self.snapshots.append((len(self.tape.records), chunks))

    @rule()
    def begin_segment(self) -> None:
        if self.tape.stored and self.start is None:
            self.start = (len(self.tape.records), self.tape.end)
            self.tape(checkpoint(self.engine, self.now))

    @rule()
    def copy_forward(self) -> None:
        """What lies before the checkpoint is written again, as housekeeping does."""
        if self.start is None:
            return
        number, location = self.start
        for queue in self.engine.queues.values():
            leased = {seq: lease.entry for seq, lease in queue.leases.items()}
            for entry in [*queue.ready, *queue.delayed.values(), *leased.values()]:
                current = queue.find(entry.seq)
                assert current is not None
                if current.location < location:
                    self.copy(queue, current)
        self.complete_start = number
        self.start = None

    def copy(self, queue: QueueState, entry: Entry) -> None:
        encoding, body, properties = content(self.tape.read(entry.location))
        head = (COPY, self.now, queue.number, entry.seq, entry.sent_ms)
        location = self.tape((*head, encoding, body, properties, entry.options))
        lease = queue.leases.get(entry.seq)
        if lease is not None:
            what = (lease.until_ms, lease.consumer, (entry.seq,))
            self.tape((DELIVER, lease.delivered_ms, queue.number, lease.number, *what))
        self.engine.replace_entry(
            queue, Entry(entry.seq, entry.sent_ms, location, entry.size, encoding, None, None, entry.options)
        )

    # -- comparing ----------------------------------------------------------------------------

    def attempt(self, verb: Callable[..., Any], *args: Any) -> OpenQError:
        """The error of a call that must fail, and change nothing."""
        args = tuple(self.engine.queue(a) if verb == self.engine.publish and a in NAMES else a for a in args)
        before = self.state(self.engine)
        try:
            verb(*args)
        except OpenQError as error:
            assert_same(self.state(self.engine), before)
            return error
        raise AssertionError(f"{verb} should have been refused")

    @invariant()
    def agree(self) -> None:
        if hasattr(self, "engine"):
            assert_agree(self.engine, self.model, self.now)


EngineAndModel.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=37,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    report_multiple_bugs=False,
)
TestEngineAndModel = EngineAndModel.TestCase


def test_every_record_of_a_life_can_be_read_back() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = engine.create_queue("q", QueueSettings(dead_letter="dead"), 1)
    engine.create_queue("dead", QueueSettings(), 1)
    engine.publish(queue, Draft(b"x", type="t"), 2)
    [delivery] = engine.receive(queue, 1, 3)
    engine.reject(queue, delivery.entry.seq, delivery.number, 4, "bad")

    kinds = [decode(data)[0] for _, data in tape.records]

    assert kinds[2:] == [1, DELIVER, MOVE]
    assert_same(dump(tape, tape.rebuilt(), 4), dump(tape, engine, 4))
