"""What the server confirmed to a client holds after kill -9 and after a power cut, in every protocol."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.crash.loop_disk import LoopDisk, why_not
from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.server_loop import ServerLoop

needs_loop_disk = pytest.mark.skipif(why_not() is not None, reason=f"no loop-mounted disk: {why_not()}")


@pytest.mark.parametrize("keeps_history", [True, False])
def test_a_killed_server_keeps_all_that_it_answered(tmp_path: Path, keeps_history: bool) -> None:
    """With its history, and freeing segments; the seed says which client comes by which protocol."""
    seed = chosen_seed()
    loop = ServerLoop(tmp_path / "d", seed, keeps_history=keeps_history, shift=(seed + keeps_history) % 3)

    verdict = loop.run(lives=3, longest=500)

    assert verdict.clean, f"{verdict}; {repeat_with(seed)}"
    assert loop.ledger.confirmed > 10  # it did work, however slow the machine


@needs_loop_disk
def test_a_power_cut_takes_nothing_that_a_server_answered(tmp_path: Path) -> None:
    seed = chosen_seed()
    with LoopDisk(tmp_path) as disk:
        loop = ServerLoop(disk.mounted / "d", seed, shift=seed % 3, after_death=disk.cut)

        verdict = loop.run(lives=2, longest=400)

    assert verdict.clean, f"{verdict}; {repeat_with(seed)}"


@needs_loop_disk
def test_a_server_that_answers_before_the_sync_is_caught(tmp_path: Path) -> None:
    """A planted fault, by its own name: a judge who never convicts is no judge."""
    convicted = False
    with LoopDisk(tmp_path) as disk:
        for n in range(8):  # what it loses is at most 50 ms: not every cut finds something in them
            path = disk.mounted / f"d{n}"
            loop = ServerLoop(path, n, flags=("--relaxed",), after_death=disk.cut)
            if not loop.run(lives=1, longest=300).clean:
                convicted = True
                break
            for left in disk.mounted.glob(f"d{n}*"):  # the disk is small
                shutil.rmtree(left)

    assert convicted
