"""How the event loop of a server uses the broker over Redis: in greenlets, which calls suspend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..broker.interface import Committed
from ..errors import OpenQError
from .net.greenlets import in_greenlet, spawn
from .store import RedisStore


class GreenletSession:
    """The `LoopSession` of a store whose calls wait, and which tracks what each greenlet wrote."""

    publish_later = ack_later = None  # the calls of all greenlets share round trips already

    def __init__(self, store: RedisStore) -> None:
        self._calls = store.calls
        self._is_durable = store.is_durable

    def enter(self, work: Callable[..., object], *arguments: Any) -> None:
        spawn(work, *arguments)

    def after_commit(self, callback: Committed, at: int | None = None) -> None:
        if not self._is_durable:
            callback(None)
            return

        def confirmed(error: OpenQError | None) -> None:
            # Called directly if nothing had to be awaited: the caller continues after the reply.
            if in_greenlet():
                callback(error)
            else:
                spawn(callback, error)

        self._calls.after_copies(confirmed)
