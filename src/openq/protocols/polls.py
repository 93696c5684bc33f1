"""Waiting for messages on the loop: long polls of every door.

What a client was served is either shown to it or given back: a client that hangs up while it waits takes
no message with it.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Iterable

from ..broker.waiters import Waiter
from ..errors import OpenQError
from ..model import Delivery
from .http import Request
from .site import Site

Then = Callable[[list[Delivery], OpenQError | None], None]
Fit = Callable[[list[Delivery]], int]


def receive(
    site: Site,
    request: Request,
    queue: str,
    limit: int,
    lease_ms: int | None,
    consumer: str | None,
    types: Iterable[str] | None,
    wait_s: float,
    then: Then,
    fit: Fit | None = None,
) -> None:
    """Messages as soon as there are any, nothing when the time is up. `queue` is the engine's name.

    `then` is called once, on the loop, with deliveries that may be shown. `fit` says how many of those that
    came are shown at once; the others return to their places. Raises what the broker raises.
    """
    broker = site.broker
    if broker.waits:
        # Messages may be on their way from now on: a client that hangs up is one that leaves.
        request.on_gone = _nothing
    deliveries = broker.receive(queue, limit, lease_ms, consumer, types)

    def again() -> None:
        try:
            receive(site, request, queue, limit, lease_ms, consumer, types, wait_s, then, fit)
        except OpenQError as error:
            request.later(then, [], error)

    if deliveries or wait_s <= 0:
        show(site, request, queue, deliveries, then, fit, again)
    else:
        waiter = Waiter(limit, lease_ms, consumer, types, _nobody)
        Poll(site, request, queue, waiter, then, fit, again).start(wait_s)


def show(
    site: Site,
    request: Request,
    queue: str,
    deliveries: list[Delivery],
    then: Then,
    fit: Fit | None = None,
    again: Callable[[], None] | None = None,
) -> None:
    """Bodies from disk, and no message before its publish is durable.

    `again` is called instead of `then` if not one of them can be read: what stands behind them is next.
    """
    broker = site.broker
    if fit is not None and len(deliveries) > 1:
        count = fit(deliveries)
        if count < len(deliveries):
            deliveries, rest = deliveries[:count], deliveries[count:]
            give_back(site, queue, rest)

    def loaded(error: OpenQError | None = None) -> None:
        if request.gone:
            give_back(site, queue, deliveries)
            return
        readable: list[Delivery] = []
        if error is None:
            try:
                readable = broker.load(deliveries)
            except OpenQError as failure:
                error = failure
        if error is not None:
            # Nobody has seen them, and a client that gets an error does not know of them.
            give_back(site, queue, deliveries)
            request.later(then, [], error)
        elif deliveries and not readable and again is not None:
            again()
        elif not request.later(then, readable, None):
            give_back(site, queue, readable)

    if broker.is_loaded(deliveries):
        loaded()
    else:
        # It holds messages now: a client that hangs up meanwhile is one that leaves, not one that listens.
        request.on_gone = _nothing
        site.after_commit(loaded, broker.safe_at(deliveries))


def give_back(site: Site, queue: str, deliveries: list[Delivery]) -> None:
    try:
        site.broker.release(queue, [(each.entry.seq, each.number) for each in deliveries])
    except OpenQError:
        pass  # the queue is gone, or the broker is: nothing is held any more


def _nothing() -> None:
    """`loaded` sees that the request is gone."""


def _nobody(deliveries: list[Delivery]) -> None:
    raise AssertionError("replaced before anybody is served")


class Poll:
    """One request that stands in line."""

    __slots__ = ("_again", "_fit", "_over", "_queue", "_request", "_site", "_then", "_timer", "_waiter")

    def __init__(
        self,
        site: Site,
        request: Request,
        queue: str,
        waiter: Waiter,
        then: Then,
        fit: Fit | None,
        again: Callable[[], None],
    ) -> None:
        self._fit = fit
        self._again = again
        self._site = site
        self._request = request
        self._queue = queue
        self._waiter = waiter
        self._then = then
        self._timer: TimerHandle | None = None
        self._over = False

    def start(self, wait_s: float) -> None:
        site = self._site
        self._waiter.deliver = self._deliver
        deliveries = site.broker.attend(self._queue, self._waiter)
        if deliveries is not None:
            self._over = True
            show(site, self._request, self._queue, deliveries, self._then, self._fit, self._again)
            return
        if self._over:
            return  # served before the line was reached, by a broker that waits
        self._timer = site.loop.call_later(wait_s, self.end)
        self._request.on_gone = self.end
        site.polls.add(self)
        if self._request.gone:
            self._end()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        try:
            self._site.loop.call_soon_threadsafe(self._site.enter, self._served, deliveries)
        except RuntimeError:
            pass  # the loop is closed; the leases end by themselves

    def _served(self, deliveries: list[Delivery]) -> None:
        self._finish()
        show(self._site, self._request, self._queue, deliveries, self._then, self._fit, self._again)

    def end(self) -> None:
        """The time is up, the client is gone, or the server stops."""
        self._site.enter(self._end)

    def _end(self) -> None:
        if self._over or not self._site.broker.leave(self._queue, self._waiter):
            return  # served in this very moment: `_served` is on its way
        self._finish()
        if not self._request.gone:
            self._request.later(self._then, [], None)

    def _finish(self) -> None:
        self._over = True
        self._request.on_gone = None
        if self._timer is not None:
            self._timer.cancel()
        self._site.polls.discard(self)
