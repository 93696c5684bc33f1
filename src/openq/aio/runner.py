"""How one asyncio queue object runs its calls without blocking the loop.

In memory and on disk a call acts at once, and the task waits for the disk. Calls to a server run in
threads (`threads.py`), calls to Redis in greenlets on the loop (`redis_loop.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..client import queues
from ..local.broker import LocalBroker
from ..local.commits import CommitNotifier
from ..model import Delivery, MessageFilter
from .grouped import QueueCalls
from .threads import CallThreads, PooledWait
from .waiting import TaskWait, commit_notifier

if TYPE_CHECKING:
    from .redis_loop import LoopQueues, RedisTaskWait

    AnyWait = TaskWait | PooledWait | RedisTaskWait

T = TypeVar("T")


class Runner:
    def __init__(self, inner: queues.Queue) -> None:
        self.inner = self._inner = inner
        self._core = inner.core
        self._core.stop_blocking()
        self.loops: LoopQueues | None = None
        if inner.broker.storage.waits:
            from .redis_loop import LoopQueues

            self.loops = LoopQueues(inner)
        # Runs calls that wait for a server or for Redis; None for queues of this process.
        self.executor: CallThreads | LoopQueues | None = (
            CallThreads() if self._core.handle.is_remote else self.loops
        )
        self._commits: CommitNotifier | None = None
        self._calls: QueueCalls | None = None

    def queue(self) -> queues.Queue:
        """The queue, as the running loop may use it."""
        return self._inner if self.loops is None else self.loops.current().queue

    def commit(self) -> asyncio.Future[None] | None:
        """A future for everything done so far; None if it is on disk already."""
        loop = asyncio.get_running_loop()
        commits = self._commits
        if commits is None or commits.loop is not loop:
            commits = self._commits = commit_notifier(cast(LocalBroker, self._core.broker), loop)
        return commits.future()

    def calls(self) -> QueueCalls | None:
        """For a queue on a server: the calls of the running loop that share requests."""
        if not isinstance(self.executor, CallThreads):
            return None
        loop = asyncio.get_running_loop()
        if self._calls is None or self._calls.loop is not loop:
            self._calls = QueueCalls(self._core, self.executor, loop)
        return self._calls

    async def wait_durable(self) -> None:
        """Return once everything done so far is on disk; then call the listeners."""
        if self._core.awaits_commit:
            future = self.commit()
            if future is not None:
                await future
        self.emit_events()

    def emit_events(self) -> None:
        broker = self._core.broker
        if broker.observed:
            if self.loops is None:
                broker.tick()
            else:
                self.loops.start(self.loops.current().broker.announce)

    async def change(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """A method that changes the queue, called with the queue of the running loop."""
        if self.executor is not None:
            return await self.executor.run(method, self.queue(), *args, **options)
        result = method(self._inner, *args, **options)
        await self.wait_durable()
        return result

    async def read(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """A method that may read much from the disk, if there is one."""
        if self.executor is not None:
            return await self.executor.run(method, self.queue(), *args, **options)
        if not self._core.loads:
            return method(self._inner, *args, **options)
        return await asyncio.to_thread(method, self._inner, *args, **options)

    async def quick(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """A method that reads memory only, if the queue is in this process."""
        if self.executor is not None:
            return await self.executor.run(method, self.queue(), *args, **options)
        return method(self._inner, *args, **options)

    async def in_thread(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """A method that may take long, wherever the queue is."""
        return await asyncio.to_thread(method, self._inner, *args, **options)

    async def change_in_thread(self, method: Callable[..., T], *args: Any, **options: Any) -> T:
        """The same for one that changes the queue."""
        result = await self.in_thread(method, *args, **options)
        await self.wait_durable()
        return result

    def new_wait(
        self,
        limit: int = 1,
        visibility_timeout: float | None = None,
        wanted: MessageFilter | None = None,
        consumer: str | None = None,
        lease_ms: int | None = None,
    ) -> AnyWait:
        core = self._core
        if isinstance(self.executor, CallThreads):
            wait = core.new_wait(limit, visibility_timeout, wanted, consumer, lease_ms)
            return PooledWait(wait, self.executor)
        lease_ms, consumer = core.wait_options(visibility_timeout, consumer, lease_ms)
        if self.loops is not None:
            return self.loops.wait(limit, lease_ms, consumer, wanted)
        loop = asyncio.get_running_loop()
        broker = cast(LocalBroker, core.broker)
        return TaskWait(broker, loop, core.name, limit, lease_ms, consumer, wanted, core.waits)

    async def load(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Read the bodies once their publish is on disk. On an error or a cancel all are released."""
        if self.executor is not None:
            if self.loops is not None:
                await self.loops.load(deliveries)
            return deliveries  # a server returns only what is on its disk
        broker = cast(LocalBroker, self._core.broker)
        try:
            if broker.commit_location(deliveries) is not None:
                future = self.commit()
                if future is not None:
                    await future
            return broker.load(deliveries)
        except BaseException:
            self._core.release_unseen(deliveries)
            raise

    def close(self) -> None:
        if self.executor is not None:
            self.executor.close()
