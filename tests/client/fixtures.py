"""Queues for tests: in memory, on disk, behind a server; on a clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openq import VirtualClock
from openq.local.broker import LocalBroker
from tests.client.helpers import Make, opening

if TYPE_CHECKING:
    from tests.client.thread_server import ThreadServer


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["memory", "journal", "server"])
def make(request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock) -> Iterator[Make]:
    """Opens queues in one place (in memory: each with its dlq in its own); all are closed at the end."""
    target: dict[str, Any] = {"clock": clock}
    server: ThreadServer | None = None
    if request.param == "journal":
        target["path"] = tmp_path / "data"
    elif request.param == "server":
        # Here, because a server needs more than the library does: tests run where only the library is.
        from tests.client.thread_server import ThreadServer

        server = ThreadServer(LocalBroker(clock=clock))
        target = {"url": server.url}
    with opening(target) as open_queue:
        yield open_queue
    if server is not None:
        server.close()
