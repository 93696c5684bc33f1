"""Reading single records: large blocks, read-ahead, the cache's bounds, damage on the way."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path

import pytest

from openq.errors import HistoryUnavailable, JournalDamaged
from openq.journal import reader
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from tests.journal.helpers import batch, put, records, segment_file, small


class Counting(DiskIo):
    def __init__(self) -> None:
        self.reads = 0
        self.read_bytes = 0
        self.opened = 0

    def open(self, path: str, flags: int) -> int:
        self.opened += 1
        return super().open(path, flags)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        data = super().pread(fd, size, offset)
        self.reads += 1
        self.read_bytes += len(data)
        return data


def large(path: Path, **options: object) -> Journal:
    return small(path, segment_bytes=1 << 24, first_segment_bytes=1 << 20, **options)


def test_consuming_in_order_needs_few_reads(tmp_path: Path) -> None:
    journal = large(tmp_path)
    locations = [
        location for n in range(0, 3000, 10) for location in put(journal, *records(3000)[n : n + 10])
    ]
    journal.close()
    io = Counting()
    journal = large(tmp_path, io=io)
    io.reads = 0

    assert [journal.read(location) for location in locations] == records(3000)
    assert io.reads < 30
    journal.close()


def test_a_block_larger_than_the_cache_takes_is_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGE_BLOCK", 10_000)
    monkeypatch.setattr(reader, "WINDOW", 1000)
    monkeypatch.setattr(reader, "READ_AHEAD", 2000)
    everything = [random.Random(n).randbytes(n * 7) for n in range(300)]
    journal = large(tmp_path)
    locations = put(journal, *everything)
    journal.close()
    io = Counting()
    journal = large(tmp_path, io=io)
    io.read_bytes = 0

    assert journal.read(locations[150]) == everything[150]
    assert io.read_bytes > 300_000
    io.read_bytes = 0
    assert journal.read_many(locations) == everything
    assert io.read_bytes < 3 * 300_000
    assert [journal.read(location) for location in locations[::-1]] == everything[::-1]
    journal.close()


def test_damage_in_a_large_block_is_found_and_only_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGE_BLOCK", 10_000)
    journal = large(tmp_path)
    [before] = put(journal, b"before")
    locations = put(journal, *records(300))
    [after] = put(journal, b"after")
    with open(segment_file(tmp_path, 1), "r+b") as file:
        file.seek(locations[200] & 0xFFFF_FFFF)
        file.write(b"\xff" * 20)

    with pytest.raises(JournalDamaged) as caught:
        journal.read(locations[10])
    assert caught.value.file == segment_file(tmp_path, 1)
    assert "does not match its checksum" in caught.value.detail
    assert journal.read_many([before, after]) == [b"before", b"after"]
    journal.close()


def test_a_large_block_whose_end_is_missing_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGE_BLOCK", 10_000)
    journal = large(tmp_path)
    locations = put(journal, *records(300))
    os.truncate(segment_file(tmp_path, 1), 15_000)

    with pytest.raises(JournalDamaged):
        journal.read(locations[10])
    journal.close()


def test_a_record_that_was_verified_and_then_cut_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LARGE_BLOCK", 10_000)
    journal = large(tmp_path)
    [location] = put(journal, bytes(200_000))
    journal.read(location)
    os.truncate(segment_file(tmp_path, 1), 150_000)

    with pytest.raises(JournalDamaged, match="ends early"):
        journal.read(location)
    journal.close()


def test_more_than_the_cache_holds_can_be_read_back_and_forth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "CACHE_BYTES", 20_000)
    monkeypatch.setattr(reader, "WINDOW", 2000)
    monkeypatch.setattr(reader, "OPEN_FILES", 3)
    monkeypatch.setattr(reader, "KNOWN_LARGE", 2)
    monkeypatch.setattr(reader, "LARGE_BLOCK", 3000)
    journal = small(tmp_path, segment_bytes=8192)
    locations: list[int] = []
    sizes = random.Random(5)
    everything = records(2000)
    while len(locations) < 2000:
        locations += put(journal, *everything[len(locations) : len(locations) + sizes.randint(1, 60)])
    pairs = list(zip(locations, everything, strict=True))
    random.Random(6).shuffle(pairs)

    assert [journal.read(location) for location, _ in pairs] == [record for _, record in pairs]
    assert journal._reader._bytes <= 20_000
    assert len(journal._reader._files) <= 4
    assert len(journal._reader._large) <= 2
    assert len(journal._reader._starts) == len(journal._reader._spans)
    journal.close()


def test_many_threads_read_at_once_while_it_is_written(tmp_path: Path) -> None:
    journal = small(tmp_path, segment_bytes=16384)
    written: list[tuple[int, bytes]] = []
    wrong: list[object] = []
    done = threading.Event()

    def look(seed: int) -> None:
        rng = random.Random(seed)
        while not done.is_set():
            if written:
                chosen = [written[rng.randrange(len(written))] for _ in range(20)]
                if journal.read_many([location for location, _ in chosen]) != [
                    record for _, record in chosen
                ]:
                    wrong.append(chosen)
                location, record = written[-1]
                if journal.read(location) != record:
                    wrong.append(location)

    threads = [threading.Thread(target=look, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for n in range(0, 3000, 10):
        group = records(3000)[n : n + 10]
        written += zip(put(journal, *group, wait=n % 30 == 0), group, strict=True)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    journal.close()


def test_two_threads_verify_the_same_block_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = small(tmp_path, first_segment_bytes=4096)
    locations = [location for record in records(20) for location in put(journal, record)]
    honest = reader.verify
    inside: list[int] = []

    def interrupted(*arguments: object) -> bool:
        if len(inside) == 1:
            # The other thread comes by between our look at the block and our note that it is good.
            inside.append(2)
            assert journal.read(locations[1]) == records(20)[1]
        return honest(*arguments)  # type: ignore[arg-type]

    assert journal.read(locations[0]) == records(20)[0]
    inside.append(1)
    monkeypatch.setattr(reader, "verify", interrupted)
    assert journal.read(locations[1]) == records(20)[1]
    assert inside == [1, 2]
    # Were the block counted twice, the next one would now pass unverified.
    assert journal._reader._last.good == locations[2] - 32
    journal.close()


def test_a_location_that_is_none_is_refused(tmp_path: Path) -> None:
    journal = small(tmp_path)
    record, _ = batch(b"one", b"two")
    put(journal, b"x" * 50, record)
    good = journal.end_location

    for location in (1 << 32 | 10, 1 << 32 | 64, 1 << 32 | 1000, good - 3 - 32):
        with pytest.raises(JournalDamaged):
            journal.read(location)
    with pytest.raises(HistoryUnavailable):
        journal.read(99 << 32 | 96)
    with pytest.raises(HistoryUnavailable):
        journal.read(0)
    journal.close()


def test_damage_found_after_a_segment_was_dropped_is_no_damage(tmp_path: Path) -> None:
    """A recycled file holds other data: a reader that still has it open must report no damage."""
    journal = small(tmp_path, first_segment_bytes=4096)
    locations = [location for record in records(100) for location in put(journal, record)]
    journal.read(locations[0])
    old = journal._reader._files[1]
    journal.drop_before(2)
    for record in records(200):
        put(journal, record)
    journal._reader._files[1] = old
    journal._reader._spans.clear()
    journal._reader._starts.clear()
    journal._reader._last = reader.CachedSpan(0, 0, b"")

    with pytest.raises(HistoryUnavailable):
        journal.read(locations[5])
    with pytest.raises(HistoryUnavailable):
        journal.read_many(locations[5:7])
    journal.close()
