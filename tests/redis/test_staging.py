"""Staged batches on Redis: what holds for the journal, and what several servers can do to each other."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from openq.broker import staged_batches
from openq.broker.staged_batches import (
    Committed,
    NotYourJob,
    PartDamaged,
    StageNotFound,
    StagingFull,
    StagingJob,
)
from openq.clock import VirtualClock
from openq.errors import Closed
from openq.model import Draft, QueueSettings
from openq.packed import pack
from openq.redis import staging, staging_keys
from openq.redis.broker import RedisBroker
from openq.redis.staging_keys import weight_of
from tests.local import test_staging as journal
from tests.local.test_staging import JOB, assert_published_once, bodies, send, waiting
from tests.redis import staging_helpers
from tests.redis.key_checks import check_queue
from tests.redis.servers import Server, versions
from tests.redis.shared_tests import collect_tests
from tests.redis.staging_helpers import assert_nothing_is_left, opened, promised, stop_after
from tests.rest import test_staging as rest
from tests.rest.helpers import Client
from tests.serving import Served, free_port

broker, other, small_chunks, impatient = (
    staging_helpers.broker,
    staging_helpers.other,
    staging_helpers.small_chunks,
    staging_helpers.no_claim_time,
)

globals().update(collect_tests(journal, "broker"))
globals().update(collect_tests(rest, "client"))

each_kind = pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)


@pytest.fixture
def client(redis_server: Server) -> Iterator[Client]:
    server = Served(["--store", redis_server.url, "--profile", "fast"], free_port())
    try:
        yield Client(server.wait().url)
    finally:
        server.stop()


# -- several servers


@each_kind
@pytest.mark.usefixtures("small_chunks")
def test_parts_and_commits_may_come_by_any_server(
    broker: RedisBroker, other: RedisBroker, redis_server: Server
) -> None:
    send(broker, {"body": bodies(50)}, part="a")
    send(other, {"body": bodies(50, 50)}, part="b")
    assert [each.parts for each in other.staging.stages()] == [2]

    assert other.staging.commit(JOB, 0, ["a", "b"], 100, queue="q") == Committed(100, 0, False)
    assert broker.staging.commit(JOB, 0, ["a", "b"], 100, queue="q") == Committed(100, 0, True)

    assert waiting(broker) == bodies(100)
    assert_nothing_is_left(redis_server)
    check_queue(redis_server, "oq", broker.find_queue("q"), had_history=True)


@pytest.mark.usefixtures("small_chunks")
def test_who_commits_the_same_batch_at_once_publishes_it_once(
    broker: RedisBroker, redis_server: Server
) -> None:
    broker.declare("r", QueueSettings(fifo=True))
    wanted: list[bytes] = []
    for batch in range(5):
        rows = bodies(100, 100 * batch)
        wanted += rows
        columns = {"body": rows, "queue": ["q", "r", "r", "nowhere"] * 25, "group": ["g"] * 100}
        send(broker, columns, batch=batch)
        answers: list[Committed] = []
        begin = threading.Barrier(4)

        def commit(batch: int = batch, begin: Any = begin, answers: Any = answers) -> None:
            with opened(redis_server.url) as own:
                begin.wait(60)
                answers.append(own.staging.commit(JOB, batch, ["p"], 100, dead_letter="dead"))

        threads = [threading.Thread(target=commit) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)

        assert [(each.published, each.rejected) for each in answers] == [(75, 25)] * 4
        assert sum(not each.repeated for each in answers) == 1
    assert waiting(broker, "q") == [body for body in wanted if int(body) % 4 == 0]
    assert waiting(broker, "r") == [body for body in wanted if int(body) % 4 in (1, 2)]
    assert waiting(broker, "dead") == [body for body in wanted if int(body) % 4 == 3]
    assert_nothing_is_left(redis_server)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("is_next_done", [False, True])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_who_was_frozen_between_two_chunks_does_no_harm_when_he_wakes(
    broker: RedisBroker, other: RedisBroker, redis_server: Server, after: int, is_next_done: bool
) -> None:
    """Meanwhile the batch was finished by another one, and perhaps the next one too."""
    send(broker, {"body": bodies(30)})
    publish, is_frozen, wake, left = broker.staging._publish, threading.Event(), threading.Event(), after

    def freeze(*arguments: Any) -> None:
        nonlocal left
        if not left:
            is_frozen.set()
            assert wake.wait(60)
        left -= 1
        publish(*arguments)

    broker.staging._publish = freeze  # type: ignore[method-assign]
    answers: list[Committed] = []
    sleeper = threading.Thread(target=lambda: answers.append(broker.staging.commit(JOB, 0, ["p"], queue="q")))
    sleeper.start()
    assert is_frozen.wait(60)
    assert other.staging.commit(JOB, 0, ["p"], queue="q") == Committed(30, 0, True)
    if is_next_done:
        send(other, {"body": bodies(10, 30)}, batch=1)
        assert not other.staging.commit(JOB, 1, ["p"], queue="q").repeated
    wake.set()
    sleeper.join(60)

    assert waiting(broker) == bodies(40 if is_next_done else 30)
    assert answers == [Committed(0, 0, True) if is_next_done else Committed(30, 0, False)]
    assert_nothing_is_left(redis_server)


def test_a_part_that_is_replaced_while_it_is_looked_at_is_looked_at_again(
    broker: RedisBroker, other: RedisBroker
) -> None:
    send(broker, {"body": bodies(2)})
    promise, is_first = broker.staging._write_plan, True

    def replace_it_first(*arguments: Any) -> bytes:
        nonlocal is_first
        if is_first:
            is_first = False
            send(other, {"body": bodies(3)})
        return promise(*arguments)

    broker.staging._write_plan = replace_it_first  # type: ignore[method-assign]

    assert broker.staging.commit(JOB, 0, ["p"], queue="q") == Committed(3, 0, False)
    assert waiting(broker) == bodies(3)


def test_a_batch_that_is_promised_while_it_is_aborted_stays(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    look = broker.staging._keys.read_state

    def promise_then(*arguments: Any) -> Any:
        reported = look(*arguments)
        promised(other)
        return reported

    broker.staging._keys.read_state = promise_then  # type: ignore[method-assign]
    assert not broker.staging.abort(JOB, 0)
    broker.staging._keys.read_state = look  # type: ignore[method-assign]

    assert broker.staging.commit(JOB, 0, [], queue="q") == Committed(4, 0, True)
    assert waiting(broker) == bodies(4)


def test_a_batch_that_is_published_while_it_is_aborted_is_not_said_to_be_dropped(
    broker: RedisBroker, other: RedisBroker, redis_server: Server
) -> None:
    send(broker, {"body": bodies(2)})
    drop = broker.staging._keys.drop

    def commit_first(*arguments: Any) -> str:
        other.staging.commit(JOB, 0, ["p"], queue="q")
        return drop(*arguments)

    broker.staging._keys.drop = commit_first  # type: ignore[method-assign]
    assert not broker.staging.abort(JOB, 0)

    assert waiting(broker) == bodies(2)
    assert_nothing_is_left(redis_server)


def test_a_batch_that_is_begun_by_another_one_while_it_is_aborted_stays(
    broker: RedisBroker, other: RedisBroker
) -> None:
    ann, bob = StagingJob("load", owner="ann"), StagingJob("load", owner="bob")
    drop = broker.staging._keys.drop

    def begin_first(*arguments: Any) -> str:
        send(other, {"body": bodies(2)}, job=ann)
        return drop(*arguments)

    broker.staging._keys.drop = begin_first  # type: ignore[method-assign]
    with pytest.raises(NotYourJob):
        broker.staging.abort(bob, 0)

    assert other.staging.commit(ann, 0, ["p"], queue="q") == Committed(2, 0, False)


def test_what_is_staged_is_limited_for_all_servers_together(broker: RedisBroker, other: RedisBroker) -> None:
    data = pack({"body": [b"x" * 10_000]})
    most = 3 * len(data) + 2_000
    for each in (broker, other):
        each.staging._max_bytes = most
    broker.staging.put(JOB, 0, "a", data)
    other.staging.put(JOB, 1, "a", data)
    broker.staging.put(StagingJob("other"), 0, "a", data)
    with pytest.raises(StagingFull, match=f"at most {most}"):
        other.staging.put(JOB, 2, "a", data)

    assert broker.staging.abort(JOB, 0)
    other.staging.put(JOB, 2, "a", data)


def test_small_parts_count_as_what_they_take_in_memory(broker: RedisBroker) -> None:
    data, names = pack({"body": [b"x"]}), [f"{number:0100}" for number in range(200)]
    for name in names:
        broker.staging.put(JOB, 0, name, data)
        broker.staging.put(JOB, 0, name, data)
    [listed] = broker.staging._keys.listed()
    reported = broker.staging._keys.read_state(JOB, 0)

    assert (
        listed.weight == reported.weight == sum(weight_of(name, reported.parts[name], data) for name in names)
    )
    assert (reported.size, reported.part_count, reported.puts) == (200 * len(data), 200, 400)


def test_many_parts_are_read_bit_by_bit(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is another one when Redis has shown the batch, but not its parts."""
    monkeypatch.setattr(staging_keys, "PARTS_AT_ONCE", 10)
    names = [f"{number:0100}" for number in range(600)]
    for name, body in zip(names, bodies(600), strict=True):
        send(broker, {"body": [body]}, part=name)
    keys = broker.staging._keys
    scan, is_first = keys._scan, True

    def replace_one_first(*arguments: Any) -> Any:
        nonlocal is_first
        if is_first:
            is_first = False
            send(other, {"body": [b"new"]}, part=names[0])
        return scan(*arguments)

    keys._scan = replace_one_first  # type: ignore[method-assign]
    assert broker.staging.commit(JOB, 0, names, 600, queue="q") == Committed(600, 0, False)

    assert not is_first
    assert waiting(broker) == [b"new", *bodies(599, 1)]


