"""Queues in Redis, all of it: see the five parts, each of which can be named on its own."""

from __future__ import annotations

import importlib

from .harness import Run
from .redis_common import missing

PARTS = ("redis_cycle", "redis_rivals", "redis_server", "redis_amqp", "redis_memory")


def run(run: Run) -> None:
    if reason := missing():
        run.log(f"redis: left out, {reason}")
        return
    for part in PARTS:
        importlib.import_module(f"bench.{part}").run(run)
