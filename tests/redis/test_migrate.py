"""Everything from one broker into another, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openq.broker.schedules import Schedule
from openq.cli.migrate import open_endpoint
from openq.clock import VirtualClock
from openq.engine.routing import Binding, Exchange
from openq.errors import DirectoryInUse, InvalidSetting
from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, ENCODING_JSON, ENCODING_TEXT, Draft, QueueSettings
from openq.redis.broker import RedisBroker
from openq.redis.migrate import MigratedQueue, MigrationFailed, content, is_done, migrate
from openq.redis.migration_endpoints import MigrationEndpoint
from tests.cli.helpers import run_in_process, run_openq
from tests.redis import servers
from tests.redis.servers import Server

START_MS = 1_800_000_000_000
FIFO = QueueSettings(fifo=True, dedup_by_content=True)


@contextmanager
def side(place: str | Path, clock: VirtualClock, create: bool = True) -> Iterator[MigrationEndpoint]:
    opened, close = open_endpoint(str(place), clock, create)
    try:
        yield opened
    finally:
        close()


@contextmanager
def broker(place: str | Path, clock: VirtualClock) -> Iterator[LocalBroker | RedisBroker]:
    opened = RedisBroker(str(place), clock=clock) if "://" in str(place) else LocalBroker(place, clock=clock)
    try:
        yield opened
    finally:
        opened.close()


def moved(
    source: str | Path, target: str | Path, clock: VirtualClock, **options: bool
) -> list[MigratedQueue]:
    with side(source, clock, create=False) as left, side(target, clock) as right:
        return migrate(left, right, **options)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_MS)


@pytest.fixture(params=["directory", *servers.versions()], ids=str)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where everything goes: another directory, or each kind of Redis that is here."""
    if request.param == "directory":
        yield str(tmp_path / "target")
        return
    with servers.single(*servers.FORCED, program=request.param.path) as server:
        yield server.url


@pytest.fixture
def full(tmp_path: Path, clock: VirtualClock) -> Path:
    """A directory with one of everything."""
    path = tmp_path / "source"
    with broker(path, clock) as filled:
        filled.declare("dead", QueueSettings())
        filled.declare("jobs", QueueSettings(max_receives=2, dead_letter="dead", ttl_ms=7_200_000))
        filled.declare("orders.fifo", FIFO)
        filled.declare("empty", QueueSettings(paused=True, notes={"tag": "kept"}))
        filled.exchanges.declare_exchange(Exchange("events", "topic"))
        filled.exchanges.bind(Binding("events", "jobs", key="job.#"))
        for number in range(700):
            filled.publish("jobs", Draft(f"job {number}".encode(), ENCODING_TEXT, priority=number % 3))
        filled.publish("jobs", Draft(b"later", delay_ms=600_000, id="later", unique="only-one"))
        filled.publish("jobs", Draft(b"short", ttl_ms=900_000, type="brief", attributes={"a": 1, "b": "x"}))
        filled.exchanges.route("events", "job.new", Draft(b'{"n": 1}', ENCODING_JSON, publisher="somebody"))
        for number in range(30):
            filled.publish("orders.fifo", Draft(b"%d" % number, ENCODING_BYTES, group=f"g{number % 4}"))
        _use(filled)
        filled.sync()
    return path


def _use(filled: LocalBroker) -> None:
    """Some are acked, some fail, some die, some are out on loan."""
    first = filled.receive("jobs", 10)
    filled.ack("jobs", [(each.entry.seq, each.number) for each in first[:5]])
    for each in first[5:8]:
        filled.nack("jobs", [(each.entry.seq, each.number)], 0, "the database was away")
    for each in first[8:]:
        filled.reject("jobs", [(each.entry.seq, each.number)], "bad address")
    filled.receive("jobs", 4, lease_ms=3_600_000)
    [lent] = filled.receive("orders.fifo", 1)
    filled.ack_one("orders.fifo", lent.entry.seq, lent.number)


