"""The events `consumer_joined` and `consumer_left`, recorded a moment later and together.

Recording is not part of the path of a consumer: the events of a moment are written by one thread call. A
consumer that joined and left within that moment leaves no trace, so that a client that subscribes in a loop
does not fill the disk.
"""

from __future__ import annotations

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
        pending, self._pending = self._pending, {}
        if not pending:
            return
        events = self._context.broker.events

        def record() -> None:
            for (queue_key, label, protocol), event in pending.items():
                events.add(event, queue_key, {"consumer": label, "protocol": protocol})

        def recorded(_: None, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, OpenQError):
                raise error

        try:
            self._context.run(record, recorded)
        except RuntimeError:
            pass  # the server stops
