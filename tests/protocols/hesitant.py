"""A broker whose every verb lets others go first, as one that waits for a store far away.

What it keeps it keeps in this process, so whatever a door does wrong with a broker that waits shows without
a Redis: each verb suspends its caller before it acts and again before it answers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import wraps
from typing import Any

from openq.broker.local import LocalBroker
from openq.errors import OpenQError
from openq.redis import bridge

VERBS = (
    *("declare", "delete", "settings", "stats", "purge", "ready_count", "in_flight"),
    *("publish", "publish_many", "publish_each", "publish_body", "publish_bodies", "publish_stamped"),
    *("route", "route_to", "receive", "attend", "leave"),
    *("ack", "ack_one", "ack_late", "nack", "nack_many", "reject", "reject_many", "release"),
    *("extend", "extend_late"),
    *("peek", "entries", "find", "status", "lease", "lease_of", "leases", "leases_of", "deliveries"),
    *("why", "timeline", "cancel", "edit", "move", "reschedule"),
    *("declare_exchange", "change_exchange", "delete_exchange", "bind", "unbind"),
)
_chooser = random.Random(7)


def _let_others_go_first() -> None:
    for _ in range(_chooser.choice((0, 1, 1, 2, 5))):
        loop = asyncio.get_running_loop()
        bridge.wait(lambda callback, loop=loop: loop.call_soon(callback, None))  # type: ignore[misc]


def _hesitant(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def hesitate(*given: Any, **more: Any) -> Any:
        if not bridge.may_wait():
            _refuse_the_loop(verb.__name__)
            return verb(*given, **more)
        _let_others_go_first()
        try:
            return verb(*given, **more)
        finally:
            _let_others_go_first()

    return hesitate


def _refuse_the_loop(name: str) -> None:
    """On a loop that runs, a verb outside of `site.enter` would block everybody."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return  # a thread, or before and after the loop
    if HesitantBroker.is_strict:
        raise AssertionError(f"{name} was called on the loop by something that cannot wait")


class HesitantBroker(LocalBroker):
    waits = True
    is_strict = False  # set when the server has started

    def after_durable(self, callback: Callable[[OpenQError | None], None]) -> None:
        loop = asyncio.get_running_loop()
        journal = self.journal
        assert journal is not None
        self.when_durable(lambda: loop.call_soon_threadsafe(callback, journal.error))


for _name in VERBS:
    setattr(HesitantBroker, _name, _hesitant(getattr(LocalBroker, _name)))
