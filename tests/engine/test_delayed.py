"""Messages that are not due yet: a dictionary of them that is packed, and due times that open by buckets."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openq.engine.delayed as delayed_module
from openq.engine import admin
from openq.engine.delayed import FAR, LEAD_MS, DelayedMessages, by_due, due_of
from openq.engine.engine import Engine
from openq.model import DeliveryOptions, Draft, Entry, QueueSettings
from tests.budget import examples

from .support import PREFIX, Tape, assert_same, dump, extra_dump, from_snapshot, through_snapshot

DAY_MS = 86_400_000


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_module, "PAGE", 4)


def entry(seq: int, due_ms: int, location: int = 1, **more: object) -> Entry:
    return Entry(seq, 0, location, 3, 0, None, None, DeliveryOptions(due_ms=due_ms, **more))  # type: ignore[arg-type]


def shown(found: Entry) -> tuple[object, ...]:
    return (
        found.seq,
        found.sent_ms,
        found.location,
        found.size,
        found.encoding,
        found.body,
        extra_dump(found.options),
    )


# -- like a dictionary --------------------------------------------------------------------------


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "loose", "pop", "pop", "move", "edit", "copy"]),
        st.integers(0, 40),
        st.integers(1, 9),
        st.sampled_from([{}, {"group": "g"}, {"type": "t"}, {"id": "own"}, {"expires_ms": 77}]),
    ),
    max_size=60,
)


@settings(max_examples=examples(150))
@given(steps)
def test_packed_or_not_it_is_a_dictionary(life: list[tuple[str, int, int, dict[str, object]]]) -> None:
    page, delayed_module.PAGE = delayed_module.PAGE, 4
    try:
        real, model, top = DelayedMessages(), dict[int, Entry](), 100
        frozen: list[tuple[object, list[object]]] = []
        for what, number, due_ms, more in life:
            seq = 101 + number
            if what == "add":
                top += 1
                real.add(entry(top, due_ms, **more), True)
                model[top] = entry(top, due_ms, **more)
            elif what == "loose":
                real.add(entry(number + 1, due_ms, **more), False)
                model[number + 1] = entry(number + 1, due_ms, **more)
            elif what == "pop":
                taken, wanted = real.pop(seq), model.pop(seq, None)
                assert (taken and shown(taken)) == (wanted and shown(wanted))
            elif what == "copy":
                frozen.append((real.freeze(), sorted(map(shown, model.values()))))
            elif seq in model:
                old = model[seq]
                changed = Entry(
                    seq, 0, old.location + 1, 3 if what == "move" else 5, 0, None, None, old.options
                )
                real.replace(changed)
                model[seq] = changed
            assert len(real) == len(model)
        assert {found.seq: shown(found) for found in real.values()} == {
            seq: shown(each) for seq, each in model.items()
        }
        for seq in range(200):
            found = real.get(seq)
            assert (seq in real) == (found is not None) == (seq in model)
            assert real.due(seq) == (due_of(model[seq]) if seq in model else None)
            assert found is None or shown(found) == shown(model[seq])
        if model:
            assert real.newest().seq == max(model)
        assert real.size() == sum(each.size for each in model.values())
        assert dict(real.dues()) == {seq: due_of(each) for seq, each in model.items()}
        ends = {seq: e.options.expires_ms for seq, e in model.items() if e.options and e.options.expires_ms}
        assert dict(real.expiries()) == ends
        for copy, wanted_then in frozen:
            assert sorted(map(shown, copy)) == wanted_then  # type: ignore[call-overload]
    finally:
        delayed_module.PAGE = page


# -- due times ----------------------------------------------------------------------------------


def engine_with(delays: list[int], now_ms: int, **settings: object) -> Engine:
    engine = Engine(PREFIX, log=Tape())
    queue = engine.create_queue("q", QueueSettings(**settings), now_ms)  # type: ignore[arg-type]
    for delay_ms in delays:
        engine.publish(queue, Draft(b"x", delay_ms=delay_ms), now_ms)
    return engine


def ready(engine: Engine) -> set[int]:
    return {found.seq for found in engine.queues["q"].ready}


def steps_through(engine: Engine, begin_ms: int, end_ms: int) -> Iterator[int]:
    """Every moment at which something is due, as a ticker would have it."""
    now_ms = begin_ms
    while engine.timers.next_ms <= end_ms:
        now_ms = max(now_ms, engine.timers.next_ms)
        engine.advance(now_ms)
        yield now_ms


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("begin_ms", [1_700_000_000_000, (400_000 << FAR) - LEAD_MS - 1, 400_000 << FAR])
def test_each_comes_due_at_its_own_millisecond(begin_ms: int) -> None:
    chance = random.Random(7)
    delays = [
        chance.choice((3, 900, 5_000, LEAD_MS, 1 << FAR, 3 << FAR)) + chance.randrange(3000)
        for _ in range(300)
    ]
    engine = engine_with(delays, begin_ms)
    due = {number + 1: begin_ms + delay_ms for number, delay_ms in enumerate(delays)}

    for now_ms in steps_through(engine, begin_ms, begin_ms + (4 << FAR)):
        assert ready(engine) == {seq for seq, due_ms in due.items() if due_ms <= now_ms}

    assert ready(engine) == set(due)
    assert len(engine.queues["q"].delayed) == 0
    assert engine.queues["q"].delayed.buckets == {}


@pytest.mark.usefixtures("small_pages")
def test_a_clock_that_jumps_finds_all_that_is_due_and_no_more() -> None:
    engine = engine_with([n * 3_600_000 for n in range(1, 100)], 1000)

    engine.advance(1000 + 50 * 3_600_000)

    assert ready(engine) == set(range(1, 51))


def test_a_large_bucket_is_spread_in_parts_before_its_time() -> None:
    begin_ms = 400_000 << FAR
    engine = engine_with([(1 << FAR) + 5] * 10_000, begin_ms)
    opens_ms = begin_ms + (1 << FAR) - LEAD_MS

    engine.advance(opens_ms)
    assert engine.timers.next_ms == opens_ms + 1
    engine.advance(opens_ms + 2)
    engine.advance(begin_ms + (1 << FAR) + 4)
    assert ready(engine) == set()
    engine.advance(begin_ms + (1 << FAR) + 5)

    assert len(ready(engine)) == 10_000


@pytest.mark.usefixtures("small_pages")
def test_browsing_shows_the_next_due_first_also_after_other_times_were_set() -> None:
    chance = random.Random(3)
    begin_ms = 400_000 << FAR
    delays = [chance.choice((1, 700, 4_000, 5 << FAR)) * chance.randrange(1, 9) for _ in range(200)]
    engine = engine_with(delays, begin_ms)
    queue = engine.queues["q"]
    for seq in chance.sample(range(1, 201), 60):
        due_ms = begin_ms + chance.randrange(1, 9 << FAR)
        admin.reschedule(engine, queue, engine.id_of(queue.delayed[seq]), due_ms, begin_ms)
        admin.reschedule(engine, queue, engine.id_of(queue.delayed[seq]), due_ms + 1, begin_ms)
    for now_ms in (begin_ms, begin_ms + 3000, begin_ms + (5 << FAR) - LEAD_MS, begin_ms + (6 << FAR)):
        engine.advance(now_ms)
        for walk in (admin.browse(engine, queue, "delayed"), admin.scan(queue, "delayed")):
            found = list(walk)
            assert found == sorted(found, key=by_due)
            assert sorted(each.seq for each in found) == sorted(queue.delayed)


def test_what_was_cancelled_long_before_its_time_is_not_remembered_until_then() -> None:
    engine = Engine(PREFIX)
    queue = engine.create_queue("q", QueueSettings(), 0)
    for _ in range(30_000):
        engine.publish(queue, Draft(b"", delay_ms=90 * DAY_MS), 1)
        admin.cancel(engine, queue, engine.id_of(queue.delayed.newest()), 1)

    assert sum(map(len, queue.delayed.buckets.values())) <= 8193
    assert engine.timers.size < 20


# -- pages --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
def test_a_snapshot_brings_pages_back_without_what_was_taken_out() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = engine.create_queue("q", QueueSettings(), 1000)
    for number in range(50):
        more = {"id": f"own-{number}"} if number % 7 == 0 else {}
        ttl_ms = 5 * DAY_MS if number % 5 == 0 else None
        engine.publish(queue, Draft(b"x" * number, delay_ms=DAY_MS + number, ttl_ms=ttl_ms, **more), 1000)
    for seq in (1, 5, 6, 22, 23, 24, 25, 50):
        admin.cancel(engine, queue, engine.id_of(queue.delayed[seq]), 1001)

    again = from_snapshot(through_snapshot(engine, 1001))

    assert_same(dump(tape, again, 1001), dump(tape, engine, 1001))
    assert_same(dump(tape, tape.rebuilt(), 1001), dump(tape, engine, 1001))
    for each in (again, engine):
        each.advance(1000 + DAY_MS + 20)
    assert ready(again) == ready(engine) == set(range(1, 22)) - {1, 5, 6}


def test_a_delayed_message_on_disk_costs_less_than_100_bytes() -> None:
    engine = Engine(PREFIX, log=Tape())
    queue = engine.create_queue("q", QueueSettings(), 0)
    chance = random.Random(1)
    numbers = iter(range(1, 1 << 40))
    engine.log = lambda record: next(numbers)  # somewhere on disk
    count = 50_000
    tracemalloc.start()
    try:
        for _ in range(count):
            engine.publish(queue, Draft(b"x" * 100, delay_ms=chance.randrange(DAY_MS, 90 * DAY_MS)), 1000)
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert len(queue.delayed) == count
    assert used / count < 100
