"""Damaged files: a clean prefix or a refusal that names the place, never a wrong or missing message."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.journal.repair import repair
from openq.local.broker import LocalBroker
from tests.crash.client import Client
from tests.crash.host import Host
from tests.crash.ledger import Ledger
from tests.crash.mutants import Specimen, examine
from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.workload import SPACES, Work, open_broker, trial

MUTANTS = 170  # of each specimen; the campaign makes thousands


@pytest.mark.parametrize(
    ("closed", "snapshots"),
    [(True, True), (False, True), (False, False)],
    ids=["closed", "killed", "without snapshots"],
)
def test_damage_is_cut_named_or_harmless_and_repair_saves_what_is_intact(
    quick_path: Path, closed: bool, snapshots: bool
) -> None:
    seed = chosen_seed()
    specimen = Specimen(quick_path / "good", closed=closed, snapshots=snapshots)

    for n in range(MUTANTS):
        complaint = examine(specimen, quick_path / "mutant", random.Random(f"{seed} {n}"))

        assert not complaint, f"{complaint}; {repeat_with(seed)}"


@pytest.mark.parametrize("size", range(0, 64, 9))
def test_a_last_segment_cut_inside_its_header_can_be_repaired(quick_path: Path, size: int) -> None:
    specimen = Specimen(quick_path / "good", closed=True, snapshots=True)
    last = specimen.path / specimen.segments[-1]
    last.write_bytes(last.read_bytes()[:size])

    repair(specimen.path)

    open_broker(specimen.path, specimen.clock).close()


def test_a_last_segment_overwritten_by_another_can_be_repaired(quick_path: Path) -> None:
    """A snapshot tells how far the journal went; what stood up to there is marked as lost."""
    specimen = Specimen(quick_path / "good", closed=True, snapshots=True)
    shutil.copy(specimen.path / specimen.segments[-2], specimen.path / specimen.segments[-1])

    repair(specimen.path)

    open_broker(specimen.path, specimen.clock).close()


def test_without_its_newest_snapshot_a_broker_knows_all_the_same(quick_path: Path) -> None:
    """The older snapshot begins in a segment that is freed by now."""
    clock, ledger = VirtualClock(), Ledger(SPACES)
    broker = open_broker(quick_path / "d", clock)
    work = Work(Client(ledger, Host(broker).answer), clock)
    work.run()
    broker.close()
    snapshots = sorted((quick_path / "d" / "snapshots").iterdir())
    snapshots[0].rename(snapshots[0].with_name(f"{1 << 32 | 64:016x}.snap"))
    snapshots[-1].write_bytes(b"damaged")

    assert trial(quick_path / "d", ledger, clock.now_ms(), work.declared) == ""


def test_a_snapshot_that_names_a_freed_segment_does_not_block_the_others(quick_path: Path) -> None:
    """The copy of a message was in the damaged end of the journal, and its old segment is freed."""
    specimen = Specimen(quick_path / "good", closed=False, snapshots=True)
    first = specimen.path / specimen.segments[0]
    shutil.move(first, quick_path)
    first.with_suffix(".idx").unlink(missing_ok=True)
    (specimen.path / "journal" / "bounds").unlink()

    broker: LocalBroker = open_broker(specimen.path, specimen.clock)
    try:
        for queue in broker.queues():
            while deliveries := broker.receive(queue, 100):
                broker.load(deliveries)
    finally:
        broker.close()
