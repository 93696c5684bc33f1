"""Staged batches on Redis while answers are lost and servers are killed: published whole, and once."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from openq.broker.staged_batches import Committed
from openq.errors import StoreFull, StoreUnavailable
from openq.model import QueueSettings
from openq.redis import staging
from openq.redis.broker import RedisBroker
from tests.local.test_staging import JOB, bodies, send, waiting
from tests.redis import staging_helpers
from tests.redis.servers import FORCED, Server, cluster, replicated, single, versions
from tests.redis.staging_helpers import after_chunk, assert_nothing_is_left, opened
from tests.rest.test_staging import killed_and_repeated
from tests.serving import Served, free_port

broker, small_chunks = staging_helpers.broker, staging_helpers.small_chunks

# -- answers that are lost


class Losing:
    """Every so manieth answer of Redis is lost on its way: what was asked for is done."""

    def __init__(self, broker: RedisBroker, seed: int) -> None:
        self._random_fraction = random.Random(seed)
        self._try_once = broker.calls._try_once
        self.lost = 0
        broker.calls._try_once = self._ask  # type: ignore[method-assign]

    def _ask(self, key: bytes, data: bytes, writes: bool) -> Any:
        reply = self._try_once(key, data, writes)
        if self._random_fraction.random() < 0.2:
            self.lost += 1
            return StoreUnavailable("the answer was lost", sent=True)
        return reply


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("seed", range(4))
def test_lost_answers_change_nothing(broker: RedisBroker, redis_server: Server, seed: int) -> None:
    broker.declare("r", QueueSettings(max_length=10_000))
    losing = Losing(broker, seed)
    for batch in range(3):
        columns = {"body": bodies(60, 60 * batch), "queue": ["q", "q", "r"] * 20}
        send(broker, columns, batch=batch)
        assert broker.staging.commit(JOB, batch, ["p"], 60) == Committed(60, 0, False)

    assert losing.lost > 10
    found = waiting(broker, "q") + waiting(broker, "r")
    assert sorted(found, key=int) == bodies(180)
    assert_nothing_is_left(redis_server)


# -- servers that are killed


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("program", [kind.path for kind in versions()], ids=map(str, versions()))
def test_redis_is_killed_and_started_again_in_the_middle(program: str) -> None:
    with single(*FORCED, program=program) as server, opened(server.url, "safe") as broker:
        broker.declare("q", QueueSettings())
        for batch, chunks in enumerate((3, 40)):
            send(broker, {"body": bodies(1_000, 1_000 * batch)}, batch=batch)
            after_chunk(broker, chunks, lambda: (server.kill9(), server.begin()))
            assert broker.staging.commit(JOB, batch, ["p"], queue="q") == Committed(1_000, 0, False)

        assert waiting(broker) == bodies(2_000)
        assert_nothing_is_left(server)


class Copy:
    """Of a queue, to go back to: as a replica that takes over before it has heard the last of its master."""

    def __init__(self, server: Server, broker: RedisBroker, queue: str) -> None:
        self._ask = server.ask
        self._prefix = broker.get_queue(queue).key.decode()[:-1]
        for key in self._ask("KEYS", self._prefix + "*"):
            self._ask("COPY", key, "copy:" + key)

    def go_back(self) -> None:
        for key in self._ask("KEYS", self._prefix + "*"):
            self._ask("DEL", key)
        for key in self._ask("KEYS", "copy:" + self._prefix + "*"):
            self._ask("RENAME", key, key.removeprefix("copy:"))


def test_what_a_queue_lost_again_is_published_again(
    broker: RedisBroker, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 1)
    send(broker, {"body": bodies(6)})
    copies: list[Copy] = []
    after_chunk(broker, 2, lambda: copies.append(Copy(redis_server, broker, "q")))
    after_chunk(broker, 4, lambda: copies[0].go_back())

    assert broker.staging.commit(JOB, 0, ["p"], queue="q") == Committed(6, 0, False)

    assert waiting(broker) == bodies(6)


def test_what_was_lost_with_a_connection_is_noticed_though_later_chunks_went_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 2)
    with single(*FORCED) as server, opened(server.url, "safe") as broker:
        for name in ("q", "r"):
            broker.declare(name, QueueSettings())
        send(broker, {"body": bodies(4), "queue": ["q", "q", "r", "r"]})
        before = Copy(server, broker, "q")

        def fail_over() -> None:
            before.go_back()
            server.ask("CLIENT", "KILL", "TYPE", "normal")

        after_chunk(broker, 1, fail_over)

        assert broker.staging.commit(JOB, 0, ["p"]) == Committed(4, 0, False)
        assert waiting(broker) + waiting(broker, "r") == bodies(4)


@pytest.mark.usefixtures("small_chunks")
def test_a_master_of_a_cluster_dies_in_the_middle() -> None:
    names = [f"q{number}" for number in range(9)]
    with cluster(3, 1, "--appendonly", "yes") as made, opened(made.url, "safe") as broker:
        for name in names:
            broker.declare(name, QueueSettings())
        count = 1_800
        send(broker, {"body": bodies(count), "queue": names * (count // 9)})
        victim = made.masters()[0]
        after_chunk(broker, 30, victim.kill9)

        assert broker.staging.commit(JOB, 0, ["p"], count) == Committed(count, 0, False)

        found = [waiting(broker, name) for name in names]
        assert found == [bodies(count)[number::9] for number in range(9)]
        assert broker.staging.stages() == []


def test_an_answer_waits_for_the_copies() -> None:
    with replicated(1, "--appendonly", "yes") as made, opened(made.url, "safe") as broker:
        broker.declare("q", QueueSettings())
        send(broker, {"body": bodies(10)})
        broker.staging.commit(JOB, 0, ["p"], queue="q")
        made.master.kill9()
        made.replicas[0].ask("REPLICAOF", "NO", "ONE")

        with opened(made.replicas[0].url) as heir:
            assert heir.staging.commit(JOB, 0, ["p"], queue="q") == Committed(10, 0, True)
            assert waiting(heir) == bodies(10)


def test_a_redis_without_memory_keeps_the_promise_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 10)
    monkeypatch.setattr(staging, "CLAIM_MS", 0)
    with single() as server, opened(server.url) as broker:
        broker.declare("q", QueueSettings())
        send(broker, {"body": bodies(40)})
        publish = broker.staging._publish
        left = 2

        def fill_up(*arguments: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                server.ask("CONFIG", "SET", "maxmemory", "1mb")
            publish(*arguments)

        broker.staging._publish = fill_up  # type: ignore[method-assign]
        with pytest.raises(StoreFull):
            broker.staging.commit(JOB, 0, ["p"], queue="q")
        with pytest.raises(StoreFull):
            send(broker, {"body": [b"x"]}, batch=1)
        broker.staging.sweep()
        assert waiting(broker) == bodies(10)

        server.ask("CONFIG", "SET", "maxmemory", "0")
        broker.staging.sweep()

        assert waiting(broker) == bodies(40)
        assert broker.staging.stages() == []


@pytest.mark.parametrize("seed", [1])
def test_every_batch_is_published_once_however_often_a_server_of_openq_is_killed(
    redis_server: Server, seed: int
) -> None:
    port = free_port()

    wanted = killed_and_repeated(
        lambda: Served(["--store", redis_server.url, "--profile", "fast"], port).wait(), seed
    )

    with opened(redis_server.url) as broker:
        found = Counter(body for name in ("q", "r") for body in waiting(broker, name))
        assert broker.staging.stages() == []
    assert found == wanted
    assert_nothing_is_left(redis_server)
