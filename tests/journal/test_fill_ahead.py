"""Spare segments are filled with zeros before they are needed, and never after that."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from random import Random

import pytest

from openq.journal.disk import DiskIo
from openq.journal.pool import SLICE_BYTES
from tests.journal.fake_disk import FakeDisk
from tests.journal.helpers import contents, put, records, small
from tests.waiting import until

SIZES = {"segment_bytes": 4 * SLICE_BYTES, "first_segment_bytes": SLICE_BYTES}
LARGE = records(12, size=SLICE_BYTES // 3)  # about three fit into the first segment


class Filling(DiskIo):
    """Counts the zeros of whole slices; the second slice of a file can be held back, or fail."""

    def __init__(self) -> None:
        self.filled: dict[int, int] = {}
        self.arrived = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.fails = False

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        if len(data) == SLICE_BYTES and threading.current_thread().name == "openq-preparer":
            self.filled[fd] = self.filled.get(fd, 0) + 1
            if self.filled[fd] == 2:
                self.arrived.set()
                self.go_on.wait()
                if self.fails:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pwrite(fd, data, offset)


def test_a_spare_is_filled_completely(tmp_path: Path) -> None:
    io = Filling()
    journal = small(tmp_path, io=io, **SIZES)
    until(lambda: journal._pool.spares and journal._pool.spares[0].written == 2 * SLICE_BYTES)

    [spare] = journal._pool.spares
    assert io.filled == {spare.fd: 2}
    assert os.path.getsize(spare.path) == 2 * SLICE_BYTES
    journal.close()


def test_a_spare_that_is_needed_early_waits_for_one_slice_and_gets_no_more(tmp_path: Path) -> None:
    io = Filling()
    io.go_on.clear()
    journal = small(tmp_path, io=io, **SIZES)
    assert io.arrived.wait(60)
    [spare] = journal._pool.spares
    done = threading.Event()

    def publish() -> None:
        put(journal, *LARGE[:4])  # the fourth record needs the next segment
        done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    until(lambda: spare not in journal._pool.spares)
    assert not done.is_set()  # the slice under way would overwrite its records
    io.go_on.set()
    publisher.join()
    put(journal, *LARGE[4:])
    journal.close()

    assert spare.in_use
    assert contents(tmp_path, **SIZES) == LARGE


def test_a_disk_that_refuses_zeros_gets_the_records_all_the_same(tmp_path: Path) -> None:
    io = Filling()
    io.fails = True
    journal = small(tmp_path, io=io, **SIZES)
    assert io.arrived.wait(60)
    put(journal, *LARGE)
    journal.close()
    assert contents(tmp_path, **SIZES) == LARGE


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_while_spares_are_filled_loses_nothing(tmp_path: Path, seed: int) -> None:
    disk = FakeDisk(tmp_path / "live")
    journal = small(tmp_path / "live" / "d", io=disk, **SIZES)
    for record in LARGE:
        put(journal, record)
    disk.cut(tmp_path / "cut", Random(seed))
    journal.close()
    assert contents(tmp_path / "cut" / "d", **SIZES) == LARGE
