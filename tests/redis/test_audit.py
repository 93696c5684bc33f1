"""The audit log on Redis: one chain for all servers of a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from openq.broker.audit import AuditEntry, AuditLimits, AuditUnavailable, records, verify
from openq.redis.broker import RedisBroker
from tests.cli.helpers import run_in_process
from tests.redis.servers import Server, single, versions
from tests.server.raw_http import RawHttpClient
from tests.serving import Served, free_port
from tests.waiting import until


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


def test_two_servers_share_the_audit_log_and_log_events_and_reloads(
    redis_server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "openq.toml"
    file.write_text("")
    store = ["--store", redis_server.url, "--profile", "fast", "--config", str(file)]
    servers = [Served([*store, "--log-format", "json", "--log-events"], free_port()) for _ in range(2)]
    try:
        for each in servers:
            each.wait()
        for number, each in enumerate(servers):
            with RawHttpClient(each.port) as wire:
                assert wire.rest("PUT", f"queues/q{number}", {}).status == 201
        with RawHttpClient(servers[1].port) as wire:
            assert wire.rest("POST", "queues/q0/messages", {"payload": "canary"}).status == 201
            file.write_text("[queues.extra]\n")
            answer = wire.rest("POST", "server/reload", {})
            assert (answer.status, answer.json()["declared"]) == (200, ["create_queue extra"])

        def listed() -> list[dict[str, Any]]:
            with RawHttpClient(servers[0].port) as wire:
                found: list[dict[str, Any]] = wire.rest("GET", "audit?limit=1000").json()["records"]
                return found

        wanted = {"q0", "q1", "extra"}
        until(lambda: wanted <= {each["target"] for each in listed()})
        for each in servers:  # every server logs the events of the store
            until(lambda: any('"event": "published"' in line for line in each.log))  # noqa: B023
        checked = run_in_process("audit", "verify", "--url", servers[0].url)
        assert (checked.code, "intact" in checked.out) == (0, True), checked
        added = run_in_process("user", "add", "ann", "--store", f"{redis_server.url}?profile=fast")
        assert added.code == 0, added
    finally:
        for each in servers:
            each.stop()
    assert all("canary" not in line for each in servers for line in each.log)
    with closing(RedisBroker(redis_server.url, profile="fast")) as broker:
        found = [(each.entry.protocol, each.entry.action) for each in records(broker.audit.lines())]
        assert ("cli", "add_user") in found
        assert found.count(("server", "start")) == found.count(("server", "stop")) == 2
        assert verify(broker.audit.lines()).ok


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
