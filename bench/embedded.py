"""The library with a queue on disk, inside one program: latency, batches, large bodies."""

from __future__ import annotations

from . import embedded_batches, embedded_latency, large_bodies
from .harness import Run


def run(run: Run) -> None:
    for part in (embedded_latency, embedded_batches, large_bodies):
        part.run(run)
