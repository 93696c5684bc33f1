"""Dead letters and times to live with pika."""

from __future__ import annotations

from typing import Any

from pika.adapters.blocking_connection import BlockingChannel

from tests.real_clients.boto import fresh
from tests.real_clients.pika.helpers import declared, send, taken, wait_for

# -- dead letters and time


def dead_lettered(channel: BlockingChannel, **arguments: Any) -> tuple[str, str, str]:
    """A queue, the queue of its dead letters and the exchange between them."""
    exchange = fresh()
    channel.exchange_declare(exchange, "fanout", durable=True)
    dead = declared(channel)
    channel.queue_bind(dead, exchange)
    return declared(channel, dead_letter_exchange=exchange, **arguments), dead, exchange


def history(properties: Any) -> list[dict[str, Any]]:
    return [{**each, "time": None} for each in properties.headers["x-death"]]


def test_a_rejected_message_is_dead_lettered_with_x_death(channel: BlockingChannel) -> None:
    queue, dead, exchange = dead_lettered(channel)
    send(channel, queue, "x", headers={"mine": 1})
    method, _, _ = channel.basic_get(queue)

    channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, body = wait_for(channel, dead)

    assert (method.exchange, method.routing_key, body) == (exchange, queue, b"x")
    assert history(properties) == [
        {
            "count": 1,
            "reason": "rejected",
            "queue": queue,
            "time": None,
            "exchange": "",
            "routing-keys": [queue],
        }
    ]
    assert {key: value for key, value in properties.headers.items() if key != "x-death"} == {
        "mine": 1,
        "x-first-death-exchange": "",
        "x-first-death-queue": queue,
        "x-first-death-reason": "rejected",
    }


def test_an_expired_message_is_dead_lettered(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel)
    send(channel, queue, "x", expiration="20")

    _, properties, _ = wait_for(channel, dead)

    [death] = history(properties)
    assert (death["reason"], death["original-expiration"]) == ("expired", "20")
    assert properties.expiration is None


def test_messages_of_a_queue_with_a_time_to_live_expire(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel, message_ttl=20)
    send(channel, queue, "x")

    _, properties, _ = wait_for(channel, dead)

    assert history(properties)[0]["reason"] == "expired"


def test_a_message_dropped_over_max_length_is_dead_lettered(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel, max_length=1)
    send(channel, queue, "1", "2")

    _, properties, body = wait_for(channel, dead)

    assert (history(properties)[0]["reason"], body) == ("maxlen", b"1")
    assert taken(channel, queue) == ["2"]


def test_a_retry_by_time_to_live_counts_its_rounds(channel: BlockingChannel) -> None:
    work, pause = fresh(), fresh()
    to = {"x-dead-letter-exchange": ""}
    channel.queue_declare(work, arguments={**to, "x-dead-letter-routing-key": pause})
    channel.queue_declare(pause, arguments={**to, "x-dead-letter-routing-key": work, "x-message-ttl": 10})
    send(channel, work, "x")
    rounds = []
    for method, properties, _ in channel.consume(work):
        deaths = (properties.headers or {}).get("x-death", [])
        rounds.append([(each["queue"], each["reason"], each["count"]) for each in deaths])
        channel.basic_reject(method.delivery_tag, requeue=False)
        if len(rounds) == 3:
            break
    channel.cancel()

    assert rounds == [
        [],
        [(pause, "expired", 1), (work, "rejected", 1)],
        [(pause, "expired", 2), (work, "rejected", 2)],
    ]


def test_a_quorum_queue_counts_deliveries_and_gives_up_at_its_limit(channel: BlockingChannel) -> None:
    queue, dead, _ = dead_lettered(channel, queue_type="quorum", delivery_limit=2)
    channel.confirm_delivery()
    send(channel, queue, "x")
    counts = []
    for method, properties, _ in channel.consume(queue):
        counts.append((properties.headers or {}).get("x-delivery-count"))
        channel.basic_reject(method.delivery_tag, requeue=True)
        if len(counts) == 3:
            break
    _, properties, _ = wait_for(channel, dead)

    assert counts == [None, 1, 2]
    assert history(properties)[0]["reason"] == "delivery_limit"
