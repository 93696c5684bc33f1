"""One broker for all queue objects that mean the same place, closed when the last one closes."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..clock import Clock
from ..errors import Closed, InvalidSetting
from ..local.broker import LocalBroker
from ..model import QueueSettings
from .heartbeat import Heartbeat
from .interface import LibraryBroker
from .settings import log_changes, merge_settings
from .waiting import ThreadWait

# Reentrant: the garbage collector may close a forgotten queue while this thread opens another.
_lock = threading.RLock()
_handles: dict[str, BrokerHandle] = {}
_opening_locks: dict[str, threading.Lock] = {}  # of places that are opened without the lock above


class BrokerHandle:
    """A broker, and how many queue objects use it."""

    wait_class: type[ThreadWait] = ThreadWait
    is_remote = False  # behind a server of ours
    is_shared_store = False  # others write there too, from anywhere

    def __init__(self, broker: LibraryBroker, path: str | None = None, owned: bool = True) -> None:
        self.broker = broker
        self.path = path
        self.heartbeat = Heartbeat(broker)
        self._owned = owned
        self._users = 1
        self._closed = threading.Event()

    def is_private(self) -> bool:
        """In memory, and so far with one queue object: nobody else can hold a lease in it."""
        return self._owned and self.path is None and self._users == 1

    @property
    def where(self) -> str:
        return self.path or "memory"

    def consumer_label(self, number: int) -> str | None:
        """What the leases of one queue object are known by, where others may hold some too."""
        return None if self.is_private() else f"{os.getpid()}-{number}"

    def declare(self, name: str, dead_letter: str | None, named: Mapping[str, Any]) -> QueueSettings:
        """The queue and its dead letters, made or changed as far as something is named."""
        broker = self.broker
        existing = broker.queues()
        if dead_letter is not None and dead_letter not in existing:
            broker.declare(dead_letter, merge_settings(None, {}))
        stored = broker.settings(name) if name in existing else None
        settings = broker.declare(name, merge_settings(stored, named), change=True)
        broker.sync()
        log_changes(name, stored, settings)
        return settings

    def _interrupt(self) -> None:
        """The last one leaves: whatever would keep the heartbeat from ending is to stop."""

    def join(self) -> BrokerHandle:
        with _lock:
            if not self._users:
                raise Closed()
            self._users += 1
        return self

    def leave(self) -> None:
        with _lock:
            self._users -= 1
            if self._users:
                return
        self._close()
        self._unregister()

    def _close(self) -> None:
        """Without the lock: this waits for threads that may be about to open or close a queue themselves."""
        self._interrupt()
        self.heartbeat.stop()
        try:
            if self._owned:
                self.broker.close()
        except BaseException:
            self._unregister()
            raise

    def _unregister(self) -> None:
        with _lock:
            if self.path is not None and _handles.get(self.path) is self:
                del _handles[self.path]
        self._closed.set()

    def leave_from_gc(self) -> None:
        """`leave`, for the garbage collector, which may run anywhere: even where one of the locks is held.

        It must not wait for them either. Whoever opens a journal holds ours and waits for the threads of
        that journal; if one of those came here and waited in turn, both would wait for ever.
        """
        if sys.is_finalizing():
            return
        is_free = is_last = False
        if _lock.acquire(blocking=False):
            try:
                is_free = self.broker.is_free()
                if is_free:
                    self._users -= 1
                    is_last = not self._users
            finally:
                _lock.release()
        if not is_free:
            _in_thread(self.leave)
        elif is_last:
            self._close()
            if _lock.acquire(blocking=False):
                try:
                    self._unregister()
                finally:
                    _lock.release()
            else:
                _in_thread(self._unregister)


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="openq-close", daemon=True).start()


def open_memory(clock: Clock | None) -> BrokerHandle:
    return BrokerHandle(LocalBroker(clock=clock))


def wrap_broker(broker: LibraryBroker) -> BrokerHandle:
    """A broker that somebody else made and will close."""
    return BrokerHandle(broker, owned=False)


def open_directory(path: str | os.PathLike[str], clock: Clock | None) -> BrokerHandle:
    real = os.path.realpath(path)
    handle = open_shared(real, lambda: BrokerHandle(LocalBroker(real, clock=clock), real))
    if clock is not None and clock is not handle.broker.clock:
        handle.leave()
        raise InvalidSetting(f"{real} is open in this process with another clock")
    return handle


def open_shared(key: str, make: Callable[[], BrokerHandle]) -> BrokerHandle:
    """The place of that name, made if it is not open in this process."""
    while True:
        with _lock:
            handle = _handles.get(key)
            if handle is None:
                handle = _handles[key] = make()
                return handle
            if handle._users:
                return handle.join()
        handle._closed.wait()  # its last user is leaving; then the place is free


def open_shared_slowly(key: str, make: Callable[[], BrokerHandle]) -> BrokerHandle:
    """The same for a place that may keep us waiting: only those who want this very one wait with us."""
    with _lock:
        gate = _opening_locks.setdefault(key, threading.Lock())
    with gate:
        with _lock:
            found = _handles.get(key)
            is_open = found is not None and bool(found._users)
        if is_open:
            return open_shared(key, make)
        made = make()
        return open_shared(key, lambda: made)


def _close_all() -> None:
    with _lock:
        handle = list(_handles.values())
        _handles.clear()
    for each in handle:
        each._interrupt()
        each.heartbeat.stop()
        each.broker.close()


def _reset_in_child() -> None:
    # A forked child has none of the threads and not the directory either: it must open its own.
    global _lock
    _lock = threading.RLock()
    _handles.clear()
    _opening_locks.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