def drained(place: str | Path, clock: VirtualClock, queue: str) -> list[tuple[bytes | None, int]]:
    """Everything that can be had, in order, with how often it was delivered."""
    with broker(place, clock) as opened:
        found = []
        while deliveries := opened.receive(queue, 1, lease_ms=60_000):
            opened.load(deliveries)
            for each in deliveries:
                found.append((each.entry.body, each.count))
                opened.ack_one(queue, each.entry.seq, each.number)
        return found


def test_everything_arrives_as_it_left(full: Path, target: str, clock: VirtualClock) -> None:
    results = {each.queue: each.count for each in moved(full, target, clock)}

    assert results == {"dead": 2, "empty": 0, "jobs": 696, "orders.fifo": 29}
    with side(full, clock) as left, side(target, clock) as right:
        for queue in results:
            assert content(left, queue) == content(right, queue)
            assert left.broker.settings(queue) == right.broker.settings(queue)
        assert left.broker.exchanges.bindings() == right.broker.exchanges.bindings()
        assert left.broker.exchanges.list_exchanges() == right.broker.exchanges.list_exchanges()
        [letter] = right.broker.inspect.peek("dead", 1)
        assert letter.options.deaths[0].reason == "bad address"


def test_schedules_go_on_where_they_were(tmp_path: Path, target: str, clock: VirtualClock) -> None:
    source = tmp_path / "source"
    with broker(source, clock) as left:
        left.declare("q", QueueSettings(retention_ms=10**10))
        left.schedules.put(Schedule("hourly", "q", b"\0\xff", every_ms=3_600_000, attributes={"a": b"\1"}))
        left.schedules.put(Schedule("paused", "q", cron="@daily"))
        left.schedules.pause("paused")
        clock.advance(3_600)
        before = list(left.schedules.list())

    clock.advance(3_600)
    moved(source, target, clock)
    with side(target, clock) as right:
        assert list(right.broker.schedules.list()) == before
    with broker(target, clock) as opened:
        opened.tick()
        assert opened.stats("q").ready == 2
        assert opened.schedules.get("hourly").runs == 2


def test_it_is_handed_out_in_the_same_order_with_the_same_counts(
    full: Path, target: str, clock: VirtualClock
) -> None:
    moved(full, target, clock)
    with broker(full, clock) as source:  # what was on loan is back in its place in the target
        leases = source.inspect.leases("jobs", 100)
        source.nack("jobs", [(each.entry.seq, each.number) for each in leases], 0)
    fifo = drained(full, clock, "orders.fifo")

    assert drained(target, clock, "jobs") == drained(full, clock, "jobs")
    assert drained(target, clock, "orders.fifo") == fifo


def test_delays_and_times_to_live_go_on(full: Path, target: str, clock: VirtualClock) -> None:
    moved(full, target, clock)

    with broker(target, clock) as arrived:
        assert arrived.inspect.status("jobs", "later") == "delayed"
        before = arrived.stats("jobs")
        clock.advance(900)
        assert arrived.inspect.status("jobs", "later") == "ready"
        after = arrived.stats("jobs")
        assert (before.delayed, after.delayed) == (1, 0)
        assert before.ready + before.delayed - after.ready == 1  # the short-lived one
        clock.advance(6_299)
        assert arrived.stats("jobs").ready > 600
        clock.advance(1)
        assert arrived.stats("jobs").ready == 1  # two hours after they were sent, or came due


def test_retention_counts_from_when_it_was_sent(tmp_path: Path, target: str, clock: VirtualClock) -> None:
    with broker(tmp_path / "source", clock) as source:
        source.declare("q", QueueSettings(retention_ms=3_600_000))
        source.publish("q", Draft(b"old"))
    clock.advance(3_000)
    moved(tmp_path / "source", target, clock)

    with broker(target, clock) as arrived:
        assert arrived.stats("q").ready == 1
        clock.advance(700)
        assert arrived.stats("q").ready == 0


