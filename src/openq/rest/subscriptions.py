"""For readers of whole queues: subscriptions, which read in batches, and cursors, which retain the journal.

Batches are packed rows (`openq.packed`); everything else is JSON or msgpack.
"""

from __future__ import annotations

from ..broker.batch_columns import KINDS, columns_of
from ..broker.cursors import CursorNotFound, CursorState
from ..broker.subscriptions import FormedBatch, KnownSubscription, SubscriptionNotFound, SubscriptionState
from ..broker.waiters import Waiter
from ..documents.values import iso, span_ms
from ..errors import OpenQError
from ..names import DEFAULT_ACCOUNT
from ..packed import CONTENT_TYPE, pack
from .call import RestCall
from .history_readers import count_unsent, require_reply_capacity
from .history_schemas import (
    BatchAck,
    BatchAcked,
    BatchExtend,
    BatchFormed,
    BatchLeases,
    BatchPart,
    BatchRequest,
    CursorList,
    CursorMove,
    CursorView,
    OpenBatch,
    Returned,
    SubscriptionList,
    SubscriptionView,
)
from .problems import Problem
from .retry_poll import RetryPoll
from .routes import route

# -- subscriptions ------------------------------------------------------------------------------


def _subscription(call: RestCall) -> KnownSubscription:
    """Not found if the caller may not see it."""
    name = call.qualified(call.args[0], "subscription")
    known = call.broker.subscriptions.get(name)
    if not call.is_own(known.queue) or not call.may(
        "receive", call.short_name(known.queue), call.route.sqs_actions
    ):
        raise SubscriptionNotFound(name)
    return known


def _known(call: RestCall) -> KnownSubscription | None:
    """The same, but None if there is no such subscription."""
    if call.qualified(call.args[0], "subscription") not in call.broker.subscriptions:
        return None
    return _subscription(call)


@route(
    "GET",
    "pipeline/subscriptions",
    permission="receive",
    scope="each",
    sqs_actions=("ReceiveMessage", "DeleteMessage"),
    summary="List subscriptions",
    reply=SubscriptionList,
)
def list_subscriptions(call: RestCall) -> None:
    def work() -> SubscriptionList:
        states = [
            _subscription_view(call, state)
            for state in call.broker.subscriptions.states()
            if call.is_own(state.name)
            and call.is_own(state.queue)
            and call.may("receive", call.short_name(state.queue), call.route.sqs_actions)
        ]
        return SubscriptionList(subscriptions=states)

    call.answer_with(work)


