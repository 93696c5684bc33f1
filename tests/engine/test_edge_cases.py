"""Branches that ordinary traffic seldom takes."""

from __future__ import annotations

import pytest

from openq.engine import admin
from openq.engine.engine import Engine
from openq.engine.ready import FifoOrder, StandardOrder
from openq.engine.ready_list import PackedPage, ReadyList
from openq.engine.rebuild import rebuild
from openq.engine.record_values import plain_copy
from openq.engine.records import (
    ACK,
    COPY,
    DELIVER,
    EXCHANGE,
    ITEM,
    PUBLISH,
    QUEUE,
    Record,
    _equal_heads,
    _heads,
    decode,
    encode,
)
from openq.engine.replay import apply, checkpoint
from openq.engine.routing import Binding, Exchange
from openq.engine.snapshot import SegmentUsage, freeze
from openq.engine.snapshot import decode as load
from openq.engine.snapshot import encode as chunks
from openq.engine.timers import WAKE
from openq.errors import DiskFull, InvalidSetting
from openq.model import DeliveryOptions, Draft, Entry, QueueSettings


def recorded() -> tuple[Engine, list[Record]]:
    records: list[Record] = []

    def log(record: Record) -> int:
        records.append(decode(encode(record)))
        return len(records) << 32 | 64

    return Engine("p-", log=log), records


def rebuilt(records: list[Record]) -> Engine:
    engine = Engine("p-")
    for i, record in enumerate(records):
        apply(engine, record, i + 1 << 32 | 64)
    return engine


def grouped(seq: int, group: str, due_ms: int = 0) -> Entry:
    return Entry(seq, 0, 0, 1, 0, b"x", None, DeliveryOptions(group=group, due_ms=due_ms))


def test_why_says_that_a_free_message_of_a_fifo_group_is_next() -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(fifo=True), 0)
    message_id, _ = engine.publish(queue, Draft(b"a", group="g"), 0)

    assert admin.why(engine, queue, message_id, 0).text.startswith("ready: it is next")


def test_exchanges_come_back_as_they_were_and_repeated_changes_change_nothing() -> None:
    engine, records = recorded()
    engine.create_queue("q", QueueSettings(), 0)
    admin.declare_exchange(engine, Exchange("kept", "fanout"), 0)
    admin.declare_exchange(engine, Exchange("gone", "direct"), 0)
    assert not admin.declare_exchange(engine, Exchange("gone", "direct"), 0)
    binding = Binding("kept", "q")
    admin.bind(engine, binding, 0)
    admin.delete_exchange(engine, "gone", 0)

    again = rebuilt([*records, *records[1:]])

    assert again.router.dump() == engine.router.dump()
    for change in records[1:]:  # a delete or a binding whose exchange is not there
        if change[4]["op"] != "declare":
            apply(Engine("p-"), change, 0)


def test_a_record_about_a_missing_queue_is_skipped() -> None:
    engine = Engine("p-")

    apply(engine, (ACK, 0, 7, 1, (1,)), 0)

    assert engine.queues == {}


def test_a_message_whose_queue_was_lost_gets_one_and_the_checkpoint_has_its_name() -> None:
    engine, records = recorded()
    lost = engine.create_queue("recovered-2", QueueSettings(), 0)
    engine.create_queue("other", QueueSettings(max_receives=4), 0)
    engine.publish(engine.queue("other"), Draft(b"body"), 5)
    without = [record for record in records if not (record[0] == QUEUE and record[2] == 2)]

    damaged = rebuilt(without)
    assert damaged.orphans == {2}
    assert damaged.numbered[2].name == "recovered-2x"  # the name is taken
    apply(damaged, checkpoint(engine, 9), 0)

    assert lost.name in damaged.queues
    assert damaged.orphans == set()
    assert damaged.queue("other").settings.max_receives == 4
    assert damaged.queue("other").ready.count == 1


