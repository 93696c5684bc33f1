"""Waiting for a condition, as every test does it: no test sleeps for a time that should be enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_S = 60.0  # only a test that has failed waits as long
_PAUSE_S = 0.002
_MAX_PAUSE_S = 0.02


def until(
    condition: Callable[[], object],
    what: str = "the condition",
    *,
    seconds: float = WAIT_S,
    ignoring: tuple[type[Exception], ...] = (),
) -> None:
    """Return as soon as `condition()` is true. Its errors in `ignoring` mean: not yet."""
    end = time.monotonic() + seconds
    pause = _PAUSE_S
    while not _holds(condition, ignoring):
        assert time.monotonic() < end, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(pause)
        pause = min(pause * 1.5, _MAX_PAUSE_S)


def _holds(condition: Callable[[], object], ignoring: tuple[type[Exception], ...]) -> bool:
    try:
        return bool(condition())
    except ignoring:
        return False


async def until_async(condition: Callable[[], object]) -> None:
    """Like `until`, in a loop that goes on meanwhile."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.001)
