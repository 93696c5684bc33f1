"""The built-in history of counts: rows, rings, the recorder, and what is read of them, on each store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.broker.interface import Broker
from openq.broker.series import (
    ENTRY_BYTES,
    MAX_QUEUES,
    NAMES,
    PAGE_BYTES,
    RINGS,
    SLOTS,
    SeriesPages,
    SeriesRange,
    SeriesReader,
    Values,
    add,
    auto_step,
    choose_ring,
    pack_entry,
    pack_row,
    row_offset,
    unpack_entry,
    unpack_row,
)
from openq.broker.series_recorder import MIN_STAY_S, SeriesRecorder
from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.local.series_pages import FILE, FilePages, MemoryPages
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from openq.server.series_thread import SeriesThread
from tests.redis.servers import single


class Recorded:
    """A broker on a virtual clock, and its recorder: `second` lets one second pass and takes a sample."""

    def __init__(self, broker: Broker, clock: VirtualClock, pages: SeriesPages | None = None) -> None:
        self.broker = broker
        self.clock = clock
        self.pages = pages or broker.statistics.pages
        self.recorder = SeriesRecorder(broker, self.pages)
        self.reader = SeriesReader(self.pages)
        self.recorder.sample()

    @property
    def now_s(self) -> int:
        return self.broker.now_ms() // 1000

    def second(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(1)
            self.recorder.sample()

    def last(self, seconds: int, queue: str = "", step_s: int = 1) -> SeriesRange:
        found = self.reader.read(queue, self.now_s - seconds + 1, self.now_s + 1, step_s, self.now_s)
        assert found is not None
        return found


def publish(broker: Broker, queue: str, count: int) -> None:
    broker.publish_many(queue, [Draft(b"x") for _ in range(count)])


def work(broker: Broker, queue: str, count: int) -> None:
    deliveries = broker.receive(queue, count)
    broker.ack(queue, [(each.entry.seq, each.number) for each in deliveries])


@pytest.fixture(params=["memory", "journal", "redis"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    clock = VirtualClock()
    if request.param == "redis":
        with single() as store:
            broker: Broker = RedisBroker(store.url, profile="fast", clock=clock)
            yield Recorded(broker, clock)
            broker.close()
        return
    broker = LocalBroker(tmp_path if request.param == "journal" else None, clock=clock)
    yield Recorded(broker, clock)
    broker.close()


def test_each_second_has_the_counts_of_its_queue_and_of_all_queues(recorded: Recorded) -> None:
    broker = recorded.broker
    broker.statistics.measure()
    for queue in ("a", "b"):
        broker.declare(queue, QueueSettings())
    publish(broker, "a", 3)
    publish(broker, "b", 2)
    recorded.second()
    publish(broker, "a", 1)
    recorded.second()
    work(broker, "a", 2)
    recorded.second()

    of_a, total = recorded.last(3, "a"), recorded.last(3)

    assert of_a.column("published") == [3, 1, 0]
    assert of_a.column("acked") == [0, 0, 2]
    assert of_a.column("ready") == [3, 4, 2]
    assert of_a.column("publish_to_ack")[2] == pytest.approx(2)
    assert of_a.column("oldest_age")[2] == pytest.approx(2, abs=1.1)
    assert total.column("published") == [5, 1, 0]
    assert total.column("delivered") == [0, 0, 2]
    assert total.column("ready") == [5, 6, 4]


def test_queues_together_have_the_sums_the_oldest_age_and_the_average_wait(recorded: Recorded) -> None:
    broker = recorded.broker
    broker.statistics.measure()
    for queue in ("a", "b", "hidden"):
        broker.declare(queue, QueueSettings())
    publish(broker, "a", 3)
    publish(broker, "hidden", 50)
    recorded.second()
    publish(broker, "b", 2)
    recorded.second()
    work(broker, "a", 2)
    work(broker, "b", 2)
    recorded.second()

    now_s = recorded.now_s
    count, found = recorded.reader.read_sum(lambda name: name != "hidden", now_s - 2, now_s + 1, 1, now_s)

    assert (count, found is not None) == (2, True)
    assert found is not None
    assert found.column("published") == [3, 2, 0]
    assert found.column("acked") == [0, 0, 4]
    assert found.column("ready") == [3, 5, 1]
    assert found.column("oldest_age")[2] == recorded.last(1, "a").column("oldest_age")[0]
    of_a, of_b = (recorded.last(1, queue).column("publish_to_ack")[0] or 0 for queue in ("a", "b"))
    assert found.column("publish_to_ack")[2] == pytest.approx((2 * of_a + 2 * of_b) / 4, abs=0.002)
    assert recorded.reader.read_sum(lambda name: False, now_s - 2, now_s + 1, 1, now_s) == (0, None)


def test_idle_seconds_are_filled_and_time_without_a_recorder_is_unknown(recorded: Recorded) -> None:
    recorded.broker.declare("a", QueueSettings())
    publish(recorded.broker, "a", 2)
    recorded.second(90)
    recorded.clock.advance(120)  # no recorder
    recorded.second(60)

    ready = recorded.last(270, "a").column("ready")
    published = recorded.last(270, "a").column("published")

    assert ready[:90] == [2] * 90
    assert published[:90] == [2] + [0] * 89
    assert None in published[90:211]
    assert published[-30:] == [0] * 30
    assert ready[-30:] == [2] * 30


def test_minutes_and_quarters_are_the_sums_of_their_seconds(recorded: Recorded) -> None:
    broker = recorded.broker
    broker.declare("a", QueueSettings())
    recorded.clock.advance(-recorded.now_s % 900 or 900)
    recorded.second()
    for _ in range(4):
        publish(broker, "a", 5)
        recorded.second(30)

    found = recorded.reader.read("a", recorded.now_s - 7_200, recorded.now_s + 1, 60, recorded.now_s)
    coarse = recorded.reader.read("a", recorded.now_s - 90_000, recorded.now_s + 1, None, recorded.now_s)

    assert found is not None
    assert coarse is not None
    assert [each for each in found.column("published") if each] == [10, 10]
    assert found.step_s == 60
    assert [each for each in coarse.column("published") if each] == [20]
    assert coarse.step_s == 900


def test_another_recorder_goes_on_in_the_open_buckets(recorded: Recorded) -> None:
    recorded.broker.declare("a", QueueSettings())
    recorded.clock.advance(-recorded.now_s % 60 or 60)
    recorded.second()
    publish(recorded.broker, "a", 4)
    recorded.second(2)
    again = Recorded(recorded.broker, recorded.clock)
    publish(recorded.broker, "a", 3)
    again.second(2)

    minute = again.reader.read("a", again.now_s - 5, again.now_s + 1, 60, again.now_s)

    assert minute is not None
    assert minute.column("published") == [7]
    assert sum(each or 0 for each in again.last(6, "a").column("published")) == 7


def test_the_busiest_queues_have_a_series_of_their_own(recorded: Recorded) -> None:
    broker = recorded.broker
    names = [f"q{number:02}" for number in range(MAX_QUEUES + 1)]
    for name in names:
        broker.declare(name, QueueSettings())
    for name in names[:-1]:
        publish(broker, name, 1)
    recorded.second()
    assert set(recorded.reader.slots()) == {"", *names[:-1]}

    publish(broker, names[-1], 50)
    recorded.second()
    assert names[-1] not in recorded.reader.slots()  # the others have had theirs for a moment only
    recorded.second(MIN_STAY_S)
    publish(broker, names[-1], 50)
    recorded.second()

    slots = recorded.reader.slots()
    assert names[-1] in slots
    assert len(slots) == SLOTS
    assert recorded.last(1, names[-1]).column("published") == [50]
    # The rows of the queue that had the slot before are not those of this one.
    assert sum(each or 0 for each in recorded.last(MIN_STAY_S, names[-1]).column("published")) == 50
    assert recorded.reader.read("nowhere", 0, recorded.now_s, None, recorded.now_s) is None


def test_a_queue_that_is_deleted_and_created_again_counts_anew(recorded: Recorded) -> None:
    broker = recorded.broker
    broker.declare("a", QueueSettings())
    publish(broker, "a", 5)
    recorded.second()
    broker.delete("a")
    broker.declare("a", QueueSettings())
    publish(broker, "a", 2)
    recorded.second()
    broker.delete("a")
    recorded.second()

    assert recorded.last(3).column("published") == [5, 2, 0]
    assert recorded.last(3).column("ready") == [5, 2, 0]


def test_only_one_server_of_a_store_records_and_another_one_goes_on() -> None:
    with single() as store:
        one, other = (RedisBroker(store.url, profile="fast") for _ in range(2))
        assert one.statistics.pages.lead()
        assert not other.statistics.pages.lead()
        assert one.statistics.pages.lead()

        one.statistics.pages.write([(3, 64, b"shared")])
        assert other.statistics.pages.read(3, 64, 6) == b"shared"
        one.statistics.pages.close()

        assert other.statistics.pages.lead()
        one.close()
        other.close()


# -- files and damage -------------------------------------------------------------------------------------


def test_the_file_has_a_fixed_size_of_less_than_twenty_megabytes(tmp_path: Path) -> None:
    assert SLOTS * PAGE_BYTES < 20_000_000
    pages = FilePages(str(tmp_path))
    last = len(RINGS) - 1
    pages.write([(SLOTS - 1, row_offset(last, RINGS[last].span_s - 1), pack_row(1, [0] * len(NAMES), 1))])
    pages.close()

    assert (tmp_path / FILE).stat().st_size == SLOTS * PAGE_BYTES
    with pytest.raises(OSError, match="closed"):
        pages.read(0, 0, 1)


def test_damage_of_any_kind_reads_as_missing_and_recording_goes_on(tmp_path: Path) -> None:
    chooser = random.Random(3)
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    broker.declare("a", QueueSettings())
    pages = FilePages(str(tmp_path))
    recorded = Recorded(broker, clock, pages)
    path = tmp_path / FILE
    for _ in range(40):
        publish(broker, "a", 1)
        recorded.second()
        size = path.stat().st_size
        kind = chooser.randrange(4)
        with open(path, "r+b") as file:
            if kind == 0:
                file.truncate(chooser.randrange(size))
            elif kind == 1:
                file.seek(chooser.randrange(ENTRY_BYTES))
                file.write(os.urandom(200))
            else:
                file.seek(chooser.randrange(size))
                file.write(os.urandom(chooser.choice((1, 64, 5_000))))
        for name in recorded.reader.slots():
            found = recorded.reader.read(name, recorded.now_s - 60, recorded.now_s + 1, 1, recorded.now_s)
            assert found is not None
            assert {each for each in found.column("published") if each is not None} <= {0, 1}
        recorded = Recorded(broker, clock, pages)
    path.unlink()
    pages.close()
    recorded = Recorded(broker, clock, again := FilePages(str(tmp_path)))
    publish(broker, "a", 1)
    recorded.second()

    assert recorded.last(1, "a").column("published") == [1]
    again.close()
    broker.close()


def test_a_store_that_lost_the_pages_has_the_series_again_after_a_minute(recorded: Recorded) -> None:
    recorded.broker.declare("a", QueueSettings())
    publish(recorded.broker, "a", 1)
    recorded.second(2)
    recorded.pages.write([(slot, 0, bytes(ENTRY_BYTES)) for slot in range(SLOTS)])
    assert recorded.reader.slots() == {}

    recorded.second(60)

    assert set(recorded.reader.slots()) == {"", "a"}


def test_a_disk_that_cannot_be_written_leaves_a_gap_and_an_error_in_the_metrics(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Full(MemoryPages):
        is_full = False

        def write(self, writes: object) -> None:
            if self.is_full:
                raise OSError(28, "No space left on device")
            super().write(writes)  # type: ignore[arg-type]

    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    broker.statistics.pages = pages = Full()
    thread = SeriesThread(broker)
    thread.sample()
    pages.is_full = True
    broker.declare("a", QueueSettings())
    for _ in range(3):
        publish(broker, "a", 1)
        clock.advance(1)
        thread.sample()
    pages.is_full = False
    for _ in range(60):
        clock.advance(1)
        thread.sample()

    now_s = broker.now_ms() // 1000
    found = thread.reader.read("a", now_s - 90, now_s + 1, 60, now_s)
    assert found is not None
    assert sum(each or 0 for each in found.column("published")) >= 1
    values = {family.name: family.samples[0][1] for family in thread.families()}
    assert values == {"openq_series_samples_total": 61, "openq_series_errors_total": 3}
    assert [record.message for record in caplog.records].count(
        "the history of counts has a gap: [Errno 28] No space left on device"
    ) == 1
    broker.close()


# -- rows, entries, steps ---------------------------------------------------------------------------------


def test_rows_and_entries_are_read_as_they_were_written_and_only_by_their_generation() -> None:
    values: Values = list(range(len(NAMES)))
    row = pack_row(1_700_000_000, values, 7)

    assert len(row) == 64
    assert unpack_row(row, 7) == (1_700_000_000, values)
    assert unpack_row(row, 8) is None
    assert unpack_row(row[:-1], 7) is None
    assert unpack_row(bytes(64), 7) is None
    large = unpack_row(pack_row(1, [1 << 40, -1, *values[2:]], 7), 7)
    assert large is not None
    assert large[1][:2] == [(1 << 32) - 1, 0]
    for name in ("", "orders", "@acme/ö\ud800", "x" * 2_000):
        entry = pack_entry(name, 9)
        assert len(entry) == ENTRY_BYTES
        found = unpack_entry(entry)
        assert found is None or found == (name[:1012], 9)
        assert unpack_entry(b"\1" + entry[1:]) is None
    assert unpack_entry(b"") is None


def test_buckets_add_sums_keep_the_last_gauge_the_maximum_and_weighted_averages() -> None:
    def values(delivered: int, acked: int, ready: int, oldest: int, wait: int, total: int) -> Values:
        return [0, delivered, 0, acked, 0, 0, 0, 0, ready, 0, 0, oldest, wait, total]

    bucket = values(2, 1, 9, 50, 10, 100)

    add(bucket, values(6, 3, 4, 20, 50, 20))

    assert bucket == values(8, 4, 4, 50, 40, 40)


@pytest.mark.parametrize(
    ("span_s", "step_s", "ring"),
    [
        (60, 1, 0),
        (3_599, 1, 0),
        (3_601, 1, 1),
        (60, 60, 1),
        (86_401, 60, 2),
        (90 * 86_400, 1, 2),
        (100, 900, 2),
    ],
)
def test_the_ring_is_fine_enough_and_reaches_back(span_s: int, step_s: int, ring: int) -> None:
    assert choose_ring(1_000_000_000 - span_s, step_s, 1_000_000_000) == ring


@pytest.mark.parametrize("late_s", [0, 1, 10])
@pytest.mark.parametrize(("span_s", "step_s"), [(3_600, 1), (86_400, 60), (30 * 86_400, 900)])
def test_a_request_for_all_that_is_kept_may_arrive_late(span_s: int, step_s: int, late_s: int) -> None:
    pages = MemoryPages()
    now_s = 1_000_000_800
    pages.write([(0, 0, pack_entry("", 1))])
    reader = SeriesReader(pages)

    found = reader.read("", now_s - span_s - late_s, now_s + 1, step_s, now_s)
    by_default = reader.read("", now_s - span_s - late_s, now_s + 1, None, now_s)

    assert found is not None
    assert (found.step_s, len(found.rows)) == (step_s, span_s // step_s)
    assert by_default is not None
    assert by_default.step_s == auto_step(span_s)


def test_a_span_has_about_a_hundred_steps() -> None:
    assert [auto_step(each) for each in (60, 3_600, 86_400, 30 * 86_400)] == [1, 30, 900, 21_600]
