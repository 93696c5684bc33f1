"""Push, all of it: see the parts, each of which can be named on its own."""

from __future__ import annotations

import importlib

from .harness import Run

PARTS = (
    "push_cost",
    "push_clients",
    "push_latency",
    "push_events",
    "push_wake",
    "push_footprint",
    "webhooks",
)


def run(run: Run) -> None:
    for part in PARTS:
        importlib.import_module(f"bench.{part}").run(run)
