"""One broker for all queue objects with the same target, closed with the last of them."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ..clock import Clock
from ..errors import Closed, InvalidSetting
from ..model import QueueSettings
from .feeds import NewFeed, WaitFeed
from .heartbeat import Heartbeat
from .interface import LibraryBroker
from .kv_waiting import KvWait, ThreadKvWait
from .settings import log_changes, merge_settings
from .waiting import ThreadWait

# Reentrant: the garbage collector may close a queue while this thread opens another.
_lock = threading.RLock()
_handles: dict[str, BrokerHandle] = {}
_opening_locks: dict[str, threading.Lock] = {}  # of targets that are opened without the lock above


class BrokerHandle:
    """A broker and the number of queue objects that use it."""

    wait_class: type[ThreadWait] = ThreadWait
    kv_wait_class: type[KvWait] = ThreadKvWait
    new_feed: NewFeed = staticmethod(WaitFeed)
    is_remote = False  # behind an OpenQ server
    is_shared_store = False  # other processes and machines use it too

    def __init__(self, broker: LibraryBroker, path: str | None = None, owned: bool = True) -> None:
        self.broker = broker
        self.path = path
        self.heartbeat = Heartbeat(broker)
        self._owned = owned
        self._users = 1
        self._closed = threading.Event()

    def is_private(self) -> bool:
        """In memory and used by one queue object: no other object can hold a lease."""
        return self._owned and self.path is None and self._users == 1

    @property
    def where(self) -> str:
        return self.path or "memory"

    def consumer_label(self, number: int) -> str | None:
        """The consumer name of one queue object's leases; None if no other object can hold one."""
        return None if self.is_private() else f"{os.getpid()}-{number}"

    def declare(self, name: str, dead_letter: str | None, named: Mapping[str, Any]) -> QueueSettings:
        """Create the queue and its dead-letter queue, or change the named settings."""
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
        """Before the last user leaves: stop what would keep the heartbeat from ending."""

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
        """Without the lock: this waits for threads that may be opening or closing a queue."""
        try:
            self._interrupt()
            self.heartbeat.stop()
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
        """`leave` for the garbage collector, which may run in a thread that holds one of the locks.

        It must not wait for a lock: a thread that opens a journal holds ours and waits for the threads of the
        journal; if the garbage collector waited for our lock in one of those, both would wait for ever.
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
            run_in_thread(self.leave)
        elif is_last:
            self._close()
            if _lock.acquire(blocking=False):
                try:
                    self._unregister()
                finally:
                    _lock.release()
            else:
                run_in_thread(self._unregister)


def run_in_thread(work: Callable[[], None]) -> None:
    """For the garbage collector, which must not wait."""
    threading.Thread(target=work, name="openq-close", daemon=True).start()


# The broker of this process is imported late: with its engine and journal it takes a third of the memory of a
# small program, which needs none of it when its queues are on a server or in Redis.


def open_memory(clock: Clock | None) -> BrokerHandle:
    from ..local.broker import LocalBroker

    return BrokerHandle(LocalBroker(clock=clock))


def wrap_broker(broker: LibraryBroker) -> BrokerHandle:
    """A broker that the caller made and will close."""
    return BrokerHandle(broker, owned=False)


def open_directory(path: str | os.PathLike[str], clock: Clock | None) -> BrokerHandle:
    from ..local.broker import LocalBroker

    real = os.path.realpath(path)
    handle = open_shared(real, lambda: BrokerHandle(LocalBroker(real, clock=clock), real))
    if clock is not None and clock is not handle.broker.clock:
        handle.leave()
        raise InvalidSetting(f"{real} is open in this process with another clock")
    return handle


def open_shared(key: str, make: Callable[[], BrokerHandle]) -> BrokerHandle:
    """The handle of a target; made if it is not open in this process."""
    while True:
        with _lock:
            handle = _handles.get(key)
            if handle is None:
                handle = _handles[key] = make()
                return handle
            if handle._users:
                return handle.join()
        handle._closed.wait()  # its last user is leaving: wait, then open it again


def open_shared_slowly(key: str, make: Callable[[], BrokerHandle]) -> BrokerHandle:
    """The same for a target that is slow to open: only threads that open the same one wait."""
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


def open_targets() -> list[str]:
    """The targets that are open in this process, other than queues in memory."""
    with _lock:
        return [handle.where for handle in _handles.values()]


def _close_all() -> None:
    with _lock:
        handle = list(_handles.values())
        _handles.clear()
    for each in handle:
        each._interrupt()
        each.heartbeat.stop()
        each.broker.close()


def _reset_in_child() -> None:
    # A forked child has neither the threads nor the directory: it must open its own.
    global _lock
    _lock = threading.RLock()
    _handles.clear()
    _opening_locks.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_in_child)
