"""Batches in parts: published whole and once, whatever comes between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from openq.broker import staged_batches, staged_rows
from openq.broker.interface import Broker
from openq.broker.staged_batches import (
    CommitPlan,
    Committed,
    NotYourJob,
    PartTooLarge,
    StageNotFound,
    StagingFull,
    StagingJob,
)
from openq.config import Config
from openq.engine import progress
from openq.errors import InvalidSetting, OpenQError, QueueFull, QueueNotFound
from openq.local import staging
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.packed import MESSAGE_COLUMNS, pack

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
    reported = broker.staging._keys.read_state(JOB, 0)  # type: ignore[attr-defined]
    return None if reported.newest < 0 else (reported.owner, reported.newest)


def send(
    broker: Broker, columns: dict[str, list[Any]], batch: int = 0, part: str = "p", job: StagingJob = JOB
) -> int:
    return broker.staging.put(job, batch, part, pack(columns, MESSAGE_COLUMNS))


def assert_published_once(broker: Any, wanted: Sequence[bytes]) -> None:
    """Batch 9 of the job is finished: a repeat publishes nothing, and every message is in its place."""
    send(broker, {"body": [b"again"]}, batch=9, part="again")
    again = broker.staging.commit(JOB, 9, ["again"], queue="q")

    found = Counter(body for name in ("q", "r", "bin") for body in waiting(broker, name))
    assert again.repeated
    assert again.published + again.rejected == len(wanted)
    assert again.rejected == len(waiting(broker, "bin"))
    assert found == Counter(wanted)
    assert broker.staging.stages() == []


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
def test_a_commit_that_does_not_fit_its_parts_is_refused_and_can_be_corrected(
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
