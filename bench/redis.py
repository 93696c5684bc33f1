"""Queues in Redis, all of it: see the four parts, each of which can be named on its own."""

from __future__ import annotations

import importlib

from .harness import Run
from .redis_ground import missing

PARTS = ("redis_cycle", "redis_rivals", "redis_server", "redis_weight")


def run(run: Run) -> None:
    if reason := missing():
        run.tell(f"redis: left out, {reason}")
        return
    for part in PARTS:
        importlib.import_module(f"bench.{part}").run(run)
