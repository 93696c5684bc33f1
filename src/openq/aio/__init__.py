"""OpenQ for asyncio: the same queue, with coroutines.

    from openq.aio import OpenQ

    async def main() -> None:
        async with await OpenQ.open("orders", path="./data") as orders:
            await orders.publish("one coffee")
            async with orders.processing() as order:
                print(order.body)

A call returns when its effect is on disk, as in `openq`. Tasks that wait for the disk at the same time share
one commit, and the loop runs on meanwhile. Any number of loops and threads may use the same `path`, with
queue objects of either kind.
"""

from .consumer import Consumer
from .message import Message
from .queue import OpenQ, Queue

__all__ = ["Consumer", "Message", "OpenQ", "Queue"]
