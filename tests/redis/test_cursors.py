"""Cursors on Redis: a reader that is known is waited for on every queue, on any server; a dead one is not
waited for longer than it asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from openq.broker.cursors import HOLD_S, CursorNotFound, CursorState
from openq.clock import VirtualClock
from openq.errors import InvalidSetting, NotReplicated, OpenQError
from openq.history.selection import Selection
from openq.model import QueueSettings
from openq.redis.broker import RedisBroker
from openq.redis.cursors import HOLD_BYTES
from openq.redis.functions import call_function
from openq.redis.stream_history import StreamHistory
from openq.redis.stream_positions import StreamHistoryEnd, position_of_time, stream_keys
from tests.cli import test_pipeline_cursors as by_command
from tests.local import test_cursors as of_the_journal
from tests.redis.servers import FORCED, Server, cluster, replicated, single, until_reachable, versions
from tests.redis.shared_tests import collect_tests
from tests.rest import test_subscriptions as by_protocol
from tests.rest.helpers import Client
from tests.serving import Served, free_port

LIMIT = 500  # messages that a queue keeps for nobody in particular

every_kind = pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)


class CursorStore:
    """A store that keeps little history by itself, and several brokers on it."""

    def __init__(self, url: str, stack: ExitStack, profile: str = "fast", clock: VirtualClock | None = None):
        self._url = f"{url}{'&' if '?' in url else '?'}history={LIMIT}"
        self._stack = stack
        self._profile = profile
        self._clock = clock
        self.broker = self.another()
        self.broker.declare("q", QueueSettings())

    def another(self) -> RedisBroker:
        broker = RedisBroker(self._url, profile=self._profile, clock=self._clock)
        self._stack.callback(broker.close)
        return broker

    def fill(self, count: int = 2_000, queue: str = "q") -> None:
        """Publish and ack messages, the last ack in a later millisecond than the last publish: a cursor holds
        whole milliseconds."""
        for number in range(count // 100):
            self.broker.publish_bodies(queue, [b"x" * 100] * 100, 0)
            deliveries = self.broker.receive(queue, 100)
            while number == count // 100 - 1 and self.now_ms() <= deliveries[-1].entry.sent_ms:
                pass
            receipts = [(each.entry.seq, each.number) for each in deliveries]
            assert self.broker.ack(queue, receipts) == [None] * 100

    def now_ms(self) -> int:
        """Redis's time. A virtual clock does not pass by itself, and needs no waiting."""
        return 1 << 62 if self._clock is not None else self.broker.store.redis_now()

    def hand_around(self, times: int) -> None:
        """One message again and again: two events each time, and nothing else."""
        for _ in range(times):
            [leased] = self.broker.receive("q")
            self.broker.nack("q", [(leased.entry.seq, leased.number)], 0)

    def kept(self, queue: str = "q") -> int:
        key, _ = stream_keys(self.broker.get_queue(queue))
        return int(self.broker.calls.call(key, "XLEN", key, idempotent=True))

    def kept_events(self) -> int:
        _, key = stream_keys(self.broker.get_queue("q"))
        return int(self.broker.calls.call(key, "XLEN", key, idempotent=True))

    def end(self) -> int:
        return StreamHistoryEnd(self.broker.store).now(settle=True)

    def state(self, name: str = "c", broker: RedisBroker | None = None) -> CursorState:
        [found] = [each for each in (broker or self.broker).cursors.states() if each.cursor.name == name]
        return found


@pytest.fixture
def place(redis_server: Server) -> Iterator[CursorStore]:
    with ExitStack() as stack:
        yield CursorStore(redis_server.url, stack)


@contextmanager
def place_on(url: str, profile: str = "fast", clock: VirtualClock | None = None) -> Iterator[CursorStore]:
    with ExitStack() as stack:
        yield CursorStore(url, stack, profile, clock)


locals().update(
    {
        name: test
        for name, test in collect_tests(of_the_journal, "place").items()
        if name.startswith("test_one_owner_")
    }
)


