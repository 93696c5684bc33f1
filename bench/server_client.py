"""The Python client of a server against redis-py, both with one message in each call and durable.

A hundred tasks, sixteen threads, and one caller alone. The reference adds to a Redis Stream with
`appendfsync always`, which answers when the entry is on disk, as our server does.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Contestant, Lap, Run, alternate, faster_by, lap
from .redis_common import FORCED, missing, store
from .server_processes import OpenQ
from .server_rounds import started

BENCH = "server"
TASKS = 100
THREADS = 16


def run(run: Run) -> None:
    reason = missing()
    if reason:
        run.log(f"{BENCH}: THE CLIENTS ARE NOT COMPARED WITH redis-py: {reason}")
        return
    rounds = run.rounds(7)
    openq = OpenQ(run.folder("openq"), durable=True)
    with started(openq), store(run.folder("redis"), *FORCED) as redis:
        url = f"http://127.0.0.1:{openq.port}"
        rows: list[tuple[str, Callable[..., Contestant], Callable[..., Contestant], int, BenchTarget]] = [
            (f"{TASKS} tasks, a publish each", Tasks, RedisTasks, 4_000, BenchTarget(1.5, 5)),
            (f"{TASKS} tasks, a cycle each", CyclingTasks, CyclingRedisTasks, 1_500, BenchTarget(1.0, 2)),
            (f"{THREADS} threads, a publish each", Threads, RedisThreads, 3_000, BenchTarget(1.0, 2)),
            ("one thread, one by one", OneByOne, RedisOneByOne, 1_000, BenchTarget(1.0, 1.3)),
            ("one task, one by one", OneTask, RedisOneTask, 1_000, BenchTarget(1.0, 1.3)),
        ]
        for what, ours, theirs, count, target in rows:
            count = count if run.quick else 4 * count
            candidate = ChildProcess(ours, url, count)
            match = alternate(candidate, ChildProcess(theirs, redis.port, count), rounds)
            run.emit(faster_by(BENCH, f"client, durable: {what}", "redis-py, Streams, always", match, target))


class _Threads:
    """Sixteen threads that call `_one`."""

    threads = THREADS

    def __init__(self, count: int) -> None:
        self._count = count

    def lap(self, given: Any) -> Lap:
        return lap(self._count, self._work)

    def _work(self) -> None:
        threads = [threading.Thread(target=self._calls) for _ in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _calls(self) -> None:
        for _ in range(self._count // self.threads):
            self._one()

    def _one(self) -> None:
        raise NotImplementedError


class Threads(_Threads):
    def __init__(self, url: str, count: int) -> None:
        super().__init__(count)
        from openq import OpenQ

        self._queue = OpenQ(QUEUE, url=url)
        self._body = BODY.decode()

    def _one(self) -> None:
        self._queue.publish(self._body)

    def close(self) -> None:
        self._queue.close()


class OneByOne(Threads):
    threads = 1


class RedisThreads(_Threads):
    def __init__(self, port: int, count: int) -> None:
        super().__init__(count)
        import redis

        self._redis = redis.Redis(port=port)

    def _one(self) -> None:
        self._redis.xadd(QUEUE, {b"b": BODY})

    def close(self) -> None:
        self._redis.close()


class RedisOneByOne(RedisThreads):
    threads = 1


class _Tasks:
    """A hundred tasks that call `_one`."""

    tasks = TASKS

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop = asyncio.new_event_loop()

    def lap(self, given: Any) -> Lap:
        return lap(self._count, lambda: self._loop.run_until_complete(self._work()))

    async def _work(self) -> None:
        await asyncio.gather(*[self._calls() for _ in range(self.tasks)])

    async def _calls(self) -> None:
        for _ in range(self._count // self.tasks):
            await self._one()

    async def _one(self) -> None:
        raise NotImplementedError

    def _end(self, closing: Awaitable[None]) -> None:
        async def close() -> None:
            await closing

        self._loop.run_until_complete(close())
        self._loop.close()


class Tasks(_Tasks):
    def __init__(self, url: str, count: int) -> None:
        super().__init__(count)
        from openq.aio import OpenQ

        self._queue = self._loop.run_until_complete(OpenQ.open(QUEUE, url=url))
        self._body = BODY.decode()

    async def _one(self) -> None:
        await self._queue.publish(self._body)

    def close(self) -> None:
        self._end(self._queue.close())


class CyclingTasks(Tasks):
    async def _one(self) -> None:
        await self._queue.publish(self._body)
        message = await self._queue.receive(10)
        assert message is not None
        await self._queue.ack(message)


class OneTask(Tasks):
    tasks = 1


class RedisTasks(_Tasks):
    def __init__(self, port: int, count: int) -> None:
        super().__init__(count)
        import redis.asyncio

        self._redis = redis.asyncio.Redis(port=port)

    async def _one(self) -> None:
        await self._redis.xadd(QUEUE, {b"b": BODY})

    def close(self) -> None:
        self._end(self._redis.aclose())


class CyclingRedisTasks(RedisTasks):
    def __init__(self, port: int, count: int) -> None:
        super().__init__(port, count)
        self._loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        await self._redis.delete(QUEUE)
        await self._redis.xgroup_create(QUEUE, "group", mkstream=True)

    async def _one(self) -> None:
        await self._redis.xadd(QUEUE, {b"b": BODY})
        received = None
        while not received:
            received = await self._redis.xreadgroup("group", "one", {QUEUE: ">"}, count=1, block=10_000)
        streams = received.values() if isinstance(received, dict) else [each[1] for each in received]
        entries = next(iter(streams))
        [(entry, _)] = entries[0] if isinstance(entries[0], list) else entries
        await self._redis.xack(QUEUE, "group", entry)


class RedisOneTask(RedisTasks):
    tasks = 1
