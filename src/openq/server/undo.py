"""Messages that an operator removed, kept in memory for some minutes, so that it can be undone.

History has messages as they were published; what is kept here has also their failures and counts, and is
there for queues without history too. It is lost with the process: after that, a replay brings back as much as
history has.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..model import Draft, Entry

KEPT_S = 600.0
MAX_MESSAGES = 10_000  # of one action; larger ones cannot be undone
MAX_BYTES = 16 << 20
MAX_TOTAL_BYTES = 64 << 20  # of all; the oldest are forgotten first


@dataclass(slots=True)
class Removal:
    """What one action removed. `drafts` None: it was too much to keep."""

    account: str
    queue: str  # as its protocol names it
    id: str = field(default_factory=lambda: os.urandom(8).hex())
    drafts: list[Draft] | None = field(default_factory=list)
    size: int = 0
    until_s: float = 0.0

    def add(self, draft: Draft) -> None:
        if self.drafts is None:
            return
        self.size += len(draft.body)
        self.drafts.append(draft)
        if len(self.drafts) > MAX_MESSAGES or self.size > MAX_BYTES:
            # A part of them would not undo it.
            self.drafts, self.size = None, 0

    def fits(self, entries: Sequence[Entry]) -> bool:
        """Whether these are worth reading."""
        if self.drafts is None:
            return False
        size = self.size + sum(entry.size for entry in entries)
        if len(self.drafts) + len(entries) > MAX_MESSAGES or size > MAX_BYTES:
            self.drafts, self.size = None, 0
        return self.drafts is not None


class UndoList:
    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._removals: dict[str, Removal] = {}  # the oldest first

    def keep(self, removal: Removal) -> bool:
        """False if there is nothing to undo, or too much."""
        if not removal.drafts:
            return False
        with self._lock:
            removal.until_s = self._clock_s() + KEPT_S
            self._removals[removal.id] = removal
            self._forget()
        return True

    def take(self, id: str, account: str, queue: str) -> Removal | None:
        with self._lock:
            self._forget()
            found = self._removals.get(id)
            if found is None or (found.account, found.queue) != (account, queue):
                return None
            return self._removals.pop(id)

    def forget_expired(self) -> None:
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        now_s = self._clock_s()
        total = sum(each.size for each in self._removals.values())
        for each in list(self._removals.values()):
            if each.until_s > now_s and total <= MAX_TOTAL_BYTES:
                break
            total -= each.size
            del self._removals[each.id]
