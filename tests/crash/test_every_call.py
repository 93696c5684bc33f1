"""Any single call to the disk may fail, in any way, and nothing that was promised is gone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from openq.journal import writer
from tests.crash.every_call import count_calls, one_fault
from tests.crash.faults import KINDS
from tests.crash.seeds import chosen_seed, repeat_with

RUNS = 12  # of each kind; the campaign does all


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "NO_SPACE_TIMEOUT_S", 0.05)


def test_the_work_without_faults_is_a_good_one(quick_path: Path) -> None:
    calls = count_calls(quick_path)

    assert {"pwrite", "fdatasync", "fsync", "fsync_dir", "rename", "unlink", "create"} <= set(calls)


@pytest.mark.parametrize("kind", KINDS)
def test_any_call_may_fail(quick_path: Path, kind: str) -> None:
    seed = chosen_seed()
    (quick_path / "good").mkdir()
    calls = count_calls(quick_path / "good")
    numbers = [n for n, call in enumerate(calls, 1) if kind not in ("short", "torn") or call == "pwrite"]

    for nth in random.Random(f"{seed} {kind}").sample(numbers, min(RUNS, len(numbers))):
        complaint = one_fault(quick_path / f"{nth}", nth, kind)

        assert not complaint, f"{kind} at call {nth}: {complaint}; {repeat_with(seed)}"
