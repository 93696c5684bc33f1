"""Freeing old segments takes nothing away from anybody, whatever happens in the middle of it."""

from __future__ import annotations

from pathlib import Path

from openq.clock import VirtualClock
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from tests.crash.client import Client
from tests.crash.faults import FaultyDisk
from tests.crash.host import Host
from tests.crash.ledger import Ledger
from tests.crash.workload import FORGETFUL, open_broker, trial

HOUR_MS = 3_600_000


def use_up_segments(broker: LocalBroker, clock: VirtualClock) -> None:
    """Traffic that leaves nothing behind; then housekeeping."""
    for _ in range(6):
        broker.publish("traffic", Draft(b"." * 900))
        for delivery in broker.receive("traffic", 10):
            broker.ack("traffic", [(delivery.entry.seq, delivery.number)])
        broker.sync()
    clock.advance(5)
    assert broker.housekeeper is not None
    for _ in range(2):  # the first copies, the second frees
        broker.housekeeper.work()


def test_a_message_in_flight_keeps_its_body_while_it_is_copied_out_of_an_old_segment(
    quick_path: Path,
) -> None:
    clock = VirtualClock()
    broker = open_broker(quick_path / "d", clock)
    for queue in ("kept", "traffic"):
        broker.declare(queue, QueueSettings.from_json(FORGETFUL))
    broker.publish("kept", Draft(b"body"))
    broker.sync()
    deliveries = broker.receive("kept", 1, HOUR_MS)
    broker.load(deliveries)
    location = deliveries[0].entry.location

    for _ in range(20):
        use_up_segments(broker, clock)

    assert deliveries[0].entry.location > location  # copied
    assert deliveries[0].entry.body == b"body"
    broker.close()


def test_a_segment_goes_only_when_the_copies_out_of_it_are_on_disk(quick_path: Path) -> None:
    clock, ledger = VirtualClock(), Ledger()
    disk = FaultyDisk(quick_path)
    broker = open_broker(quick_path / "d", clock, disk)
    client = Client(ledger, Host(broker).answer)
    for queue in ("kept", "traffic"):
        client.do("declare", queue=queue, settings=FORGETFUL)
    for _ in range(3):
        client.publish("kept")

    for n in range(20):
        use_up_segments(broker, clock)
        disk.cut(quick_path / f"cut{n}")

        assert trial(quick_path / f"cut{n}" / "d", ledger, clock.now_ms()) == ""
    broker.close()
