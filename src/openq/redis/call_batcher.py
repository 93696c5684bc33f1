"""Combines the calls of one loop iteration: one call for all publishes to a queue, and so on.

Fifty callers cost one round trip and one run of a function instead of fifty. Each caller is suspended until
its own part of the reply arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .net import greenlets
from .registry import CachedQueue

if TYPE_CHECKING:
    import asyncio

Callback = Callable[[Any], None]
# Takes all arguments of a batch, one item per caller, and returns as many answers.
Work = Callable[[CachedQueue, list[Any]], Sequence[Any]]

MAX_CALLERS = 512  # callers in one function call, which blocks Redis meanwhile


class CallBatcher:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._open: dict[tuple[Work, CachedQueue], list[tuple[Any, Callback]]] = {}

    def join(self, work: Work, view: CachedQueue, item: Any) -> Any:
        """Suspends the caller. Returns its own answer, or raises the error of the batch."""
        return greenlets.wait(lambda callback: self._add(work, view, item, callback))

    def ask(
        self, work: Work, view: CachedQueue, item: Any, lost: Callable[[Any], None] | None = None
    ) -> asyncio.Future[Any]:
        """Like `join`, for coroutines, which need no greenlet to wait in. `lost` gets the answer if the
        caller is cancelled before it arrives."""
        future: asyncio.Future[Any] = self._loop.create_future()

        def callback(answer: Any) -> None:
            if future.done():
                if lost is not None and not isinstance(answer, BaseException):
                    lost(answer)
            elif isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self._add(work, view, item, callback)
        return future

    def _add(self, work: Work, view: CachedQueue, item: Any, callback: Callback) -> None:
        key = (work, view)
        batch = self._open.get(key)
        if batch is None:
            batch = self._open[key] = []
            self._loop.call_soon(self._send, key, batch)
        batch.append((item, callback))
        if len(batch) >= MAX_CALLERS:
            del self._open[key]

    def _send(self, key: tuple[Work, CachedQueue], batch: list[tuple[Any, Callback]]) -> None:
        if self._open.get(key) is batch:
            del self._open[key]
        greenlets.spawn(self._run, key, batch)

    def _run(self, key: tuple[Work, CachedQueue], batch: list[tuple[Any, Callback]]) -> None:
        work, view = key
        try:
            answers: Sequence[Any] = work(view, [item for item, _ in batch])
        except BaseException as error:
            answers = [error] * len(batch)
        for (_, callback), answer in zip(batch, answers, strict=True):
            callback(answer)
