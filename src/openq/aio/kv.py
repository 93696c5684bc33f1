"""Key-values for asyncio: the methods of `openq.KeyValue` as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

from ..broker.kv import KeyValues, KvEntry, KvWaiter
from ..client import checks, queues
from ..client.kv import KeyValue
from ..errors import Closed, StoreUnavailable
from ..model import Delivery, check_name
from .threads import CallThreads

if TYPE_CHECKING:
    from .runner import Runner

P = ParamSpec("P")
R = TypeVar("R")


def _forward(
    method: Callable[Concatenate[KeyValue, P], R],
) -> Callable[Concatenate[AsyncKeyValue, P], Coroutine[Any, Any, R]]:
    """Both kinds return when everything is on disk: what they changed, and what they read."""

    @wraps(method)
    async def call(self: AsyncKeyValue, /, *args: P.args, **options: P.kwargs) -> R:
        def on_queue(queue: queues.Queue) -> R:
            return method(KeyValue(queue, self.bucket), *args, **options)

        return await self.runner.change(on_queue)

    return call


class AsyncKeyValue:
    """The values of a bucket: `queue.kv("results")`; see `openq.KeyValue`."""

    def __init__(self, runner: Runner, bucket: str) -> None:
        self.runner = runner
        self.bucket = check_name(bucket, "bucket")

    get = _forward(KeyValue.get)
    get_many = _forward(KeyValue.get_many)
    list = _forward(KeyValue.list)
    put = _forward(KeyValue.put)
    create = _forward(KeyValue.create)
    put_many = _forward(KeyValue.put_many)
    delete = _forward(KeyValue.delete)
    delete_many = _forward(KeyValue.delete_many)

    async def wait(self, key: str, timeout: float | None = None, version: int = 0) -> KvEntry | None:
        """The entry as soon as the key has a version greater than `version`; None if none came in time.

        Waits up to `timeout` seconds, or for ever. No polling: the put wakes the waiting task.
        """
        timeout = checks.timeout_or_none(timeout)
        runner = self.runner
        thread_wait = KeyValue(runner.inner, self.bucket).new_wait(key, version)
        if isinstance(runner.executor, CallThreads):
            return await runner.executor.wait_for_key(thread_wait, timeout)
        return await TaskKvWait(runner, self.bucket, key, version).wait(timeout)

    def __repr__(self) -> str:
        return f"<AsyncKeyValue {self.bucket!r}>"


class TaskKvWait:
    """A wait of a task for a key in this process or in Redis."""

    def __init__(self, runner: Runner, bucket: str, key: str, version: int) -> None:
        self._runner = runner
        self._kv: KeyValues = runner.queue().broker.kv
        self._waits = runner.inner.core.waits
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._waiter = KvWaiter(bucket, key, self._wake)
        self._version = version
        self._ended = False

    async def wait(self, timeout: float | None) -> KvEntry | None:
        deadline = None if timeout is None else self._loop.time() + timeout
        self._waits.add(self)
        try:
            entry = await self._wait(deadline)
        except (Closed, StoreUnavailable):
            if not self._ended:
                raise
            return None  # closing the queue object cut a call off
        finally:
            self._kv.remove_waiter(self._waiter)
            self._waits.finish(self)
        await self._runner.wait_durable()
        return entry

    async def _wait(self, deadline: float | None) -> KvEntry | None:
        while True:
            self._changed.clear()
            # Checked after clearing: a later `end` sets the event again.
            if self._ended:
                return None
            entry = await self._register()
            if entry is not None:
                return entry
            left_s = None if deadline is None else deadline - self._loop.time()
            if left_s is not None and left_s <= 0:
                return None
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except TimeoutError:
                return None

    async def _register(self) -> KvEntry | None:
        loops = self._runner.loops
        if loops is None:
            return self._kv.add_waiter(self._waiter, self._version)
        return cast("KvEntry | None", await loops.run(self._kv.add_waiter, self._waiter, self._version))

    def _wake(self) -> None:
        """From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._changed.set)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    def take_served(self) -> list[Delivery]:
        return []

    def end(self) -> None:
        self._ended = True
        self._wake()