# -- holding


@every_kind
def test_history_is_kept_from_a_cursor_on_and_goes_when_it_moves(place: CursorStore) -> None:
    place.broker.cursors.put("c", 0, "ann")
    place.fill()
    assert place.kept() == 2_000

    middle = place.end()
    place.broker.cursors.put("c", middle, "ann")
    place.fill(1_000)
    place.broker.cursors.enforce_limits()
    assert place.kept() == 1_000

    place.broker.cursors.remove("c")
    place.broker.cursors.enforce_limits()
    assert place.kept() == LIMIT


def test_without_a_cursor_history_is_as_long_as_it_is(place: CursorStore) -> None:
    place.fill()

    assert place.kept() < 2_000


def test_a_reader_of_events_misses_none_while_it_is_waited_for(place: CursorStore) -> None:
    events = Selection(table="events")
    history = StreamHistory(place.broker.address)
    try:
        place.broker.cursors.put("c", 0, "ann")
        place.fill()
        rows = sum(batch.num_rows for batch in _read(history, events, place.end()))
        assert rows == 6_000  # published, delivered, acked

        first = place.end()
        place.broker.cursors.put("c", first, "ann")
        place.fill()
        place.broker.cursors.enforce_limits()
        onwards = Selection(table="events", first_position=first)
        assert history.snapshot(onwards, place.end()).gap is None
        assert sum(batch.num_rows for batch in _read(history, onwards, place.end())) == 6_000

        place.broker.cursors.remove("c")
        place.broker.cursors.enforce_limits()
        assert history.snapshot(onwards, place.end()).gap is not None
    finally:
        history.close()


@every_kind
def test_events_are_kept_however_many_and_however_old(redis_server: Server) -> None:
    clock = VirtualClock()
    with place_on(redis_server.url, clock=clock) as place:
        place.broker.declare("q", QueueSettings(history_ms=10_000), change=True)
        place.broker.publish_bodies("q", [b"x"], 0)
        clock.advance(1)
        place.broker.cursors.put("c", position_of_time(clock.now_ms()), "ann")
        place.hand_around(LIMIT * 2)
        assert place.kept_events() == LIMIT * 4
        clock.advance(60)
        place.broker.cursors.enforce_limits()
        assert place.kept_events() == LIMIT * 4

        place.broker.cursors.put("c", position_of_time(clock.now_ms()), "ann")
        place.hand_around(1)
        place.broker.cursors.enforce_limits()

        assert place.kept_events() < 200


def test_events_that_were_dropped_before_anybody_held_them_are_missed(place: CursorStore) -> None:
    place.broker.publish_bodies("q", [b"x"], 0)
    since = place.end()
    place.hand_around(LIMIT * 2)
    assert place.kept_events() < LIMIT * 4
    history = StreamHistory(place.broker.address)
    try:
        place.broker.cursors.put("c", since, "ann")

        assert history.snapshot(Selection(table="events", first_position=since), place.end()).gap is not None
        assert history.snapshot(Selection(first_position=since), place.end()).gap is None
        assert "not kept any more" in str(place.state().lost)
    finally:
        history.close()


def _read(history: StreamHistory, selection: Selection, end: int) -> Iterator[object]:
    return iter(list(history.read_many(history.snapshot(selection, end).pieces, selection)))


def test_the_slowest_reader_counts(place: CursorStore) -> None:
    place.broker.cursors.put("slow", 0, "ann")
    place.fill()
    place.broker.cursors.put("fast", place.end(), "ann")
    place.broker.cursors.enforce_limits()

    assert place.kept() == 2_000


def test_a_queue_made_later_is_held_too(place: CursorStore) -> None:
    place.broker.cursors.put("c", 0, "ann")
    place.another().declare("later", QueueSettings())
    place.broker.queues()

    place.fill(queue="later")

    assert place.kept("later") == 2_000


