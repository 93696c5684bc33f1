"""A broker whose every verb lets others go first, as one that waits for a store far away.

What it keeps it keeps in this process, so a mistake of a protocol with a broker that waits shows without
a Redis: each verb suspends its caller before it acts and again before it answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from openq.broker.interface import Committed, LoopSession
from openq.errors import OpenQError
from openq.local.broker import LocalBroker
from openq.redis.net import greenlets

VERBS = (
    *("declare", "delete", "settings", "stats", "purge", "waiting"),
    *("publish", "publish_many", "publish_body", "publish_bodies"),
    *("receive", "add_waiter", "remove_waiter"),
    *("ack", "ack_one", "nack", "reject", "release", "extend"),
)
INSPECT = (
    *("peek", "entries", "find", "status", "lease", "lease_of", "leases", "leases_of", "deliveries"),
    *("why", "timeline"),
)
ADMIN = ("cancel", "edit", "move", "reschedule")
EXCHANGES = ("route", "route_to", "declare_exchange", "change_exchange", "delete_exchange", "bind", "unbind")
_chooser = random.Random(7)


def _yield_to_other_tasks() -> None:
    for _ in range(_chooser.choice((0, 1, 1, 2, 5))):
        loop = asyncio.get_running_loop()
        greenlets.wait(lambda callback, loop=loop: loop.call_soon(callback, None))  # type: ignore[misc]


def _suspending(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def hesitate(*given: Any, **more: Any) -> Any:
        if not greenlets.in_greenlet():
            _require_greenlet(verb.__name__)
            return verb(*given, **more)
        _yield_to_other_tasks()
        try:
            return verb(*given, **more)
        finally:
            _yield_to_other_tasks()

    return hesitate


def _require_greenlet(name: str) -> None:
    """On a loop that runs, a verb outside of `context.enter` would block everybody."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return  # a thread, or before and after the loop
    if SuspendingBroker.is_strict:
        raise AssertionError(f"{name} was called on the loop by something that cannot wait")


class SuspendingBroker(LocalBroker):
    is_strict = False  # set when the server has started

    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.storage = replace(self.storage, waits=True)
        for part, names in ((self.inspect, INSPECT), (self.admin, ADMIN), (self.exchanges, EXCHANGES)):
            for name in names:
                setattr(part, name, _suspending(getattr(part, name)))

    def attach(self, loop: asyncio.AbstractEventLoop) -> LoopSession:
        return SuspendingSession(super().attach(loop))


class SuspendingSession:
    publish_later = ack_later = None

    def __init__(self, inner: LoopSession) -> None:
        self._inner = inner

    def enter(self, work: Callable[..., object], *arguments: Any) -> None:
        greenlets.spawn(work, *arguments)

    def after_commit(self, callback: Committed, at: int | None = None) -> None:
        def committed(error: OpenQError | None) -> None:
            (callback if greenlets.in_greenlet() else partial(self.enter, callback))(error)

        self._inner.after_commit(committed, at)


for _name in VERBS:
    setattr(SuspendingBroker, _name, _suspending(getattr(LocalBroker, _name)))