def test_the_definition_of_a_lost_queue_may_come_with_a_later_change() -> None:
    engine, records = recorded()
    engine.create_queue("q", QueueSettings(), 0)
    engine.publish(engine.queue("q"), Draft(b"body"), 5)
    engine.change_queue("q", QueueSettings(delay_ms=7), 6)

    damaged = rebuilt(records[1:])

    assert damaged.queue("q").settings.delay_ms == 7
    assert damaged.queue("q").ready.count == 1


def test_a_copy_of_a_message_in_flight_leaves_it_in_flight() -> None:
    engine, records = recorded()
    queue = engine.create_queue("q", QueueSettings(), 0)
    engine.publish(queue, Draft(b"body"), 0)
    engine.receive(queue, 1, 1)

    again = rebuilt([*records, (COPY, 2, queue.number, 1, 0, 0, b"body", None, None)])

    assert again.queue("q").leases[1].entry.location == len(records) + 1 << 32 | 64
    assert again.queue("q").waiting_bytes == 0


def test_a_run_of_several_sizes_in_memory() -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(), 0)

    engine.publish_run(queue, [b"a", b"bcd"], 0, 0)

    assert [delivery.entry.body for delivery in engine.receive(queue, 2, 0)] == [b"a", b"bcd"]


def test_a_receive_of_many_that_cannot_be_logged_puts_all_back() -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(fifo=True), 0)
    for body in (b"a", b"b", b"c"):
        engine.publish(queue, Draft(body, group="g"), 0)

    def refuse(record: Record) -> int:
        raise DiskFull("test")

    engine.log = refuse
    with pytest.raises(DiskFull):
        engine.receive(queue, 3, 0)
    engine.log = None

    assert [delivery.entry.body for delivery in engine.receive(queue, 3, 0)] == [b"a", b"b", b"c"]


def test_orders_skip_what_is_out_of_date() -> None:
    shared = StandardOrder()
    shared.append(Entry(1, 0, 0, 1, 0, b"", None, DeliveryOptions(priority=3)))
    shared.append(Entry(2, 0, 0, 1, 0, b"", None, None))
    assert shared.remove(1) is not None
    assert shared.take(2, 0) is not None
    assert shared.pop(0) is None

    fifo = FifoOrder(())
    fifo.append(grouped(1, "g"))
    fifo.append(grouped(2, "g"))
    assert fifo.pop(0) is not None
    fifo.end_batch()
    fifo.due(grouped(2, "g"))  # the group is out: it is offered when it settles
    assert fifo.pop(0) is None
    assert fifo.remove(2) is not None  # the last of a group that is out
    fifo.delivery_ended(grouped(1, "g"), 0)
    assert fifo.pop(0) is None

    gone = FifoOrder(())
    gone.append(grouped(1, "a"))
    gone.remove(1)
    assert gone.take(1, 0) is None

    other = FifoOrder({1})
    other.append(grouped(1, "a"))
    other.append(grouped(2, "b"))
    other.remove(1)
    other.put_back(grouped(1, "a", due_ms=50))
    assert other.take(1, 0) is not None  # not due, so not next, yet it can be taken


def test_plain_values_are_copied_and_others_refused() -> None:
    deep: object = 1
    for _ in range(100):
        deep = [deep]

    assert plain_copy({"a": bytearray(b"x"), "b": (1, None)}) == {"a": b"x", "b": [1, None]}
    for bad in (deep, {"a": object()}):
        with pytest.raises(InvalidSetting):
            plain_copy(bad)


def test_ready_made_heads_are_bounded() -> None:
    for size in range(200):
        _equal_heads(size, ITEM, 0, 2)

    assert len(_heads) <= 64


def test_pages_without_a_place_on_disk_use_no_segment() -> None:
    usage = SegmentUsage()
    usage.add_page(PackedPage.pack([Entry(1, 0, 0, 1, 0, b"x", None, None)]))

    assert usage.live == {}


def test_a_snapshot_needs_its_end_and_skips_what_it_does_not_know() -> None:
    engine, _ = recorded()
    queue = engine.create_queue("q", QueueSettings(), 0)
    engine.publish(queue, Draft(b"x"), 0)
    whole = list(chunks(freeze(engine, 0)))
    with pytest.raises(InvalidSetting, match="without its end"):
        load(whole[:-1], Engine("p-"))

    loose = Engine("p-")
    load([whole[0], b"R", whole[-1]], loose)  # entries that belong to no queue

    assert loose.queues == {}


