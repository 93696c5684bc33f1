"""asyncio over the network: the blocking client runs in threads, so that the loop does not wait.

Calls and waits have separate pools: many waits for messages must not delay an ack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ..broker.kv import KvEntry
from ..client.kv_waiting import KvWait
from ..client.waiting import ThreadWait
from ..errors import Closed
from ..model import Delivery

T = TypeVar("T")

MAX_CALLS = 16  # at the same time
MAX_WAITS = 256


class CallThreads:
    """The threads of one queue object. Each starts when it is first needed."""

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="openq-call")
        self._waits = ThreadPoolExecutor(MAX_WAITS, thread_name_prefix="openq-wait")

    async def run(self, call: Callable[..., T], *args: Any, **options: Any) -> T:
        """The call runs to its end even if the task is cancelled."""
        return await self._start(self._calls, partial(call, *args, **options))

    def start(self, call: Callable[..., None], *args: Any) -> None:
        """A call that passes its result on by itself. Raises Closed."""
        try:
            self._calls.submit(call, *args)
        except RuntimeError:
            raise Closed() from None  # the pool was shut down

    def wait(self, wait: ThreadWait, timeout: float | None) -> asyncio.Future[list[Delivery]]:
        return self._start(self._waits, partial(wait.wait, timeout))

    async def wait_for_key(self, wait: KvWait, timeout: float | None) -> KvEntry | None:
        """A wait for a key, which a cancelled task ends."""
        waiting = self._start(self._waits, partial(wait.wait, timeout))
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            wait.end()
            waiting.add_done_callback(_ignore_error)
            raise

    def _start(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError:
            raise Closed() from None  # the pool was shut down

    def release(self, wait: ThreadWait, deliveries: list[Delivery]) -> None:
        try:
            self._calls.submit(wait.release, deliveries)
        except RuntimeError:
            pass  # closed in the meantime; the leases end by themselves

    def close(self) -> None:
        self._calls.shutdown(wait=False)
        self._waits.shutdown(wait=False)


def _ignore_error(waiting: asyncio.Future[Any]) -> None:
    if not waiting.cancelled():
        waiting.exception()


class PooledWait:
    """A wait of a task that a thread of the pool carries out."""

    def __init__(self, wait: ThreadWait, threads: CallThreads) -> None:
        self._wait = wait
        self._threads = threads

    async def wait(self, timeout: float | None) -> list[Delivery]:
        waiting = self._threads.wait(self._wait, timeout)
        try:
            return await asyncio.shield(waiting)
        except asyncio.CancelledError:
            self._wait.end()
            waiting.add_done_callback(self._release_late)
            raise

    def _release_late(self, waiting: asyncio.Future[list[Delivery]]) -> None:
        if waiting.cancelled() or waiting.exception() is not None:
            return
        deliveries = waiting.result()
        if deliveries:
            self._threads.release(self._wait, deliveries)

    def end(self) -> None:
        """End the wait, from any thread."""
        self._wait.end()
