"""Events as messages where several servers share a Redis: one of them sends, and another one takes over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.protocol_clients import RestClient
from tests.redis.servers import FORCED, Server, single
from tests.server.test_event_bridge import Seen, Sink
from tests.serving import Served, free_port
from tests.waiting import until


@contextmanager
def servers(url: str, profile: str = "fast") -> Iterator[list[Served]]:
    started = [Served(["--store", url, "--profile", profile], free_port()) for _ in range(2)]
    try:
        yield [each.wait() for each in started]
    finally:
        for each in started:
            each.stop()


def is_sending(server: Served) -> bool:
    return server.process.poll() is None and b"openq_event_bridge_sending 1" in server.get("/metrics")[1]


def send(rest: RestClient, expected: list[Seen], count: int = 20) -> None:
    for number in range(count):
        rest.send("work", {"payload": str(number)})
        expected.append(("published", "work"))


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_another_server_takes_over_without_a_gap_and_without_a_repeat(redis_server: Server, how: str) -> None:
    with servers(redis_server.url) as both:
        rest = RestClient(both[0].url)
        rest.make("work")
        sink = Sink(rest, "sink", "work.published")
        expected: list[Seen] = []
        send(rest, expected)
        until(lambda: any(map(is_sending, both)))
        [sender] = [each for each in both if is_sending(each)]
        [other] = [each for each in both if each is not sender]

        sink.rest = rest = RestClient(other.url)
        send(rest, expected)
        if how == "stop":
            sender.stop()
        else:
            sender.kill()
        send(rest, expected)

        until(lambda: is_sending(other))
        sink.wait(*expected)


def test_a_restart_of_redis_loses_no_event_and_repeats_none() -> None:
    with single(*FORCED) as redis, servers(redis.url, "safe") as both:
        rest = RestClient(both[0].url)
        rest.make("work")
        sink = Sink(rest, "sink", "work.published")
        expected: list[Seen] = []
        send(rest, expected)
        redis.kill9()
        redis.start()
        send(rest, expected)

        sink.wait(*expected)
