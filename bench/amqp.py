"""AMQP, all of it: see the four parts, each of which can be named on its own."""

from __future__ import annotations

import importlib

from .harness import Run

PARTS = ("amqp_flow", "amqp_pika", "amqp_cost", "amqp_footprint")


def run(run: Run) -> None:
    for part in PARTS:
        importlib.import_module(f"bench.{part}").run(run)
