"""Workers of the others, each with the settings that its users get, in the process that measures it.

dramatiq has its default middleware, with retries and time limits, as ours has. huey syncs every commit.
RQ works in one thread without a fork per job; keeping results costs it less than the setting that keeps
none. Imports are late: only a measured process has the folder of the rivals.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from .harness import Lap
from .worker_common import COUNTER, THREADS, hold, nothing, use_rivals, wait_until

NAME = "bench"
_RQ_BATCH = 100


class DramatiqWorker:
    def __init__(self, broker: Any) -> None:
        import dramatiq

        self._broker = broker
        self._nothing = dramatiq.actor(nothing, broker=broker, queue_name=NAME)
        self._hold = dramatiq.actor(hold, broker=broker, queue_name=NAME)
        self._worker = dramatiq.Worker(broker, worker_threads=THREADS)
        self._worker.start()

    def send_hold(self) -> None:
        self._hold.send()

    def fill(self, count: int) -> None:
        for number in range(count):
            self._nothing.send(number)

    def settle(self) -> None:
        self._worker.join()

    def close(self) -> None:
        self._worker.stop()
        self._broker.close()


def dramatiq_on_rabbitmq(folder: str, port: int) -> DramatiqWorker:
    """Its queues are durable and its messages persistent. Filling is not measured, so nothing confirms it."""
    use_rivals(folder)
    from dramatiq.brokers.rabbitmq import RabbitmqBroker

    logging.getLogger("pika").setLevel(logging.CRITICAL)
    return DramatiqWorker(RabbitmqBroker(host="127.0.0.1", port=port))


def dramatiq_on_redis(folder: str, port: int) -> DramatiqWorker:
    use_rivals(folder)
    from dramatiq.brokers.redis import RedisBroker

    return DramatiqWorker(RedisBroker(host="127.0.0.1", port=port))


class RqWorker:
    """A contestant of its own: its one thread cannot be held, so its clock starts with its first job."""

    def __init__(self, folder: str, port: int, count: int) -> None:
        use_rivals(folder)
        import redis
        from rq import Queue, SimpleWorker

        logging.getLogger("rq.worker").setLevel(logging.ERROR)
        self._redis = redis.Redis(port=port)
        self._queue = Queue("bench-rq", connection=self._redis)
        self._worker = SimpleWorker([self._queue], connection=self._redis)
        self._prepare = Queue.prepare_data
        self._count = count

    def lap(self, given: Any) -> Lap:
        COUNTER.expect(self._count)
        for start in range(0, self._count, _RQ_BATCH):
            stop = min(start + _RQ_BATCH, self._count)
            self._queue.enqueue_many(
                [self._prepare(nothing, args=(number,)) for number in range(start, stop)]
            )
        self._worker.work(burst=True, logging_level="ERROR")
        COUNTER.wait()
        return COUNTER.lap_from_first()

    def close(self) -> None:
        self._redis.close()


class HueyOnSqlite:
    def __init__(self, folder: str, data: str, threads: int = THREADS) -> None:
        use_rivals(folder)
        from huey import SqliteHuey

        logging.getLogger("huey").setLevel(logging.ERROR)
        self._huey = SqliteHuey(NAME, filename=os.path.join(data, "huey.db"), fsync=True)
        self._nothing = self._huey.task()(nothing)
        self._hold = self._huey.task()(hold)
        self._consumer = self._huey.create_consumer(workers=threads, periodic=False)
        self._consumer.start()

    def send_hold(self) -> None:
        self._hold()

    def fill(self, count: int) -> None:
        for number in range(count):
            self._nothing(number)

    def settle(self) -> None:
        wait_until(lambda: self._huey.pending_count() == 0, "huey's queue")

    def close(self) -> None:
        self._consumer.stop(graceful=True)


class CeleryOnRabbitMq:
    """Only sends, one by one, and waits for RabbitMQ's confirm of each. Its queue is emptied between laps."""

    def __init__(self, folder: str, port: int, count: int) -> None:
        use_rivals(folder)
        from celery import Celery

        app = Celery(broker=f"amqp://guest:guest@127.0.0.1:{port}//", set_as_current=False)
        app.conf.update(
            broker_transport_options={"confirm_publish": True},
            task_default_queue="bench-celery",
            task_ignore_result=True,
        )
        self._app = app
        self._task = app.task(nothing, name="nothing")
        self._count = count

    def lap(self, given: Any) -> Lap:
        wall, cpu = time.perf_counter(), time.process_time()
        for number in range(self._count):
            self._task.delay(number)
        done = Lap(self._count, time.perf_counter() - wall, time.process_time() - cpu)
        self._app.control.purge()
        return done

    def close(self) -> None:
        self._app.close()
