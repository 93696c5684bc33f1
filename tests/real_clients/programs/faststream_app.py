"""A FastStream application over AMQP that calls itself in every way, and prints what happened as JSON."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from faststream import AckPolicy
from faststream.exceptions import NackMessage
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue

ANSWER_S = 30

broker = RabbitBroker(os.environ["FASTSTREAM_BROKER"], logger=None)
topics = RabbitExchange("faststream-topics", type=ExchangeType.TOPIC)
said: dict[str, Any] = {"tries": 0}
all_done = asyncio.Event()


@broker.subscriber("faststream-requests")
async def double(number: int) -> int:
    return 2 * number


@broker.subscriber("faststream-in")
@broker.publisher("faststream-out")
async def shout(text: str) -> str:
    return text.upper()


@broker.subscriber("faststream-out")
async def hear(text: str) -> None:
    said["heard"] = text


@broker.subscriber(RabbitQueue("faststream-logs", routing_key="logs.#"), topics)
async def log(text: str, message: RabbitMessage) -> None:
    said["logged"] = [text, message.headers["level"], message.correlation_id]


@broker.subscriber(RabbitQueue("faststream-twice", durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)
async def twice(text: str, message: RabbitMessage) -> None:
    said["tries"] += 1
    if not message.raw_message.redelivered:
        raise NackMessage(requeue=True)
    all_done.set()


async def main() -> None:
    async with broker:
        await broker.start()
        response = await broker.request(21, "faststream-requests", timeout=ANSWER_S)
        said["doubled"] = await response.decode()
        await broker.publish("hello", "faststream-in")
        await broker.publish(
            "a line", "logs.app.info", exchange=topics, headers={"level": "info"}, correlation_id="c-1"
        )
        await broker.publish("again", "faststream-twice", persist=True)
        async with asyncio.timeout(ANSWER_S):
            await all_done.wait()
            while not {"heard", "logged"} <= set(said):
                await asyncio.sleep(0.02)
    print(json.dumps(said))


asyncio.run(main())
