"""Everything from one broker into another, and back."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from openq import OpenQ
from openq.alerts import store as alert_store
from openq.alerts.store import AlertStore
from openq.auth.store import UserStore
from openq.broker.events import EventFilter
from openq.broker.schedules import Schedule
from openq.cli.migrate import open_endpoint
from openq.clock import VirtualClock
from openq.engine.key_values import KvPut
from openq.engine.routing import Binding, Exchange
from openq.errors import DirectoryInUse, InvalidSetting, UnfinishedMigration
from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, ENCODING_JSON, ENCODING_TEXT, Draft, QueueSettings
from openq.redis.broker import RedisBroker
from openq.redis.migrate import MigratedQueue, MigrationFailed, content, is_done, migrate
from openq.redis.migration_endpoints import MigrationEndpoint
from openq.webhooks.model import EventSelection, Secret, Webhook
from openq.webhooks.store import WebhookStore
from tests.cli.helpers import run_in_process, run_openq
from tests.redis import servers
from tests.redis.servers import Server
from tests.serving import Served, free_port

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
        return migrate(left, right, **options).queues


def where(place: str) -> dict[str, str]:
    """The arguments of the library."""
    return {"url": place} if "://" in place else {"path": place}


def stored(place: str) -> tuple[str, str]:
    """The options of the server."""
    return ("--store" if "://" in place else "--data", place)


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
    [leased] = filled.receive("orders.fifo", 1)
    filled.ack_one("orders.fifo", leased.entry.seq, leased.number)


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


@pytest.fixture
def today() -> VirtualClock:
    """Of the command, which has no other."""
    return VirtualClock(time.time_ns() // 1_000_000)


@pytest.fixture
def served(tmp_path: Path, today: VirtualClock) -> Path:
    """A directory with users, policies, key-values, webhooks, changed alert rules, cursors, subscriptions."""
    path = tmp_path / "source"
    users = UserStore(path / "users.json")
    users.add_user("admin", role="admin", password="a-good-password")
    (path / "policies.json").write_text('[{"vhost": "/", "name": "p", "pattern": "^a", "definition": {}}]')
    with broker(path, today) as filled:
        filled.declare("jobs", QueueSettings())
        for number in range(20):
            filled.publish("jobs", Draft(b"%d" % number, ENCODING_BYTES))
        filled.kv.put_many("shop", [KvPut("k", b"v"), KvPut("short", b"s", 60_000)])
        filled.kv.put_many("workers", [KvPut("w-1", b"{}")])
        for webhook in (
            Webhook(
                name="hook",
                url="https://example.com/",
                queue="jobs",
                secrets=[Secret(text="whsec_x", created_ms=1)],
            ),
            Webhook(
                name="tell", url="https://example.com/", events=EventSelection(), position="of the source"
            ),
        ):
            WebhookStore(filled.kv).change(webhook.name, lambda known, webhook=webhook: webhook)
        AlertStore(filled.kv).put_rule("oldest-message", {"limits": {"age": 60}})
        filled.kv.put_many(alert_store.BUCKET, [KvPut("owner/alerts", b"{}")])
        batch = filled.subscriptions.next_batch("reader", "jobs", 6, limit=3, owner="run-1", maker="admin")
        assert batch is not None
        assert batch.batch == 7
        filled.subscriptions.next_batch("gone", "jobs", 40, limit=1)
        filled.subscriptions.delete("gone")
        filled.sync()
        filled.cursors.put("all-read", filled.history.tables.end(settle=True), "admin", hold_s=99.0)
        filled.cursors.put("nothing-read", 0, "admin")
    return path


def test_users_readers_and_webhooks_come_too(served: Path, target: str, today: VirtualClock) -> None:
    done = run_in_process("migrate", "--from", served, "--to", target)
    assert done.code == 0, done.err
    assert "users, policies, 0 schedules, 5 key-values, 2 cursors, 1 subscription" in done.out
    assert "subscription 'reader': batch 7 was open" in done.err
    assert "cursor 'nothing-read' goes on from" in done.err
    assert "all-read" not in done.err

    with side(target, today) as right:
        document = right.documents["users"].read_if_changed(None)
        assert document is not None
        assert document[1] == (served / "users.json").read_bytes()
        policies = right.documents["policies"].read_if_changed(None)
        assert policies is not None
        assert policies[1] == (served / "policies.json").read_bytes()
        kv = right.broker.kv
        entries = kv.get_many("shop", ["k", "short"])
        assert [each.value for each in entries] == [b"v", b"s"]
        assert entries[0].expires_ms == 0
        assert entries[1].expires_ms > 0
        assert kv.get_many("workers", ["w-1"]) == kv.get_many(alert_store.BUCKET, ["owner/alerts"]) == [None]
        hook, tell = WebhookStore(kv).list()
        assert hook.webhook.secrets == [Secret(text="whsec_x", created_ms=1)]
        assert right.broker.events.read(tell.webhook.position, 10, EventFilter()).gap_until_ms is None
        assert AlertStore(kv).rules() == {"oldest-message": {"limits": {"age": 60}}}
        states = {each.cursor.name: each for each in right.broker.cursors.states()}
        assert right.unread_since(states["all-read"].cursor) is None
        assert right.unread_since(states["nothing-read"].cursor) is not None
        assert states["all-read"].cursor.hold_s == 99.0
        terms = right.broker.subscriptions.get("reader").terms
        assert (terms.queue, terms.owner, terms.acked, terms.maker) == ("jobs", "run-1", 7, "admin")
        assert right.broker.subscriptions.retired() == {"gone": 41}
    with broker(target, today) as opened:
        again = opened.subscriptions.next_batch("reader", "jobs", 6, limit=1, owner="run-1")
        assert again is not None
        assert again.batch == 8


def test_other_users_in_the_target_are_not_replaced(
    served: Path, tmp_path: Path, today: VirtualClock
) -> None:
    other = tmp_path / "target"
    other.mkdir()
    UserStore(other / "users.json").add_user("somebody", role="admin", password="another-password")
    words = ("migrate", "--from", served, "--to", other)

    refused = run_in_process(*words)
    assert refused.code == 2
    assert "other users already" in refused.err
    assert "--keep-users" in refused.err
    with broker(other, today) as untouched:
        assert not list(untouched.queues())
    kept = run_in_process(*words, "--keep-users")
    assert kept.code == 0, kept.err
    assert [each.name for each in UserStore(other / "users.json").users()] == ["somebody"]


def test_keys_in_the_target_are_not_replaced(served: Path, tmp_path: Path, today: VirtualClock) -> None:
    with broker(tmp_path / "target", today) as other:
        other.kv.put_many("shop", [KvPut("k", b"theirs")])
        other.sync()

    refused = run_in_process("migrate", "--from", served, "--to", tmp_path / "target")

    assert refused.code == 2
    assert "bucket 'shop' is in" in refused.err


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
        [leased] = source.receive("q")
        source.ack_one("q", leased.entry.seq, leased.number)
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


def test_two_that_the_deduplication_window_separated_both_arrive(
    tmp_path: Path, target: str, clock: VirtualClock
) -> None:
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


def test_half_a_migration_is_not_used_as_if_it_were_whole(
    full: Path, target: str, clock: VirtualClock
) -> None:
    with side(full, clock) as left, side(target, clock) as right, pytest.raises(Interrupted):
        migrate(left, right, history=False, keep_users=True, progress=stop_after(300))
    words = ("migrate", "--from", str(full), "--to", target, "--no-history", "--keep-users")
    command = re.escape(f"`openq {shlex.join(words)}`")

    for _ in range(2):  # a refusal changes nothing
        with pytest.raises(UnfinishedMigration, match=command):
            OpenQ("jobs", **where(target))
    out_of_it = run_in_process("migrate", "--from", target, "--to", full.parent / "third")
    served = run_openq("serve", *stored(target), "--port", str(free_port()))

    for refused in (out_of_it, served):
        assert refused.code != 0
        assert re.search(command, refused.err)
    assert not (full.parent / "third").exists()
    finished = run_in_process(*words)
    assert finished.code == 0, finished.err
    with broker(target, clock) as opened:
        assert opened.stats("jobs").ready + opened.stats("jobs").delayed == 696


@pytest.mark.parametrize("redis_server", servers.versions()[:1], indirect=True, ids=str)
def test_half_of_a_redis_is_not_used_as_if_it_were_whole(
    full: Path, tmp_path: Path, redis_server: Server, clock: VirtualClock
) -> None:
    url, back = f"{redis_server.url}?profile=fast", tmp_path / "back"
    moved(full, url, clock)
    with side(url, clock) as left, side(back, clock) as right, pytest.raises(Interrupted):
        migrate(left, right, progress=stop_after(300))

    with pytest.raises(UnfinishedMigration) as refused, broker(back, clock):
        pass
    command = str(refused.value).split("`")[1]
    resumed = run_in_process(*shlex.split(command)[1:])

    assert resumed.code == 0, resumed.err
    with side(url, clock) as left, side(back, clock) as right:
        assert content(left, "jobs") == content(right, "jobs")


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


def test_a_running_server_is_named_by_its_address(full: Path, redis_server: Server) -> None:
    url = f"{redis_server.url}?profile=fast&prefix=named"
    server = Served(["--store", url], free_port())
    try:
        server.wait()
        refused = run_in_process("migrate", "--from", full, "--to", url)
        by_address = run_in_process("migrate", "--from", server.url, "--to", url)
    finally:
        server.stop()

    assert (refused.code, by_address.code) == (2, 2)
    assert f"is in use: stop {server.url}" in refused.err
    assert f"{server.url} is the address of a server: stop it" in by_address.err


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


def test_mistakes_are_reported_in_one_line(tmp_path: Path) -> None:
    nowhere = run_openq("migrate", "--from", tmp_path / "nothing", "--to", tmp_path / "target")
    same = run_openq("migrate", "--from", tmp_path, "--to", tmp_path)

    assert (nowhere.code, same.code) == (3, 2)
    assert "is not a data directory" in nowhere.err
    assert "are the same" in same.err
