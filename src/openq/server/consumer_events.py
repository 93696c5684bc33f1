"""The events `consumer_joined` and `consumer_left`, recorded a moment later and together.

Recording is not part of the path of a consumer: the events of a moment are written by one thread call. A
consumer that joined and left within that moment leaves no trace, so that a client that subscribes in a loop
does not fill the disk.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..broker.events import CONSUMER_JOINED, CONSUMER_LEFT
from ..errors import OpenQError

if TYPE_CHECKING:
    from .context import ServerContext

DELAY_S = 0.05
MAX_PENDING = 10_000  # events of one moment; the rest is dropped

Consumer = tuple[str, str, str]  # queue key, label, protocol


class ConsumerEvents:
    """Called on the loop."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._pending: dict[Consumer, str] = {}
        self._due: deque[tuple[Consumer, str]] = deque()  # taken by the thread that records
        self._is_scheduled = False

    def joined(self, queue_key: str, label: str, protocol: str) -> None:
        self._add((queue_key, label, protocol), CONSUMER_JOINED)

    def left(self, queue_key: str, label: str, protocol: str) -> None:
        self._add((queue_key, label, protocol), CONSUMER_LEFT)

    def _add(self, consumer: Consumer, event: str) -> None:
        before = self._pending.pop(consumer, None)
        if before == CONSUMER_JOINED and event == CONSUMER_LEFT:
            return
        if len(self._pending) < MAX_PENDING:
            self._pending[consumer] = event
        if not self._is_scheduled:
            self._is_scheduled = True
            self._context.loop.call_later(DELAY_S, self._record)

    def _record(self) -> None:
        self._is_scheduled = False
        self._due.extend(self._pending.items())
        self._pending.clear()
        if not self._due:
            return

        def recorded(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, OpenQError):
                raise error

        try:
            self._context.run(self._record_due, recorded)
        except RuntimeError:
            pass  # the server stops: `finish` records the rest

    def _record_due(self) -> None:
        """In a thread. Raises OpenQError."""
        events = self._context.broker.events
        while True:
            try:
                (queue_key, label, protocol), event = self._due.popleft()
            except IndexError:
                return
            events.add(event, queue_key, {"consumer": label, "protocol": protocol})

    def finish(self) -> None:
        """In a thread, when the loop has ended all consumers and before the broker is closed: all of them
        left. Raises OpenQError."""
        self._due.extend(self._pending.items())
        self._pending.clear()
        self._record_due()
