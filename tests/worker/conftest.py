"""Apps on every store, and workers that are stopped at the end of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.worker import App, Worker
from tests.redis.conftest import _running as _running
from tests.redis.conftest import redis_server as redis_server

STORES = ["memory", "path", "server", "redis"]


@pytest.fixture(params=STORES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The keywords of an app."""
    if request.param == "memory":
        yield {}
    elif request.param == "path":
        yield {"path": tmp_path / "data"}
    elif request.param == "server":
        from openq.testing.server import OpenQServer

        with OpenQServer() as server:
            yield {"url": server.url}
    else:
        yield {"url": f"{request.getfixturevalue('redis_server').url}?profile=fast"}


@pytest.fixture
def make_app(target: dict[str, Any]) -> Iterator[Callable[..., App]]:
    made: list[App] = []

    def make(**options: Any) -> App:
        app = App(**target, **options)
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def run_worker(make_app: Callable[..., App]) -> Iterator[Callable[..., Worker]]:
    """After `make_app`: workers stop before their app is closed."""
    workers: list[Worker] = []

    def run(app: App, **options: Any) -> Worker:
        worker = Worker(app, **options)
        worker.start()
        workers.append(worker)
        return worker

    yield run
    for worker in workers:
        worker.stop(grace=5)
