"""One broker for all queue objects that mean the same place, closed when the last one closes."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from ..broker.local import LocalBroker
from ..clock import Clock
from ..errors import InvalidSetting
from .heartbeat import Heartbeat

# Reentrant: the garbage collector may close a forgotten queue while this thread opens another.
_lock = threading.RLock()
_open: dict[str, Shared] = {}


class Shared:
    """A broker, and how many queue objects use it."""

    def __init__(self, broker: LocalBroker, path: str | None = None, owned: bool = True) -> None:
        self.broker = broker
        self.path = path
        self.heartbeat = Heartbeat(broker)
        self._owned = owned
        self._users = 1
        self._closed = threading.Event()

    def is_private(self) -> bool:
        """In memory, and so far with one queue object: nobody else can hold a lease in it."""
        return self._owned and self.path is None and self._users == 1

    def join(self) -> Shared:
        with _lock:
            self._users += 1
        return self

    def leave(self) -> None:
        with _lock:
            self._users -= 1
            if self._users:
                return
        # Without the lock: this waits for threads that may be about to open or close a queue themselves.
        self.heartbeat.stop()
        try:
            if self._owned:
                self.broker.close()
        finally:
            with _lock:
                if self.path is not None and _open.get(self.path) is self:
                    del _open[self.path]
            self._closed.set()

    def abandon(self) -> None:
        """`leave`, for the garbage collector, which may run anywhere: even where the lock is held."""
        if sys.is_finalizing():
            return
        if self.broker.lock.acquire(blocking=False):
            self.broker.lock.release()
            self.leave()
        else:
            threading.Thread(target=self.leave, name="openq-close", daemon=True).start()


def in_memory(clock: Clock | None) -> Shared:
    return Shared(LocalBroker(clock=clock))


def around(broker: LocalBroker) -> Shared:
    """A broker that somebody else made and will close."""
    return Shared(broker, owned=False)


def on_disk(path: str | os.PathLike[str], clock: Clock | None) -> Shared:
    real = os.path.realpath(path)
    while True:
        with _lock:
            shared = _open.get(real)
            if shared is None:
                shared = _open[real] = Shared(LocalBroker(real, clock=clock), real)
                return shared
            if shared._users:
                if clock is not None and clock is not shared.broker.clock:
                    raise InvalidSetting(f"{real} is open in this process with another clock")
                return shared.join()
        shared._closed.wait()  # its last user is leaving; then the directory is free


def _close_all() -> None:
    with _lock:
        shared = list(_open.values())
        _open.clear()
    for each in shared:
        each.heartbeat.stop()
        each.broker.close()


def _forget_in_child() -> None:
    # A forked child has none of the threads and not the directory either: it must open its own.
    global _lock
    _lock = threading.RLock()
    _open.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
