"""Receive and settle: ack, nack, reject, release, extend."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import UNSET, UnsetType

from ..broker.interface import Receipt
from ..documents.drafts import message_filter
from ..documents.formats import join_messages
from ..documents.receipts import read_receipt, receipt_failure, with_receipt
from ..documents.values import iso, span_ms
from ..errors import MessageNotFoundError, OpenQError
from ..model import (
    Delivery,
    failure_text,
)
from ..server import long_polls
from .call import RestCall
from .message_schemas import (
    Extend,
    Messages,
    Nack,
    ReceiptFailure,
    Receipts,
    Receive,
    Settled,
)
from .paging import MAX_ANSWER_BYTES
from .problems import Problem
from .routes import route
from .views import received

_ENCODE_BYTES = 256 << 10  # bytes of bodies that are encoded in one loop iteration


@route(
    "POST",
    "queues/{queue}/receive",
    permission="receive",
    sqs_actions=("ReceiveMessage",),
    summary="Receive messages, with a long poll",
    request=Receive,
    reply=Messages,
)
def receive(call: RestCall) -> None:
    body = call.body
    lease_ms = None
    if body.visibility_timeout is not None:
        lease_ms = span_ms(body.visibility_timeout, "visibility_timeout")
    wanted = message_filter(body.types, body.attributes, call.sent)
    queue = call.queue

    def then(deliveries: list[Delivery], error: OpenQError | None) -> None:
        if error is not None:
            call.fail(error)
            return
        if sum(each.entry.size for each in deliveries) > _ENCODE_BYTES:
            BatchEncoder(call, queue, deliveries).go_on()
            return
        try:
            call.answer(Messages(messages=received(call.broker, deliveries, call.format)))
        except Exception as problem:
            long_polls.release_deliveries(call.context, queue, deliveries)
            call.fail(problem)

    long_polls.receive(
        *(call.context, call.request, queue, body.max, lease_ms, body.consumer, wanted, body.wait, then),
        MAX_ANSWER_BYTES,
    )


class BatchEncoder:
    """A large reply to `receive`: encoded in parts, with a loop iteration for each part."""

    def __init__(self, call: RestCall, queue: str, deliveries: list[Delivery]) -> None:
        self._call = call
        self._queue = queue
        self._deliveries = deliveries
        self._shown: list[bytes] = []
        self._done = 0
        call.request.notice_disconnect()  # messages are leased

    def go_on(self) -> None:
        call = self._call
        if call.request.gone:
            long_polls.release_deliveries(call.context, self._queue, self._deliveries)
            return
        try:
            self._encode()
            if self._done < len(self._deliveries):
                call.context.loop.call_soon(call.context.enter, self.go_on)
            else:
                call.answer_encoded(join_messages(call.format, self._shown))
        except Exception as problem:
            long_polls.release_deliveries(call.context, self._queue, self._deliveries)
            call.fail(problem)

    def _encode(self) -> None:
        """One part: up to `_ENCODE_BYTES` of bodies, or one message."""
        size = 0
        first = self._done
        while self._done < len(self._deliveries):
            size += self._deliveries[self._done].entry.size
            if size > _ENCODE_BYTES and self._done > first:
                break
            self._done += 1
        call = self._call
        for message in received(call.broker, self._deliveries[first : self._done], call.format):
            self._shown.append(call.format.encode(message))


def _wanted_receipts(body: Receipts) -> list[str]:
    if (body.receipt_id is UNSET) == (body.receipts is UNSET):
        raise Problem("invalid", "give either receipt_id or receipts")
    if isinstance(body.receipts, list):
        return body.receipts
    assert isinstance(body.receipt_id, str)
    return [body.receipt_id]


def _settle_receipts(call: RestCall, act: Callable[[list[Receipt]], Sequence[str | OpenQError]]) -> None:
    """A single delivery that cannot be settled is an error; one of many is an item of the reply."""
    queue, prefix = call.queue, call.broker.storage.id_prefix
    call.broker.settings(queue)  # an unknown queue has another error than an unknown message
    texts = _wanted_receipts(call.body)
    results: dict[int, str | OpenQError] = {}
    receipts: dict[int, Receipt] = {}
    for at, text in enumerate(texts):
        try:
            receipts[at] = read_receipt(text, prefix, queue)
        except OpenQError as error:
            results[at] = error
    try:
        results |= zip(receipts, act(list(receipts.values())), strict=True)
    except OpenQError as error:
        results |= dict.fromkeys(receipts, error)
    outcomes: list[str] = []
    failed: list[ReceiptFailure] = []
    for at, text in enumerate(texts):
        result = results[at]
        if not isinstance(result, OpenQError):
            outcomes.append(result)
        elif call.body.receipts is UNSET:
            raise with_receipt(text, queue, result) from None
        else:
            failed.append(receipt_failure(text, with_receipt(text, queue, result)))
    reported: list[str] | UnsetType = outcomes if any(outcomes) else UNSET
    call.after_commit(Settled(count=len(outcomes), failed=failed, outcomes=reported))


@route(
    "POST",
    "queues/{queue}/ack",
    permission="receive",
    sqs_actions=("DeleteMessage",),
    summary="Ack deliveries",
    request=Receipts,
    reply=Settled,
)
def ack(call: RestCall) -> None:
    texts = _wanted_receipts(call.body)
    queue, prefix = call.queue, call.broker.storage.id_prefix
    receipts: list[Receipt] = []
    known: list[str] = []
    failed: list[ReceiptFailure] = []
    single = call.body.receipts is UNSET
    for text in texts:
        try:
            receipts.append(read_receipt(text, prefix, queue))
            known.append(text)
        except MessageNotFoundError as error:
            if single:
                call.broker.settings(queue)
                raise
            failed.append(receipt_failure(text, error))
    traffic = call.context.traffic.rest
    traffic.acking()
    results = call.broker.ack(queue, receipts)
    traffic.acked += results.count(None)
    if any(results):
        wrong = [
            (text, with_receipt(text, queue, error))
            for text, error in zip(known, results, strict=True)
            if error
        ]
        if single:
            raise wrong[0][1]
        failed += [receipt_failure(text, error) for text, error in wrong]
    call.after_commit(Settled(count=len(texts) - len(failed), failed=failed))


@route(
    "POST",
    "queues/{queue}/nack",
    permission="receive",
    sqs_actions=("ChangeMessageVisibility",),
    summary="Nack or reject deliveries",
    request=Nack,
    reply=Settled,
)
def nack(call: RestCall) -> None:
    body, broker, queue, traffic = call.body, call.broker, call.queue, call.context.traffic.rest
    delay_ms = None if body.delay is None else span_ms(body.delay, "delay")
    failure = failure_text(body.reason, body.traceback)
    if body.release:
        prefix = call.broker.storage.id_prefix
        receipts = [read_receipt(text, prefix, queue) for text in _wanted_receipts(body)]
        call.after_commit(Settled(count=broker.release(queue, receipts)))
    elif body.reject:
        call.require("receive", call.args[0], ("DeleteMessage",))
        _settle_receipts(call, lambda receipts: traffic.count_nacks(broker.reject(queue, receipts, failure)))
    else:
        _settle_receipts(
            call, lambda receipts: traffic.count_nacks(broker.nack(queue, receipts, delay_ms, failure))
        )


@route(
    "POST",
    "queues/{queue}/extend",
    permission="receive",
    sqs_actions=("ChangeMessageVisibility",),
    summary="Extend leases",
    request=Extend,
    reply=Settled,
)
def extend(call: RestCall) -> None:
    broker, queue = call.broker, call.queue
    lease_ms = span_ms(call.body.seconds, "seconds")

    def act(receipts: list[Receipt]) -> list[str | OpenQError]:
        results = broker.extend(queue, receipts, lease_ms)
        return [each if isinstance(each, OpenQError) else iso(each) for each in results]

    _settle_receipts(call, act)
