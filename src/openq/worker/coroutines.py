"""The event loop of a worker, and the jobs that run on it. Everything below `run` happens on the loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from .active import ActiveJob, set_current
from .errors import TimeLimitExceeded, WorkerStopped

if TYPE_CHECKING:
    from .loops import LoopThread


class CoroutineLoop:
    """The loop of a LoopThread, from its first job until the worker stops."""

    def __init__(self, owner: LoopThread) -> None:
        self._owner = owner
        self._loop = asyncio.new_event_loop()
        self.running: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Jobs wait."""
        self._loop.call_soon_threadsafe(self._start_waiting)

    def interrupt(self, job: ActiveJob, kind: type[BaseException]) -> None:
        task = job.slot
        if isinstance(task, asyncio.Task) and job.interrupt is None:
            job.interrupt = kind
            self._loop.call_soon_threadsafe(task.cancel)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    def run(self) -> None:
        loop = self._loop
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

    def _start_waiting(self) -> None:
        owner = self._owner
        while owner.waiting and len(self.running) < owner.limit:
            try:
                job = owner.waiting.popleft()
            except IndexError:
                return
            task = self._loop.create_task(self._run(job))
            job.slot = task
            self.running.add(task)
            task.add_done_callback(self.running.discard)
            owner.on_start(job)

    async def _run(self, job: ActiveJob) -> None:
        set_current(job)  # for this asyncio task
        job.started = time.monotonic()
        execution = self._owner.execution
        if job.is_lost:
            job.slot = None
            if job.interrupt is not WorkerStopped:
                execution.lost(job)
            self._loop.call_soon(self._ended, job)
            return
        if job.started >= job.lease_until:  # the process was paused while the job waited
            is_ours = await self._loop.run_in_executor(self._owner.pool, execution.owns, job)
            if not is_ours:
                job.slot = None
                execution.lost(job)
                self._loop.call_soon(self._ended, job)
                return
        try:
            result = await self._call_and_report(job)
        except BaseException as error:
            job.slot = None
            finish = execution.judge(job, error)
        else:
            job.slot = None
            finish = execution.accept(job, result)
        if finish is not None:
            await asyncio.shield(self._loop.run_in_executor(self._owner.pool, finish))
        self._loop.call_soon(self._ended, job)

    def _ended(self, job: ActiveJob) -> None:
        self._start_waiting()
        self._owner.on_end(job)

    async def _call_and_report(self, job: ActiveJob) -> Any:
        try:
            return await self._call(job)
        finally:
            if job.has_unreported:
                await asyncio.shield(self._loop.run_in_executor(self._owner.pool, job.write_unreported))

    async def _call(self, job: ActiveJob) -> Any:
        function, args, kwargs = self._owner.execution.prepare(job)
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
