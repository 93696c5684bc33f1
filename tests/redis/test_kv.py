"""Key-values in Redis: the contract of every store, and what only Redis has to say."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from openq import KeyValue, OpenQ, StoreFull, VirtualClock
from openq.broker.kv import KvPut, KvWaiter
from openq.redis import kv_upkeep
from openq.redis.broker import RedisBroker
from openq.redis.key_values import RedisKeyValues
from tests.aio import test_kv as test_aio_kv
from tests.client import test_kv
from tests.client.helpers import Make, ended, in_thread, opening
from tests.redis.servers import FORCED, Server, cluster, single
from tests.redis.shared_tests import collect_tests
from tests.waiting import until

pytest_plugins = "tests.client.fixtures"


@pytest.fixture
def url(redis_server: Server) -> str:
    return f"{redis_server.url}?profile=fast"


@pytest.fixture
def make(url: str, request: pytest.FixtureRequest) -> Iterator[Make]:
    place: dict[str, Any] = {"url": url}
    if "clock" in request.fixturenames:
        place["clock"] = request.getfixturevalue("clock")
    with opening(place) as open_queue:
        yield open_queue


globals().update(collect_tests(test_kv, "make"))


@pytest.fixture
def place(url: str) -> dict[str, Any]:
    return {"url": url}


globals().update({f"{name}_aio": test for name, test in collect_tests(test_aio_kv, "place").items()})


@pytest.fixture
def broker(url: str, clock: VirtualClock) -> Iterator[RedisBroker]:
    broker = RedisBroker(url, clock=clock)
    yield broker
    broker.close()


def names(server: Server) -> set[str]:
    return {key for key in server.ask("KEYS", "*") if "{kv:" in key}


def test_all_keys_of_a_bucket_are_in_one_slot(redis_server: Server, broker: RedisBroker) -> None:
    for bucket in ("b", "a}b", "{x}", "}"):
        broker.kv.put_many(bucket, [KvPut("k", b"", ttl_ms=1_000)])

    by_bucket: dict[str, set[int]] = {}
    for key in names(redis_server):
        by_bucket.setdefault(key.rpartition(":")[0], set()).add(redis_server.ask("CLUSTER", "KEYSLOT", key))
    assert len(by_bucket) == 4
    assert all(len(slots) == 1 for slots in by_bucket.values())
    assert [bucket.name for bucket in broker.kv.buckets()] == ["a}b", "b", "{x}", "}"]


def test_an_expired_or_deleted_bucket_leaves_nothing_but_counters_that_expire(
    redis_server: Server, broker: RedisBroker, clock: VirtualClock
) -> None:
    broker.kv.put_many("b", [KvPut(f"k{i}", b"v", ttl_ms=1_000) for i in range(300)])
    broker.kv.put_many("d", [KvPut("k", b"v")])
    clock.advance(1)
    broker.kv.delete_many("d", ["k"])

    assert broker.kv.buckets() == []

    left = names(redis_server)
    assert {key.rpartition(":")[2] for key in left} == {"c"}
    assert all(0 < redis_server.ask("TTL", key) <= 86_400 for key in left)
    assert {redis_server.ask("HGET", key, "b") for key in left} == {"0"}
    assert redis_server.ask("SMEMBERS", f"{broker.address.prefix}:{{meta}}:kv") == []


def test_every_call_that_changes_a_bucket_removes_some_expired_keys(
    redis_server: Server, broker: RedisBroker, clock: VirtualClock
) -> None:
    for _ in range(2):
        broker.kv.put_many("b", [KvPut(f"k{i}", b"", ttl_ms=1_000) for i in range(150)])
    clock.advance(1)
    broker.kv.put_many("b", [KvPut("new", b"")])

    [stored] = [key for key in names(redis_server) if key.endswith(":v")]
    assert redis_server.ask("HLEN", stored) == 51
    broker.kv.delete_many("b", ["unknown"])
    assert redis_server.ask("HLEN", stored) == 1


def test_versions_are_not_used_again_when_the_counters_are_gone(
    redis_server: Server, broker: RedisBroker, clock: VirtualClock
) -> None:
    [first] = broker.kv.put_many("b", [KvPut("k", b"")])
    broker.kv.delete_many("b", ["k"])
    redis_server.ask("DEL", *names(redis_server))
    clock.advance(0.001)

    [second] = broker.kv.put_many("b", [KvPut("k", b"")])

    assert isinstance(first, int)
    assert isinstance(second, int)
    assert second > first


def test_a_put_that_is_sent_again_finds_its_own_value(broker: RedisBroker) -> None:
    kv = broker.kv
    assert isinstance(kv, RedisKeyValues)
    puts = ("token-1", "k", b"mine", "", 0)

    first, again = kv._call("b", "kv_put", *puts), kv._call("b", "kv_put", *puts)
    [_, refused] = kv._call("b", "kv_put", "token-2", "k", b"theirs", "", 0)

    assert first[1] == again[1]
    assert refused == -1 - first[1]


def test_a_waiter_is_called_for_changes_by_another_process_and_for_an_expiry(
    url: str, broker: RedisBroker, clock: VirtualClock
) -> None:
    other = RedisBroker(url, clock=clock)
    changed = threading.Event()

    def wait_for_change() -> None:
        changed.clear()
        assert broker.kv.add_waiter(KvWaiter("b", "k", changed.set), 1 << 60) is None

    wait_for_change()
    until(changed.is_set, "the subscription is established, after which every waiter asks again")
    wait_for_change()
    other.kv.put_many("b", [KvPut("k", b"", ttl_ms=1_000)])
    until(changed.is_set, "a put is announced")
    wait_for_change()
    clock.advance(1)
    until(changed.is_set, "an expiry is announced")
    other.kv.put_many("b", [KvPut("k", b"")])
    wait_for_change()
    other.kv.delete_many("b", ["k"])
    until(changed.is_set, "a delete is announced")
    wait_for_change()
    broker.close()
    until(changed.is_set, "closing wakes all")
    other.close()


def test_an_expiry_on_the_real_clock_wakes_a_waiter(url: str) -> None:
    broker = RedisBroker(url)
    expired = threading.Event()
    broker.kv.put_many("b", [KvPut("k", b"", ttl_ms=300)])

    def wait() -> None:
        while broker.kv.get_many("b", ["k"]) != [None]:
            changed = threading.Event()
            broker.kv.add_waiter(KvWaiter("b", "k", changed.set), 1 << 60)
            changed.wait(60)
        expired.set()

    assert ended(in_thread(wait))
    assert expired.is_set()
    broker.close()


def test_changes_are_announced_only_while_a_process_waits(redis_server: Server, broker: RedisBroker) -> None:
    broker.kv.put_many("b", [KvPut("k", b"")])
    [counters] = [key for key in names(redis_server) if key.endswith(":c")]
    assert redis_server.ask("HGET", counters, "w") is None

    broker.kv.add_waiter(KvWaiter("b", "k", lambda: None), 1 << 60)

    assert int(redis_server.ask("HGET", counters, "w")) > 0


def test_a_waiter_sees_a_change_whose_announcement_was_lost_in_a_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with cluster(1, 0) as made, closing(RedisBroker(f"{made.url}?profile=fast")) as broker:
        [server] = made.servers
        changed = threading.Event()
        broker.kv.add_waiter(KvWaiter("b", "k", changed.set))
        [counters] = [key for key in names(server) if key.endswith(":c")]
        server.ask("HDEL", counters, "w")  # the bucket announces nothing any more
        broker.kv.put_many("b", [KvPut("k", b"v")])

        monkeypatch.setattr(kv_upkeep, "_CLUSTER_ASK_AGAIN_S", 0.0)  # the time is over

        assert changed.wait(60)


def test_buckets_are_spread_over_a_cluster_and_waiters_hear_of_all() -> None:
    with cluster(3, 0) as made:
        queue = OpenQ("jobs", url=f"{made.url}{'&' if '?' in made.url else '?'}profile=fast")
        names = [f"bucket-{i}" for i in range(12)]
        for name in names:
            queue.kv(name).put("k", name)
        seen: list[bytes] = []

        def wait(name: str) -> None:
            entry = queue.kv(name).wait("later", timeout=60)
            assert entry is not None
            seen.append(entry.value)

        threads = [in_thread(lambda name=name: wait(name)) for name in names]
        for name in names:
            queue.kv(name).put("later", name)

        assert ended(*threads)
        assert sorted(seen) == sorted(name.encode() for name in names)
        assert [bucket.name for bucket in queue.broker.kv.buckets()] == sorted(names)
        assert [entry.key for entry in queue.kv(names[0]).list()] == ["k", "later"]
        queue.close()


def test_a_restarted_redis_has_every_value() -> None:
    with single(*FORCED) as server:
        queue = OpenQ("jobs", url=server.url)
        versions = [queue.kv("b").put(f"k{i}", b"v") for i in range(50)]
        server.kill9()
        server.start()

        found = queue.kv("b").list()
        assert [entry.version for entry in sorted(found, key=lambda each: int(each.key[1:]))] == versions
        assert queue.kv("b").put("k0", b"w") > max(versions)
        queue.close()


def fits(kv: KeyValue) -> bool:
    try:
        kv.put(os.urandom(8).hex(), bytes(1 << 20))
    except StoreFull:
        return False
    return True


def test_a_full_redis_refuses_puts_and_allows_deletes() -> None:
    with single("--maxmemory", "30mb", "--maxmemory-policy", "noeviction") as server:
        queue = OpenQ("jobs", url=f"{server.url}?profile=fast")
        kv = queue.kv("b")
        count = sum(1 for _ in range(100) if fits(kv))
        assert 5 < count < 100

        kept = [entry.key for entry in kv.list(limit=3)]
        assert len(kept) == 3
        assert kv.get(kept[0]) is not None
        assert kv.delete_many([entry.key for entry in kv.list()]) == count
        kv.put("k", b"")
        queue.close()
