"""`queue.listen` of asyncio: `async for message in queue.listen(prefetch=100)`, or a handler."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from ..client import checks
from ..client.failures import describe_attempt
from ..client.feeds import FeedOptions
from ..client.listening import CHECK_S, Unsettled
from ..client.times import to_ms
from ..errors import OpenQError
from .feeds import LoopFeed

if TYPE_CHECKING:
    from ..client import queues
    from ..model import Delivery
    from .message import Message
    from .queue import Queue
    from .runner import AnyWait

log = logging.getLogger("openq")

Handler = Callable[["Message"], Awaitable[object]]

_closing: set[asyncio.Task[None]] = set()  # listeners that nothing else refers to


@overload
def listen(queue: Queue, handler: None = None, **options: Any) -> Listener: ...
@overload
def listen(queue: Queue, handler: Handler, **options: Any) -> Listening: ...
def listen(queue: Queue, handler: Handler | None = None, **options: Any) -> Listener | Listening:
    """Messages as they come, until `close`: nothing is polled, a server pushes them over a WebSocket.

    `async for message in queue.listen(prefetch=100):` gets them one by one; ack each. With a handler, an
    `async def`, up to `prefetch` messages are in work at a time, and each is acked when it returns; await
    `close` of what is returned. The options are those of `openq.Queue.listen`.
    """
    listener = Listener(queue, _options(**options))
    return listener if handler is None else Listening(listener, handler)


def _options(
    *,
    prefetch: int = 100,
    visibility_timeout: float | None = None,
    heartbeat: bool = True,
    types: Iterable[str] | None = None,
    attributes: Mapping[str, object] | None = None,
    consumer: str | None = None,
) -> FeedOptions:
    checks.integer(prefetch, "prefetch", 1)
    if visibility_timeout is not None:
        to_ms(visibility_timeout, "visibility_timeout")
    checks.text_or_none(consumer, "consumer")
    return FeedOptions(
        prefetch, visibility_timeout, heartbeat, checks.message_filter(types, attributes), consumer
    )


class Listener:
    """An asynchronous iterator; `close` ends it and returns the messages that the loop has not seen.

    A listener that is left by `break`, and that nothing refers to, is closed too.
    """

    def __init__(self, queue: Queue, options: FeedOptions) -> None:
        queue.core.check_not_forked()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has taken something
        self.queue = queue
        self._options = options
        self._ready: deque[Message] = deque()
        self._unsettled = Unsettled(queue, options)
        self._feed = LoopFeed(queue, options) if queue.core.handle.is_remote else None
        self._wait: AnyWait | None = None
        self._is_closed = False
        self._lock = asyncio.Lock()  # one task at a time takes

    def __aiter__(self) -> Listener:
        return self

    async def __anext__(self) -> Message:
        async with self._lock:
            while not self._ready:
                if self._is_closed:
                    raise StopAsyncIteration
                self._loop = asyncio.get_running_loop()
                messages = await self._take()
                self._unsettled.add(messages)
                self._ready.extend(messages)
            return self._ready.popleft()

    async def _take(self) -> list[Message]:
        room = self._unsettled.room()
        feed = self._feed
        if feed is not None and await feed.open():
            return await feed.take(self._options.prefetch)
        while room <= 0 and not self._is_closed:
            await asyncio.sleep(CHECK_S)
            room = self._unsettled.room()
        if self._is_closed:
            return []
        options = self._options
        runner = self.queue.runner
        self._wait = runner.new_wait(room, options.visibility_timeout, options.wanted, options.consumer)
        try:
            return await self.queue.collect(self._wait, None)
        finally:
            self._wait = None

    async def close(self) -> None:
        self._is_closed = True
        if self._wait is not None:
            self._wait.end()
        if self._feed is not None:
            self._feed.end()
        async with self._lock:
            unseen = list(self._ready)
            self._ready.clear()
            self._unsettled.remove(unseen)
            if unseen and not self.queue.closed:
                await self.queue.runner.in_thread(release_unseen, [message.delivery for message in unseen])
        if self._feed is not None:
            await self._feed.close()

    async def _close_unused(self) -> None:
        try:
            await self.close()
        except OpenQError:
            pass  # its leases end by themselves

    def __del__(self) -> None:
        loop = getattr(self, "_loop", None)
        if loop is None or self._is_closed or self.queue.closed:
            return
        if self._pid != os.getpid() or sys.is_finalizing():
            return  # of a forked child: the connection is the parent's

        def begin() -> None:
            task = loop.create_task(self._close_unused())
            _closing.add(task)
            task.add_done_callback(_closing.discard)

        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            pass  # the loop is closed

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def release_unseen(queue: queues.Queue, deliveries: list[Delivery]) -> None:
    queue.core.release_unseen(deliveries)


class Listening:
    """A handler at work. Each message has a task; the prefetch bounds their number."""

    def __init__(self, listener: Listener, handler: Handler) -> None:
        if listener.queue.core.tracing is not None:
            from .traced import traced_handler

            handler = traced_handler(listener.queue, handler)
        self._listener = listener
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name=f"listen-{listener.queue.name}")

    async def _run(self) -> None:
        async for message in self._listener:
            task = asyncio.create_task(self._handle(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _handle(self, message: Message) -> None:
        failure: Exception | None = None
        try:
            await self._handler(message)
        except Exception as error:
            failure = error
            log.error("%s failed", describe_attempt(message, self._listener.queue.name), exc_info=error)
        if message.settled:
            return
        try:
            if failure is None:
                await message.ack()
            else:
                await message.nack(reason=failure)
        except OpenQError as problem:
            log.warning("message %s could not be settled: %s", message.id, problem)

    async def close(self) -> None:
        """Stop receiving. Messages in work are finished and acked. Raises the error that ended it, if any."""
        await self._listener.close()
        await self._task
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Listening:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
