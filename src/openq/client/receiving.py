"""Receiving messages: from a wait to the messages it returns, and `Queue.processing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .feeds import Feed
from .message import ReceivedMessage
from .waiting import ThreadWait

if TYPE_CHECKING:
    from .queues import Queue


def collect(queue: Queue, wait: ThreadWait, timeout: float | None) -> list[ReceivedMessage]:
    """The messages that come within `timeout` seconds (None: wait for ever)."""
    core = queue.core
    while True:
        deliveries = wait.poll() if timeout is not None and timeout <= 0 else wait.wait(timeout)
        if not deliveries:
            return []
        deliveries = core.load(deliveries)
        if core.broker.observed:
            core.broker.announce()
        if deliveries:
            return [ReceivedMessage(queue, delivery) for delivery in deliveries]
        # None of them is readable, and all are set aside: try the messages behind them.


def collect_from(queue: Queue, feed: Feed, limit: int, timeout: float | None) -> list[ReceivedMessage]:
    """Like `collect`, from a feed."""
    core = queue.core
    while True:
        deliveries = feed.take(limit, timeout)
        if not deliveries:
            return []
        deliveries = core.load(deliveries)
        if core.broker.observed:
            core.broker.announce()
        if deliveries:
            return [ReceivedMessage(queue, delivery) for delivery in deliveries]


class Processing:
    """One message from receive to ack; see `Queue.processing`."""

    def __init__(self, queue: Queue, wait: ThreadWait, timeout: float | None, heartbeat: bool) -> None:
        self._queue = queue
        self._wait = wait
        self._timeout = timeout
        self._heartbeat = heartbeat
        self._message: ReceivedMessage | None = None

    def __enter__(self) -> ReceivedMessage | None:
        received = collect(self._queue, self._wait, self._timeout)
        if not received:
            return None
        self._message = received[0]
        if self._heartbeat:
            self._queue.core.handle.heartbeat.hold(self._queue.name, self._message.delivery)
        return self._message

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        message = self._message
        if message is None:
            return
        try:
            message.__exit__(kind, error, trace)
        finally:
            if self._heartbeat:
                self._queue.core.handle.heartbeat.drop(message.delivery)
