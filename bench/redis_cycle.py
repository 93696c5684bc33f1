"""Publish, receive and ack over one Redis: one by one from fifty callers and from one, and in batches of a
hundred.

With fifty callers the reference is what one writes by hand: redis-py's asyncio client with hiredis, and a
script per verb on a list, a hash and a sorted set. With one caller and in batches it is Redis's own queue, a
stream with a group. It keeps less than we do: no ids for deduplication, no history, no counts of deliveries,
no delays.
Nothing is on disk on either side: the rows measure the way to Redis and what is done there.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .harness import BODY, QUEUE, BenchTarget, ChildProcess, Lap, Run, alternate, faster_by, lap
from .redis_common import BENCH, IN_MEMORY, store

CALLERS = 50
SIZE = 100
SINGLE = BenchTarget(floor=4, aim=6)
BATCHES = BenchTarget(floor=0.5, aim=1)
LONE = BenchTarget(floor=1, aim=1.3)

# A ready list, a hash of bodies and a sorted set of leases: the minimum for a queue with leases.
PUBLISH = """
local id = redis.call('INCR', KEYS[4])
redis.call('HSET', KEYS[2], id, ARGV[1])
redis.call('RPUSH', KEYS[1], id)
return id"""
RECEIVE = """
local id = redis.call('LPOP', KEYS[1])
if not id then return false end
redis.call('ZADD', KEYS[3], ARGV[1], id)
return {id, redis.call('HGET', KEYS[2], id)}"""
ACK = """
if redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then return 0 end
return redis.call('HDEL', KEYS[2], ARGV[1])"""
KEYS = ("bench:ready", "bench:bodies", "bench:leases", "bench:last")


def run(run: Run) -> None:
    rounds = run.rounds(5)
    turns = 40 if run.quick else 200
    batches = 40 if run.quick else 200
    what = f"publish + receive + ack, {CALLERS} callers"
    by_hand = "redis-py asyncio + hiredis, a Lua script per verb"
    with store(run.folder("redis"), *IN_MEMORY) as redis:
        for name, ours in (("openq.aio", LibraryOnRedis), ("the broker on a loop", Bridge)):
            match = alternate(
                ChildProcess(ours, redis.url, turns), ChildProcess(Scripts, redis.port, turns), rounds
            )
            run.emit(faster_by(BENCH, f"{what}, {name}", by_hand, match, SINGLE))
        streams = "Redis Streams, pipelined by 100, redis-py + hiredis"
        what = f"publish + receive + ack in batches of {SIZE}"
        for name, ours in (("openq.OpenQ", LibraryBatches), ("the broker", BrokerBatches)):
            match = alternate(
                ChildProcess(ours, redis.url, batches),
                ChildProcess(RedisStreams, redis.port, batches),
                rounds,
            )
            run.emit(faster_by(BENCH, f"{what}, {name}", streams, match, BATCHES))

        what = "publish + receive + ack, one caller, one by one, openq.OpenQ"
        match = alternate(
            ChildProcess(LibraryOneByOne, redis.url, 10 * turns),
            ChildProcess(StreamsOneByOne, redis.port, 10 * turns),
            rounds,
        )
        run.emit(faster_by(BENCH, what, "Redis Streams, redis-py + hiredis", match, LONE))


class OnLoop:
    """A side whose laps are coroutines on one uvloop."""

    def __init__(self, turns: int) -> None:
        import uvloop

        self._turns = turns
        self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.open())

    def lap(self, given: Any) -> Lap:
        return lap(CALLERS * self._turns, lambda: self._loop.run_until_complete(self._all()))

    async def _all(self) -> None:
        await asyncio.gather(*(self.caller() for _ in range(CALLERS)))

    async def open(self) -> None:
        raise NotImplementedError

    async def caller(self) -> None:
        raise NotImplementedError

    async def end(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._loop.run_until_complete(self.end())
        self._loop.close()


class LibraryOnRedis(OnLoop):
    def __init__(self, url: str, turns: int) -> None:
        self._url = f"{url}?profile=fast"
        super().__init__(turns)

    async def open(self) -> None:
        from openq.aio import OpenQ

        self._queue = await OpenQ.open(QUEUE, url=self._url)

    async def caller(self) -> None:
        queue = self._queue
        for _ in range(self._turns):
            await queue.publish(BODY)
            message = await queue.receive()
            await queue.ack(message)

    async def end(self) -> None:
        await self._queue.purge()
        await self._queue.close()


class Bridge(OnLoop):
    def __init__(self, url: str, turns: int) -> None:
        from openq.model import QueueSettings
        from openq.redis.broker import RedisBroker

        self._broker = RedisBroker(url, profile="fast")
        self._broker.declare(QUEUE, QueueSettings())
        super().__init__(turns)

    async def open(self) -> None:
        self._view = self._broker.on_loop(asyncio.get_running_loop())

    async def caller(self) -> None:
        from openq.redis.net import greenlets

        await greenlets.run(self._cycles)

    def _cycles(self) -> None:
        broker = self._view
        for _ in range(self._turns):
            broker.publish_body(QUEUE, BODY, 0)
            deliveries = broker.receive(QUEUE)
            broker.load(deliveries)
            broker.ack_one(QUEUE, deliveries[0].entry.seq, deliveries[0].number)

    async def end(self) -> None:
        self._broker.leave_loop(asyncio.get_running_loop())
        self._broker.close()


class Scripts(OnLoop):
    def __init__(self, port: int, turns: int) -> None:
        self._port = port
        super().__init__(turns)

    async def open(self) -> None:
        import redis.asyncio

        self._redis = redis.asyncio.Redis(port=self._port)
        await self._redis.delete(*KEYS)
        self._shas = [await self._redis.script_load(text) for text in (PUBLISH, RECEIVE, ACK)]

    async def caller(self) -> None:
        publish, receive, ack = self._shas
        call = self._redis.evalsha
        for _ in range(self._turns):
            await call(publish, len(KEYS), *KEYS, BODY)
            id, _ = await call(receive, len(KEYS), *KEYS, "30000")
            await call(ack, len(KEYS), *KEYS, id)

    async def end(self) -> None:
        await self._redis.aclose()


class LibraryBatches:
    def __init__(self, url: str, batches: int) -> None:
        from openq import OpenQ

        self._queue = OpenQ(QUEUE, url=f"{url}?profile=fast")
        self._batches = batches

    def lap(self, given: Any) -> Lap:
        return lap(SIZE * self._batches, self._work)

    def _work(self) -> None:
        queue = self._queue
        bodies = [BODY] * SIZE
        for _ in range(self._batches):
            queue.publish_many(bodies)
            queue.ack_many(queue.receive_many(SIZE))

    def close(self) -> None:
        self._queue.close()


class BrokerBatches:
    def __init__(self, url: str, batches: int) -> None:
        from openq.model import QueueSettings
        from openq.redis.broker import RedisBroker

        self._broker = RedisBroker(url, profile="fast")
        self._broker.declare(QUEUE, QueueSettings())
        self._batches = batches

    def lap(self, given: Any) -> Lap:
        return lap(SIZE * self._batches, self._work)

    def _work(self) -> None:
        broker = self._broker
        bodies = [BODY] * SIZE
        for _ in range(self._batches):
            broker.publish_bodies(QUEUE, bodies, 0)
            deliveries = broker.receive(QUEUE, SIZE)
            broker.load(deliveries)
            broker.ack(QUEUE, [(delivery.entry.seq, delivery.number) for delivery in deliveries])

    def close(self) -> None:
        self._broker.close()


class RedisStreams:
    KEY, GROUP = "bench:stream", "workers"

    def __init__(self, port: int, batches: int) -> None:
        import redis

        self._redis = redis.Redis(port=port)
        self._redis.delete(self.KEY)
        self._redis.xgroup_create(self.KEY, self.GROUP, "$", mkstream=True)
        self._batches = batches

    def lap(self, given: Any) -> Lap:
        return lap(SIZE * self._batches, self._work)

    def _work(self) -> None:
        redis, key, group = self._redis, self.KEY, self.GROUP
        fields = {b"b": BODY}
        for _ in range(self._batches):
            pipe = redis.pipeline(transaction=False)
            for _ in range(SIZE):
                pipe.xadd(key, fields)
            pipe.execute()
            ids = entry_ids(redis.xreadgroup(group, "c", {key: ">"}, count=SIZE))
            pipe = redis.pipeline(transaction=False)
            pipe.xack(key, group, *ids)
            pipe.xdel(key, *ids)
            pipe.execute()

    def close(self) -> None:
        self._redis.close()


class LibraryOneByOne(LibraryBatches):
    def lap(self, given: Any) -> Lap:
        return lap(self._batches, self._work)

    def _work(self) -> None:
        queue = self._queue
        for _ in range(self._batches):
            queue.publish(BODY)
            queue.ack(queue.receive())


class StreamsOneByOne(RedisStreams):
    """The ack and the delete leave together: nobody waits for each of them."""

    def lap(self, given: Any) -> Lap:
        return lap(self._batches, self._work)

    def _work(self) -> None:
        redis, key, group = self._redis, self.KEY, self.GROUP
        fields = {b"b": BODY}
        for _ in range(self._batches):
            redis.xadd(key, fields)
            ids = entry_ids(redis.xreadgroup(group, "c", {key: ">"}, count=1))
            pipe = redis.pipeline(transaction=False)
            pipe.xack(key, group, *ids)
            pipe.xdel(key, *ids)
            pipe.execute()


def entry_ids(reply: Any) -> list[bytes]:
    """redis-py 8 answers a map with a list of lists, earlier ones a list of keys and entries."""
    entries = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    if entries and isinstance(entries[0], list):
        entries = entries[0]
    return [id for id, _ in entries]