def test_parts_that_come_while_others_are_committed_do_not_matter(
    broker: RedisBroker, other: RedisBroker, redis_server: Server
) -> None:
    send(broker, {"body": bodies(2)})
    keys = broker.staging._keys
    promise, is_first = keys.plan, True

    def send_first(*arguments: Any) -> str:
        nonlocal is_first
        if is_first:
            is_first = False
            send(other, {"body": bodies(3)}, part="late")
        return promise(*arguments)

    keys.plan = send_first  # type: ignore[method-assign]
    assert broker.staging.commit(JOB, 0, ["p"], queue="q") == Committed(2, 0, False)

    assert not is_first
    assert waiting(broker) == bodies(2)
    assert_nothing_is_left(redis_server)


# -- crashes


@pytest.mark.usefixtures("small_chunks", "impatient")
@pytest.mark.parametrize("seed", range(6))
def test_whatever_chunk_a_crash_comes_after_the_batch_is_finished_once(
    redis_server: Server, seed: int
) -> None:
    chance = random.Random(seed)
    wanted: list[bytes] = []
    sent = 0
    with opened(redis_server.url) as dying:
        dying.declare("q", QueueSettings())
        dying.declare("r", QueueSettings(max_length=1_000, overflow="reject"))
        dying.declare("bin", QueueSettings())
        for part in "abcd":
            rows = bodies(chance.randrange(1, 60), sent, chance.randrange(0, 90))
            sent += len(rows)
            columns: dict[str, list[Any]] = {"body": rows}
            if part in "bd":
                columns["queue"] = [chance.choice(["q", "r", "nowhere"]) for _ in rows]
                columns["priority"] = [chance.choice([None, 0]) for _ in rows]
            wanted += rows
            send(dying, columns, batch=9, part=part)
        stop_after(dying, chance.randrange(0, 30))
        try:
            dying.staging.commit(JOB, 9, list("abcd"), sent, queue="q", dead_letter="bin")
        except Closed:
            assert dying.staging.stages()[0].is_committed

    with opened(redis_server.url) as broker:
        if chance.random() < 0.5:
            broker.staging.sweep()
        assert_published_once(broker, wanted)
    assert_nothing_is_left(redis_server)


