"""Queues bound to `openq.events` get every event once, in order, while the server is killed."""

from __future__ import annotations

from pathlib import Path

from openq.local.broker import LocalBroker
from tests.crash.event_bridge import EventBridgeLoop
from tests.crash.seeds import chosen_seed, repeat_with


def test_events_arrive_once_and_in_order_while_the_server_is_killed(tmp_path: Path) -> None:
    seed = chosen_seed()
    loop = EventBridgeLoop(["--data", str(tmp_path)], lambda: LocalBroker(tmp_path), seed)

    complaint = loop.run(kills=2)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert len(loop.received) > 50
