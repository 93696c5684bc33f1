"""Jobs that wait for a thread, one list per queue, taken by the weights of the queues."""

from __future__ import annotations

import queue
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .active import ActiveJob


class ReadyJobs:
    """Any thread adds, any thread takes. One token in `_tokens` stands for one job.

    A token whose job was removed makes a thread look in vain, which is harmless.
    """

    def __init__(self, weights: dict[Any, int]) -> None:
        self._lists: dict[Any, deque[ActiveJob]] = {source: deque() for source in weights}
        self._turns = _turns(weights)
        self._turn = count()
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def add(self, source: Any, jobs: list[ActiveJob]) -> None:
        self._lists[source].extend(jobs)
        for _ in jobs:
            self._tokens.put(True)

    def take(self) -> ActiveJob | None:
        """Wait for a job. None: stop."""
        lists, turns = self._lists, self._turns
        while self._tokens.get():
            first = next(self._turn) % len(turns)
            for i in range(len(turns)):
                try:
                    return lists[turns[(first + i) % len(turns)]].popleft()
                except IndexError:
                    pass
        return None

    def stop(self, threads: int) -> None:
        for _ in range(threads):
            self._tokens.put(False)

    def count(self, source: Any) -> int:
        return len(self._lists[source])

    def remove(self, job: ActiveJob) -> bool:
        """Take this job out. False if a thread was first."""
        try:
            self._lists[job.source].remove(job)
        except ValueError:
            return False
        return True

    def clear(self) -> list[ActiveJob]:
        taken: list[ActiveJob] = []
        for each in self._lists.values():
            while True:
                try:
                    taken.append(each.popleft())
                except IndexError:
                    break
        return taken


def _turns(weights: dict[Any, int]) -> list[Any]:
    """Each queue as often as its weight says, evenly spread."""
    total = sum(weights.values())
    credit = dict.fromkeys(weights, 0)
    turns: list[Any] = []
    for _ in range(total):
        for source, weight in weights.items():
            credit[source] += weight
        chosen = max(credit, key=lambda source: credit[source])
        credit[chosen] -= total
        turns.append(chosen)
    return turns
