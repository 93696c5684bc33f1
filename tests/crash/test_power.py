"""What was answered survives a power cut; and an answer before the sync is detected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.host import ForgetfulHost, HastyHost, Host
from tests.crash.kill_loop import KillLoop
from tests.crash.loop_disk import LoopDisk, why_not
from tests.crash.power_cut import CutAfterAnswers
from tests.crash.seeds import chosen_seed, repeat_with

needs_loop_disk = pytest.mark.skipif(why_not() is not None, reason=f"no loop-mounted disk: {why_not()}")


def test_every_answer_survives_a_power_cut(quick_path: Path) -> None:
    cutter = CutAfterAnswers(quick_path, Host, frozenset(), every=3)

    assert cutter.run() == ""
    assert cutter.cuts > 40


# -- planted faults: a judge who never convicts is no judge


def test_answering_before_the_commit_is_caught(quick_path: Path) -> None:
    assert CutAfterAnswers(quick_path, HastyHost, frozenset()).run()


def test_acks_that_are_not_synced_are_caught(quick_path: Path) -> None:
    assert "resurrected" in CutAfterAnswers(quick_path, ForgetfulHost, frozenset()).run()


def test_leaving_out_the_sync_is_caught(quick_path: Path) -> None:
    assert CutAfterAnswers(quick_path, Host, frozenset({"fdatasync"})).run()


def test_leaving_out_the_sync_of_directories_is_caught(quick_path: Path) -> None:
    assert CutAfterAnswers(quick_path, Host, frozenset({"fsync_dir"})).run()


# -- a real file system


@needs_loop_disk
def test_power_cuts_on_a_real_file_system_lose_nothing(tmp_path: Path) -> None:
    seed = chosen_seed()
    with LoopDisk(tmp_path) as disk:
        loop = KillLoop(disk.mounted / "d", seed, after_death=disk.cut)

        verdict = loop.run(lives=4, longest=300)

    assert verdict.clean, f"{verdict}; {repeat_with(seed)}"


@needs_loop_disk
def test_leaving_out_all_syncs_is_caught_on_a_real_file_system(tmp_path: Path) -> None:
    with LoopDisk(tmp_path) as disk:
        loop = KillLoop(disk.mounted / "d", 1, after_death=disk.cut, io="quiet")

        verdict = loop.run(lives=2, longest=300)

    assert not verdict.clean
