"""The server, all of it: see the five parts, each of which can be named on its own."""

from __future__ import annotations

import importlib

from .harness import Run

PARTS = (
    "server_send",
    "server_rivals",
    "server_backlog",
    "server_footprint",
    "server_connections",
    "server_client",
)


def run(run: Run) -> None:
    for part in PARTS:
        importlib.import_module(f"bench.{part}").run(run)
