"""The audit log on Redis: one chain for all servers of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from openq.broker.audit import AuditEntry, AuditLimits, AuditUnavailable, records, verify
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server, single, versions


def entry(target: str = "q", time_ms: int = 1_000, **detail: object) -> AuditEntry:
    return AuditEntry(time_ms, "ann", "10.0.0.1", "rest", "delete_queue", target, "ok", detail)


@pytest.fixture
def brokers(redis_server: Server) -> Iterator[tuple[RedisBroker, RedisBroker]]:
    with (
        closing(RedisBroker(redis_server.url, profile="fast")) as one,
        closing(RedisBroker(redis_server.url, profile="fast")) as other,
    ):
        yield one, other


@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)
def test_servers_of_one_store_write_one_chain(brokers: tuple[RedisBroker, RedisBroker]) -> None:
    def write(broker: RedisBroker, name: str) -> None:
        for _ in range(20):
            broker.audit.append([entry(name)])

    threads = [threading.Thread(target=write, args=(each, str(n))) for n, each in enumerate(brokers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    audit = brokers[0].audit
    found = list(records(audit.lines()))
    assert [each.number for each in found] == list(range(1, 41))
    assert sorted(each.entry.target for each in found) == ["0"] * 20 + ["1"] * 20
    assert verify(audit.lines()).ok
    assert [each.number for each in records(audit.lines(38))] == [39, 40]
    newest = audit.newest()
    assert newest is not None
    assert newest.number == 40


def test_the_oldest_records_are_dropped_by_size_and_age(brokers: tuple[RedisBroker, RedisBroker]) -> None:
    audit = brokers[0].audit
    now_ms = brokers[0].now_ms()
    audit.limits = AuditLimits(max_bytes=50_000)
    audit.append([entry(time_ms=now_ms, rules="x" * 1_000) for _ in range(100)])

    checked = verify(audit.lines())
    assert checked.ok
    assert (checked.count < 60, checked.last) == (True, 100)

    audit.limits = AuditLimits(max_age_ms=60_000)
    audit.append([entry(time_ms=now_ms + 120_000) for _ in range(100)])
    first = next(records(audit.lines()))
    assert first.entry.time_ms >= now_ms


def test_a_changed_record_is_seen(brokers: tuple[RedisBroker, RedisBroker], redis_server: Server) -> None:
    audit = brokers[0].audit
    audit.append([entry(), entry(), entry()])
    key = next(key for key in redis_server.ask("KEYS", "*:audit"))
    redis_server.ask("XDEL", key, "2-0")

    assert verify(audit.lines()).problems
    audit.append([entry()])
    assert [each.number for each in records(audit.lines())] == [1, 3, 4]


def test_an_unreachable_redis_is_an_error_of_its_own() -> None:
    with single(program=versions()[0].path) as server:
        broker = RedisBroker(server.url + "?reconnect=0.1", profile="fast")
    try:
        with pytest.raises(AuditUnavailable):
            broker.audit.append([entry()])
        with pytest.raises(AuditUnavailable):
            list(broker.audit.lines())
    finally:
        broker.close()