def test_a_sweep_finishes_what_was_promised_unless_somebody_is_at_it(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    promised(broker)
    other.staging.sweep()
    assert waiting(other) == bodies(1)

    monkeypatch.setattr(staging, "CLAIM_MS", 0)
    other.staging.sweep()

    assert waiting(other) == bodies(4)
    assert other.staging.commit(JOB, 0, ["a"], queue="q") == Committed(4, 0, True)


def test_a_later_batch_waits_for_the_one_that_was_promised(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    promised(broker, batch=1)
    assert not other.staging.abort(JOB, 1)
    assert send(other, {"body": [b"too late"]}, batch=1, part="b") == 1

    send(other, {"body": bodies(1, 4)}, batch=2)
    other.staging.commit(JOB, 2, ["p"], queue="q")

    assert waiting(other) == bodies(5)


def test_an_earlier_batch_does_not_overtake_the_one_that_was_promised(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    promised(broker, batch=2)
    send(other, {"body": [b"late"]}, batch=1)

    assert other.staging.commit(JOB, 1, ["p"], queue="q") == Committed(0, 0, True)
    assert waiting(other) == bodies(4)


@pytest.mark.parametrize(("dead_letter", "expected"), [(None, []), ("bin", bodies(4))])
def test_a_queue_that_is_deleted_after_the_promise_takes_its_messages_with_it(
    broker: RedisBroker,
    other: RedisBroker,
    monkeypatch: pytest.MonkeyPatch,
    dead_letter: str | None,
    expected: list[bytes],
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    broker.declare("bin", QueueSettings())
    promised(broker, 0, dead_letter=dead_letter)
    other.delete("q")

    assert other.staging.commit(JOB, 0, [], queue="q").repeated

    assert waiting(other, "bin") == expected


def test_a_queue_that_is_deleted_while_a_chunk_is_published_leaves_its_share_to_the_dead_letters(
    broker: RedisBroker, other: RedisBroker
) -> None:
    send(broker, {"body": bodies(4), "queue": ["nowhere", "q", "q", "nowhere"]})
    publish = broker.staging._publish

    def delete_it_first(*arguments: Any) -> None:
        other.delete("q")
        publish(*arguments)

    broker.staging._publish = delete_it_first  # type: ignore[method-assign]
    broker.staging.commit(JOB, 0, ["p"], dead_letter="dead")

    assert waiting(broker, "dead") == bodies(4)


def test_a_queue_made_anew_after_the_promise_gets_the_rest(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    monkeypatch.setattr(staging, "STRIDE_BYTES", 1)
    promised(broker, 3)
    other.delete("q")
    other.declare("q", QueueSettings())

    assert other.staging.commit(JOB, 0, [], queue="q") == Committed(4, 0, True)

    assert waiting(other) == bodies(1, 3)


def test_a_promise_is_kept_whatever_limits_the_queue_has_by_now(
    broker: RedisBroker, other: RedisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are made in the very moment in which somebody publishes."""
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    limits = QueueSettings(max_length=1, max_body=1, overflow="reject", dedup_by_content=True)
    broker.publish("q", Draft(b"before"))
    send(broker, {"body": bodies(20)})
    publish = broker.staging._publish

    def limit_it_first(run: Any, row: int, chunk: Any) -> None:
        if row == 5:
            other.declare("q", limits, change=True)
        publish(run, row, chunk)

    broker.staging._publish = limit_it_first  # type: ignore[method-assign]
    broker.staging.commit(JOB, 0, ["p"], queue="q")

    assert waiting(other) == [b"before", *bodies(20)]


def test_what_nobody_commits_is_dropped_after_a_day(redis_server: Server) -> None:
    clock = VirtualClock(1_000_000_000_000)
    with opened(redis_server.url, clock=clock) as broker:
        send(broker, {"body": [b"x"]})
        clock.advance(staged_batches.KEPT_MS / 1000)
        send(broker, {"body": [b"x"]}, batch=1)
        broker.staging.sweep()
        assert len(broker.staging.stages()) == 2

        clock.advance(1)
        broker.staging.sweep()

        assert [stage.batch for stage in broker.staging.stages()] == [1]
        left = redis_server.ask("PTTL", redis_server.ask("KEYS", "oq:{s.*:f:1")[0])
        assert staged_batches.KEPT_MS < left <= staged_batches.KEPT_MS + 3_600_000  # where no sweep comes by


def test_jobs_are_remembered_and_forgotten_again(broker: RedisBroker, redis_server: Server) -> None:
    nameless = StagingJob("batch-00000000-0000-0000-0000-000000000000")
    for job, kept_ms in ((JOB, 30 * 86_400_000), (nameless, 3_600_000)):
        send(broker, {"body": [b"x"]}, job=job)
        broker.staging.commit(job, 0, ["p"], queue="q")
        key = broker.staging._keys._key(job).decode()
        assert kept_ms - 60_000 < redis_server.ask("PTTL", key) <= kept_ms


def test_queues_forget_a_job_that_nobody_can_repeat_when_it_is_done(
    redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    clock = VirtualClock(1_000_000_000_000)
    nameless = [StagingJob(f"batch-00000000-0000-0000-0000-{number:012}") for number in range(3)]

    def remembered() -> int:
        [ends], [known] = (redis_server.ask("KEYS", f"oq:*:{name}") for name in ("jz", "jb"))
        assert redis_server.ask("ZCARD", ends) == redis_server.ask("HLEN", known)
        return int(redis_server.ask("ZCARD", ends))

    with opened(redis_server.url, clock=clock) as broker, opened(redis_server.url, clock=clock) as dying:
        broker.declare("q", QueueSettings())
        for job in (JOB, *nameless):
            send(broker, {"body": bodies(4)}, job=job)
        for job in (JOB, *nameless[:2]):
            broker.staging.commit(job, 0, ["p"], queue="q")
        stop_after(dying, 2)
        with pytest.raises(Closed):
            dying.staging.commit(nameless[2], 0, ["p"], queue="q")
        assert remembered() == 4

        clock.advance(2 * 3_600)
        broker.staging.commit(nameless[2], 0, ["p"], queue="q")

        assert remembered() == 2
        assert waiting(broker) == bodies(4) * 4


def test_a_job_that_is_forgotten_may_begin_anew(redis_server: Server) -> None:
    clock = VirtualClock(1_000_000_000_000)
    with opened(redis_server.url, clock=clock) as broker:
        broker.declare("q", QueueSettings(retention_ms=365 * 86_400_000))
        send(broker, {"body": [b"old"]}, batch=7)
        broker.staging.commit(JOB, 7, ["p"], queue="q")
        clock.advance(31 * 86_400)
        redis_server.ask("DEL", *redis_server.ask("KEYS", "oq:{s.*"))  # its own clock is not the test's

        send(broker, {"body": [b"new"]})
        assert broker.staging.commit(JOB, 0, ["p"], queue="q") == Committed(1, 0, False)

        assert waiting(broker) == [b"old", b"new"]


# -- damage


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_damaged_part_of_a_promise_is_sent_again_or_the_batch_is_aborted(
    broker: RedisBroker, other: RedisBroker, redis_server: Server, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    promised(broker)
    key = redis_server.ask("KEYS", "oq:{s.*:p:0")[0]

    def damage() -> None:
        redis_server.ask("HSET", key, "b", "junk") if how == "damaged" else redis_server.ask("HDEL", key, "b")

    damage()
    with pytest.raises(PartDamaged):
        other.staging.commit(JOB, 1, [], queue="q")
    send(other, {"body": [b"no"]}, part="a")
    send(other, {"body": [b"no"]}, part="b")
    with pytest.raises(PartDamaged):
        other.staging.commit(JOB, 1, [], queue="q")
    send(other, {"body": bodies(2, 2)}, part="b")
    assert not other.staging.abort(JOB, 0)

    damage()
    assert other.staging.abort(JOB, 0)
    with pytest.raises(StageNotFound):
        other.staging.commit(JOB, 0, ["a", "b"], queue="q")
    send(other, {"body": bodies(4)}, part="new")
    assert other.staging.commit(JOB, 0, ["new"], queue="q") == Committed(4, 0, False)
    assert waiting(other) == bodies(4)


def test_a_view_for_a_loop_stages_by_its_own_connections(broker: RedisBroker) -> None:
    assert broker.staging.stages() == []
    loop = asyncio.new_event_loop()
    view = broker.on_loop(loop)

    assert view.staging.store is view.store is not broker.store
    assert broker.staging.store is broker.store

    broker.leave_loop(loop)
    loop.close()
