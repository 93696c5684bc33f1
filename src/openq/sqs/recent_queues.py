"""Recently deleted and purged queues: some rules of SQS apply for a minute."""

from __future__ import annotations


class RecentQueues:
    """Times at which queues were deleted or purged: AWS makes clients wait before they repeat either.

    In memory only: after a restart no client has to wait.
    """

    def __init__(self) -> None:
        self._times: dict[str, int] = {}

    def add(self, queue_key: str, now_ms: int, keep_s: int) -> None:
        # Dicts keep their order: the oldest come first.
        self._times.pop(queue_key, None)
        while self._times:
            oldest = next(iter(self._times))
            if now_ms - self._times[oldest] < keep_s * 1000:
                break
            del self._times[oldest]
        self._times[queue_key] = now_ms

    def within(self, queue_key: str, now_ms: int, span_s: int) -> bool:
        then_ms = self._times.get(queue_key)
        return then_ms is not None and now_ms - then_ms < span_s * 1000

    def forget(self, queue_key: str) -> None:
        self._times.pop(queue_key, None)

    def clear(self) -> None:
        self._times.clear()
