"""Schedules in Redis: what they promise elsewhere, and that each run is published once by many processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path

import pytest

from openq.broker.schedules import Schedule
from openq.clock import VirtualClock
from openq.errors import StoreError
from openq.redis.broker import RedisBroker
from tests.local import test_schedules
from tests.local.test_schedules import LONG, START_MS, dues, hourly, taken
from tests.redis.servers import Cluster, Server, cluster, single
from tests.redis.shared_tests import collect_tests
from tests.rest.helpers import Client
from tests.serving import Served, free_port

DEADLINE_S = 60.0


class RedisStore:
    def __init__(self, url: str) -> None:
        self.clock = VirtualClock(START_MS)
        self.url = url
        self.broker = self.open()
        self.broker.declare("q", LONG)

    def open(self) -> RedisBroker:
        return RedisBroker(self.url, profile="fast", clock=self.clock)

    def restart(self, down_s: float) -> None:
        self.broker.close()
        self.clock.advance(down_s)
        self.broker = self.open()
        self.broker.tick()


@pytest.fixture
def store(redis_server: Server) -> Iterator[RedisStore]:
    found = RedisStore(redis_server.url)
    yield found
    found.broker.close()


@pytest.fixture
def durable(store: RedisStore) -> RedisStore:
    return store


globals().update(collect_tests(test_schedules, "store"))
globals().update(collect_tests(test_schedules, "durable"))


def test_many_brokers_publish_each_due_time_once(store: RedisStore) -> None:
    """Three processes on one clock, which all look at the same moment."""
    with ExitStack() as stack:
        others = [store.open() for _ in range(3)]
        for broker in others:
            stack.callback(broker.close)
        store.broker.schedules.put(Schedule("beat", "q", b"x", every_ms=1_000))
        store.clock._now_ms += 30_000  # without stops: each of them finds thirty runs
        threads = [threading.Thread(target=broker.tick) for broker in (store.broker, *others)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        counts = Counter(dues(taken(store.broker)))
        assert len(counts) == 30
        assert set(counts.values()) == {1}
        stored = store.broker.schedules.get("beat")
        assert (stored.runs, stored.missed) == (30, 0)


def test_a_process_that_died_after_publishing_is_continued_by_another(store: RedisStore) -> None:
    """The run is published and the schedule still names it: the next process only goes on."""
    before = store.broker.schedules.put(hourly())
    store.clock.advance(3600)
    hash = store.broker.schedules._hash
    document = hash.get("tidy")
    hash.update("tidy", lambda _: {**document, "next_ms": before.next_ms, "runs": 0})
    assert store.broker.schedules.get("tidy").next_ms == before.next_ms

    other = store.open()
    other.tick()
    other.close()
    assert dues(taken(store.broker)) == ["2026-01-01T01:00:00Z"]
    stored = store.broker.schedules.get("tidy")
    assert (stored.runs, stored.next_ms) == (1, START_MS + 2 * 3_600_000)


def test_a_process_that_was_suspended_does_not_publish_by_an_old_definition(store: RedisStore) -> None:
    schedules = store.broker.schedules
    schedules.put(hourly())
    store.clock.advance(3600)
    old = schedules._hash.get("tidy")
    schedules.put(hourly(misfire="all"))
    store.clock.advance(3600)
    view = store.broker.store.view("q")
    stale = [b"stale"]
    late_ms = store.clock.now_ms() + 10_000
    run = ("run_schedule", "tidy", old["version"], late_ms, late_ms, b"\0\0x", b"")
    assert store.broker.store.ask_queue(view, *run) == stale, "there is a later definition"
    suspended = ("run_schedule", "tidy", old["version"] + 10**9, store.clock.now_ms() - 1, 1, b"\0\0x", b"")
    assert store.broker.store.ask_queue(view, *suspended) == stale, "it read the schedule too long ago"
    assert len(taken(store.broker)) == 2


def test_schedules_and_their_queues_may_be_on_different_nodes() -> None:
    with cluster() as nodes:
        _check_cluster(nodes)


def _check_cluster(nodes: Cluster) -> None:
    store = RedisStore(nodes.url)
    try:
        for n in range(8):
            store.broker.declare(f"q{n}", LONG)
            store.broker.schedules.put(Schedule(f"s{n}", f"q{n}", every_ms=60_000))
        store.clock.advance(600)
        assert [len(taken(store.broker, f"q{n}")) for n in range(8)] == [10] * 8
    finally:
        store.broker.close()


def test_a_run_waits_while_redis_is_full() -> None:
    with single() as server:
        store = RedisStore(server.url)
        try:
            store.broker.schedules.put(hourly())
            server.ask("CONFIG", "SET", "maxmemory", "1")
            with pytest.raises(StoreError):
                store.broker.schedules.run("tidy")
            with suppress(StoreError):  # of the upkeep of the queue
                store.clock.advance(3600 + 10)
            server.ask("CONFIG", "SET", "maxmemory", "0")
            store.clock.advance(30)
            assert dues(taken(store.broker)) == ["2026-01-01T01:00:00Z"]
        finally:
            store.broker.close()


def test_two_servers_on_one_redis_publish_each_due_time_once(redis_server: Server) -> None:
    arguments = ["--store", redis_server.url, "--profile", "fast", "--amqp-port", "off"]
    with ExitStack() as stack:
        servers = [Served(arguments, free_port()) for _ in range(2)]
        for server in servers:
            stack.callback(server.stop)
        one, other = (Client(server.wait().url) for server in servers)
        queue = one.queue("jobs")
        body = {"queue": "jobs", "payload": "x", "every": 0.1, "misfire": "all"}
        assert one.put("/schedules/beat", body).status == 201
        deadline = time.monotonic() + DEADLINE_S
        while other.get("/schedules/beat").value["runs"] < 20:
            assert time.monotonic() < deadline, "schedules do not run"
        assert other.post("/schedules/beat/run", {}).status == 201
        paused = other.post("/schedules/beat/pause", {}).value
        found: Counter[str] = Counter()
        while messages := (other.post(f"{queue}/receive", {"max": 100}).value or {}).get("messages"):
            found.update(each["attributes"]["openq-due"] for each in messages)
        assert set(found.values()) == {1}
        assert len(found) >= paused["runs"] >= 21
        for client in (one, other):
            assert [each["name"] for each in client.get("/schedules").value["schedules"]] == ["beat"]
            assert b"openq_schedule_runs_total" in client.send("GET", "/metrics").data
        assert one.delete("/schedules/beat").status == 200
        assert other.get("/schedules/beat").status == 404


WORKER = """
import sys, time
from openq import OpenQ
queue = OpenQ("q", url=sys.argv[1])
queue.schedules.add("beat", "x", every=0.2, misfire="all")
print("ready", flush=True)
time.sleep(600)
"""


def test_processes_that_are_killed_and_started_again_publish_each_due_time_once(
    redis_server: Server, tmp_path: Path
) -> None:
    url = f"{redis_server.url}?profile=fast"
    program = tmp_path / "worker.py"
    program.write_text(WORKER)

    def start() -> subprocess.Popen[str]:
        worker = subprocess.Popen([sys.executable, str(program), url], stdout=subprocess.PIPE, text=True)
        assert worker.stdout is not None
        with worker.stdout:
            assert worker.stdout.readline() == "ready\n"
        return worker

    with ExitStack() as stack:
        workers = [start(), start()]
        stack.callback(lambda: [each.send_signal(signal.SIGKILL) for each in workers])
        for _n in range(6):
            victim = workers.pop(0)
            os.kill(victim.pid, signal.SIGKILL)
            victim.wait()
            workers.append(start())
        broker = RedisBroker(redis_server.url, profile="fast")
        stack.callback(broker.close)
        runs = broker.schedules.get("beat").runs
        deadline = time.monotonic() + DEADLINE_S
        while broker.schedules.get("beat").runs < runs + 5:
            assert time.monotonic() < deadline, "schedules do not run"
        broker.schedules.pause("beat")
        for worker in workers:
            worker.kill()
            worker.wait()
        counts = Counter(dues(taken(broker)))
        assert set(counts.values()) == {1}, [each for each in counts.items() if each[1] > 1]
        assert len(counts) >= runs + 5
        assert list(counts) == sorted(counts, key=_parsed), "in the order of their due times"


def _parsed(text: str) -> datetime:
    return datetime.fromisoformat(text)
