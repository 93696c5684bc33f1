"""RabbitMQ's disk alarm: `connection.blocked` while the disk is full, and publishes that wait for space."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..server.context import ServerContext

if TYPE_CHECKING:
    from .connection import AmqpConnection

log = logging.getLogger("openq.amqp")

CHECK_S = 0.2
_REASON = "low on disk"


class DiskAlarm:
    """`connections`: all open connections."""

    def __init__(self, context: ServerContext, connections: Iterable[AmqpConnection]) -> None:
        self._context = context
        self._connections = connections
        self._is_raised = False

    def connection_opened(self, connection: AmqpConnection) -> None:
        if self._is_raised:
            connection.notify_blocked(_REASON)

    def raise_(self) -> None:
        """A publish found no space."""
        if self._is_raised:
            return
        self._is_raised = True
        log.warning("the disk is full: publishers are blocked, consumers continue")
        self._notify(_REASON)
        self._check_later()

    def _check_later(self) -> None:
        self._context.loop.call_later(CHECK_S, self._context.enter, self._check)

    def _check(self) -> None:
        is_full = self._context.broker.health().disk_full
        if not is_full:
            # The blocked publishes may need more space than there is now.
            for connection in list(self._connections):
                connection.run_in_order(connection.retry_blocked_publish)
            is_full = any(connection.has_blocked_publish for connection in self._connections)
        if is_full:
            self._check_later()
            return
        self._is_raised = False
        log.warning("the disk has space again: publishers are unblocked")
        self._notify(None)

    def _notify(self, reason: str | None) -> None:
        for connection in list(self._connections):
            connection.notify_blocked(reason)
