"""A real Spark job whose driver, workers and server are killed: every message arrives once."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.crash.pipeline import KINDS, PipelineLoop
from tests.crash.seeds import chosen_seed, repeat_with


@pytest.mark.skipif(sys.platform != "linux", reason="finds Spark's workers in /proc")
def test_every_message_arrives_once_though_every_process_is_killed(tmp_path: Path) -> None:
    """Once each, and no more starts of Spark than that needs; `make crash` has neither limit."""
    seed = chosen_seed()
    loop = PipelineLoop(tmp_path, seed, messages=300, limit=100, apart=3, gentle=True)

    complaint = loop.run(random.Random(seed).sample(KINDS, 3))

    log = (tmp_path / "job.log").read_text(errors="replace")[-4000:]
    assert complaint == "", f"{complaint}; {repeat_with(seed)}\n{log}"
    assert loop.killed.total() == 3
