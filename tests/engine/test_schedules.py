"""The state of schedules: changed by records, and the same after a snapshot, a checkpoint and a replay."""

from __future__ import annotations

from openq.engine import schedules
from openq.engine.engine import Engine
from openq.engine.records import Record, decode, encode
from openq.engine.replay import apply, checkpoint
from openq.engine.snapshot import decode as load_snapshot
from openq.engine.snapshot import encode as pack_snapshot
from openq.engine.snapshot import freeze

NOW = 1_700_000_000_000


def filled() -> tuple[Engine, list[Record]]:
    log: list[Record] = []
    engine = Engine("x", log=log.append)
    schedules.put(engine, "a", {"name": "a", "queue": "q", "body": b"\0\xff", "next_ms": 5}, NOW)
    schedules.put(engine, "b", {"name": "b", "queue": "q"}, NOW)
    schedules.change(engine, "a", {"next_ms": 6, "runs": 1}, NOW + 1)
    schedules.delete(engine, "b", NOW + 2)
    return engine, log


EXPECTED = {"a": {"name": "a", "queue": "q", "body": b"\0\xff", "next_ms": 6, "runs": 1}}


def test_records_rebuild_the_schedules() -> None:
    engine, log = filled()
    rebuilt = Engine("x")
    for record in log:
        apply(rebuilt, decode(encode(record)), 0)
    assert engine.schedules == rebuilt.schedules == EXPECTED


def test_a_snapshot_and_a_checkpoint_hold_the_schedules() -> None:
    engine, _ = filled()
    from_snapshot, from_checkpoint = Engine("y"), Engine("y")
    load_snapshot(pack_snapshot(freeze(engine, NOW)), from_snapshot)
    apply(from_checkpoint, decode(encode(checkpoint(engine, NOW))), 0)
    assert from_snapshot.schedules == from_checkpoint.schedules == EXPECTED


def test_a_checkpoint_without_schedules_is_as_small_as_before() -> None:
    assert "schedules" not in checkpoint(Engine("x"), NOW)[4]


def test_a_change_of_a_schedule_that_was_lost_is_skipped() -> None:
    _, log = filled()
    engine = Engine("x")
    apply(engine, log[2], 0)
    apply(engine, log[3], 0)
    assert engine.schedules == {}