def test_deduplication_remembers_what_is_gone_and_what_waits(
    tmp_path: Path, target: str, clock: VirtualClock
) -> None:
    settings = QueueSettings(dedup_window_ms=300_000)
    with broker(tmp_path / "source", clock) as source:
        source.declare("q", settings)
        gone = source.publish("q", Draft(b"gone", dedup="a"))
        [lent] = source.receive("q")
        source.ack_one("q", lent.entry.seq, lent.number)
        waits = source.publish("q", Draft(b"waits", dedup="b"))
    clock.advance(100)
    moved(tmp_path / "source", target, clock)

    with broker(target, clock) as arrived:
        assert arrived.publish("q", Draft(b"again", dedup="a")) == gone
        assert arrived.publish("q", Draft(b"again", dedup="b")) == waits
        assert arrived.stats("q").ready == 1
    with broker(target, clock) as arrived:  # and over a restart
        assert arrived.publish("q", Draft(b"again", dedup="a")) == gone
        clock.advance(201)
        assert arrived.publish("q", Draft(b"new", dedup="a")) != gone


def test_two_that_the_window_told_apart_both_arrive(tmp_path: Path, target: str, clock: VirtualClock) -> None:
    with broker(tmp_path / "source", clock) as source:
        source.declare("q.fifo", FIFO)
        source.publish("q.fifo", Draft(b"same", group="g"))
        clock.advance(301)
        source.publish("q.fifo", Draft(b"same", group="g"))

    [result] = moved(tmp_path / "source", target, clock)

    assert result.count == 2


def test_history_can_be_replayed_in_the_target(full: Path, target: str, clock: VirtualClock) -> None:
    results = {each.queue: each for each in moved(full, target, clock)}

    assert results["jobs"].past == 7  # five acked, two dead
    assert results["orders.fifo"].past == 1
    with broker(target, clock) as arrived:
        arrived.declare("again", QueueSettings())
        assert (
            arrived.admin.replay("orders.fifo", 0, None, "again") >= 1
        )  # Redis tells of those that wait, too
        assert [entry.body for entry in arrived.inspect.peek("again", 1)] == [b"0"]
        assert arrived.stats("orders.fifo").ready == 29
    with broker(target, clock) as arrived:
        assert arrived.stats("jobs").ready + arrived.stats("jobs").delayed == 696


def test_without_history_only_what_waits_is_taken(full: Path, target: str, clock: VirtualClock) -> None:
    assert sum(each.past for each in moved(full, target, clock, history=False)) == 0


def test_it_survives_a_restart_of_the_target(full: Path, target: str, clock: VirtualClock) -> None:
    moved(full, target, clock)
    with side(full, clock) as left, side(target, clock) as right:
        pass

    with side(full, clock) as left, side(target, clock) as right:
        assert content(left, "jobs") == content(right, "jobs")
        assert is_done(left, right)


# -- when it does not go smoothly ---------------------------------------------------------------


class Interrupted(Exception):
    pass


def stop_after(count: int) -> Callable[[int], None]:
    def progress(done: int) -> None:
        if done >= count:
            raise Interrupted

    return progress


@pytest.mark.parametrize("count", [1, 300, 600, 720])
def test_an_interrupted_one_goes_on(full: Path, target: str, clock: VirtualClock, count: int) -> None:
    with (
        side(full, clock) as left,
        side(target, clock) as right,
        pytest.raises(Interrupted),
    ):
        migrate(left, right, progress=stop_after(count))
    with side(full, clock) as left, side(target, clock) as right:
        assert not is_done(left, right)
        assert right.broker.settings("jobs").paused or count > 700  # nobody takes from half a queue

        migrate(left, right)

        assert is_done(left, right)
        for queue in ("jobs", "dead", "orders.fifo"):
            assert content(left, queue) == content(right, queue)
            assert not right.broker.settings(queue).paused


def test_a_target_that_holds_such_a_queue_is_left_alone(full: Path, target: str, clock: VirtualClock) -> None:
    with broker(target, clock) as arrived:
        arrived.declare("jobs", QueueSettings())

    with pytest.raises(InvalidSetting, match=r"'jobs' is in .* already"):
        moved(full, target, clock)


def test_two_sources_are_not_mixed(full: Path, tmp_path: Path, target: str, clock: VirtualClock) -> None:
    with side(full, clock) as left, side(target, clock) as right, pytest.raises(Interrupted):
        migrate(left, right, progress=stop_after(1))
    with broker(tmp_path / "other", clock) as other:
        other.declare("elsewhere", QueueSettings())

    with pytest.raises(InvalidSetting, match="finish that first"):
        moved(tmp_path / "other", target, clock)


