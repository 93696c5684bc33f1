"""Large records are kept and written in pieces; on disk they look like any other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from openq.engine.records import LARGE_BODY, PUBLISH, RUN, encode, large_pieces
from openq.journal.disk import DiskIo, read_all, write_pieces
from openq.journal.file_journal import Journal
from openq.journal.format import ITEM
from openq.local.broker import LocalBroker
from openq.model import ENCODING_BYTES, Properties, QueueSettings
from tests.journal.fake_disk import FakeDisk, fail_nth
from tests.journal.helpers import batch, contents, put, small
from tests.journal.test_commit import Gate
from tests.journal.test_interrupt import Interruption, Nimble

PIECES = [b"head", bytes(3000), b"", os.urandom(500), b"tail"]
WHOLE = b"".join(PIECES)
ROOMY = {"segment_bytes": 1 << 20, "first_segment_bytes": 1 << 20}


def put_pieces(journal: Journal, *records: Sequence[bytes]) -> list[int]:
    with journal.lock:
        return [journal.append_pieces(pieces) for pieces in records]


def test_large_and_small_records_share_a_block_and_are_read_before_and_after_the_sync(tmp_path: Path) -> None:
    gate = Gate()
    journal = small(tmp_path, io=gate, **ROOMY)
    syncs = gate.syncs
    with journal.lock:
        locations = [
            journal.append(b"first"),
            journal.append_pieces(PIECES),
            journal.append_pieces([b"x" * 9000]),
            journal.append(b"between"),
            journal.append_pieces(PIECES),
            journal.append(b"last"),
        ]
    expected = [b"first", WHOLE, b"x" * 9000, b"between", WHOLE, b"last"]
    assert [journal.read(location) for location in locations] == expected
    journal.wait(locations[-1])

    assert gate.syncs == syncs + 1
    assert journal.read_many(locations) == expected
    journal.close()
    assert contents(tmp_path) == expected


def test_an_item_inside_a_large_record_is_read_by_its_own_location(tmp_path: Path) -> None:
    whole, distances = batch(b"one" * 50, b"two" * 50, b"three" * 50)
    journal = small(tmp_path, **ROOMY)
    with journal.lock:
        journal.append(b"before")
        at = journal.append_pieces([whole[:20], whole[20:200], whole[200:]])
    items = [journal.read(at + distance) for distance in distances]
    journal.wait(at)

    assert items == [b"one" * 50, b"two" * 50, b"three" * 50]
    assert [journal.read(at + distance) for distance in distances] == items
    journal.close()
    assert ITEM  # the items carry it in their frames, as the readers expect


def test_large_records_begin_segments_of_their_own_size(tmp_path: Path) -> None:
    journal = small(tmp_path)
    journal.first_record = lambda: b"opening"
    locations = put_pieces(journal, *[[b"%d" % n, bytes(5000)] for n in range(5)])
    journal.wait(locations[-1])
    put(journal, b"more")
    journal.close()
    assert [record for record in contents(tmp_path) if record != b"opening"] == [
        *[b"%d" % n + bytes(5000) for n in range(5)],
        b"more",
    ]


def test_pieces_are_written_completely_however_little_the_disk_takes(tmp_path: Path) -> None:
    class Stingy(DiskIo):
        def pwritev(self, fd: int, pieces: Sequence[bytes | bytearray | memoryview], offset: int) -> int:
            return os.pwrite(fd, b"".join(pieces)[:7], offset)

    io = Stingy()
    fd = io.open(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    write_pieces(io, fd, [b"", *[b"%d," % n for n in range(2000)], b""], 3)
    assert read_all(io, fd, 1 << 20, 3) == b"".join(b"%d," % n for n in range(2000))
    io.close(fd)


def test_an_interruption_at_any_step_leaves_a_large_record_whole_or_absent(tmp_path: Path) -> None:
    journal = small(tmp_path, io=Nimble(), segment_bytes=1 << 16)
    confirmed = []
    step = 0
    happened = True
    while happened:
        step += 1
        name = b"%d" % step
        with Interruption(step) as interruption, suppress(KeyboardInterrupt):
            with journal.lock:
                location = journal.append_pieces([name, b"/", bytes(600)])
            journal.wait(location)
            confirmed.append(name)
        happened = interruption.happened
        put(journal, b"small/" + name)
        confirmed.append(b"small/" + name)
    journal.close()

    found = contents(tmp_path)
    assert step > 50
    assert all(len(record) == len(record.partition(b"/")[0]) + 601 for record in found if b"\0" in record)
    names = [record.removesuffix(b"/" + bytes(600)) for record in found]
    assert set(confirmed) <= set(names)
    assert len(names) == len(set(names))


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_leaves_what_was_answered(tmp_path: Path, seed: int) -> None:
    disk = FakeDisk(tmp_path / "live")
    journal = small(tmp_path / "live" / "d", io=disk)
    locations = [put_pieces(journal, [b"%d" % n, bytes(2000)])[0] for n in range(4)]
    journal.wait(locations[-1])
    disk.fault = fail_nth(len(disk.calls) + 2, 5)
    last = put_pieces(journal, [b"unanswered", bytes(2000)])[0]
    with suppress(Exception):
        journal.wait(last)
    disk.cut(tmp_path / "cut", Random(seed))
    journal.close()

    found = contents(tmp_path / "cut" / "d")
    assert found[:4] == [b"%d" % n + bytes(2000) for n in range(4)]
    assert found[4:] in ([], [b"unanswered" + bytes(2000)])


@pytest.mark.parametrize(
    "properties", [None, Properties({"a": 1}, "me"), Properties(None, None, b"\x80\x00")]
)
def test_the_pieces_of_a_record_are_its_bytes(properties: Properties | None) -> None:
    large, larger = os.urandom(LARGE_BODY), os.urandom(LARGE_BODY + 1)
    for record in (
        (PUBLISH, 1, 2, 3, ENCODING_BYTES, large, properties, None),
        (RUN, 1, 2, 3, ENCODING_BYTES, (large, large), properties, None),
        (RUN, 1, 2, 3, ENCODING_BYTES, (large, larger, b"small"), properties, None),
    ):
        pieces = large_pieces(record)
        assert pieces is not None
        assert any(piece is large for piece in pieces)
        assert b"".join(pieces) == encode(record)
    assert large_pieces((PUBLISH, 1, 2, 3, ENCODING_BYTES, b"small", properties, None)) is None


def test_large_bodies_come_back_after_a_restart(tmp_path: Path) -> None:
    bodies = [os.urandom(LARGE_BODY + n) for n in range(5)]
    broker = LocalBroker(tmp_path)
    broker.declare("q", QueueSettings())
    broker.publish_body("q", bodies[0], ENCODING_BYTES)
    broker.publish_bodies("q", bodies[1:], ENCODING_BYTES)
    broker.publish_body("q", b"small", ENCODING_BYTES)
    broker.sync()
    broker.close()

    broker = LocalBroker(tmp_path)
    found = [delivery.entry.body for delivery in broker.load(broker.receive("q", 10))]
    broker.close()
    assert found == [*bodies, b"small"]
