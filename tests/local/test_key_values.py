"""Values in a journal: they outlive the segments they were written in, with and without a snapshot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from openq.broker.kv import KvEntry, KvPut, KvWaiter
from openq.clock import VirtualClock
from openq.errors import Closed, KvFull
from openq.local.broker import LocalBroker
from tests.local.test_housekeeping import SEGMENT, Place, queue

VALUE = b"v" * 300


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "data", history_bytes=0)


def fill(place: Place) -> None:
    """Values in several segments, some replaced, deleted or with a TTL; traffic between them."""
    queue(place)
    for part in range(3):
        place.broker.kv.put_many("b", [KvPut(f"{part}-{i}", VALUE + b"%d" % i) for i in range(40)])
        place.broker.kv.put_many("short", [KvPut(f"{part}-{i}", VALUE, ttl_ms=500) for i in range(40)])
        place.broker.kv.put_many("long", [KvPut(str(part), b"x", ttl_ms=3_600_000)])
        place.load_bodies("q", 3)
    place.broker.kv.put_many("b", [KvPut("0-1", b"replaced", version=2)])
    place.broker.kv.delete_many("b", ["0-2", "1-2"])
    place.broker.sync()


def values(place: Place) -> dict[str, list[KvEntry]]:
    kv = place.broker.kv
    return {bucket.name: kv.list(bucket.name) for bucket in kv.buckets()}


def housekeep(place: Place) -> None:
    for _ in range(8):
        place.clock.advance(1)
        place.load_bodies("q", 2)
        place.work()


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_values_outlive_the_segments_they_were_written_in(place: Place, with_snapshot: bool) -> None:
    fill(place)
    first = place.segments()[0]
    housekeep(place)
    expected = values(place)
    assert place.segments()[0] > first + 8, "the segments with the values are freed"
    assert len(expected["b"]) == 118
    assert len(expected["long"]) == 3
    assert "short" not in expected

    for _ in range(2):
        place.broker.close()
        if not with_snapshot:
            shutil.rmtree(place.path / "snapshots")
        place.open()
        assert values(place) == expected
        housekeep(place)
    assert values(place) == expected
    [version] = place.broker.kv.put_many("b", [KvPut("new", b"")])
    assert version > max(entry.version for entries in expected.values() for entry in entries)  # type: ignore[operator]
    place.broker.close()


def test_a_segment_is_freed_once_its_values_are_deleted_or_expired(place: Place) -> None:
    fill(place)
    place.clock.advance(3_600)
    for part in range(3):
        place.broker.kv.delete_many("b", [f"{part}-{i}" for i in range(40)])
    place.load_bodies("q", 1)
    place.work()
    place.clock.advance(1)
    place.work()

    assert len(place.segments()) <= 2
    assert values(place) == {}
    place.broker.close()


def test_a_value_that_is_replaced_after_a_snapshot_is_the_new_one_after_a_restart(place: Place) -> None:
    queue(place)
    place.broker.kv.put_many("b", [KvPut("a", b"old"), KvPut("c", b"kept"), KvPut("d", b"")])
    assert place.broker.housekeeper is not None
    place.broker.sync()
    place.broker.housekeeper.snapshot()
    place.broker.kv.put_many("b", [KvPut("a", b"new")])
    place.broker.kv.delete_many("b", ["d"])
    expected = values(place)
    copy = place.path.parent / "copy"
    place.broker.sync()
    shutil.copytree(place.path, copy)  # as a crash leaves it
    place.broker.close()

    crashed = Place(copy)
    assert values(crashed) == expected
    assert [entry.value for entry in expected["b"]] == [b"new", b"kept"]
    crashed.broker.close()


def test_an_expired_value_is_not_there_after_a_restart(tmp_path: Path) -> None:
    clock = VirtualClock()
    broker = LocalBroker(tmp_path, clock=clock)
    broker.kv.put_many("b", [KvPut("a", b"1", ttl_ms=1_000)])
    broker.close()
    clock.advance(1)

    broker = LocalBroker(tmp_path, clock=clock)

    assert broker.kv.buckets() == []
    broker.close()


def test_memory_is_bounded(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, max_kv_bytes=10_000)

    first, second = broker.kv.put_many("b", [KvPut("a", bytes(9_000)), KvPut("c", bytes(9_000))])

    assert isinstance(first, int)
    assert isinstance(second, KvFull)
    assert broker.kv.delete_many("b", ["a"]) == [True]
    assert isinstance(broker.kv.put_many("b", [KvPut("c", bytes(9_000))])[0], int)
    broker.close()


def test_a_waiter_is_called_for_a_put_a_delete_and_an_expiry_and_when_the_broker_closes() -> None:
    clock = VirtualClock()
    broker = LocalBroker(clock=clock)
    calls: list[str] = []

    def wait_for_change() -> KvWaiter:
        waiter = KvWaiter("b", "k", lambda: calls.append("k"))
        assert broker.kv.add_waiter(waiter, 1 << 40) is None
        return waiter

    first = wait_for_change()
    broker.kv.put_many("b", [KvPut("other", b"")])
    assert calls == []
    broker.kv.put_many("b", [KvPut("k", b"", ttl_ms=1_000)])
    assert len(calls) == 1
    assert not broker.kv.remove_waiter(first)
    wait_for_change()
    clock.advance(1)
    assert len(calls) == 2
    broker.kv.put_many("b", [KvPut("k", b"")])
    wait_for_change()
    broker.kv.delete_many("b", ["k"])
    assert len(calls) == 3
    assert broker.kv.remove_waiter(wait_for_change())
    wait_for_change()
    broker.close()
    assert len(calls) == 4
    with pytest.raises(Closed):
        broker.kv.get_many("b", ["k"])


def test_a_batch_larger_than_a_segment_is_stored(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    broker.kv.put_many("b", [KvPut(str(i), bytes(1 << 20)) for i in range(4)])
    broker.close()

    broker = LocalBroker(tmp_path, segment_bytes=SEGMENT)
    assert [len(entry.value) for entry in broker.kv.list("b")] == [1 << 20] * 4
    broker.close()
