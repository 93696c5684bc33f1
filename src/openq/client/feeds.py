"""Feeds: messages of one queue for a consumer that goes on and on.

`queue.listen` and `Consumer` take messages from a feed. In this process and on Redis a feed is one wait after
the other (`WaitFeed`). Behind a server it is a subscription of the WebSocket stream (`stream_feed.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..model import Delivery, MessageFilter

if TYPE_CHECKING:
    from .core import QueueCore
    from .message import ReceivedMessage
    from .waiting import ThreadWait


class FeedOptions(NamedTuple):
    """What a feed delivers. `heartbeat`: leases last as long as the consumer lives."""

    prefetch: int
    visibility_timeout: float | None
    heartbeat: bool
    wanted: MessageFilter | None
    consumer: str | None
    on_demand: bool = False  # no more than `take` asks for: nothing is sent ahead, and `prefetch` is not used
    keeps_leases: bool = False  # leases outlive a connection that is lost, and end by their time


class Feed(Protocol):
    on_ready: Callable[[], None] | None  # called in any thread when messages came without a `take`

    @property
    def limits_itself(self) -> bool: ...  # never more than `prefetch` messages are unsettled

    @property
    def leased_s(self) -> float: ...  # `time.monotonic` before the oldest lease of the last `take` began

    def take(self, limit: int, timeout: float | None) -> list[Delivery]:
        """Up to `limit` messages as soon as there is one; none after `timeout` seconds or after `end`."""

    def pause(self) -> list[Delivery]:
        """On demand: get nothing more until the next `take`. What has come meanwhile is returned."""

    def finish(self, message: ReceivedMessage) -> None:
        """Ack a message whose handler is done. It may return before the ack is durable; `close` waits."""

    def end(self) -> None:
        """End a `take` that waits, and all later ones. From any thread."""

    def close(self) -> None:
        """Release what was not taken. Messages that were taken stay with their consumer."""


class WaitFeed:
    """One wait after the other. Several threads may take."""

    limits_itself = False
    on_ready: Callable[[], None] | None = None

    def __init__(self, core: QueueCore, options: FeedOptions) -> None:
        self._core = core
        self._options = options
        self._waits: set[ThreadWait] = set()
        self._is_ended = False
        self.leased_s = 0.0

    def take(self, limit: int, timeout: float | None) -> list[Delivery]:
        options = self._options
        wait = self._core.new_wait(limit, options.visibility_timeout, options.wanted, options.consumer)
        self._waits.add(wait)
        try:
            # `end` sets its flag before it looks for waits, so one of the two sees the other.
            if self._is_ended:
                return []
            self.leased_s = time.monotonic()
            return wait.poll() if timeout is not None and timeout <= 0 else wait.wait(timeout)
        finally:
            self._waits.discard(wait)

    def pause(self) -> list[Delivery]:
        return []

    def finish(self, message: ReceivedMessage) -> None:
        message.ack()

    def end(self) -> None:
        self._is_ended = True
        for wait in self._waits.copy():
            wait.end()

    def close(self) -> None:
        self.end()


NewFeed = Callable[["QueueCore", FeedOptions], Feed]
