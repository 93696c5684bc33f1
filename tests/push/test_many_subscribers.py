"""Queues with more subscribers than a dispatcher serves at once: see `dispatcher.FEW_CONSUMERS`."""

from __future__ import annotations

from typing import Any

import pytest

from openq.server.dispatcher import FEW_CONSUMERS
from tests.push.streams import Stream
from tests.rest.helpers import Client

MANY = 2 * FEW_CONSUMERS


def subscribe_many(stream: Stream, queue: str) -> None:
    for number in range(MANY):
        reply = stream.ask("subscribe", sub=number, queue=queue, credit={"messages": 1})
        assert reply["op"] == "ok", reply


def publish(client: Client, path: str, *payloads: Any) -> None:
    assert client.post(f"{path}/messages/batch", list(payloads)).status == 201


def deliveries(stream: Stream, count: int) -> dict[int, list[str]]:
    """As many messages, by subscription; they are acked."""
    found: dict[int, list[str]] = {}
    receipts: list[str] = []
    while len(receipts) < count:
        frame = stream.next("deliver")
        receipts += [each["receipt_id"] for each in frame["messages"]]
        found.setdefault(frame["sub"], []).extend(each["payload"] for each in frame["messages"])
    assert stream.ask("ack", receipts=receipts)["count"] == count
    return found


@pytest.mark.parametrize("is_waiting", [True, False])
def test_many_subscribers_with_a_credit_of_one_get_one_message_each(
    client: Client, stream: Stream, is_waiting: bool
) -> None:
    queue = f"many-{is_waiting}"
    path = client.queue(queue)
    bodies = [str(number) for number in range(MANY)]
    if is_waiting:
        subscribe_many(stream, queue)
    publish(client, path, *bodies)
    if not is_waiting:
        subscribe_many(stream, queue)

    found = deliveries(stream, MANY)

    assert sorted(found) == list(range(MANY))
    assert {len(each) for each in found.values()} == {1}
    assert sorted(body for each in found.values() for body in each) == sorted(bodies)


def test_acks_of_many_subscribers_bring_their_next_messages(client: Client, stream: Stream) -> None:
    path = client.queue("many-again")
    subscribe_many(stream, "many-again")
    publish(client, path, *[str(number) for number in range(3 * MANY)])

    rounds = [deliveries(stream, MANY) for _ in range(3)]

    assert [sorted(each) for each in rounds] == [list(range(MANY))] * 3
    assert client.get(path).value["stats"]["ready"] == 0


def test_messages_of_a_subscriber_that_leaves_go_to_the_others(client: Client, stream: Stream) -> None:
    path = client.queue("many-leave")
    subscribe_many(stream, "many-leave")
    publish(client, path, *[str(number) for number in range(MANY)])
    taken = {}
    for _ in range(MANY):
        frame = stream.next("deliver")
        taken[frame["sub"]] = frame["messages"][0]

    stream.ask("unsubscribe", sub=0, release=True)
    stream.ack([taken[1]])

    frame = stream.next("deliver")
    assert (frame["sub"], frame["messages"][0]["payload"]) == (1, taken[0]["payload"])
