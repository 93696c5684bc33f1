"""The thread that handles deadlines: leases end, delays come due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("openq")

_LONGEST_S = 3600.0


class Ticker:
    """Sleeps until `at_ms` of its owner's clock, or until woken. Started only when needed."""

    def __init__(self, tick: Callable[[], int]) -> None:
        self._tick = tick  # does the work, returns the milliseconds until the next deadline
        self._event = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.at_ms = 0  # a ticker that does not run needs no wake-up

    def start(self) -> None:
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="openq-ticker", daemon=True)
                self._thread.start()

    def wake(self) -> None:
        self._event.set()

    def stop(self) -> None:
        with self._starting:  # a thread that is being started could not be joined
            self._stopping = True
        self._event.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping:
            try:
                wait_ms = self._tick()
            except Exception:
                # Any exception here is a bug, but a dead ticker would hide every later expiry.
                log.exception("the ticker failed; it goes on")
                wait_ms = 1000
            self._event.wait(min(max(wait_ms, 0) / 1000, _LONGEST_S))
            self._event.clear()  # after the wait: a wake-up during the tick must not be lost
