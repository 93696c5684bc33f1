"""What readers of whole queues need: subscriptions, which read in batches; cursors, which hold the journal.

Batches travel as packed rows (`openq.packed`); all else is JSON or msgpack as everywhere.
"""

from __future__ import annotations

from asyncio import TimerHandle
from functools import partial

from ...broker.batch_columns import KINDS, columns_of
from ...broker.batches import Formed, KnownSubscription, SubscriptionNotFound, SubscriptionState
from ...broker.cursors import CursorNotFound, CursorState
from ...broker.waiters import Waiter
from ...errors import OpenQError
from ...model import Delivery
from ...names import DEFAULT_ACCOUNT
from ...packed import CONTENT_TYPE, pack
from .call import Call
from .columns_api import hold_unsent, require_room
from .problems import Problem
from .schemas import (
    BatchAcked,
    BatchFormed,
    BatchLeases,
    CursorList,
    CursorView,
    OpenBatch,
    Returned,
    SubscriptionList,
    SubscriptionView,
)
from .values import iso, span_ms

# -- subscriptions ------------------------------------------------------------------------------


def _subscription(call: Call) -> KnownSubscription:
    """One that the caller may know of; any other might as well not exist."""
    name = call.full(call.args[0], "subscription")
    known = call.broker.subscriptions.get(name)
    if not call.is_ours(known.queue) or not call.may("receive", call.short(known.queue), call.route.asked):
        raise SubscriptionNotFound(name)
    return known


def _known(call: Call) -> KnownSubscription | None:
    """The same for verbs that find nothing to do where there is nothing."""
    if call.full(call.args[0], "subscription") not in call.broker.subscriptions:
        return None
    return _subscription(call)


def list_subscriptions(call: Call) -> None:
    def work() -> SubscriptionList:
        states = [
            _show(call, state)
            for state in call.broker.subscriptions.states()
            if call.is_ours(state.name)
            and call.is_ours(state.queue)
            and call.may("receive", call.short(state.queue), call.route.asked)
        ]
        return SubscriptionList(subscriptions=states)

    call.look(work)


def _show(call: Call, state: SubscriptionState) -> SubscriptionView:
    return SubscriptionView(
        name=call.short(state.name),
        queue=call.short(state.queue),
        owner=state.owner,
        lease_s=state.lease_ms / 1000,
        first_open=state.batches[0].batch if state.batches else None,
        messages=sum(batch.count for batch in state.batches),
        batches=[
            OpenBatch(
                number=batch.batch, count=batch.count, bytes=batch.bytes, lease_until=iso(batch.until_ms)
            )
            for batch in state.batches
        ],
    )


def form_batch(call: Call) -> None:
    """The batch after `after`: the same one again as long as it is open, else what waits now becomes it.
    Where nothing waits, `batch` is `after`. A new owner takes the subscription over."""
    body = call.body
    call.require("receive", body.queue, call.route.asked)
    _known(call)  # that of somebody else is not taken over
    Forming(call).start()


class Forming:
    """One request for a batch, which may wait for messages. Nothing is lent to it before there is a batch, so
    a client that hangs up meanwhile takes nothing with it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._queue = call.full(call.body.queue)
        self._waiter: Waiter | None = None
        self._timer: TimerHandle | None = None
        self._is_working = False
        self._is_told = False
        self._is_over = False

    def start(self) -> None:
        call = self._call
        if call.body.wait > 0:
            self._waiter = Waiter(1, None, None, None, self._tell, only_told=True)
            self._timer = call.site.loop.call_later(call.body.wait, self.end)
            call.site.polls.add(self)
        self._try()

    def _try(self) -> None:
        call, body = self._call, self._call.body
        self._is_working, self._is_told = True, False
        form = partial(
            call.broker.subscriptions.form,
            call.full(call.args[0], "subscription"),
            self._queue,
            body.after,
            limit=body.limit,
            max_bytes=body.max_bytes,
            lease_ms=None if body.lease_s is None else span_ms(body.lease_s, "lease_s"),
            owner=body.owner,
            waiter=self._waiter,
            maker=call.principal.arn,
        )
        call.site.run(form, self._tried)

    def _tried(self, formed: Formed | None, error: BaseException | None) -> None:
        call = self._call
        self._is_working = False
        if formed is None and error is None and not self._is_over and self._waiter is not None:
            if self._is_told:
                self._try()
            else:
                call.request.on_gone = self.end
                if call.request.gone:
                    self.end()
            return
        self._finish()
        if call.request.gone:
            return
        if error is not None:
            call.fail(error)
        elif formed is None:
            call.answer(BatchFormed(batch=call.body.after, count=0, bytes=0))
        else:
            call.after_commit(
                BatchFormed(
                    batch=formed.batch,
                    count=formed.count,
                    bytes=formed.bytes,
                    lease_until=iso(formed.until_ms),
                )
            )

    def _tell(self, deliveries: list[Delivery]) -> None:
        """The broker's lock is held; any thread."""
        try:
            self._call.site.loop.call_soon_threadsafe(self._told)
        except RuntimeError:
            pass  # the loop is closed

    def _told(self) -> None:
        if self._is_over:
            return
        if self._is_working:
            self._is_told = True
        else:
            self._call.request.on_gone = None
            self._try()

    def end(self) -> None:
        """The time is up, the client is gone, or the server stops."""
        if self._is_over:
            return
        self._is_over = True
        if not self._is_working:
            self._tried(None, None)

    def _finish(self) -> None:
        call = self._call
        self._is_over = True
        call.request.on_gone = None
        if self._timer is not None:
            self._timer.cancel()
        call.site.polls.discard(self)
        if self._waiter is not None:
            call.broker.leave(self._queue, self._waiter)


