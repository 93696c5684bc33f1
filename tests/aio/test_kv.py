"""Key-values for asyncio: the contract of tests/client/test_kv.py, awaited; in every place."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import openq
from openq import Closed, InvalidSetting, KvConflict, KvPut
from openq.aio import OpenQ, Queue
from openq.aio.kv import AsyncKeyValue

Place = dict[str, Any]


@pytest.fixture(params=["memory", "journal", "server"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "memory":
        yield {}
    elif request.param == "journal":
        yield {"path": tmp_path / "data"}
    else:
        from openq.local.broker import LocalBroker
        from tests.client.thread_server import ThreadServer

        with ThreadServer(LocalBroker()) as server:
            yield {"url": server.url}


def run(place: Place, test: Callable[[Queue], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60), await OpenQ.open("jobs", **place) as queue:
            await test(queue)

    asyncio.run(main())


def test_the_coroutines_have_the_names_and_arguments_of_the_methods() -> None:
    for name, method in vars(openq.KeyValue).items():
        if not name.startswith("_") and inspect.isfunction(method) and name != "new_wait":
            twin = getattr(AsyncKeyValue, name)
            assert inspect.iscoroutinefunction(twin)
            assert list(inspect.signature(twin).parameters) == list(inspect.signature(method).parameters)


def test_values_are_put_read_listed_and_deleted(place: Place) -> None:
    async def test(queue: Queue) -> None:
        results = queue.kv("results")
        version = await results.put("a", "text", ttl=60)
        entry = await results.get("a")
        assert entry is not None
        assert (entry.value, entry.version) == (b"text", version)
        assert await results.create("a", b"") is False
        with pytest.raises(KvConflict):
            await results.put("a", b"", version=version + 1)
        with pytest.raises(InvalidSetting):
            await results.put("", b"")
        created, conflict = await results.put_many([KvPut("b", b"2"), KvPut("a", b"", version=0)])
        assert isinstance(created, int)
        assert isinstance(conflict, KvConflict)
        assert [each.key for each in await results.list()] == ["a", "b"]
        assert [each and each.value for each in await results.get_many(["b", "c"])] == [b"2", None]
        assert await results.delete("a", version=version) is True
        assert await results.delete_many(["b", "c"]) == 1
        assert await results.list() == []

    run(place, test)


def test_a_put_wakes_the_tasks_that_wait_for_it(place: Place) -> None:
    async def test(queue: Queue) -> None:
        results = queue.kv("results")
        version = await results.put("k", b"1")
        waiting = [asyncio.create_task(results.wait("k", 60, version)) for _ in range(20)]
        other = asyncio.create_task(results.wait("other", None))
        await asyncio.sleep(0)
        await results.put("unrelated", b"1")
        await results.put("k", b"2")
        entries = await asyncio.gather(*waiting)
        assert [entry and entry.value for entry in entries] == [b"2"] * 20
        assert not other.done()
        other.cancel()
        with pytest.raises(asyncio.CancelledError):
            await other
        assert await results.wait("other", 0) is None
        assert await results.wait("other", 0.01) is None
        assert await results.wait("k", 0) == await results.get("k")

    run(place, test)


def test_closing_the_queue_ends_a_wait(place: Place) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            queue = await OpenQ.open("jobs", **place)
            results = queue.kv("results")
            waiting = asyncio.create_task(results.wait("k"))
            await asyncio.sleep(0)
            await results.put("other", b"")
            await queue.close()
            try:
                assert await waiting is None
            except Closed:
                pass
            with pytest.raises(Closed):
                await results.get("k")

    asyncio.run(main())
