"""Work in greenlets on a loop; both kinds of loop that a server may have."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from openq.redis.net import greenlets

Run = Callable[[Coroutine[Any, Any, Any]], Any]

seen_by = contextvars.ContextVar("seen_by", default="nobody")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param  # type: ignore[no-any-return]


def later(value: Any) -> Callable[[Callable[[Any], None]], Any]:
    return lambda callback: asyncio.get_running_loop().call_soon(callback, value)


def test_work_that_never_waits_is_over_at_once(run: Run) -> None:
    async def main() -> None:
        ended: list[tuple[Any, Any]] = []

        greenlets.spawn(lambda a, b: a + b, 1, 2, done=lambda *outcome: ended.append(outcome))

        assert ended == [(3, None)]
        assert await greenlets.run(lambda: "result") == "result"

    run(main())


def test_work_waits_without_holding_up_the_loop(run: Run) -> None:
    async def main() -> None:
        order: list[str] = []

        def work(name: str) -> str:
            for turn in range(3):
                order.append(name)
                assert greenlets.wait(later(turn)) == turn
            return name

        assert await asyncio.gather(*(greenlets.run(work, name) for name in "abc")) == ["a", "b", "c"]
        assert "".join(order) == "abcabcabc"

    run(main())


def test_a_callback_that_comes_at_once_needs_no_switch(run: Run) -> None:
    async def main() -> None:
        assert await greenlets.run(greenlets.wait, lambda callback: callback(5)) == 5

    run(main())


def test_an_exception_is_raised_where_it_is_waited_for(run: Run) -> None:
    async def main() -> None:
        def work() -> str:
            with pytest.raises(KeyError):
                greenlets.wait(later(KeyError("x")))
            raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await greenlets.run(work)

    run(main())


def test_a_second_call_of_the_callback_is_ignored(run: Run) -> None:
    async def main() -> None:
        callbacks: list[Callable[[Any], None]] = []

        def work() -> list[int]:
            return [greenlets.wait(callbacks.append) for _ in range(2)]

        waiting = asyncio.ensure_future(greenlets.run(work))
        await asyncio.sleep(0)
        callbacks[0](1)
        callbacks[0](9)
        callbacks[1](2)
        assert await waiting == [1, 2]

    run(main())


def test_work_may_start_other_work(run: Run) -> None:
    async def main() -> None:
        order: list[str] = []
        finished = asyncio.Event()

        def inner() -> None:
            order.append("inner begins")
            greenlets.wait(later(None))
            greenlets.wait(later(None))
            order.append("inner ends")
            finished.set()

        def outer() -> None:
            greenlets.spawn(inner)
            order.append("outer goes on")
            greenlets.wait(later(None))
            order.append("outer ends")

        await greenlets.run(outer)
        await finished.wait()
        assert order == ["inner begins", "outer goes on", "outer ends", "inner ends"]

    run(main())


def test_only_work_may_wait(run: Run) -> None:
    async def main() -> None:
        assert not greenlets.in_greenlet()
        assert await greenlets.run(greenlets.in_greenlet)
        with pytest.raises(RuntimeError, match="only work"):
            greenlets.wait(later(None))
        with pytest.raises(RuntimeError, match="only work"):
            greenlets.sleep(0)
        assert not await asyncio.to_thread(greenlets.in_greenlet)

    run(main())


def test_context_variables_are_those_of_the_starter(run: Run) -> None:
    async def main() -> None:
        def work(name: str) -> tuple[str, str]:
            before = seen_by.get()
            seen_by.set(name)
            greenlets.wait(later(None))
            return before, seen_by.get()

        seen_by.set("starter")
        assert await asyncio.gather(greenlets.run(work, "a"), greenlets.run(work, "b")) == [
            ("starter", "a"),
            ("starter", "b"),
        ]
        assert seen_by.get() == "starter"
        seen_by.set("other")
        assert await greenlets.run(seen_by.get) == "other"

    run(main())


def test_a_cancelled_caller_leaves_the_work_to_end_by_itself(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        ended: list[str] = []

        def work(error: Exception | None) -> None:
            greenlets.sleep(0.01)
            ended.append("ended")
            if error is not None:
                raise error

        callers = [asyncio.ensure_future(greenlets.run(work, error)) for error in (None, OSError("late"))]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        for caller in callers:
            with pytest.raises(asyncio.CancelledError):
                await caller
        assert ended == []
        while len(ended) < 2:
            await asyncio.sleep(0.01)

    run(main())
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("late",)]  # type: ignore[union-attr]


def test_an_error_nobody_asks_for_is_logged(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        def fail(*_: object) -> None:
            raise ValueError("lost?")

        greenlets.spawn(fail)
        greenlets.spawn(len, b"", done=fail)
        assert await greenlets.run(len, b"1") == 1

    with caplog.at_level(logging.ERROR, logger="openq.redis"):
        run(main())
    assert len([record for record in caplog.records if record.exc_info]) == 2


def test_idle_strands_keep_nothing_alive(run: Run) -> None:
    class Thing:
        pass

    async def main() -> None:
        thing = Thing()
        kept = weakref.ref(thing)
        assert await greenlets.run(lambda given: given, thing) is thing
        del thing
        gc.collect()
        assert kept() is None

    run(main())


def test_each_thread_has_its_own_loop_and_its_own_strands() -> None:
    results: list[int] = []

    async def main() -> None:
        def work(count: int) -> int:
            return sum(greenlets.wait(later(1)) for _ in range(count))

        results.append(sum(await asyncio.gather(*(greenlets.run(work, 20) for _ in range(20)))))

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [400] * 4
