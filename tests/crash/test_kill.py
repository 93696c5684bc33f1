"""Killed at random moments under load, a broker forgets nothing that it promised."""

from __future__ import annotations

from pathlib import Path

import pytest

from openq.errors import DirectoryInUse
from openq.local.broker import LocalBroker
from tests.crash.kill_loop import KillLoop, Process
from tests.crash.seeds import chosen_seed, repeat_with


@pytest.mark.parametrize("keeps_history", [True, False], ids=["with history", "freeing segments"])
def test_nothing_is_lost_or_doubled_when_the_process_is_killed(tmp_path: Path, keeps_history: bool) -> None:
    seed = chosen_seed()
    loop = KillLoop(tmp_path / "d", seed, keeps_history=keeps_history)

    verdict = loop.run(lives=8)

    assert verdict.clean, f"{verdict}; {repeat_with(seed)}"
    assert loop.ledger.confirmed > 100


def test_answering_before_the_commit_is_caught_by_killing(tmp_path: Path) -> None:
    """A planted fault: a judge who never convicts is no judge."""
    verdict = KillLoop(tmp_path / "d", seed=1, host="hasty").run(lives=4)

    assert not verdict.clean


def test_a_second_process_is_refused_with_the_holder_of_the_directory(tmp_path: Path) -> None:
    process = Process(tmp_path / "d", {})
    process.ready.wait()
    try:
        with pytest.raises(DirectoryInUse) as refused:
            LocalBroker(tmp_path / "d")
    finally:
        process.kill()

    assert refused.value.pid == process.pid
    assert str(process.pid) in str(refused.value)
    LocalBroker(tmp_path / "d").close()  # the dead hold nothing
