"""`queue.events()`, listeners and hooks on Redis: they hear every process."""

from __future__ import annotations

import asyncio
from typing import Any

from openq import OpenQ, aio
from tests.redis.servers import Server
from tests.waiting import until


def test_events_of_another_process_can_be_iterated_and_resumed(redis_server: Server) -> None:
    with (
        OpenQ("q", url=f"{redis_server.url}?profile=fast") as queue,
        OpenQ("q", url=f"{redis_server.url}?profile=fast") as other,
    ):
        with queue.events(bodies=True, events=["published", "acked"]) as events:
            message_id = other.publish({"n": 1}, message_type="t")
            message = other.receive()
            assert message is not None
            message.ack()
            published, acked = next(events), next(events)
        assert (published.event, acked.event) == ("published", "acked")
        assert published.message_id == acked.message_id == message_id
        assert published.message is not None
        assert published.message.body == {"n": 1}
        rest = list(queue.events(published.id, follow=False))
        assert [event.event for event in rest] == ["delivered", "acked"]


def test_a_listener_and_a_hook_hear_other_objects_each_once(redis_server: Server) -> None:
    heard: list[Any] = []
    reported: list[dict[str, Any]] = []
    with (
        OpenQ("q", url=f"{redis_server.url}?profile=fast") as queue,
        OpenQ("q", url=f"{redis_server.url}?profile=fast") as other,
    ):
        stop = queue.subscribe(reported.append)
        queue.on_msg_received(lambda message: heard.append(message.body))
        queue.publish("mine")
        other.publish("theirs")
        until(lambda: heard == ["mine", "theirs"])
        until(lambda: [event["event"] for event in reported] == ["published", "published"])
        stop()


def test_asyncio_iterates_over_events(redis_server: Server) -> None:
    async def main() -> None:
        async with aio.OpenQ("q", url=f"{redis_server.url}?profile=fast") as queue, queue.events() as events:
            await queue.publish("a")
            event = await anext(events)
            assert event.event == "published"

    asyncio.run(main())
