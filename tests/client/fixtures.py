"""Queues for tests: in memory and on disk, on a clock that stands still until it is moved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ, VirtualClock
from tests.client.helpers import Make


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["memory", "journal"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Make]:
    """Opens queues in one place (in memory: each with its dlq in its own); all are closed at the end."""
    place: dict[str, Any] = {"clock": clock}
    if request.param == "journal":
        place["path"] = tmp_path / "data"
    opened: list[OpenQ] = []

    def open_queue(name: str = "jobs", *args: Any, **options: Any) -> OpenQ:
        beside = args[1] if len(args) > 1 else options.get("dlq")
        where = {} if isinstance(beside, OpenQ) else place
        opened.append(OpenQ(name, *args, **where, **options))
        return opened[-1]

    yield open_queue
    for queue in opened:
        queue.close()
