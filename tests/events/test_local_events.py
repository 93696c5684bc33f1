"""Events of the local broker, in memory and on a journal: resumable, only durable ones, gaps are reported."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from openq.broker import events as e
from openq.broker.events import Event, EventFilter
from openq.clock import VirtualClock
from openq.errors import Closed, InvalidSetting
from openq.local import core as core_module
from openq.local import event_log
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.events.shared import EVERYTHING, STORIES, a_watcher_is_woken_by_changes, read_all, receipt, summary
from tests.waiting import until

SEGMENT = 1 << 16


@pytest.fixture(params=["memory", "journal"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(None if request.param == "memory" else tmp_path)
    yield broker
    broker.close()


@pytest.mark.parametrize("story", STORIES)
def test_the_story_holds(story: str, broker: LocalBroker) -> None:
    STORIES[story](broker)


def test_a_watcher_is_woken_by_changes(broker: LocalBroker) -> None:
    a_watcher_is_woken_by_changes(broker, until)


@pytest.mark.parametrize("bad", ["", "x", "0-0", "12345678-1-1-1", "1-2", "é", "0" * 200, "12345678-g-1"])
def test_an_id_that_is_none_is_refused(broker: LocalBroker, bad: str) -> None:
    with pytest.raises(InvalidSetting, match="is not the id of an event"):
        broker.events.read(bad, 10, EVERYTHING)


def test_an_id_beyond_the_end_is_refused(broker: LocalBroker) -> None:
    prefix = broker.storage.id_prefix[:8]
    with pytest.raises(InvalidSetting, match="later than the last event"):
        broker.events.read(f"{prefix}-ffffffffff-1", 10, EVERYTHING)


def test_an_id_of_replaced_data_is_a_gap(broker: LocalBroker) -> None:
    broker.declare("q", QueueSettings())
    broker.sync()

    page = broker.events.read("00000000-5-1", 10, EVERYTHING)

    assert summary(page.events) == [(e.QUEUE_CREATED, "q", None)]
    assert page.gap_until_ms == page.events[0].time_ms
    assert broker.events.read(page.next, 10, EVERYTHING).gap_until_ms is None


def test_an_id_of_replaced_data_without_later_events_is_a_gap_until_now(broker: LocalBroker) -> None:
    before = broker.now_ms()

    page = broker.events.read("00000000-5-1", 10, EVERYTHING)

    assert page.events == []
    assert page.gap_until_ms is not None
    assert page.gap_until_ms >= before


def test_a_closed_broker_has_no_events(broker: LocalBroker) -> None:
    after = broker.events.end()
    broker.close()
    with pytest.raises(Closed):
        broker.events.read(after, 10, EVERYTHING)


def test_a_page_ends_after_many_bytes_that_nobody_wants(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MAX_PAGE_BYTES", 2_000)
    broker.declare("q", QueueSettings())
    for _ in range(50):
        broker.publish_body("q", b"x" * 100, 0)
    broker.declare("last", QueueSettings())
    broker.sync()
    wanted = EventFilter(queues=("last",))
    pages = 0
    after = None
    found: list[Event] = []
    while True:
        page = broker.events.read(after, 10, wanted)
        pages += 1
        found += page.events
        broker.events.read(page.next, 1, EVERYTHING)  # another reader takes the kept state
        after = page.next
        if page.is_end:
            break

    assert pages > 2
    assert summary(found) == [(e.QUEUE_CREATED, "last", None)]


def test_leases_that_end_and_messages_that_expire_are_events(tmp_path: Path) -> None:
    clock = VirtualClock()
    for path in (None, tmp_path):
        broker = LocalBroker(path, clock=clock)
        broker.declare("q", QueueSettings(visibility_ms=1_000))
        broker.publish_many("q", [Draft(b"1", ttl_ms=60_000)])
        broker.receive("q")
        clock.advance(2)
        clock.advance(90)
        broker.sync()
        names = [event.event for event in read_all(broker.events)]
        assert names == [e.QUEUE_CREATED, e.PUBLISHED, e.DELIVERED, e.LEASE_EXPIRED, e.EXPIRED]
        broker.close()


# -- memory


def test_memory_reports_a_gap_when_records_were_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_module, "MEMORY_RECORDS", 50)
    broker = LocalBroker()
    broker.declare("q", QueueSettings())
    broker.sync()
    after = broker.events.end()
    for number in range(30):
        broker.publish_body("q", b"%d" % number, 0)
    page = broker.events.read(after, 10, EVERYTHING)
    assert page.gap_until_ms is None
    for number in range(100):
        broker.publish_body("q", b"%d" % number, 0)

    page = broker.events.read(page.next, 1_000, EVERYTHING)
    assert len(page.events) == 20  # they were taken together with the first page
    assert page.gap_until_ms is None
    page = broker.events.read(page.next, 1_000, EVERYTHING)

    assert page.gap_until_ms is not None
    assert len(page.events) == 50
    assert page.is_end
    broker.close()


def test_memory_logs_at_full_speed_while_nobody_watches() -> None:
    broker = LocalBroker()
    bare = broker.engine.log
    ends = [broker.events.watch(lambda: None) for _ in range(2)]
    assert broker.engine.log != bare
    for end in ends:
        end()
    assert broker.engine.log == bare
    broker.close()


# -- journal


def filled(broker: LocalBroker, segments: int) -> None:
    """Traffic over so many segments, with ids of every kind."""
    assert broker.journal is not None
    last = broker.journal.segments()[-1].number + segments
    number = 0
    while broker.journal.segments()[-1].number < last:
        number += 1
        broker.publish_many("q", [Draft(b"x" * 500, id=f"own-{last}-{number}"), Draft(b"y" * 500)])
        broker.publish_bodies("q", [b"z" * 100] * 3, 0)
        deliveries = broker.receive("q", 5)
        broker.ack("q", [receipt(each) for each in deliveries])
        broker.sync()


def test_a_restart_changes_no_event_and_no_id(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    broker.declare("gone", QueueSettings())
    broker.declare("q", QueueSettings())
    broker.delete("gone")
    filled(broker, 2)
    before = read_all(broker.events)
    end = broker.events.end()
    broker.close()

    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    assert read_all(broker.events)[: len(before)] == before
    for event in random.Random(1).sample(before, 20):
        rest = read_all(broker.events, event.id)
        wanted = before[before.index(event) + 1 :]
        assert [(each.id, *summary([each])) for each in rest[: len(wanted)]] == [
            (each.id, *summary([each])) for each in wanted
        ]
    assert read_all(broker.events, end) == []
    broker.publish_body("q", b"new", 0)
    broker.sync()
    assert [event.event for event in read_all(broker.events, end)] == [e.PUBLISHED]
    broker.close()


def test_dropped_segments_are_a_gap_that_the_page_reports(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    assert broker.journal is not None
    broker.declare("q", QueueSettings())
    broker.sync()
    after = broker.events.end()
    reader = broker.events.read(after, 1, EVERYTHING).next
    filled(broker, 4)
    broker.journal.drop_before(3)

    for start in (after, reader):
        page = broker.events.read(start, 10, EVERYTHING)
        assert page.gap_until_ms is not None
        assert page.events
        assert all(int(event.id.split("-")[1], 16) >> 32 >= 3 for event in page.events)
        assert broker.events.read(page.next, 10, EVERYTHING).gap_until_ms is None
    assert broker.events.read(None, 10, EVERYTHING).gap_until_ms is None
    broker.close()


def test_only_durable_events_are_shown(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path)
    assert broker.journal is not None
    broker.declare("q", QueueSettings())
    broker.sync()
    with broker.lock:  # the writer cannot take the record before the lock is free
        end = broker.events.end()
        broker.engine.publish(broker.engine.queue("q"), Draft(b"x"), broker.now_ms())
        assert broker.events.end() == end
        assert broker.events.read(end, 10, EVERYTHING).events == []
    broker.sync()
    assert len(read_all(broker.events, end)) == 1
    broker.close()


def test_damage_in_the_middle_is_a_gap(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    assert broker.journal is not None
    broker.declare("q", QueueSettings())
    broker.sync()
    for number in range(20):
        broker.publish_body("q", b"body %d" % number, 0)
        broker.sync()
    found = read_all(broker.events)
    location = int(found[10].id.split("-")[1], 16)
    with open(broker.journal.segments()[0].path, "r+b") as file:
        file.seek((location & 0xFFFF_FFFF) + 10)
        file.write(b"\xff\xff\xff")

    after: str | None = found[2].id
    rest: list[Event] = []
    gaps = []
    while True:
        page = broker.events.read(after, 100, EVERYTHING)
        rest += page.events
        gaps.append(page.gap_until_ms)
        after = page.next
        if page.is_end:
            break

    assert [event.id for event in rest] == [event.id for event in found[3:] if event is not found[10]]
    assert sum(gap is not None for gap in gaps) == 1
    assert broker.inspect.damage.reasons()
    broker.close()


def test_a_full_disk_takes_no_added_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = LocalBroker(tmp_path)
    assert broker.journal is not None
    broker.sync()
    monkeypatch.setattr(broker.journal, "can_publish", lambda size: False)
    end = broker.events.end()
    broker.events.add(e.CONSUMER_JOINED, "q", {})
    broker.sync()
    assert broker.events.end() == end
    broker.close()


def test_readers_beside_writers_see_every_event_once_in_order(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    broker.declare("q", QueueSettings())
    broker.sync()
    start = broker.events.end()
    published: list[str] = []

    def publish() -> None:
        for number in range(300):
            [(message, _)] = broker.publish_many("q", [Draft(b"%d" % number * 50)])
            published.append(message)
            if number % 10 == 0:
                broker.sync()
        broker.sync()

    found: list[list[Event]] = [[], [], []]

    def follow(into: list[Event], limit: int) -> None:
        after = start
        while len(into) < 600:
            page = broker.events.read(after, limit, EVERYTHING)
            assert page.gap_until_ms is None
            into += page.events
            after = page.next

    threads = [Thread(target=publish) for _ in range(2)]
    threads += [Thread(target=follow, args=(into, n)) for into, n in zip(found, (1, 7, 500), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [event.id for event in found[0]] == [event.id for event in found[1]]
    assert [event.id for event in found[0]] == [event.id for event in found[2]]
    assert sorted(str(event.message_id) for event in found[0]) == sorted(published)
    broker.close()
