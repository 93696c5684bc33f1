"""asyncio over the network: the blocking client in threads, so that the loop goes on meanwhile.

Calls and waits have threads of their own: any number of waits for messages must not keep an ack waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ..client.waiting import ThreadWait, release_unseen
from ..errors import Closed
from ..model import Delivery

T = TypeVar("T")

MAX_CALLS = 16  # at the same time
MAX_WAITS = 256


class CallThreads:
    """Those of one queue object. Each is started when it is needed for the first time."""

    def __init__(self) -> None:
        self._calls = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="openq-call")
        self._waits = ThreadPoolExecutor(MAX_WAITS, thread_name_prefix="openq-wait")

    async def run(self, verb: Callable[..., T], *args: Any, **options: Any) -> T:
        """Carried out to its end even if the task is cancelled meanwhile: a call cannot be called back."""
        return await self._start(self._calls, partial(verb, *args, **options))

    def wait(self, wait: ThreadWait, timeout: float | None) -> asyncio.Future[list[Delivery]]:
        return self._start(self._waits, partial(wait.wait, timeout))

    def _start(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> asyncio.Future[T]:
        try:
            return asyncio.get_running_loop().run_in_executor(threads, work)
        except RuntimeError:
            raise Closed() from None  # no new work for threads that were told to end

    def give_back(self, wait: ThreadWait, deliveries: list[Delivery]) -> None:
        try:
            self._calls.submit(release_unseen, wait._broker, wait._queue, deliveries)
        except RuntimeError:
            pass  # closed meanwhile; the leases end by themselves

    def close(self) -> None:
        self._calls.shutdown(wait=False)
        self._waits.shutdown(wait=False)


class PooledWait:
    """One wait of one task for messages. What it was served is either returned or given back."""

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
            self._threads.give_back(self._wait, deliveries)

    def end(self) -> None:
        """End the wait, from any thread: nothing came."""
        self._wait.end()
