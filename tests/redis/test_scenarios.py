"""The stories that every broker must agree on, over a real Redis; and with another client at every line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from openq.clock import VirtualClock
from openq.redis.broker import RedisBroker
from tests.redis.servers import Cluster, Server, cluster, versions
from tests.scenarios.runner import Story
from tests.scenarios.test_scenarios import STORIES


class OneClient:
    """One process that does everything."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = VirtualClock()
        self.broker = self.open()

    def open(self) -> RedisBroker:
        return RedisBroker(self.url, profile="fast", clock=self.clock)

    def before_line(self) -> None:
        pass

    def close(self) -> None:
        self.broker.close()


class ManyClients(OneClient):
    """Every line by another one of three: what one did, the next one must know."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.others = [self.open(), self.open()]

    def before_line(self) -> None:
        self.others.append(self.broker)
        self.broker = self.others.pop(0)

    def close(self) -> None:
        for broker in (self.broker, *self.others):
            broker.close()


def _stories() -> Iterator[tuple[str, str]]:
    for story in STORIES:
        text = story.read_text()
        about = next((line[3:].split() for line in text.splitlines() if line.startswith("on ")), None)
        if about is None or "redis" in about:
            yield story.stem, text


def _play(stage: OneClient, text: str) -> None:
    try:
        Story(stage).play(text)
    finally:
        stage.close()


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in _stories()])
@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)
def test_the_story_is_true_on_redis(text: str, redis_server: Server) -> None:
    _play(OneClient(redis_server.url), text)


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in _stories()])
def test_the_scenario_holds_when_clients_take_turns(text: str, redis_server: Server) -> None:
    _play(ManyClients(redis_server.url), text)


@pytest.fixture(scope="module")
def shards() -> Iterator[Cluster]:
    with cluster(masters=3, replicas=0) as made:
        yield made


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in _stories()])
def test_the_story_is_true_on_a_cluster(text: str, shards: Cluster) -> None:
    for server in shards.servers:
        server.ask("FLUSHALL")
    _play(OneClient(shards.url), text)
