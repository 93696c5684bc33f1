"""Single promises of the engine that a story would tell too slowly, and mistakes that were made once."""

from __future__ import annotations

from typing import Any

import pytest

from openq.engine import admin
from openq.engine.engine import Engine
from openq.engine.queue import QueueState
from openq.engine.records import DELIVER, REMOVE, REMOVED_EXPIRED, decode
from openq.engine.replay import checkpoint
from openq.engine.routing import Exchange
from openq.errors import (
    DiskFull,
    InvalidSetting,
    MessageNotFoundError,
    QueueExists,
    QueueFull,
    QueueNotFound,
    VisibilityTimeoutExpired,
)
from openq.model import NO_DEADLINE, Draft, QueueSettings, RetryPolicy

from .support import PREFIX, Tape, assert_same, bodies, dump, queue_of

# -- ids --------------------------------------------------------------------------------------


def test_an_id_is_a_prefix_and_the_sequence_number(engine: Engine) -> None:
    queue = queue_of(engine)

    message_id, _ = engine.publish(queue, Draft(b"x"), 1_000)

    assert message_id == PREFIX + "000000000001"
    assert engine.locate(queue, message_id).seq == 1


@pytest.mark.parametrize(
    "message_id", ["", "other", PREFIX, PREFIX + "zzzzzzzzzzzz", PREFIX + "000000000002"]
)
def test_an_id_that_is_not_there_is_not_found(engine: Engine, message_id: str) -> None:
    queue = queue_of(engine)
    engine.publish(queue, Draft(b"x"), 1_000)

    with pytest.raises(MessageNotFoundError):
        engine.locate(queue, message_id)


def test_an_id_of_ones_own_that_looks_like_another_messages_number_is_no_duplicate(engine: Engine) -> None:
    queue = queue_of(engine)
    engine.publish(queue, Draft(b"x", id="mine"), 1_000)

    message_id, duplicate = engine.publish(queue, Draft(b"y", id=PREFIX + "000000000001"), 1_000)

    assert not duplicate
    assert engine.locate(queue, message_id).body == b"y"


# -- limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "draft",
    [
        Draft(b"", delay_ms=-1),
        Draft(b"", ttl_ms=-1),
        Draft(b"", delay_ms=1 << 62),
        Draft(b"", ttl_ms=1 << 62),
        Draft(b"", due_ms=1 << 62),
        Draft(b"", priority=256),
    ],
)
def test_a_draft_that_cannot_be_is_refused(engine: Engine, draft: Draft) -> None:
    with pytest.raises(InvalidSetting):
        engine.publish(queue_of(engine), draft, 1_000)


def test_a_time_long_past_is_now(engine: Engine) -> None:
    queue = queue_of(engine)

    engine.publish(queue, Draft(b"x", due_ms=-5), 1_000)
    admin.reschedule(engine, queue, PREFIX + "000000000001", -7, 1_000)

    assert queue.ready_count == 1


@pytest.mark.parametrize("lease_ms", [-2, 1 << 61])
def test_a_lease_that_cannot_be_is_refused_and_takes_nothing(engine: Engine, lease_ms: int) -> None:
    queue = queue_of(engine)
    engine.publish_plain(queue, b"x", 0, 1_000)

    with pytest.raises(InvalidSetting):
        engine.receive(queue, 1, 1_000, lease_ms)
    [delivery] = engine.receive(queue, 1, 1_000)
    with pytest.raises(InvalidSetting):
        engine.extend(queue, 1, delivery.number, 1_000, lease_ms)
    with pytest.raises(InvalidSetting):
        engine.nack(queue, 1, delivery.number, 1_000, 1 << 61)

    engine.ack(queue, 1, delivery.number, 1_000)


def test_a_message_cannot_be_rescheduled_beyond_the_end_of_time(engine: Engine) -> None:
    queue = queue_of(engine)
    message_id, _ = engine.publish(queue, Draft(b"x"), 1_000)

    with pytest.raises(InvalidSetting):
        admin.reschedule(engine, queue, message_id, 1 << 62, 1_000)


