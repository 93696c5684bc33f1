"""Single promises of replay and snapshots: what the engine is again after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from openq.engine import admin
from openq.engine.engine import Engine
from openq.engine.queue import QueueState
from openq.engine.records import COPY
from openq.engine.replay import checkpoint
from openq.engine.snapshot import SegmentUsage, encode, freeze
from openq.engine.snapshot import decode as decode_snapshot
from openq.errors import InvalidSetting
from openq.model import Draft, Entry

from .support import (
    PREFIX,
    Tape,
    assert_same,
    dump,
    from_snapshot,
    queue_of,
    settled,
    through_snapshot,
)

# -- the end of a journal ---------------------------------------------------------------------


@pytest.mark.parametrize("fifo", [False, True])
def test_a_copy_of_an_old_message_goes_to_its_place_among_newer_ones(
    tape: Tape, engine: Engine, fifo: bool
) -> None:
    queue = queue_of(engine, fifo=fifo)
    engine.publish(queue, Draft(b"old"), 1_000)
    engine.publish(queue, Draft(b"old and delayed", delay_ms=500), 1_000)
    start = len(tape.records)
    tape(checkpoint(engine, 1_000))
    engine.publish(queue, Draft(b"new"), 1_001)
    for seq in (2, 1):
        entry = queue.find(seq)
        assert entry is not None
        head = (COPY, 1_002, queue.number, seq, entry.sent_ms)
        location = tape(
            (*head, entry.encoding, entry.body or bytes(entry.size), entry.properties, entry.options)
        )
        engine.replace_entry(
            queue, Entry(seq, 1_000, location, entry.size, entry.encoding, None, None, entry.options)
        )

    rebuilt = settled(tape.rebuilt(start), 1_002)

    assert_same(dump(tape, rebuilt, 1_002, exact=False), dump(tape, engine, 1_002, exact=False))
    assert [entry.seq for entry in rebuilt.queue("q").ready] == ([1, 2, 3] if fifo else [1, 3])


def test_records_about_missing_messages_and_queues_are_skipped(tape: Tape, engine: Engine) -> None:
    queue = queue_of(engine)
    other = queue_of(engine, "other", dead_letter="q")
    for name in (queue, other):
        engine.publish_run(name, [b"x"] * 12, 0, 1_000)
    start = len(tape.records)
    tape(checkpoint(engine, 1_000))
    messages = engine.receive(other, 6, 1_000)
    engine.extend(other, messages[0].entry.seq, messages[0].number, 1_000, 50)
    engine.ack(other, messages[0].entry.seq, messages[0].number, 1_001)
    engine.nack(other, messages[1].entry.seq, messages[1].number, 1_001)
    engine.reject(other, messages[2].entry.seq, messages[2].number, 1_001)
    engine.reject(queue, *_one(engine, queue), 1_001)
    message_id = engine.id_of(next(iter(other.ready)))
    admin.reschedule(engine, other, message_id, 2_000, 1_001)
    admin.cancel(engine, other, message_id, 1_001)
    engine.delete_queue("other", 1_001)

    rebuilt = tape.rebuilt(start)

    assert list(rebuilt.queues) == ["q"]
    assert rebuilt.queue("q").count == 0
    assert rebuilt.next_number == engine.next_number


def _one(engine: Engine, queue: QueueState) -> tuple[int, int]:
    [delivery] = engine.receive(queue, 1, 1_001)
    return delivery.entry.seq, delivery.number


def test_an_edit_is_as_large_after_a_restart_as_before(tape: Tape, engine: Engine) -> None:
    queue = queue_of(engine)
    message_id, _ = engine.publish(queue, Draft(b"x"), 1_000)

    admin.edit(engine, queue, message_id, 1_001, Draft(b"much longer"))

    assert tape.rebuilt().queue("q").waiting_bytes == queue.waiting_bytes == 11


def test_a_routed_message_is_not_kept_in_memory_after_a_restart(tape: Tape, engine: Engine) -> None:
    queue_of(engine)
    engine.route("", "q", Draft(b"x", attributes={"a": 1}), 1_000)

    [entry] = tape.rebuilt().queue("q").ready

    assert (entry.body, entry.properties, entry.size) == (None, None, 1)


# -- snapshots --------------------------------------------------------------------------------


def test_a_snapshot_without_its_end_is_refused(engine: Engine) -> None:
    queue_of(engine)
    chunks = through_snapshot(engine, 1_000)

    with pytest.raises(InvalidSetting, match="end"):
        from_snapshot(chunks[:-1])


def test_a_snapshot_of_another_format_is_refused(engine: Engine) -> None:
    frozen = freeze(engine, 1_000)
    frozen.head["format"] = 999

    with pytest.raises(InvalidSetting, match="999"):
        decode_snapshot(encode(frozen), Engine(PREFIX))


def test_a_snapshot_counts_what_is_alive_in_each_segment() -> None:
    location = {"next": 0}

    def log(record: Any) -> int:
        location["next"] += 1
        return location["next"] // 3 << 32 | location["next"]

    engine = Engine(PREFIX, log=log)
    queue = queue_of(engine)
    engine.publish_run(queue, [b"12"] * 10, 0, 1_000)
    engine.publish_run(queue, [b"1", b"22"], 0, 1_000)
    engine.publish(queue, Draft(b"123", delay_ms=5), 1_000)
    usage = SegmentUsage()

    list(encode(freeze(engine, 1_000), usage))

    assert sum(usage.live.values()) == 13 * 64 + 20 + 3 + 3
    assert usage.live.keys() == {0, 1}
