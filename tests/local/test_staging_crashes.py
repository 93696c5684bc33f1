"""Batches in parts over crashes, restarts, damage and a full disk: published whole and once."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from openq.broker import staged_batches
from openq.broker.staged_batches import (
    CommitPlan,
    Committed,
    PartDamaged,
    StageNotFound,
    StageUnread,
)
from openq.clock import VirtualClock
from openq.errors import Closed, DiskFull, InvalidSetting
from openq.journal import writer
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local import staging
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.crash.faults import FaultyDisk
from tests.local.test_staging import (
    JOB,
    MIB,
    assert_published_once,
    bodies,
    rot,
    send,
    small_chunks,
    waiting,
)
from tests.waiting import until

__all__ = ["small_chunks"]

# -- crashes and restarts


def reopened(path: Path, **options: Any) -> LocalBroker:
    return LocalBroker(path, segment_bytes=4096, **options)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_chunk_a_crash_comes_after_the_batch_is_finished_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    broker = reopened(tmp_path / "d")
    broker.declare("q", QueueSettings())
    broker.declare("r", QueueSettings(max_length=1_000, overflow="reject"))
    broker.declare("bin", QueueSettings())
    wanted: list[bytes] = []
    sent = 0
    for part in "abcd":
        rows = bodies(chance.randrange(1, 60), sent, chance.randrange(0, 90))
        sent += len(rows)
        columns: dict[str, list[Any]] = {"body": rows}
        if part in "bd":
            columns["queue"] = [chance.choice(["q", "r", "nowhere"]) for _ in rows]
            columns["priority"] = [chance.choice([None, 0]) for _ in rows]
        wanted += rows
        send(broker, columns, batch=9, part=part)
    publish, left = broker.staging._publish, chance.randrange(0, 30)

    def until_it_dies(*arguments: Any) -> None:
        nonlocal left
        if not left:
            raise Closed()
        left -= 1
        publish(*arguments)

    broker.staging._publish = until_it_dies  # type: ignore[method-assign]
    try:
        broker.staging.commit(JOB, 9, list("abcd"), sent, queue="q", dead_letter="bin")
    except Closed:
        assert broker.staging.stages()[0].is_committed
    if chance.random() < 0.5:
        broker.housekeeper.snapshot()  # type: ignore[union-attr]
    broker.flush()
    # As a crash leaves it: no last snapshot.
    broker.housekeeper._snapshot_location = broker.journal.end_location  # type: ignore[union-attr]
    broker.close()

    broker = reopened(tmp_path / "d")
    if chance.random() < 0.5:
        broker.staging.sweep()
    assert_published_once(broker, wanted)
    assert os.listdir(tmp_path / "d" / "pipeline" / "staged") == []
    broker.close()


def test_a_small_batch_is_one_block_with_its_mark(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "d")
    broker.declare("q", QueueSettings())
    broker.sync()
    send(broker, {"body": bodies(20), "priority": [1, None] * 10})
    broker.staging.commit(JOB, 0, ["p"], queue="q")
    [path] = [each for each in (tmp_path / "d" / "journal").iterdir() if each.suffix == ".seg"]
    whole = path.read_bytes()
    broker.close()
    mark = whole.rindex(b'"load"')

    # Cut after any byte of the mark or before it, the whole batch is not there; then it can be sent again.
    for cut in (mark - 400, mark - 100, mark, whole.index(b"]", mark)):
        torn = tmp_path / str(cut) / "journal" / path.name
        torn.parent.mkdir(parents=True)
        torn.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        again = LocalBroker(tmp_path / str(cut))

        assert waiting(again) == []
        assert again.engine.progress == {}
        send(again, {"body": bodies(20)})
        assert again.staging.commit(JOB, 0, ["p"], queue="q") == Committed(20, 0, False)
        again.close()


@pytest.mark.usefixtures("small_chunks")
def test_a_later_batch_waits_for_the_one_that_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = reopened(tmp_path / "d")
    broker.declare("q", QueueSettings())
    send(broker, {"body": bodies(30)}, batch=1)
    with monkeypatch.context() as patch:
        patch.setattr(broker.staging, "_publish_plan", lambda *_, **__: (_ for _ in ()).throw(Closed()))
        with pytest.raises(Closed):
            broker.staging.commit(JOB, 1, ["p"], queue="q")
    assert not broker.staging.abort(JOB, 1)
    assert send(broker, {"body": [b"too late"]}, batch=1) == 1

    send(broker, {"body": bodies(1, 30)}, batch=2)
    broker.staging.commit(JOB, 2, ["p"], queue="q")

    assert waiting(broker) == bodies(31)
    broker.close()


@pytest.mark.usefixtures("small_chunks")
def test_a_queue_that_is_deleted_after_the_promise_takes_its_messages_with_it(tmp_path: Path) -> None:
    def dying(*_: object) -> None:
        raise Closed()

    for dead_letter, expected in ((None, []), ("bin", bodies(30))):
        path = tmp_path / str(dead_letter)
        broker = reopened(path)
        for name in ("q", "bin"):
            broker.declare(name, QueueSettings())
        send(broker, {"body": bodies(30)})
        broker.staging._publish = dying  # type: ignore[method-assign,assignment]
        with pytest.raises(Closed):
            broker.staging.commit(JOB, 0, ["p"], queue="q", dead_letter=dead_letter)
        broker.close()

        broker = reopened(path)
        broker.delete("q")
        broker.staging.sweep()

        assert waiting(broker, "bin") == expected
        assert broker.engine.progress["load"].is_last
        broker.close()


def test_parts_survive_a_restart_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    broker = reopened(tmp_path / "d")
    broker.declare("q", QueueSettings())
    for part in "ab":
        send(broker, {"body": [part.encode()]}, part=part)
    folder = tmp_path / "d" / "pipeline" / "staged" / "load" / "0"
    broker.close()
    (folder / "c.rows.7.tmp").write_bytes(b"half")
    (tmp_path / "d" / "pipeline" / "staged" / "load" / "junk").mkdir()
    rot(folder / "b.rows")

    broker = reopened(tmp_path / "d")
    with pytest.raises(InvalidSetting, match="damaged"):
        broker.staging.commit(JOB, 0, ["a", "b"], queue="q")
    assert broker.staging.commit(JOB, 0, ["a"], 1, queue="q").published == 1

    assert waiting(broker) == [b"a"]
    assert os.listdir(tmp_path / "d" / "pipeline" / "staged") == []
    broker.close()


def test_what_nobody_commits_is_dropped_after_a_day(tmp_path: Path) -> None:
    for path in (None, tmp_path / "d"):
        clock = VirtualClock(1_000_000_000_000)
        broker = LocalBroker(path, clock=clock)
        send(broker, {"body": [b"x"]})
        clock.advance(staged_batches.KEPT_MS / 1000)
        send(broker, {"body": [b"x"]}, batch=1)
        broker.staging.sweep()
        assert len(broker.staging.stages()) == 2

        clock.advance(1)
        broker.staging.sweep()

        assert [stage.batch for stage in broker.staging.stages()] == [1]
        broker.close()


def promised(path: Path, monkeypatch: pytest.MonkeyPatch, published: int = 1) -> Path:
    """Parts a and b of batch 0 in chunks of one row, of which so many are published; where the parts are."""
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    broker = reopened(path)
    broker.declare("q", QueueSettings())
    for start, part in enumerate("ab"):
        send(broker, {"body": bodies(2, 2 * start)}, part=part)
    publish, left = broker.staging._publish, published

    def stop_some_day(*arguments: Any) -> None:
        nonlocal left
        if not left:
            raise Closed()
        left -= 1
        publish(*arguments)

    broker.staging._publish = stop_some_day  # type: ignore[method-assign]
    with pytest.raises(Closed):
        broker.staging.commit(JOB, 0, ["a", "b"], queue="q")
    broker.close()
    return path / "pipeline" / "staged" / "load" / "0"


def test_foreign_files_do_not_prevent_a_start(tmp_path: Path) -> None:
    broker = reopened(tmp_path / "d")
    broker.declare("q", QueueSettings())
    send(broker, {"body": [b"x"]})
    broker.close()
    staged = tmp_path / "d" / "pipeline" / "staged"
    (staged / ".DS_Store").write_bytes(b"junk")
    (staged / "load" / ".DS_Store").write_bytes(b"junk")
    (staged / "load" / "7").write_bytes(b"junk")
    (staged / "odd" / "3").mkdir(parents=True)
    (staged / "odd" / "3" / "stage.json").write_text('{"job": "a/b", "account": "x", "owner": ""}')

    broker = reopened(tmp_path / "d")

    assert [stage.batch for stage in broker.staging.stages()] == [0]
    assert broker.staging.commit(JOB, 0, ["p"], queue="q").published == 1
    assert (staged / ".DS_Store").exists()
    broker.close()


@pytest.mark.parametrize("what", ["", "load", "load/0", "load/0/commit.json", "load/0/stage.json"])
def test_what_the_disk_does_not_give_now_is_kept_and_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = promised(tmp_path / "d", monkeypatch)
    broken = os.path.normpath(folder.parents[1] / what)
    listdir, opened, is_broken = DiskIo.listdir, DiskIo.open, True

    def failing(real: Any) -> Any:
        def call(self: DiskIo, path: str, *more: Any) -> Any:
            if is_broken and os.path.normpath(path) == broken:
                raise OSError(errno.EIO, "the disk is ill", path)
            return real(self, path, *more)

        return call

    monkeypatch.setattr(DiskIo, "listdir", failing(listdir))
    monkeypatch.setattr(DiskIo, "open", failing(opened))
    broker = reopened(tmp_path / "d")
    for _ in range(2):
        with pytest.raises(StageUnread):
            send(broker, {"body": [b"x"]}, batch=1)
        with pytest.raises(StageUnread):
            broker.staging.commit(JOB, 1, [], queue="q")
        with pytest.raises(StageUnread):
            broker.staging.abort(JOB, 0)
        broker.staging.sweep()
    assert waiting(broker) == bodies(1)

    is_broken = False
    broker.staging.sweep()

    assert waiting(broker) == bodies(4)
    send(broker, {"body": [b"x"]}, batch=1)
    broker.close()


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_damaged_part_of_a_promise_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = promised(tmp_path / "d", monkeypatch)
    rot(folder / "b.rows") if how == "damaged" else (folder / "b.rows").unlink()
    broker = reopened(tmp_path / "d")
    with pytest.raises(PartDamaged) as caught:
        broker.staging.commit(JOB, 1, [], queue="q")
    assert str(tmp_path) not in str(caught.value)

    send(broker, {"body": [b"no"]}, part="a")  # that one is well
    send(broker, {"body": [b"no"]}, part="b")  # not as many rows
    with pytest.raises(PartDamaged):
        broker.staging.commit(JOB, 1, [], queue="q")
    send(broker, {"body": bodies(2, 2)}, part="b")

    assert broker.staging.commit(JOB, 0, ["a", "b"], queue="q") == Committed(4, 0, True)
    assert waiting(broker) == bodies(4)
    assert broker.staging._staged == 0
    broker.close()


def test_a_damaged_promise_may_be_aborted_and_the_batch_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = promised(tmp_path / "d", monkeypatch, published=3)
    broker = reopened(tmp_path / "d")
    assert not broker.staging.abort(JOB, 0)
    rot(folder / "b.rows")

    assert broker.staging.abort(JOB, 0)
    send(broker, {"body": bodies(4)}, part="new")
    assert broker.staging.commit(JOB, 0, ["new"], queue="q").published == 4

    assert waiting(broker) == bodies(4)
    broker.close()


def test_a_promise_that_makes_no_sense_stays_until_the_batch_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = promised(tmp_path / "d", monkeypatch)
    (folder / "commit.json").write_text("{")
    broker = reopened(tmp_path / "d")
    assert (folder / "a.rows").exists()

    send(broker, {"body": bodies(4)}, part="new")
    assert broker.staging.commit(JOB, 0, ["new"], queue="q").published == 4

    assert waiting(broker) == bodies(4)
    assert not folder.exists()
    broker.close()


def test_parts_that_are_being_written_are_waited_for(tmp_path: Path) -> None:
    """Neither half committed, nor left behind by an abort."""
    broker = reopened(tmp_path / "d")
    broker.declare("q", QueueSettings())
    folder = tmp_path / "d" / "pipeline" / "staged" / "load" / "0"
    write, is_writing, go_on = broker.staging._write_part, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> None:
        is_writing.set()
        assert go_on.wait(60)
        write(*arguments)

    for act in (
        lambda: broker.staging.abort(JOB, 0),
        lambda: broker.staging.commit(JOB, 0, ["p"], queue="q"),
    ):
        is_writing.clear()
        go_on.clear()
        broker.staging._write_part = slowly  # type: ignore[method-assign]
        sender = threading.Thread(target=send, args=(broker, {"body": [b"x"]}))
        sender.start()
        assert is_writing.wait(60)
        actor = threading.Thread(target=act)
        actor.start()
        until(lambda: any(each.is_leaving or each.is_closed for each in broker.staging._stages.values()))
        assert actor.is_alive()
        go_on.set()
        sender.join(60)
        actor.join(60)
        assert broker.staging.stages() == []
        assert broker.staging._staged == 0
        assert not folder.exists()

    assert waiting(broker) == [b"x"]
    broker.close()


def test_a_part_that_cannot_be_replaced_is_still_the_one_before(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, capacity=64 * MIB)
    broker = LocalBroker(journal=Journal(tmp_path / "d", segment_bytes=MIB, io=disk))
    broker.declare("q", QueueSettings())
    send(broker, {"body": [b"old", b"old"]})
    write = broker.staging._write_part

    def fails(*arguments: Any) -> None:
        raise DiskFull("test")

    broker.staging._write_part = fails  # type: ignore[method-assign]
    for part in ("p", "other"):
        with pytest.raises(DiskFull):
            send(broker, {"body": [b"new"]}, part=part)
    broker.staging._write_part = write  # type: ignore[method-assign]
    with pytest.raises(StageNotFound):
        broker.staging.commit(JOB, 0, ["p", "other"], queue="q")

    assert broker.staging.commit(JOB, 0, ["p"], 2, queue="q").published == 2
    assert waiting(broker) == [b"old", b"old"]
    broker.close()


# -- a full disk


def test_a_full_disk_refuses_parts_and_commits_and_keeps_its_promise_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(tmp_path, capacity=8 * MIB)
    journal = Journal(
        tmp_path / "d", segment_bytes=MIB, first_segment_bytes=MIB // 4, reserve_bytes=2 * MIB, io=disk
    )
    broker = LocalBroker(journal=journal)
    broker.declare("q", QueueSettings())
    broker.declare("filler", QueueSettings())
    monkeypatch.setattr(staging, "CHUNK_BYTES", 100_000)
    send(broker, {"body": bodies(40, size=10_000)})
    published = broker.staging._publish
    left = 1

    def fill_up(*arguments: Any) -> None:
        nonlocal left
        if not left:
            with suppress(DiskFull):
                while True:
                    broker.publish_bodies("filler", [b"x" * 50_000], 0)
                    broker.sync()
        left -= 1
        published(*arguments)

    broker.staging._publish = fill_up  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        broker.staging.commit(JOB, 0, ["p"], queue="q")
    first = len(waiting(broker))
    assert 0 < first < 40
    with suppress(DiskFull):  # the last small rest of the disk too
        while True:
            broker.publish_bodies("filler", [b"x"], 0)
            broker.sync()
    with pytest.raises(DiskFull):
        send(broker, {"body": bodies(1)}, batch=1)
    with pytest.raises(DiskFull):
        broker.staging.commit(JOB, 0, ["p"], queue="q")
    broker.staging.sweep()  # tries, and says so in the log
    assert len(waiting(broker)) == first

    disk.capacity = 64 * MIB
    broker.staging._publish = published  # type: ignore[method-assign]
    until(lambda: journal.can_publish(MIB))
    broker.staging.sweep()

    assert waiting(broker) == bodies(40, size=10_000)
    assert broker.staging.stages() == []
    broker.close()


def test_a_promise_says_all_that_is_needed() -> None:
    plan = CommitPlan((("a", 3), ("b", 4)), "q", None, {2: "why"})

    assert CommitPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    old = {"parts": [["a", 3], ["b", 4]], "queue": "q", "dead_letter": None, "rejected": [[2, "why"]]}
    assert CommitPlan.from_json(old) == plan
    assert plan.rows == 7
