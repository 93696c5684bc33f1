"""Blocking work in a thread, with its outcome on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from ..errors import Closed

T = TypeVar("T")


def submit(
    threads: Executor,
    loop: asyncio.AbstractEventLoop,
    work: Callable[[], T],
    then: Callable[[T | None, BaseException | None], object],
) -> None:
    """Run `work` in a thread, then call `then` on the loop with its result or its error.

    The error is Closed if the threads have ended: a timer may be due after the server has stopped.
    """

    def run() -> None:
        result: T | None = None
        failure: BaseException | None = None
        try:
            result = work()
        except BaseException as error:
            failure = error
        try:
            loop.call_soon_threadsafe(then, result, failure)
        except RuntimeError:
            pass  # the loop is closed

    try:
        threads.submit(run)
    except RuntimeError:
        loop.call_soon(then, None, Closed())
