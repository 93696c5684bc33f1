"""Lanes, pages, timers and the two orders, each against a naive version; and a backlog of several pages."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openq.engine import ready_list as lane_module
from openq.engine.engine import Engine
from openq.engine.ready import FifoOrder, StandardOrder
from openq.engine.ready_list import PAGE, PackedPage, ReadyList
from openq.engine.timers import NEVER, Timers
from openq.model import DeliveryOptions, Draft, Entry, Properties, QueueSettings, plain_options
from tests.budget import examples

from .support import PREFIX, Tape, assert_same, dump, from_snapshot, settled, through_snapshot

INFO = Properties.from_amqp(b"\x00\x00")
LIGHT = plain_options(("", "q"))


@contextmanager
def tiny_pages() -> Iterator[None]:
    """So that a few entries fill several pages."""
    before = lane_module.PAGE, lane_module.PAGE_BYTES
    lane_module.PAGE, lane_module.PAGE_BYTES = 3, 20
    try:
        yield
    finally:
        lane_module.PAGE, lane_module.PAGE_BYTES = before


def entry(seq: int, size: int = 1, *, location: int = 0, options: DeliveryOptions | None = None) -> Entry:
    properties = Properties({"n": seq}) if seq % 3 == 0 else INFO if seq % 8 > 4 else None
    if options is None and seq % 8 > 2:
        options = LIGHT
    return Entry(seq, 1_000 + seq, location, size, seq % 2, b"x" * size, properties, options)


def seqs(entries: Iterator[Entry]) -> list[int]:
    return [each.seq for each in entries]


def same(found: Entry | None, wanted: Entry | None) -> bool:
    if found is None or wanted is None:
        return found is wanted
    return all(getattr(found, name) == getattr(wanted, name) for name in Entry.__slots__)


def test_what_all_messages_of_a_page_share_is_held_once() -> None:
    alike = [Entry(seq, 1, 0, 1, 0, b"x", INFO, LIGHT) for seq in (1, 2, 3)]
    mixed = [*alike, Entry(4, 1, 0, 1, 0, b"x", None, None)]

    one, other = PackedPage.pack(alike), PackedPage.pack(mixed)

    assert one.properties is INFO
    assert one.options is LIGHT
    assert other.properties == (INFO, INFO, INFO, None)
    assert all(map(same, one.entries(), alike))
    assert all(map(same, other.entries(), mixed))
    assert same(one.entry(1), alike[1])
    assert same(other.entry(3), mixed[3])


steps = st.lists(
    st.tuples(
        st.sampled_from(
            ("append", "append", "append", "page", "pop", "put back", "remove", "replace", "find", "first")
        ),
        st.integers(0, 1 << 16),
    ),
    max_size=60,
)


@given(life=steps)
@settings(max_examples=examples(200))
def test_a_lane_is_a_sorted_list(life: list[tuple[str, int]]) -> None:
    with tiny_pages():
        _live(life)


def _live(life: list[tuple[str, int]]) -> None:
    ready_list = ReadyList()
    model: dict[int, Entry] = {}
    out: list[Entry] = []
    next_seq = 1
    for verb, which in life:
        chosen = sorted(model)[which % len(model)] if model else 0
        if verb == "append":
            model[next_seq] = new = entry(next_seq, which % 9)
            ready_list.append(new)
            next_seq += 1 + which % 2
        elif verb == "page":
            many = [entry(next_seq + i) for i in range(1 + which % 4)]
            model |= {each.seq: each for each in many}
            ready_list.append_page(PackedPage.pack(many))
            next_seq += len(many)
        elif verb == "pop":
            first = model.pop(min(model)) if model else None
            popped = ready_list.pop()
            assert same(popped, first)
            out += [popped] if popped is not None else []
        elif verb == "put back" and out:
            back = out.pop(which % len(out))
            model[back.seq] = back
            ready_list.put_back(back)
        elif verb == "remove":
            assert same(ready_list.remove(chosen), model.pop(chosen, None))
        elif verb == "replace":
            other = entry(chosen or next_seq + 5, 7)
            assert ready_list.replace(other) == (chosen in model)
            if chosen in model:
                model[chosen] = other
        elif verb == "find":
            assert same(ready_list.find(chosen), model.get(chosen))
            assert ready_list.find(next_seq + 9) is None
        elif verb == "first":
            assert same(ready_list.first(), model[min(model)] if model else None)
        assert ready_list.count == len(model)
        assert seqs(iter(ready_list)) == sorted(model)
        last = ready_list.last()
        assert (last.seq if last is not None else None) == max(model, default=None)
        loose, pages = ready_list.freeze()
        frozen = loose + [each for page in pages for each in page.entries()]
        assert sorted(each.seq for each in frozen) == sorted(model)
        assert all(same(each, model[each.seq]) for each in frozen)


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    stored=st.booleans(),
    step=st.integers(1, 3),
    large=st.booleans(),
)
def test_a_page_gives_back_what_was_packed(sizes: list[int], stored: bool, step: int, large: bool) -> None:
    """A body that is on disk is not kept a second time."""
    entries = []
    for i, size in enumerate(sizes):
        options = DeliveryOptions(priority=i) if i % 2 else None
        entries.append(entry(7 + i * step, size, location=100 + i if stored else 0, options=options))
    if large:
        entries[-1].sent_ms = 1 << 40

    unpacked = PackedPage.pack(entries).entries()

    for before, after in zip(entries, unpacked, strict=True):
        if stored:
            assert (after.body, after.properties) == (None, None)
            after.body, after.properties = before.body, before.properties
        assert same(after, before)


def test_a_page_that_is_there_can_be_exchanged_and_one_that_is_gone_cannot() -> None:
    ready_list = ReadyList()
    old = PackedPage.pack([entry(1), entry(2)])
    new = PackedPage.pack([entry(1, 5), entry(2, 5)])
    ready_list.append_page(old)

    assert ready_list.swap(old, new)
    assert not ready_list.swap(old, new)
    assert not ready_list.swap(PackedPage.pack([entry(9)]), new)
    assert [each.size for each in ready_list] == [5, 5]


@given(
    life=st.lists(
        st.tuples(st.sampled_from(("add", "add", "due")), st.integers(0, 9_000)), min_size=1, max_size=60
    )
)
@settings(max_examples=examples(150))
def test_timers_come_due_in_order_of_time_and_never_early(life: list[tuple[str, int]]) -> None:
    timers = Timers()
    waiting: list[tuple[int, int]] = []
    now = 5_000
    for number, (verb, amount) in enumerate(life):
        if verb == "add":
            insort(waiting, (now + amount - 2_000, number))
            timers.add(now + amount - 2_000, (now + amount - 2_000, number))
            assert timers.next_ms <= waiting[0][0]
        else:
            now += amount
            due = timers.due(now)
            assert sorted(due) == [each for each in waiting if each[0] <= now]
            assert [each[0] for each in due] == sorted(each[0] for each in due)
            waiting = [each for each in waiting if each[0] > now]
            assert now < timers.next_ms <= min((each[0] for each in waiting), default=NEVER)
        assert timers.size == len(waiting)


def test_a_queue_of_many_pages_hands_out_everything_once_and_in_order() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = engine.create_queue("q", QueueSettings(), 1)
    for i in range(2 * PAGE):
        engine.publish_plain(queue, b"%d" % i, 0, 1)
    engine.publish_run(queue, [b"run"] * PAGE, 0, 1)
    for i in range(PAGE):
        engine.publish(queue, Draft(b"%d" % i, type="t"), 1)
    gone = [5, PAGE + 7, 2 * PAGE + 9, 3 * PAGE + 11, 4 * PAGE]
    for seq in gone:
        assert queue.take_waiting(seq) is not None
        assert queue.take_waiting(seq) is None
    restored = settled(from_snapshot(through_snapshot(engine, 1)), 1)
    assert_same(dump(tape, restored, 1), dump(tape, engine, 1))

    for each in (engine, restored):
        taken: list[int] = []
        while batch := each.receive(each.queue("q"), 100, 2):
            taken += [delivery.entry.seq for delivery in batch]
        assert taken == [seq for seq in range(1, 4 * PAGE + 1) if seq not in gone]
        assert each.queue("q").waiting_bytes == 0


def test_large_messages_close_a_page_early() -> None:
    ready_list = ReadyList()
    for seq in range(1, PAGE + 12):
        ready_list.append(entry(seq, 300_000 if seq > PAGE else 1))

    assert len(ready_list.freeze()[1]) == 2
    assert seqs(iter(ready_list)) == list(range(1, PAGE + 12))


@pytest.mark.parametrize("order", [StandardOrder(), FifoOrder(())])
def test_an_empty_order_has_nothing_to_give(order: StandardOrder | FifoOrder) -> None:
    assert order.pop(0) is None
    assert order.first(0) is None
    assert order.lowest() is None
    assert order.oldest_ms() is None
    assert order.kept_since_ms(()) is None
    assert order.find(1) is None
    assert order.remove(1) is None
    assert not order.replace(entry(1))
    assert list(order) == []
    assert order.freeze() == []


def test_timers_that_no_longer_matter_are_thinned_out() -> None:
    """A long lease acked at once must not be remembered for as long as it would have lasted."""
    engine = Engine(PREFIX)
    queue = engine.create_queue("q", QueueSettings(visibility_ms=43_200_000, retention_ms=1 << 40), 1)
    now = 1
    for _ in range(400):
        engine.publish_run(queue, [b"x"] * 100, 0, now)
        for delivery in engine.receive(queue, 100, now):
            engine.ack(queue, delivery.entry.seq, delivery.number, now)
        now += 2_000
        engine.advance(now)

    assert engine.timers.size < 10_000
    assert sum(map(len, queue.lease_buckets.values())) < 20_000


def test_timers_of_many_queues_are_thinned_out_without_a_count_in_every_call() -> None:
    engine = Engine(PREFIX)
    settings = QueueSettings(ttl_ms=43_200_000)
    queues = [engine.create_queue(f"q{number}", settings, 1) for number in range(100)]
    counts = 0
    count_deadlines = engine.expiry.count_deadlines

    def counted() -> int:
        nonlocal counts
        counts += 1
        return count_deadlines()

    engine.expiry.count_deadlines = counted  # type: ignore[method-assign]
    for queue in queues:
        for _ in range(100):
            engine.publish(queue, Draft(b"x"), 1)
    for _ in range(1_000):
        engine.advance(1)
    assert engine.timers.size > 10_000
    assert 0 < counts < 50

    for queue in queues:
        for delivery in engine.receive(queue, 100, 1):
            engine.ack(queue, delivery.entry.seq, delivery.number, 1)
    for _ in range(100):
        engine.advance(1)
    assert engine.timers.size < 1_000


def test_rebuilt_timers_bring_about_the_same() -> None:
    engine = Engine(PREFIX)
    queue = engine.create_queue("q", QueueSettings(visibility_ms=50, retention_ms=500), 1)
    engine.publish(queue, Draft(b"delayed", delay_ms=20), 1)
    engine.publish(queue, Draft(b"brief", ttl_ms=30), 1)
    engine.publish(queue, Draft(b"brief later", delay_ms=10, ttl_ms=30), 1)
    engine.publish(queue, Draft(b"leased"), 1)
    engine.publish(queue, Draft(b"leased and brief", ttl_ms=40), 1)
    engine.receive(queue, 1, 2)
    assert queue.leases.keys() == {2}

    engine.rebuild_timers()

    engine.advance(21)
    assert seqs(iter(queue.ready)) == [1, 3, 4, 5]
    engine.advance(41)
    assert seqs(iter(queue.ready)) == [1, 4]
    engine.advance(52)
    assert seqs(iter(queue.ready)) == [1, 4]
    assert queue.counters.expired == 3
    engine.advance(501)
    assert seqs(iter(queue.ready)) == [1]
    engine.advance(521)
    assert queue.count == 0


def test_a_fifo_order_takes_the_message_a_record_names_whatever_is_next() -> None:
    """Also when what the heap shows first is not true any more."""
    not_due = {1}
    order = FifoOrder(not_due)
    for seq, group in ((1, "a"), (2, "a"), (3, "b"), (4, "c")):
        order.append(entry(seq, options=DeliveryOptions(group=group)))
    assert order.remove(1) is not None
    order.put_back(entry(1, options=DeliveryOptions(group="a", due_ms=50)))

    taken = [order.take(seq, 10) for seq in (1, 4, 3, 9)]

    assert [each.seq if each is not None else None for each in taken] == [1, 4, 3, None]
    not_due.clear()
    held = [
        order.is_held(entry(seq, options=DeliveryOptions(group=group)))
        for seq, group in ((2, "a"), (9, "b"), (9, "c"))
    ]
    assert held == [True, True, True]
    order.end_batch()
    assert order.pop(60) is None
    order.delivery_ended(entry(1, options=DeliveryOptions(group="a")), 60)
    order.delivery_ended(entry(5, options=DeliveryOptions(group="nobody")), 60)
    popped = order.pop(60)
    assert popped is not None
    assert popped.seq == 2


def test_a_fifo_order_takes_a_page_message_by_message() -> None:
    order = FifoOrder(())

    order.append_page(PackedPage.pack([entry(1), entry(2)]))

    assert seqs(iter(order)) == [1, 2]
    assert order.count == 2


def test_messages_packed_away_still_expire_after_timers_are_rebuilt() -> None:
    engine = Engine(PREFIX)
    queue = engine.create_queue("q", QueueSettings(), 1)
    for i in range(3 * PAGE):
        engine.publish(queue, Draft(b"", ttl_ms=50 if i % 2 else None, type="t"), 1)
    engine.rebuild_timers()

    engine.advance(51)

    assert queue.count == 3 * PAGE // 2
