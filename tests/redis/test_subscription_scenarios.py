"""The same story of a subscription on Redis and on a journal: whatever happens, both answer the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from openq.clock import VirtualClock
from openq.errors import OpenQError
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server

STEPS = 150
KINDS = [
    {},
    {"fifo": True},
    {"history_ms": 0},
    {"max_receives": 2, "dead_letter": "dead"},
    {"max_receives": 1, "exhausted": "drop"},
    {"retention_ms": 60_000},
]


class SubscriptionScenario:
    """One broker's side of it. Messages are known by their bodies, which are all different."""

    def __init__(self, broker: Any, settings: dict[str, Any]) -> None:
        self.broker = broker
        broker.declare("dead", QueueSettings())
        broker.declare("q", QueueSettings(visibility_ms=20_000, **settings))

    def publish(self, bodies: list[bytes], priority: int, group: str | None) -> list[Any]:
        return [
            self.broker.publish("q", Draft(each, priority=priority, group=group)) and None for each in bodies
        ]

    def next_batch(
        self, after: int, limit: int, room: int | None, owner: str | None, lease_ms: int | None
    ) -> Any:
        formed = self.broker.subscriptions.next_batch(
            "s", "q", after, limit=limit, max_bytes=room, owner=owner, lease_ms=lease_ms
        )
        return None if formed is None else (formed.batch, formed.count, formed.bytes, formed.until_ms)

    def rows(self, number: int, part: int, parts: int) -> Any:
        rows = self.broker.subscriptions.rows("s", number, part, parts)
        counted = [
            (entry.body, each.count) for entry, each in zip(rows.entries, rows.deliveries, strict=True)
        ]
        return rows.expired, rows.lost, counted

    def ack(self, through: int, owner: str | None) -> Any:
        return self.broker.subscriptions.ack("s", through, owner)

    def extend(self, owner: str | None, lease_ms: int | None) -> Any:
        return self.broker.subscriptions.extend("s", owner, lease_ms)

    def delete(self) -> Any:
        return self.broker.subscriptions.delete("s")

    def settle(self, verb: str, place: int) -> Any:
        """By its receipt, whatever batch it is in."""
        leased = sorted(self.broker.inspect.deliveries("q"), key=lambda each: each.entry.body)
        if not leased:
            return None
        chosen = leased[place % len(leased)]
        receipt = (chosen.entry.seq, chosen.number)
        if verb == "ack":
            return self.broker.ack("q", [receipt]) == [None]
        return self.broker.nack("q", [receipt], 0, "no")

    def receive(self, limit: int) -> Any:
        return [each.entry.body for each in self.broker.receive("q", limit)]

    def purge(self, waiting_only: bool) -> Any:
        return self.broker.purge("q", waiting_only)

    def look(self) -> Any:
        stats = self.broker.stats("q")
        names = ("published", "delivered", "acked", "nacked", "lease_expired", "removed")
        states = [
            (state.owner, state.lease_ms, [(each.batch, each.count, each.until_ms) for each in state.batches])
            for state in self.broker.subscriptions.states()
        ]
        counters = [stats.counters[name] for name in names]
        return stats.ready, stats.in_flight, counters, self.broker.stats("dead").ready, states


def steps(random: Random) -> Iterator[tuple[str, tuple[Any, ...]]]:
    made = 0
    owners = [None, "a", "b", "c"]
    for _ in range(STEPS):
        verb = random.choices(
            [
                "publish",
                "next_batch",
                "rows",
                "ack",
                "extend",
                "delete",
                "settle",
                "receive",
                "purge",
                "wait",
            ],
            [6, 8, 6, 4, 3, 0.5, 2, 2, 0.3, 4],
        )[0]
        owner = random.choice(owners[: random.choice((1, 1, 2, 4))])
        lease_ms = random.choice((None, None, 5_000, 30_000))
        if verb == "publish":
            count = random.choice((1, 3, 20))
            bodies = [b"%05d" % (made + number) + b"x" * random.randrange(20) for number in range(count)]
            made += count
            yield verb, (bodies, random.choice((0, 0, 0, 2)), random.choice((None, None, "g", "h")))
        elif verb == "next_batch":
            room = random.choice((None, None, 30, 200))
            yield verb, (random.randrange(4), random.choice((1, 2, 7, 50)), room, owner, lease_ms)
        elif verb == "rows":
            parts = random.choice((1, 1, 2, 5))
            yield verb, (random.randrange(1, 5), random.randrange(parts), parts)
        elif verb == "ack":
            yield verb, (random.randrange(1, 5), owner)
        elif verb == "extend":
            yield verb, (owner, lease_ms)
        elif verb == "settle":
            yield verb, (random.choice(("ack", "nack")), random.randrange(100))
        elif verb == "receive":
            yield verb, (random.choice((1, 3)),)
        elif verb == "purge":
            yield verb, (random.random() < 0.5,)
        elif verb == "wait":
            yield verb, (random.choice((0.001, 1, 3, 10, 25)),)
        else:
            yield verb, ()


def outcome(act: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return act(*args)
    except OpenQError as error:
        return type(error).__name__


@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: "-".join(settings) or "plain")
@pytest.mark.parametrize("seed", range(5))
def test_both_stores_behave_the_same(redis_server: Server, settings: dict[str, Any], seed: int) -> None:
    clock = VirtualClock()
    on_redis = RedisBroker(redis_server.url, profile="fast", clock=clock)
    try:
        reported = [
            SubscriptionScenario(LocalBroker(clock=clock, seed=1), settings),
            SubscriptionScenario(on_redis, settings),
        ]
        for number, (verb, args) in enumerate(steps(Random(seed))):
            if verb == "wait":
                clock.advance(args[0])
                said = [None, None]
            else:
                said = [outcome(getattr(story, verb), args) for story in reported]
            assert said[0] == said[1], (number, verb, args)
            if said[0] == "SubscriptionTaken":
                # A journal forgets what is gone even where it refuses: now both have.
                assert outcome(reported[0].extend, (None, None)) == outcome(reported[1].extend, (None, None))
            assert reported[0].look() == reported[1].look(), (number, verb, args)
    finally:
        on_redis.close()