def test_what_did_not_arrive_is_noticed(full: Path, tmp_path: Path, clock: VirtualClock) -> None:
    with side(full, clock) as left, side(tmp_path / "target", clock) as right:
        take_in = right.broker.importer.import_messages
        right.broker.importer.import_messages = lambda queue, entries: take_in(queue, entries[1:])

        with pytest.raises(MigrationFailed, match="messages left and"):
            migrate(left, right)
        assert not is_done(left, right)


def test_a_changed_body_is_noticed(full: Path, tmp_path: Path, clock: VirtualClock) -> None:
    with side(full, clock) as left, side(tmp_path / "target", clock) as right:
        take_in = right.broker.importer.import_messages

        def spoil(queue: str, entries: list[object]) -> None:
            entries[0].body = b"x" * entries[0].size  # type: ignore[attr-defined]
            take_in(queue, entries)

        right.broker.importer.import_messages = spoil
        with pytest.raises(MigrationFailed, match="other bodies"):
            migrate(left, right)


def test_a_directory_that_is_served_is_refused(full: Path, tmp_path: Path, clock: VirtualClock) -> None:
    with broker(full, clock), pytest.raises(DirectoryInUse):
        moved(full, tmp_path / "target", clock)


# -- and back -----------------------------------------------------------------------------------


@pytest.mark.parametrize("redis_server", servers.versions(), indirect=True, ids=str)
def test_what_went_into_redis_comes_back_the_same(
    full: Path, tmp_path: Path, redis_server: Server, clock: VirtualClock
) -> None:
    url = f"{redis_server.url}?profile=fast"

    moved(full, url, clock)
    back = moved(url, tmp_path / "back", clock)

    assert {each.queue: each.past for each in back} == {"dead": 0, "empty": 0, "jobs": 7, "orders.fifo": 1}
    with side(full, clock) as left, side(tmp_path / "back", clock) as right:
        for each in back:
            assert content(left, each.queue) == content(right, each.queue)
            assert left.broker.settings(each.queue) == right.broker.settings(each.queue)
        assert left.broker.exchanges.bindings() == right.broker.exchanges.bindings()


def test_a_redis_that_is_served_is_refused(full: Path, redis_server: Server, clock: VirtualClock) -> None:
    url = f"{redis_server.url}?profile=fast"
    with broker(url, clock) as served:
        served.cluster.heartbeat("first-server", b"{}", 60_000)

        with pytest.raises(InvalidSetting, match="is in use: stop first-server first"):
            moved(full, url, clock)
        served.cluster.remove_server("first-server")
    moved(full, url, clock)


# -- the command --------------------------------------------------------------------------------


def test_the_command_moves_and_says_when_it_is_done(full: Path, target: str) -> None:
    words = ("migrate", "--from", full, "--to", target)

    looked = run_in_process(*words, "--dry-run")
    first, second = run_in_process(*words), run_in_process(*words)

    assert looked.code == first.code == second.code == 0
    assert "jobs: 696 messages, 4 of them in flight" in looked.out
    assert "4 queues, 1 exchange, 1 binding, 0 schedules; nothing was changed" in looked.out
    assert "727 messages in 4 queues" in first.out
    assert "already" in second.err


def test_a_dry_run_makes_no_target(full: Path, tmp_path: Path) -> None:
    done = run_in_process("migrate", "--from", full, "--to", tmp_path / "target", "--dry-run", "--json")

    assert {row["queue"]: row["messages"] for row in json.loads(done.out)}["orders.fifo"] == 29
    assert not os.path.exists(tmp_path / "target")


def test_mistakes_are_told_in_one_line(tmp_path: Path) -> None:
    nowhere = run_openq("migrate", "--from", tmp_path / "nothing", "--to", tmp_path / "target")
    same = run_openq("migrate", "--from", tmp_path, "--to", tmp_path)

    assert (nowhere.code, same.code) == (3, 2)
    assert "is not a data directory" in nowhere.err
    assert "are the same" in same.err
