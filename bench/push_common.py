"""What the benches of push share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from . import amqp_rounds
from .harness import BenchTarget, Row

BENCH = "push"


def stream_url(url: str) -> str:
    return f"{url.replace('http', 'ws', 1)}/api/v1/stream"


def lower_is_better(
    what: str,
    reference: str,
    ours: Sequence[float],
    theirs: Sequence[float],
    target: BenchTarget | None,
    unit: str,
) -> Row:
    return replace(amqp_rounds.lower_is_better(what, reference, ours, theirs, target, unit), bench=BENCH)
