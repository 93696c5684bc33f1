"""Waiting for a key of a bucket: without polling, and ended by closing the queue object."""

from __future__ import annotations

import threading
import time

from ..broker.kv import KeyValues, KvEntry, KvWaiter
from ..errors import Closed, StoreUnavailable
from ..model import Delivery
from .waiting import WaitRegistry


class KvWait:
    """One call that waits until a key has a greater version."""

    def __init__(self, kv: KeyValues, bucket: str, key: str, version: int, waits: WaitRegistry) -> None:
        self._kv = kv
        self._bucket = bucket
        self._key = key
        self._version = version
        self._waits = waits
        self._ended = False

    def wait(self, timeout: float | None) -> KvEntry | None:
        """The entry, or None when the timeout is over or the queue object was closed. None waits for ever."""
        self._waits.add(self)
        try:
            return self._wait(None if timeout is None else time.monotonic() + timeout)
        except (Closed, StoreUnavailable):
            if not self._ended:
                raise
            return None  # closing the queue object cut a call off
        finally:
            self._waits.finish(self)

    def _wait(self, deadline: float | None) -> KvEntry | None:
        raise NotImplementedError

    def take_served(self) -> list[Delivery]:
        return []  # nothing that had to be returned: a value stays where it is

    def end(self) -> None:
        """End the wait, from any thread."""
        raise NotImplementedError


class ThreadKvWait(KvWait):
    """A wait of a thread in the process of the broker."""

    def __init__(self, kv: KeyValues, bucket: str, key: str, version: int, waits: WaitRegistry) -> None:
        super().__init__(kv, bucket, key, version, waits)
        self._changed = threading.Event()

    def _wait(self, deadline: float | None) -> KvEntry | None:
        waiter = KvWaiter(self._bucket, self._key, self._changed.set)
        entry: KvEntry | None = None
        try:
            while entry is None:
                self._changed.clear()
                # Checked after clearing: a later `end` sets the event again.
                if self._ended:
                    break
                entry = self._kv.add_waiter(waiter, self._version)
                if entry is None and not self._sleep(deadline):
                    break
        finally:
            self._kv.remove_waiter(waiter)
        self._kv.load([entry])
        return entry

    def _sleep(self, deadline: float | None) -> bool:
        """Until the key changes; False when the time is over."""
        if deadline is None:
            return self._changed.wait()
        left_s = min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
        return left_s > 0 and self._changed.wait(left_s)

    def end(self) -> None:
        self._ended = True
        self._changed.set()
