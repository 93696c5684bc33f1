"""`openq.aio.Consumer`: tasks that receive messages, run a handler, and ack."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ..client import checks
from ..client.consumer import (
    ERROR_PAUSE_S,
    FORKED_REASON,
    FROM_ENVIRONMENT,
    default_idle_timeout,
    idle_reason,
    interrupted_reason,
    log_end,
)
from ..client.failures import describe_attempt, is_handler_failure
from ..client.feeds import FeedOptions
from ..client.times import to_ms
from ..errors import Closed, Forked, InvalidSetting, JournalFailed, OpenQError, QueueNotFound
from .feeds import LoopFeed
from .listening import release_unseen
from .message import Message
from .queue import Queue

if TYPE_CHECKING:
    from .runner import AnyWait

log = logging.getLogger("openq")

Handler = Callable[[Message], Awaitable[object]]


class Consumer:
    """Gives each message to `handler`, an `async def`, and acks it when that returns.

        async with Consumer(queue, handle, concurrency=10):
            ...                                   # works until the block ends
        await Consumer(queue, handle).run()       # or until it is stopped

    Up to `concurrency` messages are in work at a time, each in one of as many tasks that live as long
    as the consumer. A server pushes them over a WebSocket, which all tasks share. A handler that raises gives
    the message back with the exception's text and traceback: it is tried again as the queue's retry policy
    says, and the consumer goes on with the others. It runs until `stop`, or until nothing came for
    `idle_timeout` seconds (None, the default: it never ends by itself; OPENQ_IDLE_TIMEOUT sets another
    default). Leases are kept alive for as long as the handler works, unless `heartbeat` is False.
    """

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        concurrency: int = 1,
        idle_timeout: float | None = FROM_ENVIRONMENT,
        visibility_timeout: float | None = None,
        heartbeat: bool = True,
        types: Iterable[str] | None = None,
        attributes: Mapping[str, object] | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidSetting(f"concurrency must be a whole number from 1 on, not {concurrency!r}")
        if not callable(handler):
            raise InvalidSetting(f"handler must be an async function, not {handler!r}")
        checks.text_or_none(name, "name")
        if visibility_timeout is not None:
            to_ms(visibility_timeout, "visibility_timeout")
        if idle_timeout is FROM_ENVIRONMENT:
            idle_timeout = default_idle_timeout(None)
        if queue.core.tracing is not None:
            from .traced import traced_handler

            handler = traced_handler(queue, handler)
        self.queue = queue
        self.handler = handler
        self.name = name or f"consumer-{queue.name}"
        self.idle_timeout = checks.seconds_or_none(idle_timeout, "idle_timeout")
        self.processed = 0
        self.failed = 0
        self._concurrency = concurrency
        self._visibility_timeout = visibility_timeout
        self._heartbeat = heartbeat
        self._wanted = checks.message_filter(types, attributes)
        self._stopping = asyncio.Event()
        self._waits: set[AnyWait] = set()
        options = FeedOptions(concurrency, visibility_timeout, heartbeat, self._wanted, self.name)
        self._feed = LoopFeed(queue, options) if queue.core.handle.is_remote else None
        self._taking = asyncio.Lock()  # one task at a time takes from the feed
        self._ready: deque[Message] = deque()  # taken, for tasks that wait
        self._working = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._ended = ""

    def start(self) -> None:
        """Start the tasks on the running loop. A second call has no effect.

        Raises `Forked` in a forked child that cannot use the queue.
        """
        if self._tasks:
            return
        self.queue.core.check_not_forked()
        self._ended = "it was stopped"
        self._working = self._concurrency
        self._tasks = [
            asyncio.create_task(self._work(), name=f"{self.name}-{i + 1}") for i in range(self._concurrency)
        ]
        for task in self._tasks:
            task.add_done_callback(self._task_done)

    async def run(self) -> None:
        """`start`, and return when the consumer has ended."""
        self.start()
        try:
            await self.join()
        except asyncio.CancelledError:
            await self._abort()
            raise

    async def join(self) -> None:
        """Return when the consumer has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def stop(self, timeout: float | None = None) -> None:
        """Stop receiving, at once. Messages in process are finished and acked.

        After `timeout` seconds, unfinished work is cancelled and its messages return to the queue.
        """
        self._stopping.set()
        for wait in list(self._waits):
            wait.end()
        if self._feed is not None:
            self._feed.end()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
            await self._abort()

    async def _abort(self) -> None:
        self._stopping.set()
        if self._feed is not None:
            self._feed.end()  # first: what is released must not come back
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def running(self) -> bool:
        return any(not task.done() for task in self._tasks)

    async def __aenter__(self) -> Consumer:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # -- one task ----------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    message = await self._next()
                except (Closed, JournalFailed, QueueNotFound, InvalidSetting):
                    raise
                except OpenQError as error:
                    # One message that cannot be read: it was returned, and others may be readable.
                    log.error("the consumer of queue %r could not receive: %s", self.queue.name, error)
                    await self._pause()
                    continue
                if message is None:
                    if not self._stopping.is_set():
                        self._ended = idle_reason(self.idle_timeout, self.queue.closed)
                    return
                await self._handle(message)
        except Forked as error:
            self._ended = FORKED_REASON
            log.error("the consumer of queue %r stopped: %s", self.queue.name, error)
        except Closed:
            self._ended = "the queue was closed"  # by another task or thread
        except Exception as error:
            self._ended = f"receiving failed ({type(error).__name__})"
            log.exception("the consumer of queue %r stopped", self.queue.name)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):
                self._ended = interrupted_reason(error)
            raise
        finally:
            self._working -= 1
            if not self._working:
                await self._close_feed()

    def _task_done(self, _: asyncio.Task[None]) -> None:
        if not self.running:
            log_end(self.name, self.queue.name, self._ended, self.processed, self.failed)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(ERROR_PAUSE_S):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _next(self) -> Message | None:
        if self._feed is not None:
            async with self._taking:
                is_stream = await self._feed.open()
            if is_stream:
                return await self._next_pushed(self._feed)
        wait = self.queue.runner.new_wait(1, self._visibility_timeout, self._wanted, self.name)
        self._waits.add(wait)
        try:
            received = await self.queue.collect(wait, self.idle_timeout)
        finally:
            self._waits.discard(wait)
        return received[0] if received else None

    async def _next_pushed(self, feed: LoopFeed) -> Message | None:
        try:
            async with asyncio.timeout(self.idle_timeout) as timeout, self._taking:
                while not self._ready:
                    messages = await feed.take(self._concurrency)
                    if not messages:
                        return None
                    self._ready.extend(messages)
                return self._ready.popleft()
        except TimeoutError:
            if not timeout.expired():
                raise
        # The last message may be on its way.
        async with self._taking:
            await feed.sync()
            self._ready.extend(await feed.take_now(self._concurrency) or ())
            return self._ready.popleft() if self._ready else None

    async def _close_feed(self) -> None:
        if self._feed is None:
            return
        self._feed.end()  # first: what is released must not come back
        unseen = list(self._ready)
        self._ready.clear()
        try:
            if unseen and not self.queue.closed:
                await self.queue.runner.in_thread(release_unseen, [message.delivery for message in unseen])
            await self._feed.close()
        except OpenQError as problem:
            log.warning("%d messages could not be returned: %s", len(unseen), problem)

    async def _handle(self, message: Message) -> None:
        heartbeat: Any = self.queue.core.handle.heartbeat if self._heartbeat else None
        if heartbeat is not None:
            heartbeat.hold(self.queue.name, message.delivery)
        try:
            await self.handler(message)
        except BaseException as error:
            if _is_cancelled(error) or not is_handler_failure(error):
                # Interrupted: return the message at once, before the cancellation continues.
                await self._release(message)
                raise
            self.failed += 1
            log.error("%s failed", describe_attempt(message, self.queue.name), exc_info=error)
            await self._settle(message, error)
        else:
            self.processed += 1
            await self._settle(message, None)
        finally:
            if heartbeat is not None:
                heartbeat.drop(message.delivery)

    async def _settle(self, message: Message, error: BaseException | None) -> None:
        if message.settled:
            return
        try:
            if error is None:
                await message.ack()
            else:
                await message.nack(reason=error)
        except Closed:
            raise
        except OpenQError as problem:
            # The lease ended while the handler ran: the message is or will be delivered again.
            log.warning("message %s could not be settled: %s", message.id, problem)

    async def _release(self, message: Message) -> None:
        if message.settled:
            return
        try:
            await message.release()
        except OpenQError as problem:
            log.warning("message %s could not be returned: %s", message.id, problem)


def _is_cancelled(error: BaseException) -> bool:
    """Whether this task itself is cancelled, and not one that the handler awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
