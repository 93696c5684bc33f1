"""A flag that a thread can wait for."""

from __future__ import annotations

from threading import Lock


class WakeFlag:
    """A flag made of one bare lock: released means set. It costs a third of `threading.Event`, which contains
    a condition with a list of waiters; here only one thread ever waits."""

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
                pass  # another thread has set it first

    def wait(self, seconds: float | None) -> bool:
        """Wait until the flag is set, and clear it. False on timeout."""
        return self._lock.acquire(timeout=-1 if seconds is None else seconds)
