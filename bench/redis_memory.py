"""How much of Redis's memory a waiting message of 100 bytes takes, against an entry of a stream."""

from __future__ import annotations

import redis

from .harness import BODY, QUEUE, BenchTarget, Row, Run
from .redis_common import BENCH, IN_MEMORY, store

TARGET = BenchTarget(floor=1.5, aim=1.2, more_is_better=False)
SIZE = 100


def run(run: Run) -> None:
    count = 20_000 if run.quick else 200_000
    rounds = run.rounds(3, quick=1)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        # A server for each: what one leaves behind in the allocator would be the other's gain.
        for fill, weights in ((_queue, ours), (_stream, theirs)):
            with store(run.folder("redis"), *IN_MEMORY) as server:
                weights.append(fill(server.url, count))
    ratios = [us / them for us, them in zip(ours, theirs, strict=True)]
    rates = {"ours": ours, "theirs": theirs}
    what = f"memory of Redis per message, {count:,} of 100 B waiting"
    run.emit(Row(BENCH, what, "an entry of a stream", "x", ratios, TARGET, rates, side_unit=" B"))


def _queue(url: str, count: int) -> float:
    from openq import OpenQ

    queue = OpenQ(QUEUE, url=f"{url}?profile=fast")
    client = redis.Redis.from_url(url)
    before = _used(client)
    for _ in range(count // SIZE):
        queue.publish_many([BODY] * SIZE)
    weight = (_used(client) - before) / count
    queue.close()
    return weight


def _stream(url: str, count: int) -> float:
    client = redis.Redis.from_url(url)
    client.xadd("bench", {b"b": BODY})
    before = _used(client)
    for _ in range(count // SIZE):
        pipe = client.pipeline(transaction=False)
        for _ in range(SIZE):
            pipe.xadd("bench", {b"b": BODY})
        pipe.execute()
    return (_used(client) - before) / count


def _used(client: redis.Redis) -> int:
    """Of the data: what connections hold just now is left out."""
    return int(client.memory_stats()["dataset.bytes"])
