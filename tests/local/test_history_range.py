"""What was published before: read page by page, replayed by choice, the same in memory and on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.broker.history import HistoryRange
from openq.broker.interface import Filter
from openq.clock import VirtualClock
from openq.engine.routing import Binding, Exchange
from openq.errors import HistoryUnavailable
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["memory", "journal"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[LocalBroker]:
    broker = LocalBroker(None if request.param == "memory" else tmp_path, clock=clock, segment_bytes=1 << 20)
    broker.declare("q", QueueSettings())
    broker.declare("other", QueueSettings())
    yield broker
    broker.close()


def fill(broker: LocalBroker, clock: VirtualClock) -> None:
    """Six messages in every way there is to publish, a second apart, with others in between."""
    broker.publish_bodies("q", [b"0", b"1"], 0)
    broker.publish("other", Draft(b"not here"))
    clock.advance(1)
    broker.publish("q", Draft(b"2", type="t", id="own"))
    clock.advance(1)
    broker.exchanges.declare_exchange(Exchange("x", "fanout"))
    broker.exchanges.bind(Binding("x", "q"))
    broker.exchanges.bind(Binding("x", "other"))
    broker.exchanges.route("x", "", Draft(b"3"))
    clock.advance(1)
    broker.publish_bodies("q", [b"4", b"55"], 0)
    broker.sync()


def take_all(broker: LocalBroker) -> None:
    deliveries = broker.receive("q", 100)
    broker.ack("q", [(each.entry.seq, each.number) for each in deliveries])
    broker.sync()


def bodies(broker: LocalBroker, **span: int) -> list[bytes]:
    return [past.body for past in broker.inspect.past("q", HistoryRange(**span))]


def test_the_past_is_all_that_was_published_whether_or_not_it_is_still_there(
    broker: LocalBroker, clock: VirtualClock
) -> None:
    fill(broker, clock)
    take_all(broker)

    assert bodies(broker) == [b"0", b"1", b"2", b"3", b"4", b"55"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7])
def test_pages_follow_each_other_without_gap_or_overlap(
    broker: LocalBroker, clock: VirtualClock, size: int
) -> None:
    fill(broker, clock)

    seen: list[bytes] = []
    after = 0
    while page := broker.inspect.past("q", HistoryRange(after_seq=after, limit=size)):
        seen += [past.body for past in page]
        after = page[-1].seq

    assert seen == [b"0", b"1", b"2", b"3", b"4", b"55"]


def test_the_past_between_two_times(broker: LocalBroker, clock: VirtualClock) -> None:
    start_ms = clock.now_ms()
    fill(broker, clock)

    assert bodies(broker, since_ms=start_ms + 1000, until_ms=start_ms + 3000) == [b"2", b"3"]
    assert bodies(broker, until_ms=start_ms) == []


def test_a_segment_that_is_not_there_holds_nothing(broker: LocalBroker, clock: VirtualClock) -> None:
    fill(broker, clock)

    assert bodies(broker, segment=999) == ([] if broker.journal is not None else bodies(broker))


def test_a_replay_of_a_choice_and_its_dry_run_agree(broker: LocalBroker, clock: VirtualClock) -> None:
    fill(broker, clock)
    take_all(broker)

    for filter, count in ((Filter(type="t"), 1), (Filter(text="5"), 1), (Filter(ids=["own"]), 1), (None, 6)):
        broker.declare("copy", QueueSettings())
        assert broker.admin.replay("q", 0, None, "copy", filter=filter, dry_run=True) == count
        assert broker.admin.replay("q", 0, None, "copy", filter=filter) == count
        assert broker.admin.replay("q", 0, None, "copy", filter=filter, dry_run=True) == 0
        assert broker.delete("copy") == count


def test_a_replay_stops_when_its_progress_callback_says_so(broker: LocalBroker) -> None:
    broker.publish_bodies("q", [b"x"] * 450, 0)
    broker.purge("q")
    reported: list[int] = []

    def progress(done: int) -> bool:
        reported.append(done)
        return len(reported) < 2

    assert broker.admin.replay("q", 0, None, progress=progress, include_purged=True) == 200
    assert reported == [100, 200]


def test_matching_goes_through_everything_in_parts(broker: LocalBroker) -> None:
    for i in range(600):
        broker.publish("q", Draft(b"x", type="even" if i % 2 == 0 else "odd", group=f"g{i % 7}"))
    broker.sync()

    parts = list(broker.inspect.matching("q", Filter(type="odd")))
    found = [entry.seq for part in parts for entry in part]

    assert len(parts) > 1
    assert len(found) == 300
    assert found == sorted(found), "by sequence, whatever the group"


def test_a_queue_without_history_is_not_replayed(broker: LocalBroker) -> None:
    broker.declare("brief", QueueSettings(history_ms=0))

    with pytest.raises(HistoryUnavailable):
        broker.admin.replay("brief", 0, None, dry_run=True)
