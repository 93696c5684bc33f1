"""Coroutines: one event loop in one thread. It starts with the first job that needs it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from .active import ActiveJob, set_current
from .errors import TimeLimitExceeded

if TYPE_CHECKING:
    from .execution import Execution

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
        self._execution = execution
        self._limit = limit
        self._name = name
        self._on_start = on_start
        self._on_end = on_end
        self._waiting: deque[ActiveJob] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pool: ThreadPoolExecutor | None = None

    @property
    def idle(self) -> int:
        return max(self._limit - len(self._running), 0)

    def count(self, source: Any) -> int:
        return sum(job.source is source for job in self._waiting.copy())

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Threads for calls that block, on behalf of coroutines."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_SETTLERS, f"{self._name}-settle")
            return self._pool

    def add(self, jobs: list[ActiveJob]) -> None:
        self._waiting.extend(jobs)
        loop = self._started()
        loop.call_soon_threadsafe(self._start_waiting)

    def remove(self, job: ActiveJob) -> bool:
        """Take out a job that has not started."""
        try:
            self._waiting.remove(job)
        except ValueError:
            return False
        return True

    def clear(self) -> list[ActiveJob]:
        taken: list[ActiveJob] = []
        while True:
            try:
                taken.append(self._waiting.popleft())
            except IndexError:
                return taken

    def interrupt(self, job: ActiveJob, kind: type[BaseException]) -> None:
        task, loop = job.slot, self._loop
        if loop is not None and isinstance(task, asyncio.Task) and job.interrupt is None:
            job.interrupt = kind
            loop.call_soon_threadsafe(task.cancel)

    def stop(self) -> None:
        with self._lock:
            loop, self._loop, pool = self._loop, None, self._pool
        if pool is not None:
            pool.shutdown(wait=False)
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._run_loop, args=(self._loop,), name=f"{self._name}-loop", daemon=True
                ).start()
            return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            rest = asyncio.all_tasks(loop)
            for task in rest:
                task.cancel()
            if rest:
                loop.run_until_complete(asyncio.wait(rest, timeout=1))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    # -- on the loop --------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            try:
                job = self._waiting.popleft()
            except IndexError:
                return
            task = asyncio.get_running_loop().create_task(self._run(job))
            job.slot = task
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            self._on_start(job)

    async def _run(self, job: ActiveJob) -> None:
        set_current(job)  # for this asyncio task
        job.started = time.monotonic()
        execution = self._execution
        try:
            result = await self._call(job)
        except BaseException as error:
            job.slot = None
            finish = execution.judge(job, error)
        else:
            job.slot = None
            finish = execution.accept(job, result)
        if finish is not None:
            await asyncio.shield(asyncio.get_running_loop().run_in_executor(self.pool, finish))
        asyncio.get_running_loop().call_soon(self._ended, job)

    def _ended(self, job: ActiveJob) -> None:
        self._start_waiting()
        self._on_end(job)

    async def _call(self, job: ActiveJob) -> Any:
        function, args, kwargs = self._execution.prepare(job)
        timeout = job.source.consumer.timeout if job.task is None else job.task.declared.timeout
        if timeout is None:
            return await function(*args, **kwargs)
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await function(*args, **kwargs)
        except TimeoutError as error:
            if limit.expired():
                raise TimeLimitExceeded(f"longer than {timeout:g} s") from error
            raise
