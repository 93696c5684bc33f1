"""A power cut right after each answer: only what was synced is left, and it must be enough."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from openq.clock import VirtualClock
from tests.crash.client import Client
from tests.crash.faults import FaultyDisk
from tests.crash.host import Host
from tests.crash.ledger import Ledger
from tests.crash.workload import SPACES, Work, open_broker, trial


class Convicted(Exception):
    """The first complaint; a test of a planted fault needs no second."""


class CutAfterAnswers:
    """Does the work, and after every `every`-th answer looks at what a power cut just then had left."""

    def __init__(self, root: Path, host: type[Host], lies: frozenset[str], every: int = 1) -> None:
        self._root = root
        self._lies = lies
        self._disk = FaultyDisk(root)
        self._clock = VirtualClock()
        self._ledger = Ledger(SPACES)
        self._every = every
        self._answers = 0
        self._cut: Path | None = None
        self.cuts = 0
        self._broker = open_broker(root / "d", self._clock, self._disk)
        # A lie about the very first file would be found at once; those about later ones are harder.
        self._disk.lies = lies
        self._host = host(self._broker)
        self._work = Work(Client(self._ledger, self._call), self._clock)

    def run(self) -> str:
        """Empty, or the first complaint."""
        try:
            self._work.run()
            self._look()
        except Convicted as convicted:
            return str(convicted)
        finally:
            self._broker.close()
        return ""

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        self._look()  # by now the answer before this call is in the ledger
        answer = self._host.answer(call)
        self._answers += 1
        if self._answers % self._every == 0:
            self._cut = self._root / f"cut{self._answers}"
            chance = random.Random(self._answers) if self._answers % 2 else None
            self._disk.cut(self._cut, None if self._lies else chance)
        return answer

    def _look(self) -> None:
        if self._cut is None:
            return
        cut, self._cut = self._cut, None
        self.cuts += 1
        complaint = trial(cut / "d", self._ledger, self._clock.now_ms(), self._work.declared)
        shutil.rmtree(cut)
        if complaint:
            raise Convicted(complaint)
