"""One stream without its socket: requests in, deliveries and replies out.

Requests that arrive together are processed together: acks of one queue are one call of the broker, replies
wait for one commit, and everything leaves as one write. A delivery is a lease like any other. It is bound to
this connection: when that ends, what is not settled returns to its queue at once and in order.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from .._version import __version__
from ..broker.interface import Receipt
from ..documents.batches import Item, check_count, count_new, publish_items, read_msgpack_batch
from ..documents.drafts import make_draft, message_filter
from ..documents.formats import Format
from ..documents.messages import ReceiptFailure
from ..documents.problem import Problem, failure
from ..documents.receipts import receipt_failure, with_receipt
from ..documents.values import iso, span_ms
from ..errors import MessageNotFoundError, OpenQError, QueueNotFound, VisibilityTimeoutExpired
from ..model import NO_DEADLINE, Delivery, check_name, failure_text
from ..names import qualified_name, split_name
from ..server.dispatcher import QueueDispatcher
from . import frames as f
from .access import StreamAccess
from .deliveries import encode_deliveries
from .subscription import QueueConsumer, Subscription, Unsettled

if TYPE_CHECKING:
    from .server import StreamServer
    from .socket import StreamSocket

log = logging.getLogger("openq.push")

MAX_SUBSCRIPTIONS = 1_000
# Close codes of our own, in the range for applications.
LOGIN_ENDED = 4401
FORBIDDEN = 4403
CLOSED_BY_OPERATOR = 4410

LEASE_OVER = (VisibilityTimeoutExpired, MessageNotFoundError, QueueNotFound)

Settle = Callable[[str, list[Receipt]], Sequence[str | int | OpenQError | None]]


class StreamConnection:
    def __init__(
        self,
        server: StreamServer,
        socket: StreamSocket,
        access: StreamAccess,
        format: Format,
        port: int,
        client: str = "",
    ) -> None:
        self.server = server
        self.context = server.context
        self._broker = server.context.broker
        self._traffic = server.context.traffic.push
        self._socket = socket
        self.access = access
        self.format = format
        self._request_type = f.JsonRequest if format.is_json else f.MsgpackRequest
        self.peer = access.peer
        self.label = f"ws:{access.peer}:{port}"
        self.session = secrets.token_hex(8)
        self.opened_ms = server.context.now_ms()
        self.port = port
        self.client = client  # the library, as it names itself
        self.number = 0  # see `server/connections.py`
        self.published = self.delivered = 0
        self.received_bytes = self.sent_bytes = 0  # counted by the socket
        self.last_error = ""
        self.subscriptions: dict[f.RequestId, Subscription] = {}
        self.unsettled: dict[str, Unsettled] = {}  # by receipt, in the order of delivery
        self.is_closed = False
        self.can_write = True
        # Pending until everything that arrived together is processed.
        self._acks: list[f.Ack] = []
        self._after_commit: list[f.Reply] = []
        self._to_dispatch: dict[QueueDispatcher[QueueConsumer], None] = {}

    @property
    def can_deliver(self) -> bool:
        return self.can_write and not self.is_closed

    def greet(self) -> None:
        self._send(
            f.Hello(
                session=self.session,
                version=__version__,
                id_prefix=self._broker.storage.id_prefix,
                idle=self.server.idle_s,
                limits=f.Limits(frame_bytes=self.server.max_frame_bytes),
            )
        )
        self.flush()

    # -- requests

    def process(self, messages: list[bytes]) -> None:
        """Requests that arrived together."""
        for data in messages:
            if self.is_closed:
                return
            request: f.Request | None = None
            try:
                request = self.format.decode(data, self._request_type)
                if type(request) is f.Ack:
                    self._acks.append(request)
                    continue
                if self._acks:
                    self._settle_acks()
                _HANDLERS[type(request)](self, request)
            except (OpenQError, Problem) as error:
                self._fail(self._id_of(data) if request is None else request.id, error)
            except Exception as error:
                log.error("a request of a stream failed", exc_info=error)
                self._fail(None if request is None else request.id, Problem("internal_error"))
        self.finish_turn()

    def finish_turn(self) -> None:
        if self._acks:
            self._settle_acks()
        if self._after_commit:
            replies, self._after_commit = self._after_commit, []
            self.context.after_commit(partial(self._committed, replies))
        self.dispatch()
        self.flush()

    def _committed(self, replies: list[f.Reply], error: OpenQError | None) -> None:
        if self.is_closed:
            return
        for reply in replies:
            if error is not None:
                self._fail(reply.id, error)
            else:
                self._send(reply)
        self.flush()

    def _id_of(self, data: bytes) -> f.RequestId | None:
        """The id of a request that is invalid otherwise."""
        try:
            found = self.format.decode(data, f.OnlyId).id
        except Problem:
            return None
        return found if isinstance(found, int | str) and len(str(found)) <= 128 else None

    def _fail(self, id: f.RequestId | None, error: OpenQError | Problem) -> None:
        if isinstance(error, Problem):
            code, detail = error.code, error.detail
        else:
            shown = failure(error)
            code, detail = shown.code, shown.detail
        detail = detail.replace(qualified_name(self.access.account, ""), "") if detail else detail
        self.last_error = f"{code}: {detail}" if detail else code
        self._send(f.Error(id=id, code=code, detail=detail))

    def _ping(self, request: f.Ping) -> None:
        self._send(f.Pong(id=request.id))

    # -- subscriptions

    def _subscribe(self, request: f.Subscribe) -> None:
        if (request.queue is None) == (request.pattern is None):
            raise Problem("invalid", "give either queue or pattern")
        if request.sub in self.subscriptions:
            raise Problem("invalid", f"there is a subscription {request.sub!r} already")
        if len(self.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise Problem("invalid", f"a connection has at most {MAX_SUBSCRIPTIONS} subscriptions")
        lease_ms: int | None = NO_DEADLINE
        if request.lease is not None:
            lease_ms = None if request.lease == "queue" else span_ms(request.lease, "lease")
        if lease_ms == 0:
            raise Problem("invalid", "lease must be more than 0 seconds")
        if request.keep and request.lease is None:
            raise Problem("invalid", "keep needs a lease that ends by itself")
        label = request.consumer or f"{self.label}/{request.sub}"
        wanted = message_filter(request.types, request.attributes, self.format)
        subscription = Subscription(self, request, label, lease_ms, wanted)
        if request.queue is not None:
            self.access.require("receive", request.queue, "ReceiveMessage")
            queue_key = check_name(qualified_name(self.access.account, request.queue))
            self._broker.get_queue(queue_key)
            self.subscriptions[request.sub] = subscription
            self._add_queue(subscription, queue_key)
        else:
            self.subscriptions[request.sub] = subscription
            self.join_queues(self._broker.queues())
        if request.id is not None:
            self._send(f.Ok(id=request.id))

    def join_queues(self, queue_keys: Sequence[str]) -> None:
        """Let the queues that match a pattern join its subscription, if the caller may receive from them."""
        subscriptions = [each for each in self.subscriptions.values() if each.pattern is not None]
        for queue_key in queue_keys if subscriptions else ():
            account, name = split_name(queue_key)
            if account != self.access.account:
                continue
            for subscription in subscriptions:
                if (
                    queue_key not in subscription.consumers
                    and subscription.matches(name)
                    and self.access.may("receive", name, "ReceiveMessage")
                ):
                    self._add_queue(subscription, queue_key)

    def _add_queue(self, subscription: Subscription, queue_key: str) -> None:
        dispatcher = self.server.open_dispatcher(queue_key, subscription.lease_ms, subscription.wanted)
        consumer = QueueConsumer(subscription, dispatcher, self.context.now_ms())
        subscription.consumers[queue_key] = consumer
        dispatcher.add(consumer)
        self._to_dispatch[dispatcher] = None

    def _remove_queue(self, consumer: QueueConsumer) -> None:
        consumer.subscription.consumers.pop(consumer.dispatcher.queue_key, None)
        if not consumer.is_removed:
            consumer.dispatcher.remove(consumer)
            self.server.consumer_removed(consumer.dispatcher)
            self._to_dispatch[consumer.dispatcher] = None

    def _subscription(self, id: f.RequestId) -> Subscription:
        found = self.subscriptions.get(id)
        if found is None:
            raise Problem("subscription_not_found", f"there is no subscription {id!r}")
        return found

    def _set_credit(self, request: f.SetCredit) -> None:
        subscription = self._subscription(request.sub)
        subscription.set_credit(f.Credit(messages=request.messages, bytes=request.bytes))
        self._dispatch_all(subscription)
        if request.id is not None:
            self._send(f.Ok(id=request.id))

    def _unsubscribe(self, request: f.Unsubscribe) -> None:
        subscription = self._subscription(request.sub)
        del self.subscriptions[request.sub]
        for consumer in list(subscription.consumers.values()):
            self._remove_queue(consumer)
        if request.release:
            mine = [text for text, each in self.unsettled.items() if each[0].subscription is subscription]
            self._release_receipts(mine)
        if request.id is not None:
            self._after_commit.append(f.Ok(id=request.id))

    def on_queue_deleted(self, consumer: QueueConsumer) -> None:
        """Its deliveries are gone with the queue."""
        subscription, queue_key = consumer.subscription, consumer.dispatcher.queue_key
        subscription.consumers.pop(queue_key, None)
        for text in [text for text, each in self.unsettled.items() if each[0] is consumer]:
            subscription.free(1, self.unsettled.pop(text)[2])
        if subscription.pattern is None:
            self.subscriptions.pop(subscription.id, None)
        if not self.is_closed:
            self._send(f.Gone(sub=subscription.id, queue=consumer.dispatcher.queue))
            self._socket.flush_soon()

    def _dispatch_all(self, subscription: Subscription) -> None:
        for consumer in subscription.consumers.values():
            self._to_dispatch[consumer.dispatcher] = None

    def dispatch(self) -> None:
        while self._to_dispatch:
            dispatchers, self._to_dispatch = self._to_dispatch, {}
            for dispatcher in dispatchers:
                self.context.enter(dispatcher.dispatch)

    # -- deliveries

    def deliver(self, consumer: QueueConsumer, deliveries: list[Delivery]) -> None:
        """Bodies are loaded, and the credit is reserved."""
        prefix = self._broker.storage.id_prefix
        self._traffic.delivered += len(deliveries)
        self.delivered += len(deliveries)
        unsettled = self.unsettled
        receipts: list[str] = []
        for delivery in deliveries:
            entry, number = delivery.entry, delivery.number
            text = f"{prefix}{entry.seq:012x}/{number:x}"
            unsettled[text] = (consumer, (entry.seq, number), entry.size)
            receipts.append(text)
        sub, queue = consumer.subscription.id, consumer.dispatcher.queue
        for data in encode_deliveries(self._broker, self.format, sub, queue, deliveries, receipts):
            self._socket.send(data)
        self._broker.drop_bodies(deliveries)  # they may stay unsettled for days
        self._socket.flush_soon()

    # -- settling

    def _settle_acks(self) -> None:
        acks, self._acks = self._acks, []
        texts = acks[0].receipts if len(acks) == 1 else [text for ack in acks for text in ack.receipts]
        errors, _ = self._settle(texts, "DeleteMessage", self._ack_receipts)
        start = 0
        for ack in acks:
            end = start + len(ack.receipts)
            failed = [errors[at] for at in range(start, end) if at in errors] if errors else []
            start = end
            if ack.id is not None or failed:
                count = len(ack.receipts) - len(failed)
                self._after_commit.append(f.Settled(id=ack.id, count=count, failed=failed))

    def _ack_receipts(self, queue_key: str, receipts: list[Receipt]) -> list[OpenQError | None]:
        self._traffic.acking()
        results = self._broker.ack(queue_key, receipts)
        self._traffic.acked += results.count(None)
        return results

    def _settle(
        self, texts: list[str], sqs_action: str, act: Settle, keep: bool = False
    ) -> tuple[dict[int, ReceiptFailure], dict[int, str]]:
        """Settle deliveries, queue by queue; returns errors and outcomes by position.

        `keep`: they stay in flight after it (`extend`).
        """
        unsettled = self.unsettled
        found = [unsettled.get(text) if keep else unsettled.pop(text, None) for text in texts]
        errors: dict[int, ReceiptFailure] = {}
        outcomes: dict[int, str] = {}
        for consumer, positions in _by_consumer(found).items():
            if consumer is None:
                for at in positions:
                    # It was settled before, or belonged to an earlier connection: its lease is over.
                    text = texts[at][:100]
                    errors[at] = receipt_failure(text, VisibilityTimeoutExpired(text, ""))
                continue
            mine = [each for each in map(found.__getitem__, positions) if each is not None]
            queue_key = consumer.dispatcher.queue_key
            results: Sequence[str | int | OpenQError | None]
            try:
                if not self.access.may("receive", consumer.dispatcher.queue, sqs_action):
                    raise Problem("forbidden", f"{self.access.principal.user} may not settle these")
                results = act(queue_key, [receipt for _, receipt, _ in mine])
            except QueueNotFound as error:
                results = [error] * len(mine)
            except (OpenQError, Problem) as error:
                # The disk is full, or Redis is unreachable: they stay in flight, and may be settled again.
                shown = failure(error) if isinstance(error, OpenQError) else error
                for at, each in zip(positions, mine, strict=True):
                    unsettled[texts[at]] = each
                    errors[at] = ReceiptFailure(receipt_id=texts[at], code=shown.code, detail=shown.detail)
                continue
            if any(results):
                for at, result in zip(positions, results, strict=True):
                    if isinstance(result, OpenQError):
                        errors[at] = receipt_failure(texts[at], with_receipt(texts[at], queue_key, result))
                    elif result is not None:
                        outcomes[at] = result if isinstance(result, str) else iso(result)
            if keep:
                # What could not be extended has no lease: it needs no credit any more.
                over = [
                    texts[at]
                    for at, each in zip(positions, results, strict=True)
                    if isinstance(each, LEASE_OVER)
                ]
                mine = [unsettled.pop(text) for text in dict.fromkeys(over)]
            if mine:
                self._free(consumer, len(mine), sum([size for _, _, size in mine]))
        return errors, outcomes

    def _free(self, consumer: QueueConsumer, count: int, size: int) -> None:
        """Their credit can be used again."""
        subscription = consumer.subscription
        was_full = not subscription.capacity()
        subscription.free(count, size)
        if was_full:
            self._dispatch_all(subscription)
        elif not consumer.is_removed:
            self._to_dispatch[consumer.dispatcher] = None

    def _settle_one(self, request: f.Nack | f.Reject | f.Extend, sqs_action: str, act: Settle) -> None:
        is_extending = isinstance(request, f.Extend)
        errors, outcomes = self._settle(request.receipts, sqs_action, act, is_extending)
        if request.id is not None or errors:
            self._after_commit.append(
                f.Settled(
                    id=request.id,
                    count=len(request.receipts) - len(errors),
                    failed=[errors[at] for at in sorted(errors)],
                    outcomes=[outcomes[at] for at in sorted(outcomes)] or UNSET,
                )
            )

    def _nack(self, request: f.Nack) -> None:
        delay_ms = None if request.delay is None else span_ms(request.delay, "delay")
        reason = failure_text(request.reason, request.traceback)
        self._settle_one(
            request,
            "ChangeMessageVisibility",
            lambda key, some: self._traffic.count_nacks(self._broker.nack(key, some, delay_ms, reason)),
        )

    def _reject(self, request: f.Reject) -> None:
        reason = failure_text(request.reason, request.traceback)
        self._settle_one(
            request,
            "DeleteMessage",
            lambda key, some: self._traffic.count_nacks(self._broker.reject(key, some, reason)),
        )

    def _extend(self, request: f.Extend) -> None:
        lease_ms = span_ms(request.seconds, "seconds")
        self._settle_one(
            request, "ChangeMessageVisibility", lambda key, some: self._broker.extend(key, some, lease_ms)
        )

    def _release(self, request: f.Release) -> None:
        failed = self._release_receipts(request.receipts)
        if request.id is not None or failed:
            count = len(request.receipts) - len(failed)
            self._after_commit.append(f.Settled(id=request.id, count=count, failed=failed))

    def _release_receipts(self, texts: list[str]) -> list[ReceiptFailure]:
        def act(queue_key: str, receipts: list[Receipt]) -> list[None]:
            self._broker.release(queue_key, receipts)
            return [None] * len(receipts)

        errors, _ = self._settle(texts, "ChangeMessageVisibility", act)
        return [errors[at] for at in sorted(errors)]

    # -- publishing

    def _publish(self, request: f.PublishJson | f.PublishMsgpack) -> None:
        self.access.require("send", request.queue, "SendMessage")
        queue_key = check_name(qualified_name(self.access.account, request.queue))
        if isinstance(request, f.PublishMsgpack):
            items: list[Item] = read_msgpack_batch(bytes(request.messages))
            check_count(items)
        else:
            items = list(request.messages)
        done = publish_items(self._broker, queue_key, items, lambda item: make_draft(item, self.format))
        new = count_new(done)
        self._traffic.published += new
        self.published += new
        if request.id is not None or done.failed:
            self._after_commit.append(
                f.Published(
                    id=request.id,
                    count=done.count,
                    failed=done.failed,
                    first_id=done.first_id,
                    results=done.results,
                )
            )

    # -- output

    def _send(self, reply: f.Reply | f.Gone) -> None:
        self._socket.send(self.format.encode(reply))

    def flush(self) -> None:
        self._socket.flush()

    def on_writable(self) -> None:
        """The client reads again."""
        self.can_write = True
        for subscription in self.subscriptions.values():
            self._dispatch_all(subscription)
        self.finish_turn()

    # -- closing

    def check_access(self) -> None:
        """After a change of users, tokens or rules."""
        if not self.access.renew(self.context.guard):
            self.close(LOGIN_ENDED, "the login is no longer valid")
            return
        for subscription in self.subscriptions.values():
            for queue_key, consumer in list(subscription.consumers.items()):
                name = consumer.dispatcher.queue
                if self.access.may("receive", name, "ReceiveMessage"):
                    continue
                if subscription.pattern is None:
                    self.close(FORBIDDEN, f"{self.access.principal.user} may not receive {name[:60]!r}")
                    return
                self.server.hub.requeue(queue_key, self._take_all(consumer))
                self._remove_queue(consumer)
        self.finish_turn()

    def _take_all(self, consumer: QueueConsumer) -> list[Receipt]:
        mine = [text for text, each in self.unsettled.items() if each[0] is consumer]
        taken = [self.unsettled.pop(text) for text in mine]
        consumer.subscription.free(len(taken), sum(size for _, _, size in taken))
        return [receipt for _, receipt, _ in taken]

    def close(self, code: int, reason: str) -> None:
        """Return what is in flight, except what is kept, then send a close frame."""
        if not self.is_closed:
            self.release()
            self._socket.close(code, reason)

    def release(self) -> None:
        """End all subscriptions and return what is not settled."""
        if self.is_closed:
            return
        if self._acks:
            self._settle_acks()
        self.is_closed = True
        for subscription in self.subscriptions.values():
            for consumer in list(subscription.consumers.values()):
                self._remove_queue(consumer)
        self.subscriptions.clear()
        groups: dict[str, list[Receipt]] = {}
        for consumer, receipt, _ in self.unsettled.values():
            if consumer.subscription.keeps_leases:
                continue  # its client settles them by requests, or their leases end
            groups.setdefault(consumer.dispatcher.queue_key, []).append(receipt)
        self.unsettled.clear()
        for queue_key, receipts in groups.items():
            self.server.hub.requeue(queue_key, receipts)
        self._after_commit.clear()
        self.dispatch()


def _by_consumer(found: Sequence[Unsettled | None]) -> dict[QueueConsumer | None, Sequence[int]]:
    """The positions of each consumer's deliveries; None: of those that are unknown."""
    consumers = {None if each is None else each[0] for each in found}
    if len(consumers) == 1:
        return {consumers.pop(): range(len(found))}
    groups: dict[QueueConsumer | None, list[int]] = {each: [] for each in consumers}
    for at, each in enumerate(found):
        groups[None if each is None else each[0]].append(at)
    return dict(groups)


_HANDLERS: dict[type, Callable[[StreamConnection, Any], None]] = {
    f.Subscribe: StreamConnection._subscribe,
    f.SetCredit: StreamConnection._set_credit,
    f.Unsubscribe: StreamConnection._unsubscribe,
    f.Nack: StreamConnection._nack,
    f.Reject: StreamConnection._reject,
    f.Release: StreamConnection._release,
    f.Extend: StreamConnection._extend,
    f.PublishJson: StreamConnection._publish,
    f.PublishMsgpack: StreamConnection._publish,
    f.Ping: StreamConnection._ping,
}
