"""Every call to the disk fails once in turn, in every way; then all that was promised must be there."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from openq.clock import VirtualClock
from openq.errors import OpenQError
from openq.local.broker import LocalBroker
from tests.crash.client import Client
from tests.crash.faults import FaultyDisk
from tests.crash.host import Host
from tests.crash.ledger import Ledger
from tests.crash.workload import SPACES, Work, open_broker, trial


class Run:
    """The work on a faulty disk, up to its end or the death of the disk."""

    def __init__(self, root: Path, disk: FaultyDisk, host: type[Host] = Host) -> None:
        self.root = root
        self.disk = disk
        self.clock = VirtualClock()
        self.ledger = Ledger(SPACES)
        self.work = Work(Client(self.ledger, self._call), self.clock)
        self.broker: LocalBroker | None = None
        self._host: Host | None = None
        try:
            self.broker = open_broker(root / "d", self.clock, disk)
        except OpenQError:
            return
        self._host = host(self.broker)
        self.work.run()

    def _call(self, call: dict[str, object]) -> dict[str, object]:
        assert self._host is not None
        return self._host.answer(call)

    def close(self) -> None:
        if self.broker is not None:
            self.broker.close()

    def trial_of(self, path: Path, snapshots: bool = True) -> str:
        """On a copy. A snapshot only saves time: without any, everything must be there too."""
        copy = path.with_name(path.name + "-trial")
        shutil.rmtree(copy, ignore_errors=True)
        if path.exists():
            shutil.copytree(path, copy)
        if not snapshots:
            shutil.rmtree(copy / "snapshots", ignore_errors=True)
        return trial(copy, self.ledger, self.clock.now_ms(), self.work.declared)


def count_calls(root: Path) -> list[str]:
    """The calls of a run without faults, which must be a good one."""
    run = Run(root, FaultyDisk(root))
    run.close()
    complaint = run.trial_of(root / "d")
    assert not complaint, complaint
    return run.disk.calls


def one_fault(root: Path, nth: int, kind: str, cuts: int = 2) -> str:
    """Complaints about one run, empty if all is well. `root` is used up."""
    root.mkdir(parents=True)
    disk = FaultyDisk(root, nth, kind)
    run = Run(root, disk)
    complaints = []
    for seed in range(cuts):
        target = root / f"cut{seed}"
        disk.cut(target, random.Random(f"{nth} {seed}") if seed else None)
        complaints.append((f"power cut {seed}", run.trial_of(target / "d", snapshots=bool(seed))))
    run.close()
    # After a kill the files are as they were left; otherwise the process ended in good order.
    complaints.append(("restart", run.trial_of(root / "d")))
    complaints.append(("restart without snapshots", run.trial_of(root / "d", snapshots=False)))
    found = [f"{when}: {what}" for when, what in complaints if what]
    shutil.rmtree(root)
    return "; ".join(found)
