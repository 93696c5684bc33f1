"""Limits over several clients of one store: each has its own connections, waiters and threads."""

from __future__ import annotations

from contextlib import closing

from openq import OpenQ
from openq.redis.broker import RedisBroker
from tests.client.limits_watch import LIMITS, check_limits_hold
from tests.redis.servers import Server


def test_no_limit_is_exceeded_by_consumers_of_two_clients(redis_server: Server) -> None:
    with (
        closing(RedisBroker(redis_server.url, profile="fast")) as here,
        closing(RedisBroker(redis_server.url, profile="fast")) as there,
        OpenQ("jobs", broker=here, **LIMITS) as one,
        OpenQ("jobs", broker=there) as two,
    ):
        check_limits_hold([one, two], 25)
