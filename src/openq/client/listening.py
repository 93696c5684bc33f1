"""`queue.listen`: messages as they come, for a loop or for a handler."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from ..errors import OpenQError
from . import checks
from .consumer import Consumer
from .feeds import Feed, FeedOptions
from .handle import run_in_thread
from .message import ReceivedMessage
from .receiving import collect_from
from .times import to_ms

if TYPE_CHECKING:
    from .core import QueueCore
    from .queues import Queue

CHECK_S = 0.02  # how often settled messages are looked for, while the caller holds all that it may


def listen(
    queue: Queue,
    handler: Callable[[ReceivedMessage], object] | None,
    prefetch: int,
    visibility_timeout: float | None,
    heartbeat: bool,
    types: Iterable[str] | None,
    attributes: Mapping[str, object] | None,
    consumer: str | None,
) -> Listener | Consumer:
    """See `Queue.listen`."""
    checks.integer(prefetch, "prefetch", 1)
    if handler is not None:
        started = Consumer(
            queue,
            handler,
            idle_timeout=None,
            visibility_timeout=visibility_timeout,
            heartbeat=heartbeat,
            batch=prefetch,
            types=types,
            attributes=attributes,
            name=consumer,
        )
        started.start()
        return started
    if visibility_timeout is not None:
        to_ms(visibility_timeout, "visibility_timeout")
    checks.text_or_none(consumer, "consumer")
    wanted = checks.message_filter(types, attributes)
    return Listener(queue, FeedOptions(prefetch, visibility_timeout, heartbeat, wanted, consumer))


class ListeningQueue(Protocol):
    """A queue object of threads or of asyncio."""

    name: str
    core: QueueCore


class Unsettled:
    """The messages that a caller holds, so that no more than `prefetch` are taken."""

    def __init__(self, queue: ListeningQueue, options: FeedOptions) -> None:
        self._queue = queue
        self._options = options
        self._messages: list[ReceivedMessage] = []

    def add(self, messages: Iterable[ReceivedMessage]) -> None:
        heartbeat = self._queue.core.handle.heartbeat
        for message in messages:
            self._messages.append(message)
            if self._options.heartbeat:
                heartbeat.hold(self._queue.name, message.delivery, message)

    def room(self) -> int:
        """How many more may be taken. Messages that were settled, or whose lease ended, count no more."""
        held: list[ReceivedMessage] = []
        now_ms = 0
        if len(self._messages) >= self._options.prefetch:
            # A server would have to be asked for its time.
            core = self._queue.core
            now_ms = round(time.time() * 1000) if core.handle.is_remote else core.broker.now_ms()
        for message in self._messages:
            if message.settled or 0 < message.delivery.until_ms <= now_ms:
                self._queue.core.handle.heartbeat.drop(message.delivery)
            else:
                held.append(message)
        self._messages = held
        return self._options.prefetch - len(held)

    def remove(self, messages: Iterable[ReceivedMessage]) -> None:
        unseen = set(map(id, messages))
        for message in self._messages:
            if id(message) in unseen:
                self._queue.core.handle.heartbeat.drop(message.delivery)
        self._messages = [each for each in self._messages if id(each) not in unseen]


class Listener:
    """An iterator over messages; `close` ends it, from any thread. Ack each message.

    Closing returns the messages that the loop has not seen, uncounted. Those it has seen stay with it until
    they are settled. A listener that is left by `break`, and that nothing refers to, is closed too.
    """

    def __init__(self, queue: Queue, options: FeedOptions) -> None:
        queue.core.check_not_forked()
        self._pid = os.getpid()
        self._queue = queue
        self._options = options
        self._ready: deque[ReceivedMessage] = deque()
        self._unsettled = Unsettled(queue, options)
        self._feed: Feed | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()  # one thread at a time takes

    def __iter__(self) -> Listener:
        return self

    def __next__(self) -> ReceivedMessage:
        with self._lock:
            while not self._ready:
                if self._closing.is_set():
                    raise StopIteration
                self._fill()
            return self._ready.popleft()

    def _fill(self) -> None:
        feed = self._feed
        if feed is None:
            core = self._queue.core
            feed = self._feed = core.handle.new_feed(core, self._options)
        if self._closing.is_set():
            return  # `close` sets its flag before it looks for a feed: one of the two sees the other
        room = self._unsettled.room()
        if feed.limits_itself:
            room = self._options.prefetch
        else:
            while room <= 0 and not self._closing.wait(CHECK_S):
                room = self._unsettled.room()
        if room <= 0:
            return
        try:
            messages = collect_from(self._queue, feed, room, None)
        except BaseException:
            self._feed = None
            feed.close()
            raise
        self._unsettled.add(messages)
        self._ready.extend(messages)

    def close(self) -> None:
        self._closing.set()
        feed = self._feed
        if feed is not None:
            feed.end()
        with self._lock:
            unseen = list(self._ready)
            self._ready.clear()
            self._unsettled.remove(unseen)
            if unseen and not self._queue.closed:
                self._queue.core.release_unseen([message.delivery for message in unseen])
            feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _close_unused(self) -> None:
        try:
            self.close()
        except OpenQError:
            pass  # its leases end by themselves

    def __del__(self) -> None:
        if getattr(self, "_pid", 0) != os.getpid() or sys.is_finalizing():
            return  # of a forked child: the connection is the parent's
        if self._feed is not None and not self._closing.is_set() and not self._queue.closed:
            run_in_thread(self._close_unused)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.close()
