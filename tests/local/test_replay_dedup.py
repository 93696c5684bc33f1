"""Replaying into queues that remember what they have seen."""

from __future__ import annotations

from openq.broker.interface import Filter
from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings


def test_a_replay_is_not_kept_out_by_the_window_that_remembers_the_message() -> None:
    broker = LocalBroker(clock=VirtualClock())
    broker.declare("q", QueueSettings(dedup_by_content=True))
    broker.publish("q", Draft(b"once"))
    [delivery] = broker.receive("q")
    broker.ack_one("q", delivery.entry.seq, delivery.number)

    assert broker.admin.replay("q", 0, None) == 1
    assert broker.admin.replay("q", 0, None) == 0  # it is there now: not doubled
    assert broker.publish("q", Draft(b"once")) == broker.inspect.message_id(delivery.entry)
    assert broker.stats("q").ready == 1


def test_attributes_are_the_publishers_own_no_longer() -> None:
    broker = LocalBroker(clock=VirtualClock())
    broker.declare("q", QueueSettings())
    mine = {"list": [1, 2]}
    broker.publish("q", Draft(b"body", attributes=mine))
    mine["list"].append(3)

    [entry] = broker.inspect.peek("q")

    assert entry.properties is not None
    assert entry.properties.attributes == {"list": [1, 2]}


def test_a_search_by_id_looks_at_the_state_too() -> None:
    broker = LocalBroker(clock=VirtualClock())
    broker.declare("q", QueueSettings())
    message_id = broker.publish("q", Draft(b"later", delay_ms=1000))

    assert broker.inspect.search("q", Filter(ids=[message_id], state="ready")).entries == []
    assert len(broker.inspect.search("q", Filter(ids=[message_id], state="delayed")).entries) == 1
