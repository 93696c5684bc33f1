"""A disk that fails to read: typed errors for callers, and nothing lost once it reads again."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from openq.clock import VirtualClock
from openq.errors import OpenQError
from tests.crash.client import Client, Refused, Uncertain
from tests.crash.host import Host, QuietIo
from tests.crash.ledger import Ledger
from tests.crash.workload import SPACES, Work, open_broker, trial


class UnreadableIo(QuietIo):
    """From the n-th on, `times` reads fail."""

    def __init__(self, nth: int, times: int) -> None:
        self._nth = nth
        self._times = times
        self.reads = 0

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        if self._nth <= self.reads < self._nth + self._times:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(fd, size, offset)


@pytest.mark.parametrize("times", [1, 1 << 30], ids=["once", "for good"])
def test_any_read_may_fail(quick_path: Path, times: int) -> None:
    clock, ledger = VirtualClock(), Ledger(SPACES)
    broker = open_broker(quick_path / "good", clock)
    work = Work(Client(ledger, Host(broker).answer), clock)
    work.run()
    broker.close()

    nth = 0
    io = UnreadableIo(0, 0)
    while io.reads >= nth:
        nth += 1
        io = UnreadableIo(nth, times)
        path = quick_path / f"d{nth}"
        shutil.copytree(quick_path / "good", path)
        past = ledger.copy()
        use(path, past, io, clock.now_ms())

        assert trial(path, past, clock.now_ms()) == "", f"read {nth} failed"
        shutil.rmtree(path)
    assert nth > 10


def use(path: Path, ledger: Ledger, io: UnreadableIo, now_ms: int) -> None:
    """Whatever raises something else than an OpenQError is in the ledger as a complaint."""
    try:
        broker = open_broker(path, VirtualClock(now_ms), io)
    except OpenQError:
        return
    client = Client(ledger, Host(broker).answer)
    for queue in broker.queues():
        with suppress(Refused, Uncertain):
            client.ack(*client.receive(queue, 3))
        with suppress(Refused, Uncertain):
            client.do("redrive", queue=queue)
    with suppress(Refused, Uncertain):
        client.do("housekeeping", changes=False)
    broker.close()
