"""A confirmed value is there after a kill, a power cut and a failed disk; a full disk still deletes."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openq.broker.kv import KvPut
from openq.clock import VirtualClock
from openq.errors import DiskFull, OpenQError
from openq.journal import writer
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.crash.faults import KINDS, FaultyDisk
from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.workload import open_broker
from tests.isolation import with_tests

MIB = 1 << 20


class Known:
    """The values that each key may have: the confirmed one, or one that was begun after it."""

    def __init__(self) -> None:
        self.allowed: dict[str, list[str | None]] = {}
        self.confirmed = 0
        self._begun: dict[int, dict[str, str | None]] = {}

    def read(self, line: dict[str, Any]) -> None:
        if "begun" in line:
            self._begun[line["thread"]] = line["begun"]
            for key, value in line["begun"].items():
                self.allowed.setdefault(key, [None]).append(value)
        elif "done" in line:
            self.confirmed += 1
            for key, value in self._begun[line["done"]].items():
                self.allowed[key] = [value]

    def complaints(self, found: dict[str, Any]) -> list[str]:
        values = {key: value for key, (value, _) in found.items()}
        wrong = [key for key, allowed in self.allowed.items() if values.get(key) not in allowed]
        return [*wrong, *(values.keys() - self.allowed.keys())]

    def settle(self, found: dict[str, Any]) -> None:
        """What is found is what is there from now on."""
        self.allowed = {key: [found[key][0] if key in found else None] for key in self.allowed}


@pytest.mark.parametrize("with_snapshots", [True, False])
def test_every_confirmed_value_is_there_after_a_kill(tmp_path: Path, with_snapshots: bool) -> None:
    seed = chosen_seed()
    chance = random.Random(seed)
    known = Known()
    newest = 0
    for life in range(6):
        if not with_snapshots:
            shutil.rmtree(tmp_path / "d" / "snapshots", ignore_errors=True)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.kv_writer", str(tmp_path / "d"), str(seed), str(life)],
            stdout=subprocess.PIPE,
            text=True,
            env=with_tests(),
        )
        assert process.stdout is not None
        found = json.loads(process.stdout.readline())["found"]
        assert not known.complaints(found), repeat_with(seed)
        versions = [version for _, version in found.values()]
        assert len(set(versions)) == len(versions)
        newest = max([newest, *versions])
        known.settle(found)
        kill_at = known.confirmed + chance.randint(20, 250)
        for line in process.stdout:
            if line.endswith("\n"):
                known.read(json.loads(line))
            if known.confirmed == kill_at:
                process.kill()
        process.wait(60)
        process.stdout.close()
    assert known.confirmed > 100
    broker = LocalBroker(tmp_path / "d")
    found = {entry.key: [entry.value.decode(), entry.version] for entry in broker.kv.list("b")}
    assert not known.complaints(found), repeat_with(seed)
    [version] = broker.kv.put_many("b", [KvPut("new", b"")])
    assert isinstance(version, int)
    assert version > max([newest, *(each for _, each in found.values())])
    broker.close()


def work(broker: LocalBroker, clock: VirtualClock, known: Known) -> None:
    """Puts and deletes over many small segments, with housekeeping between them."""
    assert broker.housekeeper is not None
    broker.declare("q", QueueSettings(history_ms=0, dedup_window_ms=0))
    for number in range(40):
        key, value = f"k{number % 7}", None if number % 5 == 4 else f"{number}" + "v" * (number % 3) * 300
        known.read({"begun": {key: value, f"{key}+": value}, "thread": 0})
        if value is None:
            broker.kv.delete_many("b", [key, f"{key}+"])
        else:
            broker.kv.put_many("b", [KvPut(key, value.encode()), KvPut(f"{key}+", value.encode())])
        broker.sync()
        known.read({"done": 0})
        broker.publish_bodies("q", [b"b" * 500] * 3, 0)
        broker.ack("q", [(each.entry.seq, each.number) for each in broker.receive("q", 3)])
        broker.sync()
        if number % 6 == 5:
            clock.advance(10)
            broker.housekeeper.work()


def complaint(path: Path, clock: VirtualClock, known: Known, snapshots: bool) -> str:
    copy = path.with_name(f"{path.name}-trial")
    shutil.rmtree(copy, ignore_errors=True)
    if not path.exists():
        return "" if not known.confirmed else "nothing is there"
    shutil.copytree(path, copy)
    if not snapshots:
        shutil.rmtree(copy / "snapshots", ignore_errors=True)
    broker = open_broker(copy, clock)
    found = {entry.key: [entry.value.decode(), entry.version] for entry in broker.kv.list("b")}
    # A put of two keys is one block: both are there, or neither.
    halves = [key for key in found if not key.endswith("+") and found[key][0] != found[f"{key}+"][0]]
    broker.close()
    shutil.rmtree(copy)
    return " ".join([*known.complaints(found), *halves])


@pytest.mark.parametrize("kind", KINDS)
def test_any_call_to_the_disk_may_fail(quick_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    seed = chosen_seed()
    (quick_path / "good").mkdir()
    disk = FaultyDisk(quick_path / "good")
    clock, known = VirtualClock(), Known()
    broker = open_broker(quick_path / "good" / "d", clock, disk)
    work(broker, clock, known)
    broker.close()
    assert complaint(quick_path / "good" / "d", clock, known, True) == ""
    calls = [n for n, call in enumerate(disk.calls, 1) if kind not in ("short", "torn") or call == "pwrite"]

    for nth in random.Random(f"{seed} {kind}").sample(calls, 6):
        root = quick_path / str(nth)
        root.mkdir()
        disk = FaultyDisk(root, nth, kind)
        clock, known = VirtualClock(), Known()
        opened: LocalBroker | None = None
        try:
            opened = open_broker(root / "d", clock, disk)
            work(opened, clock, known)
        except (OpenQError, OSError):
            pass
        disk.cut(root / "cut", random.Random(nth))
        wrong = complaint(root / "cut" / "d", clock, known, snapshots=bool(nth % 2))
        if opened is not None:
            opened.close()
        wrong += complaint(root / "d", clock, known, snapshots=not nth % 2)
        assert wrong == "", f"{kind} at call {nth}: {repeat_with(seed)}"
        shutil.rmtree(root)


def test_a_full_disk_refuses_puts_and_allows_deletes(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)
    disk = FaultyDisk(quick_path, capacity=8 * MIB)
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
    stored = 0
    refusal: Exception | None = None
    while refusal is None and stored < 100:
        try:
            broker.kv.put_many("b", [KvPut(str(stored), bytes(200_000))])
            broker.sync()
            stored += 1
        except DiskFull as error:
            refusal = error

    assert isinstance(refusal, DiskFull)
    assert stored > 10
    assert len(broker.kv.list("b", limit=5)) == 5
    assert broker.kv.delete_many("b", [str(i) for i in range(stored)]) == [True] * stored
    broker.sync()
    broker.close()
    reopened = open_broker(quick_path / "d", clock)
    assert reopened.kv.buckets() == []
    reopened.close()
