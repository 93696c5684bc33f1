"""Coroutines: one event loop in one thread. It starts with the first job that needs it.

Until then asyncio is not imported: with ssl it takes a sixth of the memory of an idle worker.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .active import ActiveJob

if TYPE_CHECKING:
    from .coroutines import CoroutineLoop
    from .execution import Execution

_POOL_END_S = 5.0
_SETTLERS = 4  # threads that settle jobs of coroutines: the loop itself must not block


class LoopThread:
    """Runs up to `limit` coroutines at a time. All methods may be called from any thread."""

    def __init__(
        self,
        execution: Execution,
        limit: int,
        name: str,
        on_start: Callable[[ActiveJob], None],
        on_end: Callable[[ActiveJob], None],
    ) -> None:
        self.execution = execution
        self.limit = limit
        self.on_start = on_start
        self.on_end = on_end
        self.waiting: deque[ActiveJob] = deque()
        self._name = name
        self._lock = threading.Lock()
        self._loop: CoroutineLoop | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def idle(self) -> int:
        loop = self._loop
        return self.limit if loop is None else max(self.limit - len(loop.running), 0)

    def count(self, source: Any) -> int:
        return sum(job.source is source for job in self.waiting.copy())

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for calls that block, on behalf of coroutines."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SETTLERS, f"{self._name}-settle")
            return self._pool

    def add(self, jobs: list[ActiveJob]) -> None:
        self.waiting.extend(jobs)
        self._started().wake()

    def remove(self, job: ActiveJob) -> bool:
        """Take out a job that has not started."""
        try:
            self.waiting.remove(job)
        except ValueError:
            return False
        return True

    def clear(self) -> list[ActiveJob]:
        taken: list[ActiveJob] = []
        while True:
            try:
                taken.append(self.waiting.popleft())
            except IndexError:
                return taken

    def interrupt(self, job: ActiveJob, kind: type[BaseException]) -> None:
        loop = self._loop
        if loop is not None:
            loop.interrupt(job, kind)

    def stop(self) -> None:
        with self._lock:
            loop, self._loop, pool = self._loop, None, self._pool
        if pool is not None:
            # Messages that a consumer settled are settled, unless the broker is unreachable.
            waiting = threading.Thread(target=pool.shutdown, daemon=True)
            waiting.start()
            waiting.join(_POOL_END_S)
        if loop is not None:
            loop.stop()

    def _started(self) -> CoroutineLoop:
        with self._lock:
            if self._loop is None:
                from .coroutines import CoroutineLoop

                self._loop = CoroutineLoop(self)
                threading.Thread(target=self._loop.run, name=f"{self._name}-loop", daemon=True).start()
            return self._loop
