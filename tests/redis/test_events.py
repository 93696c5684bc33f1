"""Events on Redis: one order of all streams, that every server resumes; what is missing is reported."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from threading import Thread
from typing import Any

import pytest

from openq.broker import events as e
from openq.broker.events import Event, EventFilter
from openq.clock import VirtualClock
from openq.errors import Closed, InvalidSetting, NotReplicated
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.events.shared import EVERYTHING, STORIES, a_watcher_is_woken_by_changes, read_all, receipt, summary
from tests.redis.servers import FORCED, Server, cluster, replicated, single, versions
from tests.waiting import until


@pytest.fixture
def broker(redis_server: Server) -> Iterator[RedisBroker]:
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        yield broker


class Follower:
    """A reader that continues where it stopped, and counts the gaps that it sees."""

    def __init__(self, broker: RedisBroker, after: str | None, wanted: EventFilter = EVERYTHING) -> None:
        self.broker = broker
        self.after = after
        self.found: list[Event] = []
        self.gaps: list[int] = []
        self._wanted = wanted

    def read(self, limit: int = 100) -> bool:
        """One page. Returns whether it was the last."""
        page = self.broker.events.read(self.after, limit, self._wanted)
        self.found += page.events
        self.after = page.next
        if page.gap_until_ms is not None:
            self.gaps.append(page.gap_until_ms)
        return page.is_end

    def read_all(self, limit: int = 100) -> list[Event]:
        while not self.read(limit):
            pass
        return self.found


# -- the same as on other stores ---------------------------------------------------------------


@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)
@pytest.mark.parametrize("story", STORIES)
def test_the_story_holds(story: str, broker: RedisBroker) -> None:
    # Redis drops the events of a queue with it, unless somebody watches.
    end = broker.events.watch(lambda: None)
    STORIES[story](broker)
    end()


def test_the_stories_hold_on_a_cluster() -> None:
    with cluster(2, 0) as nodes:
        for story, play in STORIES.items():
            url = f"{nodes.url}?prefix={story}"
            with closing(RedisBroker(url, profile="fast")) as broker:
                end = broker.events.watch(lambda: None)
                play(broker)
                end()
        with closing(RedisBroker(f"{nodes.url}?prefix=w", profile="fast")) as broker:
            a_watcher_is_woken_by_changes(broker, until)


def test_a_watcher_is_woken_by_changes(broker: RedisBroker) -> None:
    a_watcher_is_woken_by_changes(broker, until)


def test_a_watcher_hears_of_queues_that_are_created_later_and_by_others(redis_server: Server) -> None:
    with (
        closing(RedisBroker(redis_server.url, profile="fast")) as broker,
        closing(RedisBroker(redis_server.url, profile="fast")) as other,
    ):
        follower = Follower(broker, broker.events.end())
        woken: list[int] = []
        end = broker.events.watch(lambda: woken.append(1))

        for name in ("one", "two"):
            other.declare(name, QueueSettings())
            other.publish(name, Draft(b"x"))

        def has_all() -> bool:
            if woken:
                woken.clear()
                follower.read_all()
            return len(follower.found) == 4

        until(has_all)
        end()
        assert summary(follower.found)[0] == (e.QUEUE_CREATED, "one", None)
        assert not follower.gaps


def test_a_virtual_clock_shows_events_when_it_advances(redis_server: Server) -> None:
    clock = VirtualClock()
    with closing(RedisBroker(redis_server.url, profile="fast", clock=clock)) as broker:
        woken: list[int] = []
        end = broker.events.watch(lambda: woken.append(1))
        start = broker.events.end()
        broker.declare("q", QueueSettings())
        broker.publish("q", Draft(b"x"))
        assert read_all(broker.events, start) == []

        clock.advance(1)

        assert woken
        assert [event.event for event in read_all(broker.events, start)] == [e.QUEUE_CREATED, e.PUBLISHED]
        end()


# -- ids and order -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", ["", "x", "1-2", "é", "a.1.2.3.4", "a.1.9.3.4.5", "a.-1.2.3.4.5", "0" * 200, "a.1.2.3.4.5\n"]
)
def test_an_id_that_is_none_is_refused(broker: RedisBroker, bad: str) -> None:
    with pytest.raises(InvalidSetting, match="is not the id of an event"):
        broker.events.read(bad, 10, EVERYTHING)


def test_an_id_from_the_future_is_refused(broker: RedisBroker) -> None:
    store, ms, *rest = broker.events.end().split(".")
    with pytest.raises(InvalidSetting):
        broker.events.read(".".join((store, str(int(ms) + 3_600_000), *rest)), 10, EVERYTHING)


def test_a_closed_broker_refuses_readers(redis_server: Server) -> None:
    broker = RedisBroker(redis_server.url, profile="fast")
    broker.events.watch(lambda: None)
    broker.close()
    with pytest.raises(Closed):
        broker.events.read(None, 10, EVERYTHING)
    with pytest.raises(Closed):
        broker.events.watch(lambda: None)
    with pytest.raises(Closed):
        broker.events.add(e.ALERT, "", {})


def test_only_known_events_are_added(broker: RedisBroker) -> None:
    with pytest.raises(InvalidSetting):
        broker.events.add("nonsense", "q", {})
    with pytest.raises(InvalidSetting):
        broker.events.add(e.ALERT, "a\x1fb", {})


def test_texts_of_clients_do_not_break_events(broker: RedisBroker) -> None:
    broker.declare("q", QueueSettings())
    start = broker.events.end()
    [(message, _)] = broker.publish_many("q", [Draft(b"x", id="own,id")])
    [delivery] = broker.receive("q", consumer="a\x1fb,c\x1e")
    broker.nack("q", [receipt(delivery)], 0, "why\x1f1\x1f2")
    broker.events.add(e.ALERT, "q", {"text": "a\x1fb"})

    found = read_all(broker.events, start)

    assert {event.message_id for event in found if event.event != e.ALERT} == {message}
    [delivered] = [event for event in found if event.event == e.DELIVERED]
    assert delivered.detail["consumer"] == "a b,c "  # control characters are replaced by spaces
    [nacked] = [event for event in found if event.event == e.NACKED]
    assert nacked.detail["reason"] == "why 1 2"
    [alert] = [event for event in found if event.event == e.ALERT]
    assert alert.detail == {"text": "a\x1fb"}


def test_entries_that_another_program_damaged_are_left_out(broker: RedisBroker, redis_server: Server) -> None:
    broker.declare("q", QueueSettings())
    start = broker.events.end()
    broker.publish("q", Draft(b"1"))
    head = broker.get_queue("q").key[:-1].decode()
    redis_server.ask("XADD", head + "h", "*", "e", "L\x1fnonsense")
    redis_server.ask("XADD", head + "h", "*", "e", "Z\x1ffrom a later version")
    redis_server.ask("XADD", "oq:{meta}:events", "*", "e", "N\x1fq\x1fnot JSON")
    redis_server.ask("XADD", "oq:{meta}:events", "*", "e", "Z\x1fq")
    [delivery] = broker.receive("q")
    broker.ack("q", [receipt(delivery)])

    assert [event.event for event in read_all(broker.events, start)] == [e.PUBLISHED, e.DELIVERED, e.ACKED]


def test_an_event_that_comes_late_is_said_to_be_missing(broker: RedisBroker, redis_server: Server) -> None:
    """As after a failover to a server whose clock is behind."""
    broker.declare("late", QueueSettings())
    broker.declare("q", QueueSettings())
    follower = Follower(broker, broker.events.end())
    follower.read_all()
    start_ms = int(str(follower.after).split(".")[1])
    until(lambda: broker.store.server_time_ms() > start_ms + 2)
    broker.publish("q", Draft(b"x"))
    [event] = follower.read_all()

    head = broker.get_queue("late").key[:-1].decode()
    redis_server.ask("XADD", head + "h", f"{event.time_ms - 1}-0", "e", "A\x1f1")
    follower.read_all()

    assert follower.gaps == [event.time_ms + 1]
    assert follower.found == [event]


def test_readers_see_every_event_once_and_in_order_while_others_write(redis_server: Server) -> None:
    names = ["a", "b", "c", "d"]

    def work(number: int) -> None:
        choice = random.Random(number)
        with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
            for turn in range(60):
                queue = choice.choice(names)
                broker.publish_many(queue, [Draft(b"x", id=f"{number}-{turn}"), Draft(b"y")])
                broker.ack(queue, [receipt(delivery) for delivery in broker.receive(queue, 3)])

    with (
        closing(RedisBroker(redis_server.url, profile="fast")) as broker,
        closing(RedisBroker(redis_server.url, profile="fast")) as other,
    ):
        start = broker.events.end()
        for name in names:
            broker.declare(name, QueueSettings())
        writers = [Thread(target=work, args=(number,)) for number in range(3)]
        for writer in writers:
            writer.start()
        choice = random.Random(5)
        follower = Follower(broker, start)
        while any(writer.is_alive() for writer in writers):
            follower.read(choice.choice([1, 2, 7, 100]))
            follower.broker = choice.choice([broker, broker, other])
        for writer in writers:
            writer.join()
        follower.read_all()

        whole = read_all(broker.events, start)
        assert [event.id for event in follower.found] == [event.id for event in whole]
        assert summary(follower.found) == summary(whole)
        assert not follower.gaps
        published = [event.message_id for event in whole if event.event == e.PUBLISHED]
        assert len(published) == len(set(published)) == 3 * 60 * 2


# -- what is kept ------------------------------------------------------------------------------


def test_dropped_events_are_said_to_be_missing(redis_server: Server) -> None:
    with closing(RedisBroker(f"{redis_server.url}?history=5", profile="fast")) as broker:
        broker.declare("q", QueueSettings())
        follower = Follower(broker, broker.events.end())
        broker.publish("q", Draft(b"first"))
        follower.read_all()
        for _ in range(40):
            broker.publish_bodies("q", [b"x"] * 50, 0)
            broker.ack("q", [receipt(delivery) for delivery in broker.receive("q", 50)])
        first = len(follower.found)

        follower.read_all()

        assert follower.gaps
        assert follower.gaps[0] <= follower.found[-1].time_ms + 1
        assert first < len(follower.found) < 2000
        again = Follower(broker, follower.after)
        assert again.read_all() == []
        assert not again.gaps


def test_a_reader_from_the_oldest_event_on_has_no_gap(redis_server: Server) -> None:
    with closing(RedisBroker(f"{redis_server.url}?history=5", profile="fast")) as broker:
        broker.declare("q", QueueSettings())
        for _ in range(20):
            broker.publish_bodies("q", [b"x"] * 50, 0)
            broker.ack("q", [receipt(delivery) for delivery in broker.receive("q", 50)])
        assert Follower(broker, None).read_all(10_000)


def test_a_queue_without_a_history_has_events_while_they_are_watched(broker: RedisBroker) -> None:
    broker.declare("q", QueueSettings(history_ms=0))
    end = broker.events.watch(lambda: None)
    follower = Follower(broker, broker.events.end())

    [(first, _), (second, _)] = broker.publish_many("q", [Draft(b"1", id="own"), Draft(b"2")])
    [delivery] = broker.receive("q")
    broker.ack("q", [receipt(delivery)])
    follower.read_all()
    end()

    assert summary(follower.found) == [
        (e.PUBLISHED, "q", first),
        (e.PUBLISHED, "q", second),
        (e.DELIVERED, "q", first),
        (e.ACKED, "q", first),
    ]
    assert follower.found[0].message is None  # acked, and gone
    assert follower.found[1].message is not None
    assert not follower.gaps


def test_a_queue_without_a_history_has_a_gap_while_nobody_watches(broker: RedisBroker) -> None:
    broker.declare("q", QueueSettings(history_ms=0))
    follower = Follower(broker, broker.events.end())
    follower.read_all()
    assert not follower.gaps

    broker.publish("q", Draft(b"1"))
    follower.read_all()
    assert len(follower.gaps) == 1

    follower.read_all()
    assert len(follower.gaps) == 1
    assert follower.found == []
    head = broker.get_queue("q").key[:-1]
    assert broker.calls.call(head + b"h", "EXISTS", head + b"h") == 0


@pytest.mark.parametrize("history_ms", [0, 60_000])
def test_events_of_a_deleted_queue_stay_for_readers_that_are_a_little_behind(
    broker: RedisBroker, history_ms: int
) -> None:
    end = broker.events.watch(lambda: None)
    start = broker.events.end()
    broker.declare("q", QueueSettings(history_ms=history_ms))
    broker.publish("q", Draft(b"1"))
    broker.delete("q")

    found = read_all(broker.events, start)
    end()

    assert [event.event for event in found] == [e.QUEUE_CREATED, e.PUBLISHED, e.QUEUE_DELETED]


def test_a_reader_of_a_deleted_queue_has_a_gap_if_nobody_watched(broker: RedisBroker) -> None:
    broker.declare("idle", QueueSettings())
    broker.declare("busy", QueueSettings())
    follower = Follower(broker, broker.events.end())
    broker.publish("idle", Draft(b"1"))
    follower.read_all()
    broker.delete("idle")
    follower.read_all()
    assert not follower.gaps  # it had read all of them

    broker.publish("busy", Draft(b"2"))
    broker.delete("busy")
    follower.read_all()

    assert follower.gaps
    assert [event.event for event in follower.found] == [e.PUBLISHED, e.QUEUE_DELETED, e.QUEUE_DELETED]


def test_an_emptied_redis_is_a_gap_and_readers_go_on(redis_server: Server) -> None:
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        broker.declare("q", QueueSettings())
        woken: list[int] = []
        end = broker.events.watch(lambda: woken.append(1))
        follower = Follower(broker, broker.events.end())
        broker.publish("q", Draft(b"1"))
        follower.read_all()
        redis_server.ask("FLUSHALL")

        broker.publish("q", Draft(b"2"))

        def has_all() -> bool:
            follower.read_all()
            return [event.event for event in follower.found].count(e.PUBLISHED) == 2

        until(has_all)
        assert len(follower.gaps) == 1
        # The queue that was created again announces its events, too.
        until(lambda: watched(broker, "q"))
        woken.clear()
        broker.publish("q", Draft(b"3"))
        until(lambda: woken)
        end()


def watched(broker: RedisBroker, queue: str) -> bool:
    key = broker.get_queue(queue).key
    return int(broker.calls.call(key, "HGET", key, "ew") or 0) > broker.now_ms()


# -- what they cost, and what they survive -----------------------------------------------------


def test_events_cost_nothing_while_nobody_watches(broker: RedisBroker, redis_server: Server) -> None:
    broker.declare("q", QueueSettings(history_ms=0))
    before = published_messages(redis_server)
    for _ in range(10):
        broker.publish("q", Draft(b"1"))
        [delivery] = broker.receive("q")
        broker.ack("q", [receipt(delivery)])

    assert published_messages(redis_server) == before
    assert not any(key.endswith((":h", ":ev")) for key in redis_server.ask("KEYS", "*"))


def published_messages(server: Server) -> int:
    found = server.info("commandstats").get("cmdstat_publish", "calls=0")
    return int(found.partition("calls=")[2].partition(",")[0])


def test_a_watcher_survives_a_restart_of_redis() -> None:
    with single(*FORCED) as server, closing(RedisBroker(server.url, profile="safe")) as broker:
        broker.declare("q", QueueSettings())
        woken: list[int] = []
        end = broker.events.watch(lambda: woken.append(1))
        follower = Follower(broker, broker.events.end())
        broker.publish("q", Draft(b"1"))
        broker.sync()
        follower.read_all()

        server.kill9()
        server.start()
        broker.publish("q", Draft(b"2"))
        broker.sync()

        def has_all() -> bool:
            if woken:
                woken.clear()
                follower.read_all()
            return len(follower.found) == 2

        until(has_all)
        end()
        assert not follower.gaps
        assert [event.message.body for event in follower.found if event.message] == [b"1", b"2"]


def test_a_safe_reader_shows_only_events_that_have_their_copies() -> None:
    with (
        replicated(1, *FORCED) as group,
        closing(RedisBroker(f"{group.url}?timeout=1", profile="safe")) as broker,
    ):
        broker.declare("q", QueueSettings())
        broker.sync()
        start = broker.events.end()
        group.replicas[0].freeze()
        broker.publish("q", Draft(b"1"))

        with pytest.raises(NotReplicated):
            broker.events.read(start, 10, EVERYTHING)

        group.replicas[0].thaw()
        found: list[Any] = []

        def shown() -> bool:
            found[:] = broker.events.read(start, 10, EVERYTHING).events
            return bool(found)

        until(shown, ignoring=(NotReplicated,))
        assert [event.event for event in found] == [e.PUBLISHED]
