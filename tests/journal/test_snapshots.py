"""Snapshots: whole or not there, the newest intact one is used."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from openq.journal.snapshots import load_newest, stream_newest, write
from tests.journal.fake_disk import FakeDisk, fail_nth, nth_write

CHUNKS = [b"one", b"", b"three" * 1000, bytes(70_000)]


def test_a_snapshot_comes_back(tmp_path: Path) -> None:
    path = write(str(tmp_path / "s"), 0x1_0000_0060, CHUNKS)

    assert os.path.basename(path) == "0000000100000060.snap"
    assert load_newest(str(tmp_path / "s")) == (0x1_0000_0060, CHUNKS)
    streamed = stream_newest(str(tmp_path / "s"))
    assert streamed is not None
    assert (streamed[0], list(streamed[1])) == (0x1_0000_0060, CHUNKS)


def test_there_may_be_none(tmp_path: Path) -> None:
    assert load_newest(str(tmp_path / "nowhere")) is None
    assert stream_newest(str(tmp_path / "nowhere")) is None
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "zzzzzzzzzzzzzzzz.snap").write_text("x")
    assert load_newest(str(tmp_path)) is None


def test_an_empty_state_is_a_state(tmp_path: Path) -> None:
    write(str(tmp_path), 5, [])
    assert load_newest(str(tmp_path)) == (5, [])


def test_large_states_are_written_in_pieces(tmp_path: Path) -> None:
    chunks = [os.urandom(300_000) for _ in range(12)]
    write(str(tmp_path), 5, iter(chunks))
    assert load_newest(str(tmp_path)) == (5, chunks)


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for location in (1, 2, 3, 4):
        write(str(tmp_path), location, [b"%d" % location])
    assert sorted(os.listdir(tmp_path)) == ["0000000000000003.snap", "0000000000000004.snap"]


def test_a_damaged_one_is_reported_skipped_and_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(str(tmp_path), 1, [b"older"])
    path = Path(write(str(tmp_path), 2, [b"newer", b"state"]))
    whole = path.read_bytes()
    rng = random.Random(1)
    variants = [whole[:size] for size in range(len(whole))] + [whole + b"x"]
    for offset in range(len(whole)):
        flipped = bytearray(whole)
        flipped[offset] ^= 1 << rng.randrange(8)
        variants.append(bytes(flipped))
    for variant in variants:
        path.write_bytes(variant)
        caplog.clear()
        assert load_newest(str(tmp_path)) == (1, [b"older"])
        assert "0000000000000002.snap is skipped" in caplog.text
        streamed = stream_newest(str(tmp_path))
        assert streamed is not None
        assert list(streamed[1]) == [b"older"]
        assert path.read_bytes() == variant
    path.write_bytes(whole)
    assert load_newest(str(tmp_path)) == (2, [b"newer", b"state"])


def test_any_failing_call_leaves_the_older_one(tmp_path: Path) -> None:
    for n in range(1, 12):
        for kind in ("eio", "torn", "short"):
            root = tmp_path / f"{n}{kind}"
            root.mkdir()
            folder = str(root / "s")
            write(folder, 1, [b"older"])
            disk = FakeDisk(root)
            disk.fault = fail_nth(n, errno.EIO) if kind == "eio" else nth_write(n, kind)
            done = False
            try:
                write(folder, 2, [b"newer"], disk)
                done = True
            except OSError:
                pass
            disk.dead = False
            assert load_newest(folder) in ([(2, [b"newer"])] if done else [(1, [b"older"]), (2, [b"newer"])])
            for seed in range(3):
                target = root / f"cut{seed}"
                disk.cut(target, random.Random(seed))
                found = load_newest(str(target / "s"))
                assert found == (2, [b"newer"]) or (not done and found == (1, [b"older"]))


def test_half_written_files_of_a_crash_are_removed_by_the_next_write(tmp_path: Path) -> None:
    (tmp_path / "0000000000000009.snap.tmp").write_bytes(b"half")
    write(str(tmp_path), 10, [b"x"])
    assert os.listdir(tmp_path) == ["000000000000000a.snap"]


def test_a_chunk_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openq.journal.snapshots._MAX_CHUNK", 10)
    with pytest.raises(ValueError, match="limit"):
        write(str(tmp_path), 1, [bytes(11)])
    assert os.listdir(tmp_path) == []