def read_batch(call: Call) -> None:
    """The rows of an open batch, the same every time, whole or in one of `parts` pieces. One that is gone is
    empty, and the header `OpenQ-Expired: true` says so."""
    known = _subscription(call)
    name, text, query = known.name, call.args[1], call.query
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Problem("invalid", f"a batch has a number, not {text[:40]!r}")

    require_room(call.site)

    def work() -> tuple[bytes, bytes]:
        rows = call.broker.subscriptions.rows(name, int(text), query.part, query.parts)
        columns = columns_of(call.broker.id_prefix, known.queue, rows.deliveries, rows.entries)
        headers = b"OpenQ-Expired: true\r\n" if rows.expired else b""
        if rows.lost:
            headers += b"OpenQ-Lost: %d\r\n" % rows.lost
        return pack(columns, KINDS), headers

    def answer(made: tuple[bytes, bytes]) -> None:
        def committed(error: OpenQError | None) -> None:
            if error is not None:
                call.fail(error)
            else:
                call.request.answer(200, made[0], CONTENT_TYPE.encode(), made[1])
                hold_unsent(call.site, call.request)

        # Reading may have made the lease longer: whoever has the rows may rely on that.
        call.site.after_commit(committed)

    call.work(work, answer)


def ack_batches(call: Call) -> None:
    """All batches up to `through` are done. Again is no mistake: what is done stays done."""
    known, body = _known(call), call.body

    def work() -> BatchAcked:
        if known is None:
            return BatchAcked(acked=0, lost=0)
        acked, lost = call.broker.subscriptions.ack(known.name, body.through, body.owner)
        return BatchAcked(acked=acked, lost=lost)

    call.change(work)


def extend_batches(call: Call) -> None:
    """The leases of all open batches, counted from now: for a reader that takes its time."""
    known, body = _known(call), call.body
    lease_ms = None if body.lease_s is None else span_ms(body.lease_s, "lease_s")

    def work() -> BatchLeases:
        if known is None:
            return BatchLeases(messages=0)
        return BatchLeases(messages=call.broker.subscriptions.extend(known.name, body.owner, lease_ms))

    call.change(work)


def delete_subscription(call: Call) -> None:
    """What its batches hold goes back to the queue, counted as a delivery."""
    known = _subscription(call)
    call.change(lambda: Returned(messages=call.broker.subscriptions.delete(known.name)))


# -- cursors ------------------------------------------------------------------------------------


def list_cursors(call: Call) -> None:
    def work() -> CursorList:
        cursors = call.broker.cursors
        return CursorList(cursors=[_view(state) for state in cursors.states()], holds_all=cursors.holds_all)

    call.look(work)


def _view(state: CursorState) -> CursorView:
    cursor = state.cursor
    return CursorView(
        name=cursor.name,
        position=cursor.position,
        moved=iso(cursor.moved_ms),
        owner=cursor.owner,
        hold_bytes=cursor.hold_bytes,
        hold_s=cursor.hold_s,
        lag_bytes=state.lag_bytes,
        lag_s=state.lag_s,
        lost=state.lost is not None,
        detail=state.lost or "",
    )


def put_cursor(call: Call) -> None:
    """What is before `position` has been read; from there on the journal is kept, within the limits."""
    body, name = call.body, call.args[0]
    _require_own(call, name)

    def work() -> CursorView:
        return _view(
            call.broker.cursors.put(
                name,
                body.position,
                call.principal.user,
                hold_bytes=body.hold_bytes,
                hold_s=body.hold_s,
            )
        )

    call.look(work)


def delete_cursor(call: Call) -> None:
    """Nothing is kept for it any more."""
    name = call.args[0]
    if call.broker.cursors.get(name) is None:
        raise CursorNotFound(name)
    _require_own(call, name)

    def work() -> CursorView:
        known = [each for each in call.broker.cursors.states() if each.cursor.name == name]
        call.broker.cursors.remove(name)
        return _view(known[0])

    call.look(work)


def _require_own(call: Call, name: str) -> None:
    """Whoever moves or removes the cursor of somebody else takes history away from them."""
    known = call.broker.cursors.get(name)
    if known is None or known.owner == call.principal.user:
        return
    if not call.site.guard.may(call.principal, "admin", DEFAULT_ACCOUNT, None):
        raise Problem("forbidden", f"cursor {name[:100]!r} belongs to {known.owner}")
