"""A flag that a thread can wait for."""

from __future__ import annotations

from threading import Lock


class WakeFlag:
    """One bare lock: released means raised. A third of the cost of `threading.Event`, which has a
    condition with a list of waiters inside; here only one thread ever waits."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def set(self) -> None:
        """Never blocks."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:
                pass  # another thread was faster

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is raised, and lower it. False when the time is over."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)