def _subscription_view(call: RestCall, state: SubscriptionState) -> SubscriptionView:
    return SubscriptionView(
        name=call.short_name(state.name),
        queue=call.short_name(state.queue),
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


@route(
    "POST",
    "pipeline/subscriptions/{name}/batches",
    permission="receive",
    scope="body",
    sqs_actions=("ReceiveMessage", "DeleteMessage"),
    summary="Next batch, with a long poll",
    request=BatchRequest,
    reply=BatchFormed,
)
def form_batch(call: RestCall) -> None:
    """The batch after `after`: the same one while it is open, else a new one of the waiting messages.
    If no message waits, `batch` is `after`. A new owner takes the subscription over."""
    body = call.body
    call.require("receive", body.queue, call.route.sqs_actions)
    if body.wait > 0:
        call.request.notice_disconnect()  # before the first call that may wait for the store
    _known(call)  # a cursor of another user is not taken over
    queue = call.qualified(body.queue)
    waiter: Waiter | None = None

    def attempt() -> FormedBatch | None:
        """Nothing is leased before there is a batch, so a client that disconnects loses nothing."""
        return call.broker.subscriptions.next_batch(
            call.qualified(call.args[0], "subscription"),
            queue,
            body.after,
            limit=body.limit,
            max_bytes=body.max_bytes,
            lease_ms=None if body.lease_s is None else span_ms(body.lease_s, "lease_s"),
            owner=body.owner,
            waiter=waiter,
            maker=call.principal.arn,
        )

    def answer(formed: FormedBatch | None) -> None:
        if formed is None:
            call.answer(BatchFormed(batch=body.after, count=0, bytes=0))
        else:
            lease_until = iso(formed.until_ms)
            call.after_commit(
                BatchFormed(
                    batch=formed.batch, count=formed.count, bytes=formed.bytes, lease_until=lease_until
                )
            )

    def leave() -> None:
        if waiter is not None:
            call.broker.remove_waiter(queue, waiter)

    poll = RetryPoll(call, attempt, answer, body.wait, leave)
    if body.wait > 0:
        waiter = Waiter(1, None, None, None, poll.notify, notify_only=True)
    poll.start()


@route(
    "GET",
    "pipeline/subscriptions/{name}/batches/{number}",
    permission="receive",
    scope="subscription",
    sqs_actions=("ReceiveMessage", "DeleteMessage"),
    summary="Rows of a batch",
    query=BatchPart,
    media=("application/x-openq-rows",),
)
def read_batch(call: RestCall) -> None:
    """The rows of an open batch, always the same, whole or in one of `parts` pieces. An expired batch is
    empty, with the header `OpenQ-Expired: true`."""
    known = _subscription(call)
    name, text, query = known.name, call.args[1], call.query
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise Problem("invalid", f"a batch has a number, not {text[:40]!r}")

    require_reply_capacity(call.context)

    def work() -> tuple[bytes, bytes]:
        rows = call.broker.subscriptions.rows(name, int(text), query.part, query.parts)
        columns = columns_of(call.broker.storage.id_prefix, known.queue, rows.deliveries, rows.entries)
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
                count_unsent(call.context, call.request)

        # Reading may have extended the lease: the reply waits until that is durable.
        call.context.after_commit(committed)

    call.work(work, answer)


@route(
    "POST",
    "pipeline/subscriptions/{name}/ack",
    permission="receive",
    scope="subscription",
    sqs_actions=("ReceiveMessage", "DeleteMessage"),
    summary="Ack batches",
    request=BatchAck,
    reply=BatchAcked,
)
def ack_batches(call: RestCall) -> None:
    """Acknowledge all batches up to `through`. May be repeated."""
    known, body = _known(call), call.body

    def work() -> BatchAcked:
        if known is None:
            return BatchAcked(acked=0, lost=0)
        acked, lost = call.broker.subscriptions.ack(known.name, body.through, body.owner)
        return BatchAcked(acked=acked, lost=lost)

    call.change(work)


@route(
    "POST",
    "pipeline/subscriptions/{name}/extend",
    permission="receive",
    scope="subscription",
    sqs_actions=("ReceiveMessage", "DeleteMessage"),
    summary="Extend the leases of open batches",
    request=BatchExtend,
    reply=BatchLeases,
)
def extend_batches(call: RestCall) -> None:
    """Extend the leases of all open batches, counted from now: for a slow reader."""
    known, body = _known(call), call.body
    lease_ms = None if body.lease_s is None else span_ms(body.lease_s, "lease_s")

    def work() -> BatchLeases:
        if known is None:
            return BatchLeases(messages=0)
        return BatchLeases(messages=call.broker.subscriptions.extend(known.name, body.owner, lease_ms))

    call.change(work)


@route(
    "DELETE",
    "pipeline/subscriptions/{name}",
    permission="receive",
    scope="subscription",
    sqs_actions=("ReceiveMessage", "DeleteMessage"),
    summary="Delete a subscription and return its batches",
    reply=Returned,
)
def delete_subscription(call: RestCall) -> None:
    """Return the messages of its batches to the queue, counted as a delivery."""
    known = _subscription(call)
    call.change(lambda: Returned(messages=call.broker.subscriptions.delete(known.name)))


# -- cursors ------------------------------------------------------------------------------------


@route(
    "GET",
    "pipeline/cursors",
    permission="peek",
    scope="server",
    summary="List cursors of the journal",
    reply=CursorList,
)
def list_cursors(call: RestCall) -> None:
    def work() -> CursorList:
        cursors = call.broker.cursors
        return CursorList(
            cursors=[_cursor_view(state) for state in cursors.states()], holds_all=cursors.holds_all
        )

    call.answer_with(work)


def _cursor_view(state: CursorState) -> CursorView:
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


@route(
    "PUT",
    "pipeline/cursors/{name}",
    permission="peek",
    scope="server",
    summary="Move a cursor",
    request=CursorMove,
    reply=CursorView,
)
def put_cursor(call: RestCall) -> None:
    """Records before `position` are read; the journal is kept from there on, within the limits."""
    body, name = call.body, call.args[0]
    _require_own(call, name)

    def work() -> CursorView:
        return _cursor_view(
            call.broker.cursors.put(
                name,
                body.position,
                call.principal.user,
                hold_bytes=body.hold_bytes,
                hold_s=body.hold_s,
            )
        )

    call.answer_with(work)


@route(
    "DELETE",
    "pipeline/cursors/{name}",
    permission="peek",
    scope="server",
    summary="Delete a cursor",
    reply=CursorView,
)
def delete_cursor(call: RestCall) -> None:
    """The journal is no longer kept for it."""
    name = call.args[0]
    if call.broker.cursors.get(name) is None:
        raise CursorNotFound(name)
    _require_own(call, name)

    def work() -> CursorView:
        known = [each for each in call.broker.cursors.states() if each.cursor.name == name]
        call.broker.cursors.remove(name)
        if not known:
            raise CursorNotFound(name)  # deleted just before, and put again just now
        return _cursor_view(known[0])

    call.answer_with(work)


def _require_own(call: RestCall, name: str) -> None:
    """Only the owner of a cursor may move or delete it: records may be freed then."""
    known = call.broker.cursors.get(name)
    if known is None or known.owner == call.principal.user:
        return
    if not call.context.guard.may(call.principal, "admin", DEFAULT_ACCOUNT, None):
        raise Problem("forbidden", f"cursor {name[:100]!r} belongs to {known.owner}")
