"""Jobs that do nothing, put in and worked off: against RQ and dramatiq on the same Redis.

RQ puts a hundred jobs in with one pipeline and works in one process, without a fork per job; that it keeps
results costs it less than the setting that keeps none. dramatiq sends one by one and has eight threads.
Ours puts in, takes and acks a hundred at a time, or one by one.
"""

from __future__ import annotations

import sys
from typing import Any

from .harness import QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap
from .redis_common import BENCH, IN_MEMORY, obtain_rivals, store
from .server_processes import NotAvailable

TARGET = BenchTarget(floor=10, aim=20)
SIZE = 100
THREADS = 8
PACKAGES = ("rq>=2", "dramatiq>=2")


def run(run: Run) -> None:
    try:
        folder = str(obtain_rivals(PACKAGES))
    except NotAvailable as missing:
        run.log(f"redis: RQ AND DRAMATIQ ARE LEFT OUT: {missing}")
        return
    rounds = run.rounds(5)
    ours, theirs = (2_000, 300) if run.quick else (20_000, 2_000)
    with store(run.folder("redis"), *IN_MEMORY) as redis:
        for name, rival in (("RQ, SimpleWorker", Rq), (f"dramatiq, {THREADS} threads", Dramatiq)):
            for how, single, target in (("in batches of 100", False, TARGET), ("one by one", True, None)):
                candidate = ChildProcess(Jobs, redis.url, ours, single)
                match = alternate(candidate, ChildProcess(rival, folder, redis.port, theirs), rounds)
                run.emit(faster_by(BENCH, f"jobs put in and worked off, {how}", name, match, target))


def nothing(number: int) -> None:
    """The job of all of them."""


class Jobs:
    def __init__(self, url: str, count: int, single: bool) -> None:
        from openq import OpenQ

        self._queue = OpenQ(QUEUE, url=f"{url}?profile=fast")
        self._count = count
        self._work = self._one_by_one if single else self._in_batches

    def lap(self, given: Any) -> Lap:
        return lap(self._count, self._work)

    def _in_batches(self) -> None:
        queue = self._queue
        for start in range(0, self._count, SIZE):
            queue.publish_many([{"job": "nothing", "number": n} for n in range(start, start + SIZE)])
        for _ in range(0, self._count, SIZE):
            messages = queue.receive_many(SIZE)
            for message in messages:
                nothing(message.body["number"])
            queue.ack_many(messages)

    def _one_by_one(self) -> None:
        queue = self._queue
        for number in range(self._count):
            queue.publish({"job": "nothing", "number": number})
        for _ in range(self._count):
            message = queue.receive()
            assert message is not None
            nothing(message.body["number"])
            queue.ack(message)

    def close(self) -> None:
        self._queue.close()


class Rq:
    def __init__(self, folder: str, port: int, count: int) -> None:
        sys.path.append(folder)
        import logging

        import redis
        from rq import Queue, SimpleWorker

        logging.getLogger("rq.worker").setLevel(logging.ERROR)
        self._redis = redis.Redis(port=port)
        self._queue = Queue("bench-rq", connection=self._redis)
        self._make_worker = SimpleWorker
        self._prepare = Queue.prepare_data
        self._count = count

    def lap(self, given: Any) -> Lap:
        return lap(self._count, self._work)

    def _work(self) -> None:
        queue = self._queue
        for start in range(0, self._count, SIZE):
            stop = min(start + SIZE, self._count)
            queue.enqueue_many([self._prepare(nothing, args=(number,)) for number in range(start, stop)])
        worker = self._make_worker([queue], connection=self._redis)
        worker.work(burst=True, logging_level="ERROR")
        if queue.count:
            raise RuntimeError(f"RQ left {queue.count} jobs")

    def close(self) -> None:
        self._redis.close()


class Dramatiq:
    NAME = "bench-dramatiq"

    def __init__(self, folder: str, port: int, count: int) -> None:
        sys.path.append(folder)
        import dramatiq
        from dramatiq.brokers.redis import RedisBroker

        self._make_broker = lambda: RedisBroker(host="127.0.0.1", port=port, middleware=[])
        self._make_actor = dramatiq.actor
        self._make_worker = dramatiq.Worker
        self._count = count

    def lap(self, given: Any) -> Lap:
        # A broker for each: it keeps what its last worker added to it.
        broker = self._make_broker()
        actor = self._make_actor(nothing, broker=broker, queue_name=self.NAME)
        worker = self._make_worker(broker, worker_threads=THREADS)
        done = lap(self._count, lambda: self._work(broker, actor, worker))
        worker.stop()  # slow, and not part of the measurement
        broker.close()
        return done

    def _work(self, broker: Any, actor: Any, worker: Any) -> None:
        for number in range(self._count):
            actor.send(number)
        worker.start()
        broker.join(self.NAME)

    def close(self) -> None:
        pass
