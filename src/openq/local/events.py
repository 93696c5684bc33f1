"""Events for listeners: published, received, acked, expired, requeued, dead-lettered, purged and so on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any

from ..broker.interface import Listener
from ..engine.engine import Engine

log = logging.getLogger("openq")


class EventFeed:
    """Collects events under the broker's lock and hands them to listeners without it."""

    __slots__ = ("_engine", "_listeners", "_lock", "on_observed", "pending")

    def __init__(self, engine: Engine, lock: Lock) -> None:
        self._engine = engine
        self._lock = lock
        self._listeners: list[Listener] = []
        self.pending: list[dict[str, Any]] = []
        self.on_observed: Callable[[bool], None] = lambda is_observed: None

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every change, in order, in the thread that made it.

        Returns a function that unsubscribes.
        """
        with self._lock:
            self._listeners.append(listener)
            self._engine.observer = self._observe
            self.on_observed(True)

        def unsubscribe() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)
                if not self._listeners:
                    self._engine.observer = None
                    self.on_observed(False)

        return unsubscribe

    def _observe(self, what: str, queue: str, message_id: str | None, now_ms: int, detail: str) -> None:
        """Lock held: only collect the event, because listeners may call back into the broker."""
        self.pending.append(
            {"event": what, "queue": queue, "id": message_id, "time_ms": now_ms, "detail": detail}
        )

    def publish(self) -> None:
        """Lock not held. Hand pending events to the listeners."""
        if not self.pending:
            return
        with self._lock:
            events, self.pending = self.pending, []
            listeners = list(self._listeners)
        for event in events:
            for listener in listeners:
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", event["event"])
