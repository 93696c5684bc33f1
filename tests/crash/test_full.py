"""A full disk stops publishing and nothing else; a failed sync stops everything until a restart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.journal import writer
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from tests.crash.client import Client, Refused, Uncertain
from tests.crash.faults import FaultyDisk
from tests.crash.host import Host
from tests.crash.ledger import Ledger
from tests.crash.workload import SPACES, Work, open_broker, trial
from tests.waiting import until

MIB = 1 << 20


def test_on_a_full_disk_publishing_stops_and_all_else_goes_on(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(quick_path, capacity=16 * MIB)
    clock = VirtualClock()
    journal = Journal(
        quick_path / "d",
        segment_bytes=MIB,
        first_segment_bytes=MIB // 4,
        reserve_bytes=2 * MIB,
        now_ms=clock.now_ms,
        io=disk,
    )
    broker = LocalBroker(journal=journal, clock=clock)
    ledger = Ledger(SPACES)
    client = Client(ledger, Host(broker).answer)
    client.do("declare", queue="work-dead", settings={})
    client.do("declare", queue="work", settings={"max_receives": 2, "dead_letter": "work-dead"})

    published = _publish_until_full(client)
    assert published > 10_000

    done = 0
    while deliveries := client.receive("work", 20):
        client.extend(deliveries[0], 90_000)
        client.reject(deliveries[1])
        done += client.ack(deliveries[0], *deliveries[2:])
        if done > published // 2:
            break
    client.ack(*client.receive("work-dead", 100))
    assert client.do("health", changes=False)["disk_full"]
    for _ in range(20):
        with pytest.raises(Refused, match="DiskFull"):
            client.publish("work", size=2000)

    disk.capacity = 64 * MIB
    until(lambda: client.do("health", changes=False)["ok"])
    client.publish("work", size=2000)
    broker.close()
    assert trial_of(quick_path / "d", ledger, clock) == ""


def _publish_until_full(client: Client) -> int:
    published = 0
    while True:
        try:
            client.publish_run("work", 60)
            client.publish("work", size=20_000)
        except Refused as refused:
            if refused.error != "DiskFull":
                raise
            return published
        published += 61


def trial_of(path: Path, ledger: Ledger, clock: VirtualClock) -> str:
    return trial(path, ledger, clock.now_ms())


@pytest.mark.parametrize("nth", [20, 60, 110])
def test_a_failed_sync_is_final_until_a_restart(quick_path: Path, nth: int) -> None:
    class OnceBroken(FaultyDisk):
        """The n-th sync of the journal fails; the ones after it would claim to work."""

        syncs = 0

        def fdatasync(self, fd: int) -> None:
            self.syncs += 1
            if self.syncs == nth:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            super().fdatasync(fd)

    disk = OnceBroken(quick_path)
    clock, ledger = VirtualClock(), Ledger(SPACES)
    broker = open_broker(quick_path / "d", clock, disk)
    client = Client(ledger, Host(broker).answer)
    work = Work(client, clock)
    work.run()

    assert disk.syncs == nth  # never tried again
    with pytest.raises(Uncertain):
        client.publish("work")
    with pytest.raises(Uncertain):
        client.do("purge", queue="purged")
    assert not client.do("health", changes=False)["ok"]
    broker.close()
    assert trial(quick_path / "d", ledger, clock.now_ms(), work.declared) == ""
