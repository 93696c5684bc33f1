"""Batches in parts: published whole and once, whatever comes between."""

from __future__ import annotations

import errno
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from openq.broker import staged_batches, staged_rows
from openq.broker.interface import Broker
from openq.broker.staged_batches import (
    CommitPlan,
    Committed,
    NotYourJob,
    PartDamaged,
    PartTooLarge,
    StageNotFound,
    StageUnread,
    StagingFull,
    StagingJob,
)
from openq.clock import VirtualClock
from openq.config import Config
from openq.engine import progress
from openq.errors import Closed, DiskFull, InvalidSetting, OpenQError, QueueFull, QueueNotFound
from openq.journal import writer
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local import staging
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.packed import MESSAGE_COLUMNS, pack
from tests.crash.faults import FaultyDisk
from tests.waiting import until

JOB = StagingJob("load")
MIB = 1 << 20


def bodies(count: int, start: int = 0, size: int = 0) -> list[bytes]:
    return [f"{number}".encode().ljust(size, b".") for number in range(start, start + count)]


@pytest.fixture(params=["memory", "disk", "tiny segments"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBroker]:
    path = None if request.param == "memory" else tmp_path / "d"
    made = LocalBroker(path, segment_bytes=4096 if request.param == "tiny segments" else 64 * MIB)
    made.declare("q", QueueSettings())
    made.declare("dead", QueueSettings())
    yield made
    made.close()


def rot(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 7)
    monkeypatch.setattr(staging, "CHUNK_BYTES", 500)


def waiting(broker: Broker, queue: str = "q") -> list[bytes]:
    return [entry.body or b"" for entry in broker.inspect.entries(queue)]


def newest_of(broker: Broker) -> tuple[str, int] | None:
    """Whose the job is and which batch of it was published last."""
    if isinstance(broker, LocalBroker):
        mark = broker.engine.progress.get(JOB.key)
        return None if mark is None else (mark.owner, mark.batch)
    told = broker.staging._keys.read_state(JOB, 0)  # type: ignore[attr-defined]
    return None if told.newest < 0 else (told.owner, told.newest)


def send(
    broker: Broker, columns: dict[str, list[Any]], batch: int = 0, part: str = "p", job: StagingJob = JOB
) -> int:
    return broker.staging.put(job, batch, part, pack(columns, MESSAGE_COLUMNS))


# -- whole, in order, once


@pytest.mark.usefixtures("small_chunks")
def test_the_named_parts_are_published_in_their_order_and_nothing_else(broker: LocalBroker) -> None:
    for part, start in (("a", 0), ("b", 50), ("c", 100), ("failed attempt", 900)):
        assert broker.staging.put(JOB, 1, part.replace(" ", "-"), pack({"body": bodies(50, start)})) == 50
    assert waiting(broker) == []

    done = broker.staging.commit(JOB, 1, ["b", "a", "c"], 150, queue="q")

    assert done == Committed(150, 0, False)
    assert waiting(broker) == [*bodies(50, 50), *bodies(50), *bodies(50, 100)]
    assert broker.staging.stages() == []


@pytest.mark.usefixtures("small_chunks")
def test_a_batch_that_is_committed_again_is_not_published_again(broker: LocalBroker) -> None:
    send(broker, {"body": bodies(30)}, batch=3)
    broker.staging.commit(JOB, 3, ["p"], queue="q")

    assert send(broker, {"body": bodies(30)}, batch=3, part="other") == 30
    assert broker.staging.commit(JOB, 3, ["other"], queue="q") == Committed(30, 0, True)
    assert broker.staging.commit(JOB, 2, ["long gone"], queue="q") == Committed(0, 0, True)
    send(broker, {"body": bodies(1, 99)}, batch=4)
    assert broker.staging.commit(JOB, 4, ["p"], queue="q") == Committed(1, 0, False)

    assert waiting(broker) == [*bodies(30), b"99"]
    assert broker.staging.stages() == []


def test_jobs_do_not_meet(broker: LocalBroker) -> None:
    broker.declare("@b/q", QueueSettings())
    for job in (JOB, StagingJob("other"), StagingJob("load", account="b")):
        send(broker, {"body": [job.account.encode()]}, job=job)
        assert not broker.staging.commit(job, 0, ["p"], queue="q").repeated

    assert len(waiting(broker)) == 2
    assert waiting(broker, "@b/q") == [b"b"]


def test_a_part_of_the_same_name_replaces_the_one_before(broker: LocalBroker) -> None:
    send(broker, {"body": [b"first"]})
    send(broker, {"body": [b"second"]})
    broker.staging.commit(JOB, 0, ["p"], 1, queue="q")

    assert waiting(broker) == [b"second"]


def test_a_batch_without_rows_is_a_batch(broker: LocalBroker) -> None:
    send(broker, {"body": [b"x"]})
    broker.staging.commit(JOB, 0, ["p"], queue="q")
    assert broker.staging.commit(JOB, 1, [], 0, queue="q") == Committed(0, 0, False)
    assert broker.staging.commit(JOB, 1, [], 0, queue="q").repeated


def test_a_job_that_never_published_anything_leaves_nothing_behind(broker: LocalBroker) -> None:
    for parts in ([], ["none"]):
        send(broker, {"body": []}, part="none")
        assert broker.staging.commit(JOB, 0, parts, 0, queue="q") == Committed(0, 0, False)

    assert newest_of(broker) is None
    assert broker.staging.stages() == []


def test_nobody_makes_the_jobs_of_others_be_forgotten(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "MAX_JOBS_PER_OWNER", 2)
    for name in ("prod", "other"):
        send(broker, {"body": [b"x"]}, job=StagingJob(name, owner="ann"))
        broker.staging.commit(StagingJob(name, owner="ann"), 0, ["p"], queue="q")
    for number in range(5):
        job = StagingJob(f"flood{number}", owner="eve")
        send(broker, {"body": [b"y"]}, job=job)
        if number < 2:
            broker.staging.commit(job, 0, ["p"], queue="q")
        else:
            with pytest.raises(progress.TooManyJobs, match="of yours"):
                broker.staging.commit(job, 0, ["p"], queue="q")

    assert broker.staging.commit(StagingJob("prod", owner="ann"), 0, ["p"], queue="q").repeated
    send(broker, {"body": [b"x"]}, batch=1, job=StagingJob("prod", owner="ann"))
    assert broker.staging.commit(StagingJob("prod", owner="ann"), 1, ["p"], queue="q").published == 1


def test_what_is_aborted_is_gone_and_what_is_committed_stays(broker: LocalBroker) -> None:
    send(broker, {"body": [b"a"]})
    assert broker.staging.abort(JOB, 0)
    assert broker.staging.abort(JOB, 0)
    with pytest.raises(StageNotFound):
        broker.staging.commit(JOB, 0, ["p"], queue="q")

    send(broker, {"body": [b"b"]})
    broker.staging.commit(JOB, 0, ["p"], queue="q")
    assert not broker.staging.abort(JOB, 0)
    assert waiting(broker) == [b"b"]


# -- rows


def test_rows_say_all_that_a_message_can(broker: LocalBroker) -> None:
    columns: dict[str, list[Any]] = {
        "body": [b"0", b"1", b"2", b"3"],
        "queue": [None, "dead", "q", "q"],
        "message_id": [None, "own-id", None, None],
        "type": ["order", None, None, None],
        "group": [None, "g", None, None],
        "dedup_id": [None, None, "d", "d"],
        "delay_us": [None, None, None, 0],
        "priority": [None, 7, None, None],
        "attributes": [
            {"a": 1, "b": {"$base64": "AAE="}},
            {
                "n": {"type": "Number", "string": "12", "binary": None},
                "x": {"type": "Binary", "binary": "/w=="},
            },
            None,
            None,
        ],
        "headers": [None, None, {"traceparent": "00-abc-def-01"}, None],
        "content_type": [None, None, "application/json", None],
    }
    send(broker, columns)

    # The last repeats the one before it: it is taken, and there once.
    assert broker.staging.commit(JOB, 0, ["p"], 4, queue="q").published == 4

    first, third = broker.inspect.entries("q")
    assert first.options is not None
    assert first.options.type == "order"
    assert first.properties is not None
    assert first.properties.attributes == {"a": 1, "b": b"\0\1"}
    assert third.properties is not None
    assert third.properties.attributes == {"traceparent": "00-abc-def-01", "content_type": "application/json"}
    [second] = broker.inspect.entries("dead")
    assert second.options is not None
    assert second.properties is not None
    assert (second.options.id, second.options.group, second.options.priority) == ("own-id", "g", 7)
    assert second.properties.attributes == {"n": 12, "x": b"\xff"}


def test_delays_and_the_order_of_groups_hold(broker: LocalBroker) -> None:
    broker.declare("fifo", QueueSettings(fifo=True))
    send(broker, {"body": bodies(6), "group": ["a", "b"] * 3, "queue": ["fifo"] * 6})
    broker.staging.commit(JOB, 0, ["p"])
    send(broker, {"body": bodies(2), "delay_us": [3_600_000_000, None]}, batch=1)
    broker.staging.commit(JOB, 1, ["p"], queue="q")

    assert [each.entry.group for each in broker.receive("fifo", 4)] == ["a", "a", "a", "b"]
    stats = broker.stats("q")
    assert (stats.ready, stats.delayed) == (1, 1)


BAD_ROWS: dict[str, tuple[dict[str, list[Any]], str]] = {
    "no body": ({"body": [b"ok", None]}, "null"),
    "no queue": ({"body": [b"ok", b"bad"], "queue": ["q", None]}, "names no queue"),
    "unknown queue": ({"body": [b"ok", b"bad"], "queue": ["q", "nowhere"]}, "does not exist"),
    "too large": ({"body": [b"ok", b"x" * 21], "queue": ["q", "narrow"]}, "takes at most 20"),
    "priority": ({"body": [b"ok", b"bad"], "priority": [None, 256], "queue": ["q", "q"]}, "priority"),
    "delay": ({"body": [b"ok", b"bad"], "delay_us": [None, -1], "queue": ["q", "q"]}, "delay_us"),
    "id": ({"body": [b"ok", b"bad"], "message_id": [None, "a\n"], "queue": ["q", "q"]}, "control"),
    "group": ({"body": [b"ok", b"bad"], "group": [None, "g" * 2000], "queue": ["q", "q"]}, "group"),
    "attributes": ({"body": [b"ok", b"bad"], "attributes": [None, [1]], "queue": ["q", "q"]}, "attributes"),
    "base64": (
        {"body": [b"ok", b"bad"], "attributes": [None, {"a": {"$base64": "!"}}], "queue": ["q", "q"]},
        "base64",
    ),
    "headers": ({"body": [b"ok", b"bad"], "headers": [None, "x"], "queue": ["q", "q"]}, "headers"),
    "header name": ({"body": [b"ok", b"bad"], "headers": [None, {"n" * 300: 1}], "queue": ["q"] * 2}, "255"),
    "full": (
        {"body": [b"ok", b"0", b"1", b"bad"], "queue": ["q", "short", "short", "short"]},
        "max_length 2",
    ),
    "bytes": ({"body": [b"ok", b"0" * 9, b"bad"], "queue": ["q", "light", "light"]}, "max_bytes 10"),
}


def with_limits(broker: LocalBroker) -> None:
    broker.declare("narrow", QueueSettings(max_body=20))
    broker.declare("short", QueueSettings(max_length=2, overflow="reject"))
    broker.declare("light", QueueSettings(max_bytes=10, overflow="reject-dead-letter", dead_letter="dead"))


@pytest.mark.parametrize("what", BAD_ROWS)
def test_one_bad_row_refuses_the_whole_batch(broker: LocalBroker, what: str) -> None:
    with_limits(broker)
    columns, why = BAD_ROWS[what]
    if "queue" not in columns:
        columns = {**columns, "queue": ["q"] * len(columns["body"])}
    send(broker, columns)

    with pytest.raises(OpenQError, match=r"row \d of part p: .*" + why):
        broker.staging.commit(JOB, 0, ["p"])

    assert [broker.stats(name).ready for name in broker.queues()] == [0] * 5
    assert newest_of(broker) is None


@pytest.mark.parametrize("what", BAD_ROWS)
def test_bad_rows_become_dead_letters_that_say_why(broker: LocalBroker, what: str) -> None:
    with_limits(broker)
    broker.declare("bin", QueueSettings())
    columns, why = BAD_ROWS[what]
    if "queue" not in columns:
        columns = {**columns, "queue": ["q"] * len(columns["body"])}
    send(broker, columns)
    count = len(columns["body"])

    assert broker.staging.commit(JOB, 0, ["p"], dead_letter="bin") == Committed(count - 1, 1, False)

    [dead] = broker.inspect.entries("bin")
    assert dead.body == (columns["body"][-1] or b"")
    assert dead.properties is not None
    assert why in str(dead.properties.attributes["rejected_reason"])
    assert waiting(broker, "q") == [b"ok"]


def test_a_queue_that_lets_go_of_its_oldest_does_so_when_the_chunk_is_in(broker: LocalBroker) -> None:
    broker.declare("last", QueueSettings(max_length=3))
    send(broker, {"body": bodies(10)})
    broker.staging.commit(JOB, 0, ["p"], queue="last")

    assert waiting(broker, "last") == bodies(3, 7)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"parts": ["p", "p"]}, InvalidSetting),
        ({"parts": ["p", "q"]}, StageNotFound),
        ({"parts": ["p"], "rows": 3}, InvalidSetting),
        ({"parts": ["p"], "queue": "nowhere"}, QueueNotFound),
        ({"parts": ["p"], "dead_letter": "nowhere"}, QueueNotFound),
        ({"parts": ["p"], "queue": None}, InvalidSetting),
    ],
)
def test_a_commit_that_does_not_fit_its_parts_is_refused_and_can_be_mended(
    broker: LocalBroker, arguments: dict[str, Any], error: type[OpenQError]
) -> None:
    send(broker, {"body": bodies(2)})

    with pytest.raises(error):
        broker.staging.commit(JOB, 0, **{"queue": "q", **arguments})

    assert waiting(broker) == []
    send(broker, {"body": bodies(1, 2)}, part="late")
    assert broker.staging.commit(JOB, 0, ["p", "late"], 3, queue="q").published == 3


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 101, "a\0"])
def test_names_are_safe_as_names_of_files(broker: LocalBroker, name: str) -> None:
    with pytest.raises(InvalidSetting, match="letters, digits"):
        StagingJob(name)
    with pytest.raises(InvalidSetting, match="letters, digits"):
        send(broker, {"body": [b"x"]}, part=name)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"junk",
        pack({"body": [b"x"]})[:-1],
        pack({"text": ["x"]}),
        pack({"body": ["x"]}),
        pack({"body": [b"x"], "colour": ["red"]}),
    ],
)
def test_what_is_no_part_is_not_staged(broker: LocalBroker, data: bytes) -> None:
    with pytest.raises(InvalidSetting):
        broker.staging.put(JOB, 0, "p", data)
    with pytest.raises(InvalidSetting):
        broker.staging.put(JOB, -1, "p", pack({"body": [b"x"]}))

    assert broker.staging.stages() == []


