"""One channel: the methods of a client, handed to the part that implements them.

    TopologyMethods     exchange.*, queue.*
    ChannelConsumers    basic.consume, cancel, get, qos; deliveries
    UnackedDeliveries   basic.ack, nack, reject, recover
    ChannelPublisher    basic.publish, confirms
    Transaction         tx.*

Everything runs on the loop. An answer that must wait for the commit goes through `answer_after_commit`: the
connection reads nothing more until it is sent, as RabbitMQ's channels do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..broker.interface import Receipt
from . import methods as m
from .channel_consumers import ChannelConsumers
from .channel_context import ChannelContext
from .channel_publisher import ChannelPublisher
from .errors import (
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    AmqpError,
)
from .publishing import PublishRun
from .topology_methods import TopologyMethods
from .transaction import Transaction
from .unacked import SettleAction, UnackedDeliveries

if TYPE_CHECKING:
    from .connection import AmqpConnection


class AmqpChannel:
    def __init__(self, connection: AmqpConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        context = self._context = ChannelContext(connection, number)
        self.unacked = UnackedDeliveries(context)
        self.consumers = ChannelConsumers(context, self.unacked)
        self.publisher = ChannelPublisher(context, self.consumers)
        self.transaction = Transaction(context, self.publisher, self.unacked)
        self.topology = TopologyMethods(context, self.consumers)

    @property
    def is_closing(self) -> bool:
        return self._context.is_closing

    def method(self, payload: bytes) -> None:
        method = self.connection.decode(payload)
        if self._context.is_closing:
            if isinstance(method, m.ChannelCloseOk):
                self.connection.drop_channel(self)
            elif isinstance(method, m.ChannelClose):
                self._context.send(m.ChannelCloseOk())
            return
        handle = _HANDLERS.get(type(method))
        if handle is None:
            raise AmqpError(COMMAND_INVALID, "unimplemented method")
        handle(self, method)

    # -- messages

    def publish(self, method: bytes, all_properties: bytes | list[bytes], bodies: list[bytes]) -> None:
        """`all_properties`: one value for all messages, or one per message."""
        if self._context.is_closing:
            return
        if self.transaction.is_selected:
            self.transaction.publish(PublishRun(method, all_properties, bodies))
        else:
            self.publisher.publish(method, all_properties, bodies)

    def ack(self, tags: list[int]) -> None:
        if not self._context.is_closing:
            self._settle_or_defer(tags, self._ack_receipts)

    def _settle_or_defer(self, tags: list[int], action: SettleAction) -> None:
        if self.transaction.is_selected:
            self.transaction.settle(tags, action)
        else:
            self._settle(tags, action)

    def _settle(self, tags: list[int], action: SettleAction) -> None:
        self.unacked.settle(tags, action)
        self._settled()

    def _settled(self) -> None:
        if self.consumers.shared_prefetch:
            self.consumers.dispatch()

    # -- methods

    def _open(self, method: m.ChannelOpen) -> None:
        raise AmqpError(CHANNEL_ERROR, "second 'channel.open' seen")

    def _close(self, method: m.ChannelClose) -> None:
        self.release()
        self._context.send(m.ChannelCloseOk())
        self.connection.drop_channel(self)

    def _close_ok(self, method: m.ChannelCloseOk) -> None:
        raise AmqpError(COMMAND_INVALID, "unimplemented method")

    def _access_request(self, method: m.AccessRequest) -> None:
        self._context.send(m.AccessRequestOk())

    def _cancel_ok(self, method: m.BasicCancelOk) -> None:
        """The client confirms a cancellation by the server."""

    def _ack(self, method: m.BasicAck) -> None:
        self.ack(self.unacked.up_to(method.delivery_tag, method.multiple))

    def _reject(self, method: m.BasicReject) -> None:
        self._requeue_or_reject([method.delivery_tag], method.requeue)

    def _nack(self, method: m.BasicNack) -> None:
        self._requeue_or_reject(self.unacked.up_to(method.delivery_tag, method.multiple), method.requeue)

    def _requeue_or_reject(self, tags: list[int], requeue: bool) -> None:
        self._settle_or_defer(tags, self._requeue if requeue else self._reject_receipts)

    def _ack_receipts(self, queue_key: str, receipts: Sequence[Receipt]) -> object:
        context = self._context
        context.traffic.acking()
        results = context.broker.ack(queue_key, receipts)
        context.traffic.acked += results.count(None)
        return results

    def _reject_receipts(self, queue_key: str, receipts: Sequence[Receipt]) -> object:
        context = self._context
        return context.traffic.count_nacks(context.broker.reject(queue_key, receipts))

    def _requeue(self, queue_key: str, receipts: Sequence[Receipt]) -> object:
        """At once: AMQP knows no delay."""
        context = self._context
        return context.traffic.count_nacks(context.broker.nack(queue_key, receipts, 0))

    def _recover(self, method: m.BasicRecover | m.BasicRecoverAsync) -> None:
        if not method.requeue:
            raise AmqpError(NOT_IMPLEMENTED, "requeue=false")
        broker = self._context.broker
        is_answered = isinstance(method, m.BasicRecover)
        if is_answered and broker.storage.waits:
            self._context.send(m.BasicRecoverOk())  # first: redeliveries may come before the store answers
        self._settle(list(self.unacked.by_tag), self._requeue)
        if is_answered and not broker.storage.waits:
            self._context.send(m.BasicRecoverOk())

    def _confirm_select(self, method: m.ConfirmSelect) -> None:
        if self.transaction.is_selected:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode")
        self.publisher.confirm_select(method)

    def _commit(self, method: m.TxCommit) -> None:
        self.transaction.commit(method)
        self._settled()

    # -- the end

    def release(self) -> None:
        """Remove the consumers, and requeue what was not settled, marked as redelivered."""
        self._context.is_closing = True
        self.consumers.release()
        self.transaction.discard()
        self.unacked.release()


_HANDLERS: dict[type[m.Method], Callable[[AmqpChannel, Any], None]] = {
    m.ChannelOpen: AmqpChannel._open,
    m.ChannelClose: AmqpChannel._close,
    m.ChannelCloseOk: AmqpChannel._close_ok,
    m.ChannelFlow: lambda channel, method: channel.consumers.flow(method),
    m.AccessRequest: AmqpChannel._access_request,
    m.ExchangeDeclare: lambda channel, method: channel.topology.exchange_declare(method),
    m.ExchangeDelete: lambda channel, method: channel.topology.exchange_delete(method),
    m.ExchangeBind: lambda channel, method: channel.topology.exchange_bind(method),
    m.ExchangeUnbind: lambda channel, method: channel.topology.exchange_unbind(method),
    m.QueueDeclare: lambda channel, method: channel.topology.queue_declare(method),
    m.QueueBind: lambda channel, method: channel.topology.queue_bind(method),
    m.QueueUnbind: lambda channel, method: channel.topology.queue_unbind(method),
    m.QueuePurge: lambda channel, method: channel.topology.queue_purge(method),
    m.QueueDelete: lambda channel, method: channel.topology.queue_delete(method),
    m.BasicQos: lambda channel, method: channel.consumers.qos(method),
    m.BasicConsume: lambda channel, method: channel.consumers.consume(method),
    m.BasicCancel: lambda channel, method: channel.consumers.cancel(method),
    m.BasicCancelOk: AmqpChannel._cancel_ok,
    m.BasicGet: lambda channel, method: channel.consumers.get(method),
    m.BasicAck: AmqpChannel._ack,
    m.BasicReject: AmqpChannel._reject,
    m.BasicNack: AmqpChannel._nack,
    m.BasicRecover: AmqpChannel._recover,
    m.BasicRecoverAsync: AmqpChannel._recover,
    m.ConfirmSelect: AmqpChannel._confirm_select,
    m.TxSelect: lambda channel, method: channel.transaction.select(method),
    m.TxCommit: AmqpChannel._commit,
    m.TxRollback: lambda channel, method: channel.transaction.rollback(method),
}
