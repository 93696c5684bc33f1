"""What nobody waits for the copies of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from openq.broker.staged_batches import StagingJob
from openq.model import Draft, QueueSettings
from openq.packed import pack
from openq.redis.broker import RedisBroker
from tests.redis.servers import FORCED, replicated


@pytest.mark.parametrize("look", ["batches", "stages", "stats", "cursors", "past"])
def test_who_only_looked_waits_for_no_copies(look: str) -> None:
    with replicated(1, *FORCED) as group, closing(RedisBroker(group.url)) as broker:
        broker.declare("q", QueueSettings())
        broker.publish_bodies("q", [b"x"] * 10, 0)
        broker.sync()
        broker.subscriptions.next_batch("s", "q", 0, limit=1)
        broker.staging.put(StagingJob("j"), 0, "p", pack({"body": [b"1"]}))
        broker.sync()

        looks: dict[str, Callable[[], object]] = {
            "batches": lambda: broker.subscriptions.states(),
            "stages": lambda: broker.staging.stages(),
            "stats": lambda: broker.stats("q"),
            "cursors": lambda: broker.cursors.states(),
            "past": lambda: broker.inspect.peek("q"),
        }
        looks[look]()
        # What was looked at over the lost connection is no write whose copies could be missing.
        group.master.ask("CLIENT", "KILL", "TYPE", "normal")
        broker.publish("q", Draft(b"y"))
        broker.sync()
