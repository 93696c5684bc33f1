"""Staged batches on Redis: the tests of the journal's, then several servers, lost answers and crashes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openq.model import QueueSettings
from openq.redis import staging
from openq.redis.broker import RedisBroker
from tests.broker import test_staging as told
from tests.redis.borrowed import borrow
from tests.redis.servers import Server

globals().update(borrow(told, "broker"))


@pytest.fixture
def broker(redis_server: Server) -> Iterator[RedisBroker]:
    made = RedisBroker(redis_server.url, profile="fast")
    made.declare("q", QueueSettings())
    made.declare("dead", QueueSettings())
    yield made
    made.close()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "CHUNK_ROWS", 7)
    monkeypatch.setattr(staging, "CHUNK_BYTES", 500)
