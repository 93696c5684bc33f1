"""What the asyncio tests share."""

from __future__ import annotations

from openq.aio import Queue
from tests.waiting import until_async


async def until_waiting(queue: Queue, count: int = 1) -> None:
    """Until so many calls of `receive` stand in line."""
    await until_async(lambda: queue.inner.stats().waiters == count)
