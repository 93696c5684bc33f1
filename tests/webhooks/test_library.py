"""`queue.webhooks`: what the library does with the webhooks of a server."""

from __future__ import annotations

import asyncio

import pytest

from openq import OpenQ, aio
from openq.errors import InvalidSetting, WebhookNotFound
from tests.http_endpoint import Endpoint
from tests.rest.helpers import Client
from tests.waiting import until


@pytest.fixture
def url(client: Client) -> str:
    return f"http://{client.host}:{client.port}"


def test_a_queue_declares_tests_and_removes_its_webhooks(url: str, name: str, endpoint: Endpoint) -> None:
    with OpenQ(name, url=url) as queue, OpenQ(f"{name}-2", url=url) as other:
        hooks = queue.webhooks
        made = hooks.add(name, endpoint.url, attributes={"shop": ["eu", 1]}, batch=5, mode="json")
        assert made.secret is not None
        assert made.secret.startswith("whsec_")
        assert made.secret not in repr(made)
        assert made.details["attributes"] == {"shop": ["eu", 1]}
        assert hooks.add(name, endpoint.url).secret is None
        assert [each.name for each in hooks.list()] == [name]
        assert other.webhooks.list() == []
        with pytest.raises(WebhookNotFound):
            other.webhooks.get(name)

        attempt = hooks.test(name)
        assert (attempt.outcome, attempt.status) == ("delivered", 200)
        queue.publish("paid")
        until(lambda: hooks.get(name).delivered == 1)
        until(lambda: hooks.log(name))
        assert hooks.log(name, outcome="failed") == []
        assert hooks.replay(name, since=0) == 1
        assert endpoint.bodies[-1] == b"paid"

        assert hooks.rotate(name).secret not in (None, made.secret)
        stopped = hooks.disable(name, "it moves")
        assert (stopped.enabled, stopped.reason) == (False, "it moves")
        assert hooks.enable(name).enabled
        hooks.remove(name)
        with pytest.raises(WebhookNotFound):
            hooks.get(name)


def test_events_of_a_queue_by_asyncio(url: str, name: str, endpoint: Endpoint) -> None:
    async def main() -> None:
        async with aio.OpenQ(name, url=url) as queue:
            await queue.webhooks.add(name, endpoint.url, events=["published"], bodies=True)
            assert [each.name for each in await queue.webhooks.list()] == [name]
            await queue.publish("hello")

    asyncio.run(main())
    until(lambda: endpoint.bodies)
    assert b'"payload":"hello"' in endpoint.bodies[0]


def test_a_queue_in_this_process_has_no_webhooks() -> None:
    with OpenQ("here", storage="memory") as queue, pytest.raises(InvalidSetting, match="by a server"):
        queue.webhooks.list()
