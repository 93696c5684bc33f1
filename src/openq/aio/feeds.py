"""The stream of a queue on a server, for the tasks of one loop: `StreamFeed` without a thread that waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ..client.feeds import FeedOptions

if TYPE_CHECKING:
    from ..client.stream_feed import StreamFeed
    from .message import Message
    from .queue import Queue


class LoopFeed:
    """One task at a time calls `open` and `take`."""

    def __init__(self, queue: Queue, options: FeedOptions) -> None:
        self._queue = queue
        self._options = options
        self._feed: StreamFeed | None = None
        self._arrived = asyncio.Event()

    async def open(self) -> bool:
        """Connect, unless it is connected. False: the server has no stream, and is to be polled."""
        if self._feed is None:
            from ..client.stream_feed import StreamFeed

            feed = self._feed = StreamFeed(self._queue.core, self._options)
            loop = asyncio.get_running_loop()
            arrived = self._arrived  # not self: the feed must not keep an unused listener

            def ready() -> None:
                try:
                    loop.call_soon_threadsafe(arrived.set)
                except RuntimeError:
                    pass  # the loop is closed

            feed.on_ready = ready
            try:
                await asyncio.to_thread(feed.start)
            except BaseException:
                self._feed = None
                raise
        return self._feed.limits_itself

    async def take(self, limit: int) -> list[Message]:
        """The next messages; none after `end`. After an error, `open` connects again."""
        while True:
            self._arrived.clear()
            messages = await self.take_now(limit)
            if messages is None or messages:
                return messages or []
            await self._arrived.wait()

    async def take_now(self, limit: int) -> list[Message] | None:
        """Without waiting; None after `end`."""
        from .message import Message

        feed = self._feed
        if feed is None:
            return None
        try:
            taken = feed.take_now(limit)
        except BaseException:
            self._feed = None
            await asyncio.to_thread(feed.close)
            raise
        return None if taken is None else [Message(self._queue, delivery) for delivery in taken]

    async def sync(self) -> None:
        """Return when everything that is ready for this feed now has arrived."""
        if self._feed is not None:
            await asyncio.to_thread(self._feed.sync)

    def end(self) -> None:
        if self._feed is not None:
            self._feed.end()

    async def close(self) -> None:
        """Release what was not taken."""
        feed, self._feed = self._feed, None
        if feed is not None:
            await asyncio.to_thread(feed.close)
