"""How far the batches of jobs are: remembered over restarts, and forgotten some day."""

from __future__ import annotations

import pytest

from openq.engine import progress
from openq.engine.engine import Engine
from openq.engine.progress import (
    KEPT_MS,
    UNNAMED_KEPT_MS,
    BatchProgress,
    TooManyJobs,
    make_room,
    record_progress,
)
from openq.engine.records import decode, encode
from openq.engine.replay import apply, checkpoint
from openq.model import Draft
from tests.engine.support import PREFIX, Tape, from_snapshot, queue_of, through_snapshot


def test_a_batch_is_done_with_its_last_rows_and_so_are_all_before_it() -> None:
    known = BatchProgress("", 7, 100, False, 0, 1_000)

    assert known.is_done(6)
    assert not known.is_done(7)
    assert not known.is_done(8)
    assert known._replace(is_last=True).is_done(7)


def test_marks_survive_a_restart_a_snapshot_and_the_loss_of_all_before_a_checkpoint() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    record_progress(engine, "a", "ann", 1, 10, False, 0, 1_000)
    record_progress(engine, "b", "", 5, 3, True, 2, 1_001)
    record_progress(engine, "a", "ann", 1, 20, True, 0, 1_002)
    only_checkpoint = Engine(PREFIX)
    apply(only_checkpoint, decode(encode(checkpoint(engine, 1_003))), 0)

    wanted = {"b": BatchProgress("", 5, 3, True, 2, 1_001), "a": BatchProgress("ann", 1, 20, True, 0, 1_002)}
    for found in (engine, tape.rebuilt(), from_snapshot(through_snapshot(engine, 1_003)), only_checkpoint):
        assert list(found.progress.items()) == list(wanted.items())  # the order says which goes first


def test_a_checkpoint_does_not_undo_what_is_known() -> None:
    engine = Engine(PREFIX)
    record_progress(engine, "a", "", 1, 10, True, 0, 1_000)
    old = checkpoint(engine, 1_000)
    record_progress(engine, "a", "", 2, 5, False, 0, 1_001)

    apply(engine, old, 0)

    assert engine.progress["a"].batch == 2


def test_jobs_that_are_long_over_are_forgotten() -> None:
    engine = Engine(PREFIX)
    record_progress(engine, "old", "", 1, 1, True, 0, 1_000)
    record_progress(engine, "young", "", 1, 1, True, 0, 2_000)

    record_progress(engine, "new", "", 1, 1, True, 0, 1_001 + KEPT_MS)

    assert list(engine.progress) == ["young", "new"]


def test_at_the_limit_a_new_job_is_refused_and_none_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_JOBS_PER_OWNER", 3)
    monkeypatch.setattr(progress, "MAX_SHARED_JOBS", 4)
    monkeypatch.setattr(progress, "MAX_JOBS", 6)
    engine = Engine(PREFIX)
    taken = {"eve": 0, "": 0, "bob": 0}
    record_progress(engine, "prod", "ann", 1, 1, True, 0, 1_000)

    for owner in ("eve", "", "bob"):
        for number in range(5):
            try:
                make_room(engine, owner, 2_000)
            except TooManyJobs:
                continue
            record_progress(engine, f"{owner}{number}", owner, 1, 1, True, 0, 2_000)
            taken[owner] += 1

    assert taken == {"eve": 3, "": 2, "bob": 0}
    assert "prod" in engine.progress
    record_progress(engine, "prod", "ann", 2, 1, True, 0, 2_000)  # who is known goes on
    make_room(engine, "eve", 2_001 + KEPT_MS)
    assert not engine.progress


def test_writes_without_a_name_give_way_to_those_of_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MAX_JOBS_PER_OWNER", 2)
    engine = Engine(PREFIX)
    record_progress(engine, "@b/batch-0b0c0d0e-0000-4000-8000-000000000000", "ann", 0, 1, True, 0, 1_000)
    record_progress(engine, "named", "ann", 0, 1, True, 0, 1_000)

    with pytest.raises(TooManyJobs):
        make_room(engine, "ann", 1_000 + UNNAMED_KEPT_MS)
    make_room(engine, "ann", 1_001 + UNNAMED_KEPT_MS)

    assert list(engine.progress) == ["named"]


def test_while_held_a_queue_goes_over_its_limit_and_lets_go_afterwards() -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = queue_of(engine, max_length=2)
    engine.deferred_overflow = []

    for body in (b"a", b"b", b"c", b"d"):
        engine.publish(queue, Draft(body), 1_000)

    assert queue.waiting_count == 4
    engine.end_deferred_overflow(1_000)
    assert [entry.body for entry in queue.ready] == [b"c", b"d"]
    engine.publish(queue, Draft(b"e"), 1_000)
    assert [entry.body for entry in queue.ready] == [b"d", b"e"]


def test_a_queue_takes_what_was_promised_whatever_its_limits_are() -> None:
    engine = Engine(PREFIX)
    queue = queue_of(engine, max_length=1, overflow="reject", max_body=3)

    for _ in range(3):
        engine.publish(queue, Draft(b"large"), 1_000, is_planned=True)

    assert queue.waiting_count == 3