@pytest.mark.parametrize(
    "settings",
    [
        {"visibility_ms": 1 << 61},
        {"retention_ms": -1},
        {"ttl_ms": 1 << 61},
        {"max_length": -1},
        {"max_receives": 0},
        {"overflow": "burst"},
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        QueueSettings(**settings)


@pytest.mark.parametrize(
    "policy",
    [
        {"kind": "often"},
        {"factor": float("nan")},
        {"factor": float("inf")},
        {"factor": 0.5},
        {"jitter": 2.0},
        {"base_ms": -1},
        {"max_ms": 1 << 61},
    ],
)
def test_a_retry_policy_that_cannot_be_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        RetryPolicy(**policy)


def test_a_retry_delay_never_overflows() -> None:
    policy = RetryPolicy("exponential", base_ms=1 << 60, factor=1000.0, max_ms=77)

    assert [policy.delay_ms(count, 0.0) for count in (1, 2, 1_000_000)] == [77, 77, 77]


def test_the_same_seed_gives_the_same_jitter_and_another_seed_another() -> None:
    def due(seed: int) -> list[int]:
        engine = Engine(PREFIX, seed)
        queue = queue_of(engine, retry=RetryPolicy("fixed", base_ms=10_000, jitter=0.5))
        engine.publish_run(queue, [b"x"] * 20, 0, 1_000)
        for delivery in engine.receive(queue, 20, 1_000):
            engine.nack(queue, delivery.entry.seq, delivery.number, 1_000)
        return [entry.options.due_ms for entry in queue.delayed.values() if entry.options is not None]

    assert due(1) == due(1) != due(2)
    assert len(set(due(1))) > 10
    assert all(6_000 <= each <= 11_000 for each in due(1))


# -- retention --------------------------------------------------------------------------------


def test_a_queue_whose_oldest_was_delayed_is_not_looked_at_every_millisecond(engine: Engine) -> None:
    queue = queue_of(engine, retention_ms=10_000)
    engine.publish(queue, Draft(b"x", delay_ms=5_000), 1_000)

    engine.advance(11_000)

    assert engine.timers.next_ms > 11_001
    assert queue.ready_count == 1
    engine.advance(16_000)
    assert queue.count == 0


def test_changing_settings_does_not_pile_up_timers(engine: Engine) -> None:
    queue = queue_of(engine, retention_ms=1_000)
    engine.publish_plain(queue, b"x", 0, 1_000)
    for i in range(50):
        engine.change_queue("q", queue.settings.with_(paused=i % 2 == 0), 1_001)
    engine.advance(2_000)
    engine.publish_plain(queue, b"y", 0, 2_000)
    engine.publish_plain(queue, b"z", 0, 2_500)

    engine.advance(3_000)

    assert bodies(queue) == [b"z"]
    assert engine.timers.size < 10


def test_an_expired_message_is_not_delivered_even_if_its_expiry_could_not_be_logged(
    engine: Engine, tape: Tape
) -> None:
    for fifo in (False, True):
        queue = queue_of(engine, f"q{fifo}", fifo=fifo, retention_ms=10, dead_letter="none")
        engine.publish(queue, Draft(b"x"), 1_000)
        engine.publish(queue, Draft(b"y", ttl_ms=5), 1_000)
        engine.publish(queue, Draft(b"new"), 1_009)
        tape.refuse_from = len(tape.records)
        engine.advance(1_010)
        assert queue.count == 3
        tape.refuse_from = None

        got = [delivery.entry.body for delivery in engine.receive(queue, 5, 1_010)]

        assert got == [b"new"]
        assert queue.counters.expired == 2


# -- a log that refuses -----------------------------------------------------------------------


def test_a_publish_that_is_logged_is_done_although_the_overflow_cannot_be_logged(
    engine: Engine, tape: Tape
) -> None:
    queue = queue_of(engine, max_length=1)
    engine.publish(queue, Draft(b"a"), 1_000)
    tape.refuse_from = len(tape.records) + 1

    _, duplicate = engine.publish(queue, Draft(b"b"), 1_000)

    assert not duplicate
    assert bodies(queue) == [b"a", b"b"]
    tape.refuse_from = None
    engine.publish(queue, Draft(b"c"), 1_000)
    assert bodies(queue) == [b"c"]


def test_a_message_dead_lettered_during_a_receive_is_not_also_put_back(engine: Engine, tape: Tape) -> None:
    """The dead-letter queue overflows, and the log refuses just that."""
    queue = queue_of(engine, max_receives=1, dead_letter="dead")
    dead = queue_of(engine, "dead", max_length=1)
    engine.publish(queue, Draft(b"first"), 1_000)
    engine.publish(queue, Draft(b"second"), 1_000)
    for delivery in engine.receive(queue, 2, 1_000):
        engine.release(queue, delivery.entry.seq, delivery.number, 1_000)
    for delivery in engine.receive(queue, 2, 1_000):
        engine.change_queue("q", queue.settings.with_(max_receives=None), 1_000)
        engine.nack(queue, delivery.entry.seq, delivery.number, 1_000, 0)
    engine.change_queue("q", queue.settings.with_(max_receives=1), 1_000)
    tape.refuse_from = len(tape.records) + 2

    assert engine.receive(queue, 2, 1_000) == []

    assert queue.count == 0
    assert len(list(dead.ready)) == 2
    assert_same(dump(tape, tape.rebuilt(), 1_000), dump(tape, engine, 1_000))


def test_an_exchange_whose_end_cannot_be_logged_stays(engine: Engine, tape: Tape) -> None:
    admin.declare_exchange(engine, Exchange("x", "fanout"), 1_000)
    tape.refuse_from = len(tape.records)

    with pytest.raises(DiskFull):
        admin.delete_exchange(engine, "x", 1_001)

    assert "x" in engine.router


# -- order ------------------------------------------------------------------------------------


def test_a_group_does_not_lose_its_turn_to_a_message_that_needs_a_closer_look(engine: Engine) -> None:
    queue = queue_of(engine)
    for group in ("a", "a", "b", "b"):
        engine.publish(queue, Draft(group.encode(), group=group), 1_000)

    got = [delivery.entry.body for _ in range(4) for delivery in engine.receive(queue, 1, 1_000)]

    assert got == [b"a", b"b", b"a", b"b"]


def test_the_last_of_groups_that_take_turns_is_the_last_of_the_longest(engine: Engine) -> None:
    queue = queue_of(engine)
    for body in (b"a1", b"a2", b"a3", b"b1"):
        engine.publish(queue, Draft(body, group=body[:1].decode()), 1_000)

    assert [entry.body for entry in admin.peek(engine, queue, 1, rear=True)] == [b"a3"]
    assert [entry.body for entry in admin.peek(engine, queue, 2, rear=True)] == [b"a3", b"a2"]


# -- waking and watching ----------------------------------------------------------------------


def test_everything_that_happens_to_a_message_is_reported_with_its_own_id(engine: Engine) -> None:
    reported: list[tuple[str, str, str | None]] = []
    queue = queue_of(engine, visibility_ms=10, dead_letter="dead")
    dead = queue_of(engine, "dead", max_length=1)
    engine.observer = lambda what, queue, message_id, now_ms, detail: reported.append(
        (what, queue, message_id)
    )

    engine.publish(queue, Draft(b"x", id="mine"), 1_000)
    engine.receive(queue, 1, 1_000)
    engine.advance(1_010)
    engine.nack(queue, *_at(engine, queue, 1_010), 1_010, 0)
    engine.reject(queue, *_at(engine, queue, 1_010), 1_010)
    admin.redrive(engine, dead, list(dead.ready), None, 1_010)
    engine.ack(queue, *_at(engine, queue, 1_010), 1_010)
    engine.publish_plain(queue, b"y", 0, 1_010)
    receipt = _at(engine, queue, 1_010)
    engine.ack_many(queue, [receipt], 1_010)
    engine.publish(dead, Draft(b"a"), 1_010)
    admin.purge(engine, dead, 1_010)

    simple = queue_of(engine, "simple")
    first = engine.publish_run(simple, [b"1", b"2"], 0, 1_010)
    engine.receive(simple, 2, 1_010)

    plain = f"{PREFIX}{receipt[0]:012x}"
    assert reported[:11] == [
        ("published", "q", "mine"),
        ("received", "q", "mine"),
        ("expired", "q", "mine"),
        ("received", "q", "mine"),
        ("requeued", "q", "mine"),
        ("received", "q", "mine"),
        ("dead-lettered", "q", "mine"),
        ("moved", "dead", "mine"),
        ("received", "q", "mine"),
        ("acked", "q", "mine"),
        ("published", "q", plain),
    ]
    runs = [f"{PREFIX}{first + i:012x}" for i in range(2)]
    assert reported[-4:] == [(what, "simple", each) for what in ("published", "received") for each in runs]
    assert reported[11:-4] == [
        ("received", "q", plain),
        ("acked", "q", plain),
        ("published", "dead", f"{PREFIX}{receipt[0] + 1:012x}"),
        ("purged", "dead", None),
    ]


def _at(engine: Engine, queue: QueueState, now_ms: int) -> tuple[int, int]:
    [delivery] = engine.receive(queue, 1, now_ms)
    return delivery.entry.seq, delivery.number


def test_a_watched_queue_is_woken_by_whatever_may_bring_it_something(engine: Engine) -> None:
    queue = queue_of(engine, fifo=True)
    plain = queue_of(engine, "plain")
    for each in (queue, plain):
        each.watched = True

    def woken() -> set[str]:
        names = {each.name for each in engine.woken}
        engine.woken.clear()
        return names

    engine.publish(queue, Draft(b"x", delay_ms=5), 1_000)
    assert woken() == set()
    engine.advance(1_005)
    assert woken() == {"q"}
    engine.publish_plain(plain, b"x", 0, 1_005)
    assert woken() == {"plain"}
    engine.publish_run(plain, [b"x"], 0, 1_005)
    assert woken() == {"plain"}
    engine.ack(queue, *_at(engine, queue, 1_005), 1_005)
    assert woken() == {"q"}
    engine.nack(plain, *_at(engine, plain, 1_005), 1_005)
    assert woken() == {"plain"}
    engine.change_queue("q", queue.settings.with_(paused=True), 1_005)
    assert woken() == {"q"}
    engine.delete_queue("plain", 1_005)
    assert woken() == {"plain"}
    engine.advance(1 << 50)
    assert woken() == set()


# -- the rest ---------------------------------------------------------------------------------


def test_a_queue_of_the_same_name_with_other_settings_says_what_differs(engine: Engine) -> None:
    queue_of(engine, visibility_ms=5)

    with pytest.raises(QueueExists, match=r"visibility_timeout is 0.005 seconds, not 0.006 seconds"):
        queue_of(engine, visibility_ms=6)


def test_why_says_how_many_are_ahead(engine: Engine) -> None:
    queue = queue_of(engine)
    engine.publish_run(queue, [b"x"] * 10_005, 0, 1_000)

    def text(seq: int) -> str:
        return admin.why(engine, queue, f"{PREFIX}{seq:012x}", 1_000, consumers=1).text

    assert text(1) == "ready: it is next"
    assert text(3) == "ready: 2 messages are ahead of it"
    assert text(10_005) == "ready: at least 10000 messages are ahead of it"


def test_the_state_of_a_message_is_one_word(engine: Engine) -> None:
    queue = queue_of(engine)
    engine.publish(queue, Draft(b"x"), 1_000)
    engine.publish(queue, Draft(b"y", delay_ms=5), 1_000)

    assert [admin.status(queue, seq) for seq in (1, 2, 3)] == ["ready", "delayed", None]
    engine.receive(queue, 1, 1_000)
    assert admin.status(queue, 1) == "in_flight"


def test_a_redrive_takes_messages_as_they_are_now(engine: Engine) -> None:
    queue = queue_of(engine, dead_letter="dead")
    dead = queue_of(engine, "dead")
    for body in (b"a", b"b", b"c"):
        engine.publish(queue, Draft(body), 1_000)
        engine.reject(queue, *_at(engine, queue, 1_000), 1_000)
    chosen = list(dead.ready)
    admin.edit(engine, dead, engine.id_of(chosen[0]), 1_000, Draft(b"edited"))
    admin.cancel(engine, dead, engine.id_of(chosen[1]), 1_000)
    engine.receive(dead, 2, 1_000)
    engine.release(dead, *_lease(dead, chosen[0].seq), 1_000)

    assert admin.redrive(engine, dead, chosen, None, 1_000) == 1

    assert bodies(queue) == [b"edited"]


def _lease(queue: QueueState, seq: int) -> tuple[int, int]:
    return seq, queue.leases[seq].number


def test_an_ack_after_the_lease_counts_while_nobody_else_has_the_message(engine: Engine) -> None:
    queue = queue_of(engine, visibility_ms=10)
    engine.publish(queue, Draft(b"x"), 1_000)
    receipt = _at(engine, queue, 1_000)
    with pytest.raises(VisibilityTimeoutExpired):
        engine.ack(queue, *receipt, 1_010)

    assert engine.ack_late(queue, *receipt, 1_010)
    assert not engine.ack_late(queue, *receipt, 1_010)
    assert queue.count == 0


def test_a_delivery_without_a_deadline_outlives_everything(engine: Engine) -> None:
    queue = queue_of(engine, retention_ms=1 << 50)
    engine.publish(queue, Draft(b"x"), 1_000)
    [delivery] = engine.receive(queue, 1, 1_000, NO_DEADLINE)

    engine.advance(1 << 45)

    engine.ack(queue, 1, delivery.number, 1 << 45)


def test_a_record_says_why_a_message_went(engine: Engine, tape: Tape) -> None:
    queue = queue_of(engine)
    engine.publish(queue, Draft(b"x", ttl_ms=5), 1_000)

    engine.advance(1_005)

    assert decode(tape.records[-1][1]) == (REMOVE, 1_005, queue.number, 0, REMOVED_EXPIRED, [1])
    assert decode(tape.records[0][1])[0] != DELIVER


def test_there_is_no_queue_of_a_name_that_was_not_made(engine: Engine) -> None:
    with pytest.raises(QueueNotFound):
        engine.queue("q")


def test_dead_letters_for_an_exchange_that_is_not_there_are_kept(engine: Engine) -> None:
    queue = queue_of(engine, max_receives=1, dead_letter_exchange="graves")
    engine.publish(queue, Draft(b"x"), 1_000)

    assert engine.nack(queue, *_at(engine, queue, 1_000), 1_000, 0) == "returned"
    assert queue.ready_count == 1


def test_a_route_passes_over_a_queue_that_is_not_there_and_says_when_all_are_full(engine: Engine) -> None:
    queue_of(engine, max_length=1, overflow="reject")

    assert engine.route("", "missing", Draft(b"x"), 1_000) == ("", [])
    assert engine.route("", "q", Draft(b"x"), 1_000)[1] == ["q"]
    with pytest.raises(QueueFull):
        engine.route("", "q", Draft(b"x"), 1_000)


def test_a_large_batch_is_not_kept_in_memory_a_second_time(engine: Engine) -> None:
    queue = queue_of(engine)

    engine.publish_run(queue, [b"x" * 600_000, b"y" * 600_000], 0, 1_000)

    assert bodies(queue) == [None, None]


def test_a_plain_message_that_cannot_be_delivered_goes_back(engine: Engine, tape: Tape) -> None:
    queue = queue_of(engine)
    engine.publish_plain(queue, b"a", 0, 1_000)
    engine.publish_plain(queue, b"b", 0, 1_000)
    tape.refuse_from = len(tape.records)

    with pytest.raises(DiskFull):
        engine.receive(queue, 1, 1_000)

    assert bodies(queue) == [b"a", b"b"]
    assert queue.waiting_bytes == 2
    assert engine.next_number == 1


def test_delays_that_were_cancelled_are_forgotten_long_before_they_would_have_ended(engine: Engine) -> None:
    queue = queue_of(engine)
    for _ in range(9_000):
        message_id, _ = engine.publish(queue, Draft(b"", delay_ms=1 << 40, ttl_ms=5), 1_000)
        admin.cancel(engine, queue, message_id, 1_000)

    engine.advance(5_000)

    assert engine.timers.size < 10


def test_messages_whose_queue_is_lost_to_damage_are_kept_and_return_when_its_name_is_known(
    engine: Engine, tape: Tape
) -> None:
    queue = queue_of(engine, dead_letter="dead")
    dead = queue_of(engine, "dead")
    engine.publish(queue, Draft(b"a"), 1_000)
    engine.publish(queue, Draft(b"b"), 1_000)
    engine.reject(queue, *_at(engine, queue, 1_000), 1_000)
    engine.route("", "dead", Draft(b"c"), 1_000)

    damaged = tape.rebuilt(2)
    names = sorted(damaged.queues)
    counts = [damaged.queue(name).count for name in names]
    engine.change_queue("q", queue.settings.with_(visibility_ms=7), 1_001)
    engine.change_queue("dead", dead.settings.with_(visibility_ms=8), 1_001)
    healed = tape.rebuilt(2)

    assert (names, counts) == (["recovered-1", "recovered-2"], [1, 2])
    assert [(name, healed.queue(name).count) for name in ("q", "dead")] == [("q", 1), ("dead", 2)]
    assert healed.queue("q").settings.visibility_ms == 7


def test_a_checkpoint_names_queues_that_damage_had_taken_the_names_from(engine: Engine, tape: Tape) -> None:
    queue = queue_of(engine)
    engine.publish(queue, Draft(b"a"), 1_000)
    tape(checkpoint(engine, 1_001))

    healed = tape.rebuilt(1)

    assert list(healed.queues) == ["q"]
    assert healed.queue("q").count == 1


def test_a_message_that_is_delivered_again_and_again_without_dead_letters_is_counted_as_stuck() -> None:
    engine = Engine("p-")
    queue = engine.create_queue("q", QueueSettings(), 0)
    engine.publish_plain(queue, b"poison", 0, 0)

    for attempt in range(12):
        [delivery] = engine.receive(queue, 1, attempt)
        engine.nack(queue, delivery.entry.seq, delivery.number, attempt, 0)

    assert queue.counters.stuck == 1


# -- many at once ---------------------------------------------------------------------------------


def test_a_message_for_chosen_queues_is_one_record_and_reaches_each_once() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    for name in ("a", "b"):
        queue_of(engine, name)
    full = queue_of(engine, "full", max_length=0, overflow="reject")
    before = len(tape.records)

    message_id, reached, refused = engine.route_to(
        ["a", "none", "b", "full", "a"], Draft(b"x", route=("e", "k")), 1_000
    )

    assert len(tape.records) == before + 1
    assert reached == ["a", "b"]
    assert isinstance(refused, QueueFull)
    assert full.count == 0
    for name in reached:
        [entry] = engine.queue(name).ready
        assert engine.id_of(entry) == message_id
        assert entry.options is not None
        assert entry.options.route == ("e", "k")


def test_a_message_for_no_queue_is_logged_nowhere() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)

    assert engine.route_to([], Draft(b"x"), 1_000) == ("", [], None)
    assert engine.route_to(["none"], Draft(b"x"), 1_000) == ("", [], None)
    assert tape.records == []


def test_a_message_for_one_queue_is_as_if_published_there() -> None:
    tapes = Tape(), Tape()
    one, other = (Engine(PREFIX, log=tape) for tape in tapes)
    queue_of(one, "q", delay_ms=5, ttl_ms=9)
    queue_of(other, "q", delay_ms=5, ttl_ms=9)

    one.route_to(["q"], Draft(b"x", priority=3), 1_000)
    other.publish(other.queue("q"), Draft(b"x", priority=3), 1_000)

    assert tapes[0].records == tapes[1].records


def test_many_deliveries_go_back_as_one_record() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = queue_of(engine)
    engine.publish_run(queue, [b"x"] * 100, 0, 1_000)
    deliveries = engine.receive(queue, 100, 1_000)
    receipts = [(each.entry.seq, each.number) for each in deliveries]
    before = len(tape.records)

    assert engine.nack_many(queue, receipts[:50], 1_000, 0, "gone") == ["returned"] * 50
    assert engine.reject_many(queue, receipts[50:], 1_000) == ["removed"] * 50

    assert len(tape.records) == before + 2
    assert [entry.seq for entry in queue.ready] == [seq for seq, _ in receipts[:50]]
    assert_same(dump(tape, tape.rebuilt(), 1_000), dump(tape, engine, 1_000))


def test_a_delay_for_many_is_checked() -> None:
    engine = Engine(PREFIX)
    queue = queue_of(engine)

    with pytest.raises(InvalidSetting, match="delay"):
        engine.nack_many(queue, [], 1_000, -1)


def test_the_receipt_of_a_forgotten_delivery_still_deletes_its_message() -> None:
    engine = Engine(PREFIX)
    queue = engine.create_queue("q", QueueSettings(), 0)
    for body in (b"x", b"y"):
        engine.publish(queue, Draft(body), 0)
    # A process that died had delivered both as 5 and 6, and nothing is known of that.
    engine.maybe_delivered_below = engine.next_seq
    engine.next_number = engine.first_number = 1000
    engine.publish(queue, Draft(b"new"), 0)

    assert engine.ack_late(queue, 1, 5, 1)
    [again] = engine.receive(queue, 1, 1)
    assert again.entry.seq == 2
    assert not engine.ack_late(queue, 2, 6, 1), "another consumer holds it"
    assert not engine.ack_late(queue, 3, 6, 1), "it was published after the crash"
    assert not engine.ack_late(queue, 3, 0, 1)
    assert queue.ready_count == 1
