"""Stops a redrive whose messages fail again.

Theory of operation. A redriven message is *open* while it is in its target queue, *failed again* once it is
in a dead-letter queue again, and *settled* otherwise. At first `stop_after` messages go out, and none takes
the place of one that failed again; later at most as many are open as were settled. So the redrive becomes
faster while consumers succeed, and when they fail, few messages fail again. Without consumers it waits, until
somebody cancels it or lets it go on unwatched.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..broker.interface import Broker, Filter
from ..errors import OpenQError, QueueNotFound

MAX_OPEN = 1_000  # so that looking at the open ones stays cheap
_CHUNK = 500


class RedriveStopped(OpenQError):
    code = "redrive_stopped"

    def __init__(self, failed: int, done: int) -> None:
        super().__init__(f"stopped: {failed} of {done} redriven messages failed again; the others stayed")


class RedriveBreaker:
    def __init__(self, broker: Broker, dead_letter_queue: str, stop_after: int) -> None:
        self._broker = broker
        self._dead = dead_letter_queue
        self._stop_after = stop_after
        self._open: dict[str, str] = {}  # message id -> target queue
        self._settled = 0
        self.failed = 0

    @property
    def room(self) -> int:
        """How many messages may go out now."""
        return min(max(self._stop_after - self.failed, self._settled), MAX_OPEN) - len(self._open)

    @property
    def open(self) -> int:
        """How many messages went out and are not settled yet."""
        return len(self._open)

    def add(self, ids: Iterable[str], target: str) -> None:
        self._open.update(dict.fromkeys(ids, target))

    def check(self) -> bool:
        """Look at the open messages. False if too many failed again."""
        by_target: dict[str, list[str]] = {}
        for message_id, target in self._open.items():
            by_target.setdefault(target, []).append(message_id)
        for target, ids in by_target.items():
            for start in range(0, len(ids), _CHUNK):
                self._look(target, ids[start : start + _CHUNK])
        return self.failed < self._stop_after

    def _look(self, target: str, ids: list[str]) -> None:
        # The target first: a message that fails between the two looks is found by the second one.
        waiting = self._present(target, ids)
        gone = [each for each in ids if each not in waiting]
        failed = self._present(self._dead, gone)
        try:
            other = self._broker.settings(target).dead_letter
        except QueueNotFound:
            other = None
        if other is not None and other != self._dead:
            failed |= self._present(other, [each for each in gone if each not in failed])
        for message_id in gone:
            del self._open[message_id]
        self.failed += len(failed)
        self._settled += len(gone) - len(failed)

    def _present(self, queue: str, ids: list[str]) -> set[str]:
        if not ids:
            return set()
        inspect = self._broker.inspect
        try:
            parts = inspect.matching(queue, Filter(ids=ids, state="all"))
            return {inspect.message_id(entry) for part in parts for entry in part}
        except QueueNotFound:
            return set()
