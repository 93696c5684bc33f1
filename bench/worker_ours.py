"""OpenQ's side: the worker in the process that measures it, and the senders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from .harness import Lap
from .worker_common import THREADS, hold, nothing, wait_until

QUEUE = "bench"
_BATCH = 1_000


class OpenQWorker:
    """`target` has the keywords of `App`: `url` or `path`."""

    def __init__(self, target: dict[str, Any]) -> None:
        from openq.worker import App, Worker

        self._app = App(**target)
        self._nothing = self._app.task(queue=QUEUE)(nothing)
        # In a queue of its own: a worker takes nothing ahead from a queue whose jobs are long.
        self._hold = self._app.task(queue=f"{QUEUE}-hold")(hold)
        self._worker = Worker(self._app, threads=THREADS)
        self._worker.start()
        self._queue = self._app.queues.open(QUEUE)

    def send_hold(self) -> None:
        self._hold.send()

    def fill(self, count: int) -> None:
        """The messages of `send`, many at a time: filling is not measured."""
        name = self._nothing.name
        for start in range(0, count, _BATCH):
            numbers = range(start, min(start + _BATCH, count))
            self._queue.publish_many(
                [{"body": f'{{"args":[{number}],"kwargs":{{}}}}', "message_type": name} for number in numbers]
            )

    def settle(self) -> None:
        def is_empty() -> bool:
            stats = self._queue.stats()
            return not stats.ready and not stats.in_flight

        wait_until(is_empty, "the acks")

    def close(self) -> None:
        self._worker.stop()
        self._app.close()


class OpenQSender:
    """Only sends, one by one, each durable when `send` returns. The queue is emptied between laps."""

    def __init__(self, count: int, target: dict[str, Any]) -> None:
        from openq.worker import App

        self._app = App(**target)
        self._task = self._app.task(queue=QUEUE)(nothing)
        self._count = count

    def lap(self, given: Any) -> Lap:
        send = self._task.send
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(self._count):
            send(number)
        done = Lap(self._count, time.perf_counter() - wall, time.process_time() - cpu)
        self._app.queues.open(QUEUE).purge()
        return done

    def close(self) -> None:
        self._app.close()


class OpenQBatchSender(OpenQSender):
    """Sends a hundred jobs with one call, each durable when it returns."""

    BATCH = 100

    def lap(self, given: Any) -> Lap:
        app, call = self._app, self._task.s
        wall, cpu = time.perf_counter(), time.process_time()
        for start in range(0, self._count, self.BATCH):
            app.send_many([call(number) for number in range(start, min(start + self.BATCH, self._count))])
        done = Lap(self._count, time.perf_counter() - wall, time.process_time() - cpu)
        app.queues.open(QUEUE).purge()
        return done


class OpenQAsyncSender:
    """Sends from one thread too, with `asend` of many coroutines: those that wait at once share a sync."""

    CALLERS = 50

    def __init__(self, count: int, target: dict[str, Any]) -> None:
        from openq.worker import App

        self._app = App(**target)
        self._task = self._app.task(queue=QUEUE)(nothing)
        self._count = count
        self._runner = asyncio.Runner()

    def lap(self, given: Any) -> Lap:
        wall, cpu = time.perf_counter(), time.process_time()
        self._runner.run(self._send_all())
        done = Lap(self._count, time.perf_counter() - wall, time.process_time() - cpu)
        self._app.queues.open(QUEUE).purge()
        return done

    async def _send_all(self) -> None:
        numbers = iter(range(self._count))
        await asyncio.gather(*(self._send(numbers) for _ in range(self.CALLERS)))

    async def _send(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            await self._task.asend(number)

    def close(self) -> None:
        self._app.close()
        self._runner.close()