def test_a_queue_that_keeps_no_history_keeps_none_for_a_cursor(place: CursorStore) -> None:
    place.broker.declare("brief", QueueSettings(history_ms=0))
    place.broker.cursors.put("c", 0, "ann")

    place.fill(200, "brief")

    assert place.kept("brief") == 0


# -- giving up


def test_a_cursor_that_nobody_moves_loses_its_hold_without_anybody(redis_server: Server) -> None:
    clock = VirtualClock()
    with place_on(redis_server.url, clock=clock) as place:
        place.broker.cursors.put("c", 0, "ann", hold_s=100)
        place.fill()
        clock.advance(90)
        place.fill(1_000)
        assert place.kept() == 3_000

        clock.advance(20)
        assert "not moved" in str(place.state().lost)
        place.fill(4_000)

        assert place.kept() < 2_000


def test_a_cursor_too_far_behind_loses_its_hold_and_says_so(place: CursorStore) -> None:
    place.broker.cursors.put("c", 0, "ann", hold_bytes=1 << 20)
    place.fill(1_000)
    place.broker.cursors.enforce_limits()
    assert place.kept() == 1_000
    assert place.state().lost is None
    place.broker.cursors.put("c", place.end(), "ann")

    place.fill(10_000)
    assert "bytes behind" in str(place.state().lost)
    place.broker.cursors.enforce_limits()

    assert place.kept() == LIMIT
    assert "not kept any more" in str(place.state().lost)
    place.broker.cursors.put("other", place.end(), "bob")
    place.fill()
    assert place.kept() >= 2_000
    place.broker.cursors.remove("other")
    place.broker.cursors.enforce_limits()
    assert place.kept() == LIMIT  # the one that was given up came not back with the other


def test_in_a_redis_without_memory_the_past_gives_way(redis_server: Server) -> None:
    with single() as redis, place_on(redis.url) as place:
        place.broker.cursors.put("c", 0, "ann")
        place.fill(4_000)
        redis.ask("CONFIG", "SET", "maxmemory", int(redis.info("memory")["used_memory"]) - 1)
        assert place.broker.health().disk_full

        place.broker.cursors.enforce_limits()

        assert place.kept() == LIMIT


# -- what it shows


def test_all_servers_see_one_cursor_which_only_moves_forward(place: CursorStore) -> None:
    other = place.another()
    place.fill(200)
    early = place.end()
    place.fill(200)
    late = place.end()
    place.broker.cursors.put("c", early, "ann", hold_s=60)

    assert other.cursors.put("c", late, "root", hold_bytes=5).cursor.position == late
    assert place.broker.cursors.put("c", early, "ann").cursor.position == late  # it was overtaken

    for broker in (place.broker, other):
        cursor = place.state(broker=broker).cursor
        assert (cursor.owner, cursor.position, cursor.hold_s, cursor.hold_bytes) == ("ann", late, 60, 5)
    other.cursors.remove("c")
    assert place.broker.cursors.get("c") is None
    with pytest.raises(CursorNotFound):
        place.broker.cursors.remove("c")


def test_lag_is_reported_in_bytes_and_in_time(place: CursorStore) -> None:
    first = place.broker.cursors.put("c", 0, "ann")
    assert (first.cursor.hold_bytes, first.cursor.hold_s) == (HOLD_BYTES, HOLD_S)
    assert (first.lag_bytes, first.lag_s, first.lost) == (0, 0, None)
    place.fill(1_000)

    behind = place.state()
    assert 100_000 < behind.lag_bytes < 300_000
    assert behind.lag_s > 0
    place.broker.cursors.put("c", place.end(), "ann")

    assert (place.state().lag_bytes, place.state().lag_s) == (0, 0)


def test_a_position_that_is_not_there_yet_and_a_name_that_is_none_are_refused(place: CursorStore) -> None:
    with pytest.raises(InvalidSetting):
        place.broker.cursors.put("c", place.end() * 2, "ann")
    with pytest.raises(InvalidSetting):
        place.broker.cursors.put("", 0, "ann")
    assert place.broker.cursors.states() == []


