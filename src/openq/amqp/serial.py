"""What one connection does, one piece after the other, although each may wait for the store.

AMQP promises that what a client says on a connection is done in the order in which it was said. Where a verb
of the broker suspends its caller, the loop brings the next bytes meanwhile: they wait here for their turn.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("openq.amqp")


class SerialRunner:
    def __init__(self, enter: Callable[..., None]) -> None:
        self._enter = enter
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._running = False

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """Now if nothing is going on, else after all that came before."""
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
                    log.exception("a piece of a connection's work failed")
        finally:
            self._running = False


def run_now(work: Callable[..., object], *arguments: Any) -> None:
    """Where nothing waits, everything has its turn at once."""
    work(*arguments)
