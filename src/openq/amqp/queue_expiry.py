"""Queues with `x-expires`: deleted when they were not used for that time.

Use is a declare, a consumer, a basic.get, or a delivery through any protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ..broker.interface import KnownQueue
from ..errors import OpenQError
from ..server.context import ServerContext
from .arguments import declaration_of, expires_ms
from .errors import AmqpError

log = logging.getLogger("openq.amqp")


class _Expiry:
    __slots__ = ("after_s", "delivered", "due_s", "number", "timer")

    def __init__(self, number: int, after_s: float) -> None:
        self.number = number  # of the queue: a later queue of the same name has another one
        self.after_s = after_s
        self.delivered = 0  # deliveries at the last check
        self.due_s = 0.0
        self.timer: asyncio.TimerHandle | None = None


class QueueExpiry:
    """`find` and `delete` take the key of a queue and raise AmqpError."""

    def __init__(
        self,
        context: ServerContext,
        *,
        find: Callable[[str], KnownQueue | None],
        delete: Callable[[str], object],
        has_consumers: Callable[[str], bool],
    ) -> None:
        self._context = context
        self._find = find
        self._delete = delete
        self._has_consumers = has_consumers
        self._expiries: dict[str, _Expiry] = {}

    def close(self) -> None:
        for queue_key in list(self._expiries):
            self.stop(queue_key)

    def mark_used(self, queue_key: str) -> None:
        expiry = self._expiries.get(queue_key)
        if expiry is not None:
            expiry.due_s = self._context.loop.time() + expiry.after_s

    def start(self, queue_key: str) -> None:
        """Call it when a queue is declared or its policy changes."""
        found = self._find(queue_key)
        after_ms = None if found is None else expires_ms(declaration_of(found.settings))
        known = self._expiries.get(queue_key)
        if known is not None:
            is_same = found is not None and known.number == found.number
            if is_same and after_ms is not None and known.after_s == after_ms / 1000:
                return
            self.stop(queue_key)
        if found is not None and after_ms is not None:
            expiry = self._expiries[queue_key] = _Expiry(found.number, after_ms / 1000)
            expiry.delivered = self._usage(queue_key)[0]
            self.mark_used(queue_key)
            self._check_later(queue_key, expiry, expiry.after_s)

    def stop(self, queue_key: str) -> None:
        expiry = self._expiries.pop(queue_key, None)
        if expiry is not None and expiry.timer is not None:
            expiry.timer.cancel()

    def _check_later(self, queue_key: str, expiry: _Expiry, after_s: float) -> None:
        expiry.timer = self._context.loop.call_later(after_s, self._context.enter, self._check, queue_key)

    def _usage(self, queue_key: str) -> tuple[int, int]:
        """Deliveries so far, and receivers that wait now, of all protocols."""
        try:
            stats = self._context.broker.stats(queue_key)
        except OpenQError:
            return 0, 0
        return stats.counters["delivered"], stats.waiters

    def _check(self, queue_key: str) -> None:
        expiry = self._expiries.get(queue_key)
        if expiry is None:
            return
        try:
            found = self._find(queue_key)
            if found is None or found.number != expiry.number:  # deleted through another protocol
                self.stop(queue_key)
                return
        except AmqpError:
            return  # the server stops
        delivered, waiters = self._usage(queue_key)
        if self._has_consumers(queue_key) or waiters or delivered != expiry.delivered:
            expiry.delivered = delivered
            self.mark_used(queue_key)
        left_s = expiry.due_s - self._context.loop.time()
        if left_s > 0:
            self._check_later(queue_key, expiry, left_s)
            return
        try:
            self._delete(queue_key)
        except AmqpError as error:
            log.error("expired queue %r cannot be deleted: %s", queue_key, error.text)
            self.mark_used(queue_key)
            self._check_later(queue_key, expiry, expiry.after_s)
