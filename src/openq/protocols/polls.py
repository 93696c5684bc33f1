"""Waiting for messages on the loop: long polls of every door.

What a client was served is either shown to it or given back: a client that hangs up while it waits takes
no message with it.
"""

from __future__ import annotations

from asyncio import TimerHandle
from collections.abc import Callable, Iterable, Sequence

from ..broker.full import FullBroker
from ..broker.waiters import Waiter
from ..errors import OpenQError
from ..model import Delivery, Entry
from .http import Request
from .site import Site

Then = Callable[[list[Delivery], OpenQError | None], None]

FEW = 10  # so many are taken without a look at how large they are


def fitting(entries: Sequence[Entry], max_bytes: int) -> int:
    """How many of these one answer carries, at least one."""
    size = 0
    for count, entry in enumerate(entries):
        size += entry.size
        if size > max_bytes and count:
            return count
    return len(entries)


def likely_fitting(broker: FullBroker, queue: str, limit: int, max_bytes: int) -> int:
    """The same before they are taken out of the queue, going by the mean size of what waits."""
    if limit <= FEW:
        return limit
    count, size = broker.waiting(queue)
    return min(limit, max(1, max_bytes * max(count, 1) // size)) if size > max_bytes else limit


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
    max_bytes: int,
) -> None:
    """Messages as soon as there are any, nothing when the time is up. `queue` is the engine's name.

    `then` is called once, on the loop, with deliveries that may be shown. Their bodies have at most
    `max_bytes`, unless it is one message; no others are leased. Raises what the broker raises.
    """
    broker = site.broker
    if broker.waits:
        # Messages may be on their way from now on: a client that hangs up is one that leaves.
        request.on_gone = _nothing
    limit = likely_fitting(broker, queue, limit, max_bytes)
    deliveries = broker.receive(queue, limit, lease_ms, consumer, types)

    def again() -> None:
        try:
            receive(site, request, queue, limit, lease_ms, consumer, types, wait_s, then, max_bytes)
        except OpenQError as error:
            request.later(then, [], error)

    if deliveries or wait_s <= 0:
        show(site, request, queue, deliveries, then, max_bytes, again)
    else:
        waiter = Waiter(limit, lease_ms, consumer, types, _nobody)
        Poll(site, request, queue, waiter, then, max_bytes, again).start(wait_s)


def show(
    site: Site,
    request: Request,
    queue: str,
    deliveries: list[Delivery],
    then: Then,
    max_bytes: int,
    again: Callable[[], None] | None = None,
) -> None:
    """Bodies from disk, and no message before its publish is durable.

    `again` is called instead of `then` if not one of them can be read: what stands behind them is next.
    """
    broker = site.broker
    if len(deliveries) > 1 and sum([each.entry.size for each in deliveries]) > max_bytes:
        count = fitting([each.entry for each in deliveries], max_bytes)
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

    __slots__ = ("_again", "_max_bytes", "_over", "_queue", "_request", "_site", "_then", "_timer", "_waiter")

    def __init__(
        self,
        site: Site,
        request: Request,
        queue: str,
        waiter: Waiter,
        then: Then,
        max_bytes: int,
        again: Callable[[], None],
    ) -> None:
        self._max_bytes = max_bytes
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
            show(site, self._request, self._queue, deliveries, self._then, self._max_bytes, self._again)
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
        show(self._site, self._request, self._queue, deliveries, self._then, self._max_bytes, self._again)

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
