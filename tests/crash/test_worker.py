"""A worker, its processes and its broker are killed: no job is lost, guarded effects happen once."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.worker import VICTIMS, WorkerLoop


@pytest.mark.skipif(sys.platform != "linux", reason="finds the worker's processes in /proc")
@pytest.mark.parametrize("broker", ["journal", "redis"])
def test_every_job_has_its_effect_though_every_process_is_killed(tmp_path: Path, broker: str) -> None:
    """One kill of each kind; `python -m tests.crash.worker` has more."""
    seed = chosen_seed()
    loop = WorkerLoop(tmp_path, seed, broker, jobs=350)

    complaint = loop.run(random.Random(seed).sample(VICTIMS, len(VICTIMS)))

    assert complaint == "", f"{complaint}; {repeat_with(seed)}"
    assert loop.killed.total() == len(VICTIMS)
