"""What the asyncio tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from openq.aio import Queue


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until it is so. A test that waits in vain is ended by the timeout."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


async def until_waiting(queue: Queue, count: int = 1) -> None:
    """Until so many calls of `receive` stand in line."""
    await until(lambda: queue.inner.stats().waiters == count)
