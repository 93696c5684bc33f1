"""Workers and asyncio consumers behind a server: pushed to over a WebSocket, polled where there is none."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq import OpenQ, aio
from openq.client.http import Refused
from openq.client.server_api import ServerApi
from openq.worker import App, Worker
from tests.serving import Served, served
from tests.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of all requests of this process."""
    seen: list[str] = []
    call = ServerApi.call

    def noted(self: ServerApi, method: str, path: str, *args: Any, **options: Any) -> Any:
        seen.append(path.partition("?")[0])
        return call(self, method, path, *args, **options)

    monkeypatch.setattr(ServerApi, "call", noted)
    return seen


def refuse_upgrades(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Refused(426, "error", "a proxy that knows no upgrades")

    monkeypatch.setattr(ServerApi, "upgrade", refuse)


def test_a_worker_of_a_server_polls_nothing(server: Served, paths: list[str]) -> None:
    app = App(url=server.url)
    done: list[int] = []
    app.task(queue="pushed", name="note")(done.append)

    with Worker(app, threads=2):
        for number in range(50):
            app.tasks["note"].send(number)
        until(lambda: len(done) == 50)
    app.close()

    assert sorted(done) == list(range(50))
    assert not [path for path in paths if path.endswith("/receive")]


def test_a_worker_takes_no_more_than_its_threads_can_run(server: Served) -> None:
    app = App(url=server.url)
    started: list[int] = []
    release = threading.Event()

    @app.task(queue="ahead", name="block")
    def block(number: int) -> None:
        started.append(number)
        release.wait(60)

    for number in range(6):
        block.send(number)
    queue = OpenQ("ahead", url=server.url)
    with Worker(app, threads=2, prefetch=0):
        until(lambda: len(started) == 2)
        assert (queue.stats().in_flight, queue.stats().ready) == (2, 4)
        release.set()
        until(lambda: len(started) == 6)
    queue.close()
    app.close()

    assert sorted(started) == list(range(6))


def test_a_job_outlives_the_connection_that_brought_it(server: Served) -> None:
    app = App(url=server.url)
    runs: list[int] = []
    release = threading.Event()

    @app.task(queue="outlives", name="slow")
    def slow() -> None:
        runs.append(1)
        release.wait(60)

    job = slow.send()
    with Worker(app, threads=1) as worker:
        until(lambda: bool(runs))
        feed: Any = worker.sources[0]._feed
        lost = feed._socket
        lost.abort()
        until(lambda: feed._socket is not lost)
        release.set()
        until(lambda: job.status() == "done")
    app.close()

    assert len(runs) == 1


def test_a_worker_polls_where_upgrades_are_refused(
    server: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refuse_upgrades(monkeypatch)
    app = App(url=server.url, reconnect=2)
    done: list[int] = []
    app.task(queue="polled", name="note")(done.append)

    with caplog.at_level(logging.WARNING, "openq"), Worker(app, threads=2):
        app.tasks["note"].send(1)
        until(lambda: done == [1])
    app.close()

    assert "accepts no WebSocket" in caplog.text


@pytest.mark.parametrize("has_stream", [True, False])
def test_an_asyncio_consumer_works_with_and_without_a_stream(
    server: Served, monkeypatch: pytest.MonkeyPatch, paths: list[str], has_stream: bool
) -> None:
    if not has_stream:
        refuse_upgrades(monkeypatch)
    seen: list[Any] = []

    async def main() -> None:
        name = f"aio-{has_stream}"
        async with await aio.OpenQ.open(name, url=server.url, reconnect=2.5) as queue:
            await queue.publish_many(list(range(20)))
            most = busy = 0

            async def handle(message: aio.Message) -> None:
                nonlocal most, busy
                busy += 1
                most = max(most, busy)
                await asyncio.sleep(0)
                seen.append(message.body)
                busy -= 1

            await aio.Consumer(queue, handle, concurrency=4, idle_timeout=0.2).run()
            assert most <= 4
            assert (await queue.stats()).in_flight == 0

    asyncio.run(main())

    assert sorted(seen) == list(range(20))
    assert has_stream != any(path.endswith("/receive") for path in paths)


def test_a_stopped_asyncio_consumer_returns_what_it_has_not_begun(server: Served, tmp_path: Path) -> None:
    async def main() -> None:
        async with await aio.OpenQ.open("aio-stopped", url=server.url) as queue:
            await queue.publish_many(["a", "b", "c"])
            started = asyncio.Event()

            async def handle(_: aio.Message) -> None:
                started.set()
                await asyncio.sleep(3600)

            consumer = aio.Consumer(queue, handle, concurrency=1)
            consumer.start()
            await started.wait()
            await consumer.stop(timeout=0)

            stats = await queue.stats()
            assert (stats.ready, stats.in_flight) == (3, 0)

    asyncio.run(main())