def test_a_counter_of_a_later_version_is_skipped() -> None:
    engine, _ = recorded()
    engine.create_queue("q", QueueSettings(), 0)
    whole = [chunk.replace(b'"acked"', b'"future"') for chunk in chunks(freeze(engine, 0))]
    again = Engine("p-")

    load(whole, again)

    assert again.queue("q").counters.acked == 0


def test_records_of_deliveries_and_publishes_survive_their_bytes() -> None:
    for record in ((DELIVER, 5, 1, 9, 0, "me", [1, 2]), (PUBLISH, 5, 1, 3, 1, b"", None, None)):
        assert decode(encode(record)) == record


def test_a_page_of_one_goes_with_its_message() -> None:
    ready_list = ReadyList()
    for seq in (1, 2):
        ready_list.append_page(PackedPage.pack([Entry(seq, 0, 0, 1, 0, b"x", None, None)]))

    assert ready_list.remove(2) is not None
    assert [entry.seq for entry in ready_list] == [1]


@pytest.mark.parametrize("fifo", [False, True])
def test_mending_brings_counts_and_structures_together_again(fifo: bool) -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(fifo=fifo), 0)
    for number in range(4):
        engine.publish(queue, Draft(b"%d" % number, group=f"g{number}"), 0)
    engine.publish(queue, Draft(b"later", group="g9", delay_ms=1_000), 0)
    [delivery] = engine.receive(queue, 1, 0)
    queue.watched = True
    queue.waiting_bytes = 99
    queue.ready.count += 5
    queue.ready.put_back(delivery.entry)  # as if the loan had been half undone

    rebuild(engine)

    assert queue.waiting_bytes == 8
    assert (queue.ready_count, len(queue.delayed), len(queue.leases)) == (3, 1, 1)
    assert queue in engine.woken
    assert [d.entry.body for d in engine.receive(queue, 9, 1)] == [b"1", b"2", b"3"]
    assert [d.entry.body for d in engine.receive(queue, 9, 1_000)] == [b"later"]


def test_a_binding_to_an_exchange_that_damage_took_is_skipped() -> None:
    engine = Engine("p-")
    change = {"op": "bind", "source": "amq.fanout", "destination": "gone", "to_exchange": True}

    apply(engine, (EXCHANGE, 1, 0, 0, {**change, "key": "", "arguments": {}}), 0)

    assert engine.router.bindings("amq.fanout") == []


def test_a_copy_of_an_older_message_does_not_shorten_the_window() -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(dedup_window_ms=1_000), 0)
    engine.publish(queue, Draft(b"new", dedup="once"), 1_500)

    apply(engine, (COPY, 1_600, queue.number, 9, 100, 0, b"old", None, DeliveryOptions(dedup="once")), 0)

    assert queue.dedup["once"][1] == 2_500


def test_bodies_of_a_long_line_are_only_on_disk() -> None:
    engine, _ = recorded()
    queue = engine.create_queue("q", QueueSettings(), 0)
    body = bytes(1 << 20)
    engine.publish(queue, Draft(body, type="t"), 0)
    engine.publish(queue, Draft(b"second", type="t"), 0)

    assert [entry.body for entry in queue.ready] == [body, None]


def test_what_came_back_later_than_the_head_waits_for_it() -> None:
    ready_list = ReadyList()
    ready_list.append(Entry(1, 0, 0, 1, 0, b"x", None, None))
    ready_list.put_back(Entry(2, 0, 0, 1, 0, b"x", None, None))

    first = ready_list.first()

    assert first is not None
    assert first.seq == 1
    assert ready_list.pop() is first
    assert not ready_list.swap(
        PackedPage.pack([first]), PackedPage.pack([first])
    )  # a page that is here no more


def test_a_queue_that_nobody_watches_any_more_is_not_woken() -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(), 0)
    engine.timers.add(5, (WAKE, queue, 0))

    engine.advance(5)

    assert engine.woken == []
