"""Staged batches on Redis, for the tests: brokers, and what can come between two chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from openq.errors import Closed
from openq.model import QueueSettings
from openq.redis import staging
from openq.redis.broker import RedisBroker
from tests.local.test_staging import JOB, bodies, send
from tests.redis.servers import Server


@contextmanager
def opened(url: str, profile: str = "fast", **options: Any) -> Iterator[RedisBroker]:
    broker = RedisBroker(url, profile=profile, **options)
    try:
        yield broker
    finally:
        broker.close()


@pytest.fixture
def broker(redis_server: Server) -> Iterator[RedisBroker]:
    with opened(redis_server.url) as made:
        made.declare("q", QueueSettings())
        made.declare("dead", QueueSettings())
        yield made


@pytest.fixture
def other(redis_server: Server, broker: RedisBroker) -> Iterator[RedisBroker]:
    """That of another server."""
    with opened(redis_server.url) as made:
        yield made


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 7)
    monkeypatch.setattr(staging, "CHUNK_BYTES", 500)
    monkeypatch.setattr(staging, "STRIDE_BYTES", 900)


@pytest.fixture
def no_claim_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CLAIM_MS", 0)


def stop_after(broker: RedisBroker, chunks: int, how: type[Exception] = Closed) -> None:
    """It dies before the next one."""
    publish, left = broker.staging._publish, chunks

    def until_it_dies(*arguments: Any) -> None:
        nonlocal left
        if not left:
            raise how()
        left -= 1
        publish(*arguments)

    broker.staging._publish = until_it_dies  # type: ignore[method-assign]


def promised(broker: RedisBroker, chunks: int = 1, batch: int = 0, **options: Any) -> None:
    """Parts a and b of two rows each, of which so many chunks of one row are published."""
    for start, part in enumerate("ab"):
        send(broker, {"body": bodies(2, 2 * start)}, batch=batch, part=part)
    stop_after(broker, chunks)
    with pytest.raises(Closed):
        broker.staging.commit(JOB, batch, ["a", "b"], **{"queue": "q", **options})


def assert_nothing_is_left(server: Server, jobs: int = 1) -> None:
    keys = server.ask("KEYS", "oq:{s.*")
    assert [key[-2:] for key in keys] == [":j"] * jobs
    assert server.ask("HGETALL", "oq:{meta}:stages") == ["", "0"]


def after_chunk(broker: RedisBroker, number: int, act: Callable[[], object]) -> None:
    """Once so many are published."""
    publish, left = broker.staging._publish, number

    def count(*arguments: Any) -> None:
        nonlocal left
        publish(*arguments)
        left -= 1
        if left == 0:
            act()

    broker.staging._publish = count  # type: ignore[method-assign]
