"""`Queue.processing` of `openq.aio`, and waiting for a change of a queue."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..errors import OpenQError

if TYPE_CHECKING:
    from .message import Message
    from .queue import Queue
    from .runner import AnyWait

# Stores that cannot report changes (a server, Redis) are polled at this interval.
_RECHECK_S = 0.5


class AsyncProcessing:
    """One message from receive to ack; see `Queue.processing`."""

    def __init__(self, queue: Queue, wait: AnyWait, timeout: float | None, heartbeat: bool) -> None:
        self._queue = queue
        self._wait = wait
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._message: Message | None = None

    async def __aenter__(self) -> Message | None:
        received = await self._queue.collect(self._wait, self._timeout)
        if not received:
            return None
        self._message = received[0]
        if self._heartbeat:
            self._queue.core.handle.heartbeat.hold(self._queue.name, self._message.delivery)
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        message = self._message
        if message is None:
            return
        try:
            await message.__aexit__(kind, error, trace)
        finally:
            if self._heartbeat:
                self._queue.core.handle.heartbeat.drop(message.delivery)


class AsyncChangeListener:
    """Waits for the next change of a queue. Costs the queue nothing while it is not in use."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def __enter__(self) -> AsyncChangeListener:
        try:
            self._stop = self._queue.subscribe(self._on_event)
        except OpenQError:
            self._stop = self._changed.clear  # not permitted: `wait` polls instead
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _on_event(self, event: dict[str, Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    async def wait(self) -> None:
        timer = self._loop.call_later(_RECHECK_S, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        self._changed.clear()
