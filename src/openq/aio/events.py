"""`async for event in queue.events()`: one thread for each stream reads, one page ahead of the task."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..client.event_pages import GAP, EventPages
from ..client.events import QueueEvent, make_event


class AsyncEventStream:
    """An asynchronous iterator over events; see `openq.EventStream`. For one task."""

    def __init__(self, queue: Any, open_pages: Callable[[], EventPages]) -> None:
        self._queue = queue
        self._open_pages = open_pages
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pages: EventPages | None = None
        self._ready: deque[QueueEvent] = deque()
        self._wanted = threading.Event()  # the task has taken everything
        self._arrived = asyncio.Event()
        self._is_closed = self._is_over = False
        self._error: BaseException | None = None
        self._position: str | None = None

    @property
    def position(self) -> str | None:
        """The id after which the stream continues."""
        return self._position

    def __aiter__(self) -> AsyncEventStream:
        return self

    async def __anext__(self) -> QueueEvent:
        await self._start()
        while not self._ready:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._is_over or self._is_closed:
                raise StopAsyncIteration
            self._arrived.clear()
            self._wanted.set()
            await self._arrived.wait()
        event = self._ready.popleft()
        if event.event != GAP:
            self._position = event.id
        return event

    async def _start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            threading.Thread(target=self._read, name="openq-events", daemon=True).start()

    async def begin(self) -> AsyncEventStream:
        """Return once the position from which the stream reads is fixed: later events will be in it."""
        await self._start()
        while self._pages is None and self._error is None and not self._is_over:
            self._arrived.clear()
            await self._arrived.wait()
        return self

    async def __aenter__(self) -> AsyncEventStream:
        return await self.begin()

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the iteration, also of a task that waits for the next event."""
        self._is_closed = True
        self._wanted.set()
        self._arrived.set()
        if self._pages is not None:
            self._pages.close()

    # -- the thread

    def _read(self) -> None:
        try:
            pages = self._open_pages()
            if not self._call(self._opened, pages):
                pages.close()
                return
            while (page := pages.next_page()) is not None:
                if not page:
                    continue
                events = [make_event(self._queue, item) for item in page]
                self._wanted.wait()
                self._wanted.clear()
                if self._is_closed or not self._call(self._take, events):
                    break
            pages.close()
        except BaseException as error:
            self._call(self._fail, error)
        self._call(self._end)

    def _call(self, function: Callable[..., None], *arguments: Any) -> bool:
        """On the loop. False if it is closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            return False
        return True

    def _opened(self, pages: EventPages) -> None:
        self._pages = pages
        self._position = pages.position
        self._arrived.set()
        if self._is_closed:
            pages.close()

    def _take(self, events: list[QueueEvent]) -> None:
        self._ready.extend(events)
        self._arrived.set()

    def _fail(self, error: BaseException) -> None:
        if not self._is_closed:
            self._error = error

    def _end(self) -> None:
        self._is_over = True
        self._arrived.set()
