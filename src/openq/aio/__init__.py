"""OpenQ for asyncio: the same queue, every verb a coroutine.

    from openq.aio import OpenQ

    async def main() -> None:
        async with await OpenQ.open("orders", path="./data") as orders:
            await orders.publish("one coffee")
            async with orders.processing() as order:
                print(order.body)

A call returns when what it did is safe, as in `openq`; those who wait for the disk at the same time
share one commit, and the loop goes on meanwhile. Any number of loops and threads may use the
same place (`path`), with queue objects of either kind.
"""

from .consumer import Consumer
from .queue import Message, OpenQ, Queue

__all__ = ["Consumer", "Message", "OpenQ", "Queue"]
