"""One log line when the broker becomes unreachable, one when it is back."""

from __future__ import annotations

import logging
import threading
import time

from ..client.http import Refused, TimedOut, Uncertain, Unreachable
from ..errors import (
    Closed,
    MessageNotFoundError,
    OpenQError,
    QueueNotFound,
    StoreError,
    VisibilityTimeoutExpired,
)

log = logging.getLogger("openq.worker")

# The message is with another worker, or gone: trying again cannot help.
LEASE_LOST = (VisibilityTimeoutExpired, MessageNotFoundError, QueueNotFound)
RETRY_PAUSE_S = 1.0


class Outage:
    """Shared by the parts of a worker that call the broker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: float | None = None

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def began(self, error: OpenQError) -> None:
        with self._lock:
            if self._since is not None:
                return
            self._since = time.monotonic()
        log.error("the broker cannot be used, trying again: %s: %s", type(error).__name__, error)

    def ended(self) -> None:
        if self._since is None:
            return
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            log.info("the broker is back after %.0f s", time.monotonic() - since)


def is_lost(error: BaseException) -> bool:
    return isinstance(error, LEASE_LOST)


def is_transient(error: BaseException) -> bool:
    """Whether the broker may be reachable later."""
    if isinstance(error, Refused):
        return error.status >= 500
    if isinstance(error, StoreError):
        return error.may_pass
    return isinstance(error, Unreachable | Uncertain | TimedOut)


def is_closed(error: BaseException) -> bool:
    return isinstance(error, Closed)
