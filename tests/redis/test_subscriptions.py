"""Batches on Redis: the same on every server while they are open, whatever dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from openq.broker.subscriptions import MAX_OPEN, SubscriptionNotFound, SubscriptionTaken, consumer_of
from openq.broker.waiters import Waiter
from openq.clock import VirtualClock
from openq.errors import FunctionError, NotReplicated, QueueNotFound, StoreUnavailable
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from openq.redis.consume import Receiver
from openq.redis.store import RedisStore
from openq.redis.subscriptions import RedisSubscriptions
from tests.cli import test_pipeline_cursors as by_command
from tests.local import test_subscriptions as of_the_journal
from tests.pipeline import test_consume as by_pipeline
from tests.pipeline.stream_runner import stopped  # noqa: F401
from tests.redis.servers import FORCED, Server, cluster, replicated, single, until_reachable, versions
from tests.redis.shared_tests import collect_tests
from tests.rest import test_subscriptions as by_protocol
from tests.rest.helpers import Client
from tests.serving import Served, free_port

every_kind = pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)

BODIES = [b"%d" % number for number in range(10_000)]


class SubscriptionStore:
    """A broker on Redis whose clock is moved by hand, with a queue `q`; what `Place` is for a journal."""

    def __init__(
        self,
        server: Server,
        stack: ExitStack,
        db: str = "",
        clock: VirtualClock | None = None,
        **settings: Any,
    ) -> None:
        self._server = server
        self._stack = stack
        self._url = server.url + db
        self.clock = clock or VirtualClock()
        self.broker = self.open()
        if not self.broker.queues():
            self.broker.declare("q", QueueSettings(**settings))

    def open(self) -> RedisBroker:
        self.broker = RedisBroker(self._url, profile="fast", clock=self.clock)
        self._stack.callback(self.broker.close)
        return self.broker

    def crashed(self, to: Path) -> SubscriptionStore:
        """Another process, on a copy of the store as it is now: nothing was closed."""
        assert to.name  # tests of files say where
        for key in self._server.ask("KEYS", "*"):
            self._server.ask("COPY", key, key, "DB", 1)
        return SubscriptionStore(self._server, self._stack, "/1", self.clock)

    def publish(self, *bodies: bytes) -> None:
        self.broker.publish_bodies("q", bodies, 0) or [
            self.broker.publish("q", Draft(body)) for body in bodies
        ]

    def next_batch(self, after: int = 0, **options: Any) -> tuple[int, int] | None:
        return form(self.broker, after, **options)

    def bodies(self, number: int, part: int = 0, parts: int = 1) -> list[bytes | None] | None:
        return bodies(self.broker, number, part, parts)

    def ready(self) -> int:
        return self.broker.stats("q").ready


def form(broker: RedisBroker, after: int = 0, **options: Any) -> tuple[int, int] | None:
    formed = broker.subscriptions.next_batch("s", "q", after, **options)
    return None if formed is None else (formed.batch, formed.count)


def bodies(broker: RedisBroker, number: int, part: int = 0, parts: int = 1) -> list[bytes | None] | None:
    """None: it is gone."""
    rows = broker.subscriptions.rows("s", number, part, parts)
    return None if rows.expired else [entry.body for entry in rows.entries]


@pytest.fixture
def place_with(redis_server: Server) -> Iterator[Callable[..., SubscriptionStore]]:
    with ExitStack() as stack:
        yield lambda **settings: SubscriptionStore(redis_server, stack, **settings)


@pytest.fixture
def place(place_with: Callable[..., SubscriptionStore]) -> SubscriptionStore:
    return place_with()


@pytest.fixture
def durable(place: SubscriptionStore) -> SubscriptionStore:
    return place


OF_FILES = (
    "test_old_segments_may_go_while_a_batch_is_open",
    "test_a_file_that_somebody_edited_stops_nobody",
    "test_half_of_a_batch_that_nobody_heard_of_is_a_batch",
)
AT_ONCE = ("test_a_waiter_is_notified_and_takes_nothing_from_those_behind",)  # here it comes a moment later

locals().update(collect_tests(of_the_journal, "place", without=AT_ONCE))
locals().update(collect_tests(of_the_journal, "place_with"))
locals().update(collect_tests(of_the_journal, "durable", without=OF_FILES))


# -- deleted meanwhile


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and made anew"])
def test_a_queue_deleted_while_a_batch_is_formed_is_reported_as_missing(
    place: SubscriptionStore, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    assert place.next_batch(0) is None
    claimed = RedisSubscriptions._claim

    def deleted_before(*args: Any) -> Any:
        """In the moment after the subscription was found."""
        monkeypatch.undo()
        place.broker.delete("q")
        if again:
            place.broker.declare("q", QueueSettings())
            place.publish(b"new")
        return claimed(*args)

    monkeypatch.setattr(RedisSubscriptions, "_claim", deleted_before)
    if again:
        assert place.next_batch(0) == (1, 1)
    else:
        with pytest.raises(QueueNotFound):
            place.next_batch(0)


# -- in slices


@every_kind
@pytest.mark.parametrize("history_ms", [0, 86_400_000])
def test_a_large_batch_is_formed_read_kept_and_acked_in_slices(
    place_with: Callable[..., SubscriptionStore], history_ms: int
) -> None:
    place = place_with(history_ms=history_ms)
    place.publish(*BODIES)

    assert place.next_batch(0, limit=9_000, lease_ms=10_000) == (1, 9_000)
    place.clock.advance(9)
    assert place.broker.subscriptions.extend("s", None) == 9_000
    place.clock.advance(9)
    pieces = [place.bodies(1, part, 7) or [] for part in range(7)]
    assert [body for piece in pieces for body in piece] == BODIES[:9_000]
    assert place.broker.subscriptions.ack("s", 1, None) == (9_000, 0)

    stats = place.broker.stats("q")
    assert (stats.ready, stats.in_flight, stats.counters["acked"]) == (1_000, 0, 9_000)


def test_a_large_batch_of_messages_of_every_kind_comes_back_whole(
    place_with: Callable[..., SubscriptionStore],
) -> None:
    place = place_with()
    drafts = [
        Draft(body, priority=number % 3, group=f"g{number % 7}" if number % 2 else None)
        for number, body in enumerate(BODIES[:3_000])
    ]
    for first in range(0, 3_000, 1_000):
        place.broker.publish_many("q", drafts[first : first + 1_000])

    assert place.next_batch(0, limit=3_000, lease_ms=10_000) == (1, 3_000)
    first_read = place.bodies(1)
    assert sorted(first_read or [], key=lambda body: int(body or b"")) == BODIES[:3_000]
    assert [body for part in range(5) for body in place.bodies(1, part, 5) or []] == first_read
    assert place.broker.subscriptions.extend("s", None, 60_000) == 3_000
    place.clock.advance(59)
    assert place.bodies(1) == first_read
    assert place.broker.subscriptions.delete("s") == 3_000

    assert place.ready() == 3_000


def test_bodies_larger_than_a_page_are_read_page_by_page(place: SubscriptionStore) -> None:
    large = [bytes([number]) * 700_000 for number in range(20)]
    place.publish(*large)
    place.next_batch(0)

    assert place.bodies(1) == large
    assert place.bodies(1, 1, 4) == large[5:10]


def test_bytes_are_counted_for_messages_of_every_kind(place: SubscriptionStore) -> None:
    place.publish(b"x" * 900)
    place.broker.publish("q", Draft(b"x" * 90, priority=5))
    place.broker.publish("q", Draft(b"x" * 20))
    place.broker.publish("q", Draft(b"x" * 5))

    assert place.next_batch(0, max_bytes=100) == (1, 1)  # the urgent one; then one that is too large
    assert place.next_batch(1, max_bytes=100) == (2, 1)
    assert place.next_batch(2, max_bytes=100) == (3, 2)


def test_room_for_bytes_is_not_looked_for_in_the_history(
    place: SubscriptionStore, redis_server: Server
) -> None:
    for _ in range(10):
        place.broker.publish_many("q", [Draft(b"x", group=f"g{number % 50}") for number in range(500)])
        leased = place.broker.receive("q", 500)
        place.broker.ack("q", [(each.entry.seq, each.number) for each in leased])
    place.broker.publish("q", Draft(b"x" * 100, delay_ms=3_600_000))

    def reads() -> int:
        return int(redis_server.info("commandstats")["cmdstat_xrange"].split(",")[0].removeprefix("calls="))

    before = reads()
    assert place.next_batch(0, max_bytes=10) is None
    assert reads() - before < 100
    place.publish(b"x" * 90, b"x" * 20, b"x" * 5)
    assert place.next_batch(0, max_bytes=100) == (1, 1)  # far behind the history of others
    before = reads()
    assert place.next_batch(1, max_bytes=100) == (2, 2)
    assert reads() - before < 100


def test_what_fits_is_found_among_others(place: SubscriptionStore) -> None:
    place.broker.publish("q", Draft(b"x" * 900, delay_ms=3_600_000))
    for _ in range(3):
        place.publish(b"x" * 30)
        place.broker.publish_many("q", [Draft(b"x", priority=5)] * 1_000)
    for _ in range(3):
        leased = place.broker.receive("q", 1_000)  # they stay in the history between those that wait
        place.broker.ack("q", [(each.entry.seq, each.number) for each in leased])

    assert place.next_batch(0, max_bytes=70) == (1, 2)
    assert place.next_batch(1, max_bytes=10) == (2, 1)
    assert place.next_batch(2, max_bytes=10) is None


def test_of_one_lease_for_many_each_can_be_settled_alone(place: SubscriptionStore) -> None:
    place.publish(*BODIES[:10])
    place.next_batch(0)
    leased = place.broker.inspect.deliveries("q")

    place.broker.nack("q", [(leased[0].entry.seq, leased[0].number)], 0, "not today")
    place.broker.extend("q", [(leased[1].entry.seq, leased[1].number)], 500_000)

    assert place.bodies(1) == BODIES[1:10]
    assert place.broker.subscriptions.ack("s", 1, None) == (9, 1)
    assert place.ready() == 1


@pytest.mark.parametrize(("seconds", "formed", "waiting"), [(11, 1_000, 10_000), (2, 3_000, 7_000)])
def test_a_batch_is_whole_as_it_is_when_its_lease_nears_the_end(
    place: SubscriptionStore, monkeypatch: pytest.MonkeyPatch, seconds: int, formed: int, waiting: int
) -> None:
    place.publish(*BODIES)
    ask_and_drain = RedisStore.ask_and_drain

    def slowly(self: RedisStore, *args: Any) -> tuple[Any, bool]:
        try:
            return ask_and_drain(self, *args)
        finally:
            place.clock.advance(seconds)

    monkeypatch.setattr(RedisStore, "ask_and_drain", slowly)

    assert place.next_batch(0, lease_ms=10_000) == (1, formed)
    assert place.ready() == waiting
    assert place.bodies(1) == (None if waiting == 10_000 else BODIES[:formed])


@pytest.mark.parametrize("history_ms", [0, 86_400_000])
def test_a_batch_knows_up_to_where_it_was_settled_by_receipts(
    place_with: Callable[..., SubscriptionStore], redis_server: Server, history_ms: int
) -> None:
    place = place_with(history_ms=history_ms)
    place.publish(*BODIES)
    place.next_batch(0)
    receipts = sorted((each.entry.seq, each.number) for each in place.broker.inspect.deliveries("q"))
    [header] = redis_server.ask("KEYS", "*:sb:s")

    def known() -> tuple[int, int]:
        """How many are gone from the beginning on, and how many of these were acked with the batch."""
        settled, acked = redis_server.ask("HGET", header, "1").split()[-2:]
        return int(settled), int(acked)

    place.broker.ack("q", receipts[:700] + receipts[800:900])
    assert place.next_batch(0) == (1, 10_000)
    assert known()[0] in (500, 700)  # the rest of a lease for many is a run of its own
    place.broker.ack("q", receipts[700:9_999])
    place.broker.subscriptions.states()
    assert 700 < known()[0] < 9_999  # as much as one call may look at
    assert place.bodies(1) == BODIES[9_999:]
    assert known() == (9_999, 0)
    assert place.broker.subscriptions.ack("s", 1, None) == (1, 9_999)


def test_a_large_batch_that_was_settled_by_receipts_is_gone(place: SubscriptionStore) -> None:
    place.publish(*BODIES)
    place.next_batch(0)
    place.broker.ack("q", [(each.entry.seq, each.number) for each in place.broker.inspect.deliveries("q")])

    assert place.bodies(1) is None
    assert place.broker.subscriptions.states()[0].batches == []
    assert place.next_batch(0) is None


# -- several servers


@pytest.fixture
def two(redis_server: Server) -> Iterator[tuple[RedisBroker, RedisBroker]]:
    one, other = (RedisBroker(redis_server.url, profile="fast") for _ in range(2))
    one.declare("q", QueueSettings())
    other.queues()
    yield one, other
    one.close()
    other.close()


def test_every_server_has_the_same_batches(two: tuple[RedisBroker, RedisBroker]) -> None:
    one, other = two
    one.publish_bodies("q", BODIES[:3_000], 0)
    answers: list[tuple[int, int] | None] = []
    together = threading.Barrier(4)

    def ask(broker: RedisBroker) -> None:
        together.wait()
        answers.append(form(broker, 0, limit=2_500))

    threads = [threading.Thread(target=ask, args=(broker,)) for broker in (one, other, one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert answers == [(1, 2_500)] * 4
    assert bodies(one, 1) == bodies(other, 1) == BODIES[:2_500]
    assert other.subscriptions.ack("s", 1, None) == (2_500, 0)
    assert bodies(one, 1) is None
    assert form(one, 1) == (2, 500)
    assert [state.batches[0].count for state in other.subscriptions.states()] == [500]
    assert other.subscriptions.delete("s") == 500
    with pytest.raises(SubscriptionNotFound):
        bodies(one, 2)


def test_what_an_old_owner_sent_before_it_was_replaced_comes_too_late(
    two: tuple[RedisBroker, RedisBroker],
) -> None:
    one, other = two
    one.publish_bodies("q", BODIES[:10], 0)
    form(one, 0, owner="old", limit=5)
    late = one.subscriptions.get("s")
    assert form(other, 0, owner="new") == (1, 5)

    with pytest.raises(FunctionError, match="STALE"):
        one.store.ask_this_queue(one.get_queue("q"), "ack_batches", one.store.token(), "s", late.term, 1)
    with pytest.raises(SubscriptionTaken):
        one.subscriptions.ack("s", 1, "old")
    assert other.subscriptions.ack("s", 1, "new") == (5, 0)


def test_a_queue_that_knows_a_later_reader_than_the_store_is_believed(
    two: tuple[RedisBroker, RedisBroker], redis_server: Server
) -> None:
    one, other = two
    one.publish_bodies("q", BODIES[:10], 0)
    form(one, 0, owner="a", limit=5)
    before = redis_server.ask("HGET", "oq:{meta}:subscriptions", "s")
    form(other, 0, owner="b")
    form(other, 0, owner="c")
    redis_server.ask("HSET", "oq:{meta}:subscriptions", "s", before)  # as a failover may leave it

    assert form(other, 0, owner="c") == (1, 5)
    with pytest.raises(SubscriptionTaken):
        form(one, 0, owner="a")
    assert other.subscriptions.ack("s", 1, "c") == (5, 0)


def test_a_subscription_goes_with_its_queue_on_all_servers(two: tuple[RedisBroker, RedisBroker]) -> None:
    one, other = two
    one.publish_bodies("q", BODIES[:10], 0)
    form(one, 0, limit=5)

    other.delete("q")
    other.declare("q", QueueSettings())
    other.publish_bodies("q", [b"new"], 0)

    assert one.subscriptions.states() == []
    assert form(one, 1) == (2, 1)
    assert bodies(other, 2) == [b"new"]


def test_nothing_is_left_of_the_batches_of_a_deleted_queue(
    two: tuple[RedisBroker, RedisBroker], redis_server: Server
) -> None:
    one, _ = two
    one.publish_bodies("q", BODIES[:10], 0)
    form(one, 0, limit=5)
    form(one, 1, limit=5)
    assert redis_server.ask("KEYS", "*:s[bp]*")

    one.delete("q")

    assert redis_server.ask("KEYS", "*:s[bp]*") == []
    assert redis_server.ask("HLEN", "oq:{meta}:subscriptions") == 0


def test_a_waiter_is_notified_by_any_publisher(two: tuple[RedisBroker, RedisBroker]) -> None:
    one, other = two
    reported = threading.Event()
    waiter = Waiter(1, None, None, None, lambda _: reported.set(), notify_only=True)
    assert form(one, 0, waiter=waiter) is None

    other.publish_bodies("q", [b"x"], 0)

    assert reported.wait(30)
    assert form(one, 0, waiter=waiter) == (1, 1)


def test_what_came_before_anybody_stood_in_line_is_taken(
    two: tuple[RedisBroker, RedisBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    waiter = Waiter(1, None, None, None, lambda _: None, notify_only=True)
    stand_by = Receiver.stand_by

    def stand_late(self: Receiver, queue: str, waiter: Waiter) -> int:
        other.publish_bodies(queue, [b"x"], 0)
        return stand_by(self, queue, waiter)

    monkeypatch.setattr(Receiver, "stand_by", stand_late)

    assert form(one, 0, waiter=waiter) == (1, 1)
    assert not one.remove_waiter("q", waiter)  # nobody stands there for nothing


def test_a_batch_that_nobody_reads_any_more_returns_by_itself(two: tuple[RedisBroker, RedisBroker]) -> None:
    one, other = two
    one.publish_bodies("q", BODIES[:1_200], 0)
    assert form(one, 0, lease_ms=300) == (1, 1_200)

    until_reachable(lambda: other.stats("q").ready == 1_200, "the leases ran out")

    assert bodies(one, 1) is None
    assert one.subscriptions.ack("s", 1, None) == (0, 1_200)


# -- what goes wrong


def test_a_server_that_dies_while_it_forms_a_batch_leaves_it_to_the_next(
    two: tuple[RedisBroker, RedisBroker],
) -> None:
    one, other = two
    one.publish_bodies("q", BODIES, 0)
    form(one, 0, limit=1)
    known, view = one.subscriptions.get("s"), one.get_queue("q")

    # One slice of it, and the rest never comes.
    args = ("", "s", known.term, 2, 9_000, -1, 300_000, consumer_of("s", 2), "0", 0, MAX_OPEN)
    until_ms, _, count, is_whole = one.store.ask_this_queue(view, "form_batch", *args)
    assert (int(count), int(is_whole)) == (1_000, 0)

    assert form(other, 1, limit=50) == (2, 9_000)  # as large as it was begun
    assert bodies(other, 2) == BODIES[1:9_001]
    assert other.subscriptions.rows("s", 2, 0, 9_000).deliveries[0].until_ms == int(until_ms)


def test_leases_of_a_partly_extended_batch_end_at_their_reported_deadline(
    two: tuple[RedisBroker, RedisBroker],
) -> None:
    one, other = two
    one.publish_bodies("q", BODIES, 0)
    formed = one.subscriptions.next_batch("s", "q", 0)
    assert formed is not None
    known, view = one.subscriptions.get("s"), one.get_queue("q")

    # One slice of it, and the rest never comes.
    _, place = one.store.ask_this_queue(view, "extend_batch", "", "s", known.term, 1, 3_600_000, 0, 0)
    assert 0 < int(place) < formed.count

    [state] = other.subscriptions.states()
    assert state.batches == [formed]
    assert other.subscriptions.extend("s", None, 3_600_000) == formed.count
    [state] = one.subscriptions.states()
    assert state.batches[0].until_ms > formed.until_ms


def test_answers_that_are_lost_are_given_again(two: tuple[RedisBroker, RedisBroker]) -> None:
    one, _ = two
    one.publish_bodies("q", BODIES[:3_000], 0)
    form(one, 0, limit=2_500)
    known, view, token = one.subscriptions.get("s"), one.get_queue("q"), one.store.token()

    answers = [one.store.ask_this_queue(view, "ack_batches", token, "s", known.term, 1) for _ in range(3)]

    assert answers == [[0, 0, 1]] * 3  # a slice of it, once
    assert one.subscriptions.ack("s", 1, None) == (2_500, 0)
    assert one.stats("q").counters["acked"] == 2_500


def test_a_redis_that_is_killed_has_the_batches_as_they_were() -> None:
    with single(*FORCED) as redis:
        broker = RedisBroker(redis.url)
        try:
            broker.declare("q", QueueSettings())
            broker.publish_bodies("q", BODIES[:3_000], 0)
            assert form(broker, 0, limit=2_000, owner="me") == (1, 2_000)
            assert form(broker, 1, limit=500) == (2, 500)
            redis.kill9()
            redis.start()

            assert bodies(broker, 1) == BODIES[:2_000]
            assert form(broker, 1, limit=5, owner="me") == (2, 500)
            assert broker.subscriptions.ack("s", 2, "me") == (2_500, 0)
            assert broker.stats("q").ready == 500
        finally:
            broker.close()


def test_a_batch_is_returned_when_the_replicas_have_it() -> None:
    with replicated(1, *FORCED) as redis:
        broker = RedisBroker(redis.url + "?timeout=1&replicas=1")
        [replica] = redis.replicas
        try:
            broker.declare("q", QueueSettings())
            broker.publish_bodies("q", BODIES[:10], 0)
            broker.sync()
            replica.freeze()
            with pytest.raises((NotReplicated, StoreUnavailable)):
                form(broker, 0)
            replica.thaw()

            assert form(broker, 0) == (1, 10)
            assert int(replica.info("keyspace")["db0"].split(",")[0][5:]) > 5
        finally:
            broker.close()


def test_subscriptions_of_queues_on_all_nodes_of_a_cluster() -> None:
    with cluster(3, 1) as redis:
        broker, other = (RedisBroker(redis.url, profile="fast") for _ in range(2))
        try:
            names = [f"q{number}" for number in range(9)]
            for name in names:
                broker.declare(name, QueueSettings())
                broker.publish_bodies(name, BODIES[:1_000], 0)
                formed = broker.subscriptions.next_batch(f"of {name}", name, 0, owner="me")
                assert formed is not None
                assert formed.count == 1_000
            other.queues()
            assert {len(state.batches) for state in other.subscriptions.states()} == {1}
            redis.wait_whole()
            dead = redis.masters()[0]
            followers = redis.replicas_of(dead)
            until_reachable(lambda: dead.ask("WAIT", 1, 1_000) == 1, "the replica has everything")
            dead.kill9()
            redis.wait_replaced(dead, followers)

            for name in names:
                rows = other.subscriptions.rows(f"of {name}", 1)
                assert [entry.body for entry in rows.entries] == BODIES[:1_000]
                assert broker.subscriptions.ack(f"of {name}", 1, "me") == (1_000, 0)
                assert other.stats(name).counters["acked"] == 1_000
        finally:
            broker.close()
            other.close()


# -- by protocols


@pytest.fixture
def server(redis_server: Server) -> Iterator[Served]:
    started = served_on(redis_server)
    try:
        yield started.wait()
        assert [line for line in started.log if "Traceback" in line] == []
    finally:
        started.stop()


def served_on(redis: Server) -> Served:
    return Served(["--store", redis.url, "--profile", "fast"], free_port())


@pytest.fixture(scope="module")
def shared_server() -> Iterator[Served]:
    """For tests that name their queues for themselves."""
    with single() as redis:
        started = served_on(redis)
        try:
            yield started.wait()
            assert [line for line in started.log if "Traceback" in line] == []
        finally:
            started.stop()


@pytest.fixture
def client(shared_server: Served) -> Client:
    return Client(shared_server.url)


OF_CURSORS = ("test_a_cursor_shows_how_far_its_reader_is",)

locals().update(collect_tests(by_protocol, "client", without=OF_CURSORS))
locals().update(
    {name: test for name, test in collect_tests(by_command, "server").items() if "subscription" in name}
)
locals().update(collect_tests(by_pipeline, "server"))


def test_a_server_that_is_killed_is_replaced_by_any_other(redis_server: Server) -> None:
    servers = [served_on(redis_server) for _ in range(2)]
    try:
        one, two = (by_protocol.Reader(Client(each.wait().url), "q", "me") for each in servers)
        one.client.queue("q")
        by_protocol.publish(one.client, "q", [f"{number}" for number in range(2_000)])
        formed = one.next_batch(0, limit=1_500).value
        assert two.bodies(1)[:3] == [b"0", b"1", b"2"]
        servers[0].kill()

        assert two.next_batch(0).value == formed
        assert two.ack(1).value == {"acked": 1_500, "lost": 0}
        assert two.next_batch(1, wait=1).value["count"] == 500
        taken_over = by_protocol.Reader(two.client, "q", "another", "q")
        assert taken_over.next_batch(1).value["count"] == 500
        assert two.ack(2).code == "subscription_taken"
    finally:
        for each in servers:
            each.stop()