def test_a_change_that_is_sent_again_is_made_once(place: CursorStore) -> None:
    key = b"oq:{meta}:cursors"
    put: Callable[..., object] = lambda *texts: call_function(  # noqa: E731
        place.broker.calls, key, "put_field", 0, "c", *texts
    )

    assert put("", "one") == put("", "one") == 1
    assert put("", "two") == 0
    assert put("one", "two") == 1
    assert put("one", "two") == 1


# -- what goes wrong around it


def test_a_redis_that_is_killed_has_the_cursor_and_what_it_holds() -> None:
    with single(*FORCED) as redis, place_on(redis.url, "safe") as place:
        place.broker.cursors.put("c", 0, "ann", hold_s=60)
        place.fill()
        redis.kill9()
        redis.start()

        assert place.state(broker=place.another()).cursor.hold_s == 60
        place.fill(1_000)
        assert place.kept() == 3_000


def test_a_cursor_is_moved_when_the_copies_have_it() -> None:
    with replicated(1, *FORCED) as redis, place_on(redis.url + "?timeout=1&replicas=1", "safe") as place:
        place.broker.cursors.put("c", 0, "ann")
        [replica] = redis.replicas
        assert replica.ask("HGET", "oq:{meta}:cursors", "c")
        replica.freeze()
        try:
            with pytest.raises(NotReplicated):
                place.broker.cursors.put("c", 1, "ann")
        finally:
            replica.thaw()


def test_a_cursor_holds_the_queues_of_all_nodes_of_a_cluster() -> None:
    names = [f"q{number}" for number in range(12)]
    with cluster(3, 0) as redis, place_on(redis.url) as place:
        for name in names:
            place.broker.declare(name, QueueSettings())
        place.broker.cursors.put("c", 0, "ann")
        for name in names:
            place.fill(1_000, name)
        assert [place.kept(name) for name in names] == [1_000] * 12
        assert all(int(node.info("keyspace")["db0"].split(",")[0][5:]) > 12 for node in redis.masters())

        place.another().cursors.put("c", place.end(), "ann")
        place.broker.cursors.enforce_limits()

        assert [place.kept(name) for name in names] == [LIMIT] * 12
        assert place.state().lost is None


# -- by protocols


@pytest.fixture
def server(redis_server: Server) -> Iterator[Served]:
    started = Served(["--store", redis_server.url, "--profile", "fast"], free_port())
    try:
        yield started.wait()
        assert [line for line in started.log if "Traceback" in line] == []
    finally:
        started.stop()


@pytest.fixture
def client(server: Served) -> Client:
    return Client(server.url)


locals().update(
    {
        name: test
        for name, test in collect_tests(by_protocol, "client").items()
        if "cursor" in name and "shows" not in name
    }
)
locals().update(
    {
        name: test
        for name, test in collect_tests(by_command, "server").items()
        if "cursor" in name and "shows" not in name
    }
)


def test_a_server_that_is_killed_leaves_its_cursors_to_the_others(redis_server: Server) -> None:
    url = f"{redis_server.url}?history={LIMIT}"
    servers = [Served(["--store", url, "--profile", "fast"], free_port()) for _ in range(2)]
    try:
        one, two = (Client(each.wait().url) for each in servers)
        one.put("/pipeline/cursors/c", {"position": 0, "hold_s": 3_600})
        with place_on(redis_server.url) as place:
            place.fill()
            servers[0].kill()

            [shown] = two.get("/pipeline/cursors").value["cursors"]
            assert (shown["name"], shown["hold_s"], shown["lost"]) == ("c", 3_600, False)
            assert shown["lag_bytes"] > 0
            place.fill(1_000)
            assert place.kept() == 3_000
            assert two.delete("/pipeline/cursors/c").status == 200
            until_reachable(lambda: _is_short(place), "what nobody holds any more is dropped")
    finally:
        for each in servers:
            each.stop()


def _is_short(place: CursorStore) -> bool:
    try:
        place.fill(100)
    except OpenQError:
        return False
    return place.kept() <= 2 * LIMIT
