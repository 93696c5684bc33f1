"""Runs the work of one connection in order, although each piece may be suspended.

AMQP and the WebSocket stream process the frames of a connection in the order in which they were sent. While
a call of the broker is suspended, the loop may bring the next bytes: they wait here.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("openq.server")


class SerialRunner:
    def __init__(self, enter: Callable[..., None]) -> None:
        self._enter = enter
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._running = False

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """Run it now, or after all work that is waiting."""
        self._waiting.append((work, arguments))
        if not self._running:
            self._running = True
            self._enter(self._run)

    def _run(self) -> None:
        try:
            while self._waiting:
                work, arguments = self._waiting.popleft()
                try:
                    work(*arguments)
                except Exception:
                    log.exception("the work of a connection failed")
        finally:
            self._running = False


def run_now(work: Callable[..., object], *arguments: Any) -> None:
    """For brokers that never suspend their caller."""
    work(*arguments)