def test_only_so_much_is_staged_at_once(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pack({"body": [b"x" * 10_000]})
    monkeypatch.setattr(broker.staging, "_max_bytes", 3 * len(data) + 2_000)
    for part in "abc":
        broker.staging.put(JOB, 0, part, data)
    with pytest.raises(StagingFull):
        broker.staging.put(JOB, 0, "d", data)

    broker.staging.commit(JOB, 0, ["a"], queue="q")
    broker.staging.put(JOB, 1, "a", data)

    monkeypatch.setattr(staged_batches, "MAX_STAGES", 1)
    with pytest.raises(StagingFull):
        broker.staging.put(JOB, 2, "a", data)
    monkeypatch.setattr(staged_batches, "MAX_PARTS", 1)
    with pytest.raises(InvalidSetting, match="at most 1 parts"):
        broker.staging.put(JOB, 1, "b", data)
    monkeypatch.setattr(staged_batches, "MAX_PART", 10)
    with pytest.raises(PartTooLarge, match="at most 10"):
        broker.staging.put(JOB, 1, "a", data)


def test_a_job_belongs_to_who_began_it(broker: LocalBroker) -> None:
    ann, bob = StagingJob("load", owner="ann"), StagingJob("load", owner="bob")
    root = StagingJob("load", owner="root", is_admin=True)
    send(broker, {"body": [b"a"]}, job=ann)

    for act in (
        lambda: send(broker, {"body": [b"b"]}, job=bob),
        lambda: broker.staging.commit(bob, 0, ["p"], queue="q"),
        lambda: broker.staging.abort(bob, 0),
    ):
        with pytest.raises(NotYourJob):
            act()
    broker.staging.commit(root, 0, ["p"], queue="q")
    assert newest_of(broker) == ("ann", 0)
    for batch in (0, 1):
        with pytest.raises(NotYourJob):
            send(broker, {"body": [b"b"]}, batch=batch, job=bob)
        with pytest.raises(NotYourJob):
            broker.staging.commit(bob, batch, [], queue="q")


def test_a_job_belongs_to_who_sent_its_first_part(broker: LocalBroker) -> None:
    ann, bob = StagingJob("load", owner="ann"), StagingJob("load", owner="bob")
    root = StagingJob("load", owner="root", is_admin=True)
    send(broker, {"body": [b"a"]}, job=ann)

    for act in (
        lambda: send(broker, {"body": [b"b"]}, batch=1, job=bob),
        lambda: broker.staging.commit(bob, 1, [], queue="q"),
        lambda: broker.staging.abort(bob, 1),
    ):
        with pytest.raises(NotYourJob):
            act()
    send(broker, {"body": [b"b"]}, batch=1, job=root)  # helps, and takes nothing away
    assert [each.job.owner for each in broker.staging.stages()] == ["ann", "ann"]
    broker.staging.commit(root, 1, ["p"], queue="q")
    broker.staging.commit(root, 2, [], queue="q")
    assert newest_of(broker) == ("ann", 2)


def test_the_name_of_a_job_is_free_once_nothing_of_it_is_left(broker: LocalBroker) -> None:
    ann, bob = StagingJob("load", owner="ann"), StagingJob("load", owner="bob")
    for batch in (0, 1):
        send(broker, {"body": [b"a"]}, batch=batch, job=ann)
        send(broker, {"body": [b"a"]}, part="again", batch=batch, job=ann)
    broker.staging.abort(ann, 0)
    broker.staging.abort(ann, 0)
    with pytest.raises(NotYourJob):
        send(broker, {"body": [b"b"]}, job=bob)
    broker.staging.abort(ann, 1)

    send(broker, {"body": [b"b"]}, job=bob)
    assert broker.staging.commit(bob, 0, ["p"], queue="q") == Committed(1, 0, False)


def test_who_may_send_where_is_asked_once_for_each_queue_and_before_anything_else(
    broker: LocalBroker,
) -> None:
    asked: list[str] = []

    def may_send(name: str) -> None:
        asked.append(name)
        if name == "secret":
            raise PermissionError(name)

    send(broker, {"body": bodies(4), "queue": ["q", "dead", "q", "dead"]})
    broker.staging.commit(JOB, 0, ["p"], may_send=may_send)
    assert asked == ["q", "dead"]

    send(broker, {"body": bodies(2), "queue": ["q", "secret"]}, batch=1)
    with pytest.raises(PermissionError):
        broker.staging.commit(JOB, 1, ["p"], dead_letter="dead", may_send=may_send)
    assert len(waiting(broker)) == 2


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


def assert_published_once(broker: Any, wanted: Sequence[bytes]) -> None:
    """Batch 9 of the job, whoever finished it: again it brings nothing, and all is where it belongs."""
    send(broker, {"body": [b"again"]}, batch=9, part="again")
    again = broker.staging.commit(JOB, 9, ["again"], queue="q")

    found = Counter(body for name in ("q", "r", "bin") for body in waiting(broker, name))
    assert again.repeated
    assert again.published + again.rejected == len(wanted)
    assert again.rejected == len(waiting(broker, "bin"))
    assert found == Counter(wanted)
    assert broker.staging.stages() == []


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


def test_what_is_none_of_ours_keeps_nobody_from_starting(tmp_path: Path) -> None:
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


def test_a_full_queue_refuses_the_batch_and_takes_it_when_there_is_room(broker: LocalBroker) -> None:
    broker.declare("short", QueueSettings(max_length=5, overflow="reject"))
    broker.publish("short", Draft(b"x"))
    send(broker, {"body": bodies(5)})
    with pytest.raises(QueueFull):
        broker.staging.commit(JOB, 0, ["p"], queue="short")

    broker.purge("short")

    assert broker.staging.commit(JOB, 0, ["p"], queue="short").published == 5


def test_bad_rows_have_a_limit_and_cost_little(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_rows, "MAX_REJECTED", 5)
    for part, count in (("a", 3), ("b", 2), ("c", 1)):
        send(broker, {"body": [b"good", *[None] * count]}, part=part)

    with pytest.raises(
        InvalidSetting, match="more than 5 bad rows, such as row 1 of part c: the body is null"
    ):
        broker.staging.commit(JOB, 0, ["a", "b", "c"], queue="q", dead_letter="dead")
    assert waiting(broker, "dead") == []
    done = broker.staging.commit(JOB, 0, ["a", "b"], queue="q", dead_letter="dead")

    assert done == Committed(2, 5, False)
    assert len(waiting(broker, "dead")) == 5
    plan = CommitPlan((("a", 900),), "q", "dead", dict.fromkeys(range(900), "the body is null"))
    assert len(json.dumps(plan.to_json())) < 12_000


def test_a_part_that_is_taken_fits_a_request(broker: LocalBroker) -> None:
    assert Config().max_request_bytes >= staged_batches.MAX_PART
    with pytest.raises(PartTooLarge):
        broker.staging.put(JOB, 0, "p", bytes(staged_batches.MAX_PART + 1))
