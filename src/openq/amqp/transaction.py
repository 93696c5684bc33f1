"""Transactions of a channel (tx.select): publishes and settlements are kept until the commit."""

from __future__ import annotations

from . import methods as m
from .channel_context import ChannelContext
from .channel_publisher import ChannelPublisher
from .errors import PRECONDITION_FAILED, RESOURCE_ERROR, AmqpError
from .publishing import PublishRun
from .unacked import SettleAction, UnackedDeliveries, UnackedDelivery

_MESSAGE_OVERHEAD = 100  # bytes of memory per kept message, beyond its content


class Transaction:
    def __init__(
        self, channel: ChannelContext, publisher: ChannelPublisher, unacked: UnackedDeliveries
    ) -> None:
        self._channel = channel
        self._publisher = publisher
        self._unacked = unacked
        self.is_selected = False
        self._publishes: list[PublishRun] = []
        self._settlements: list[tuple[SettleAction, dict[int, UnackedDelivery]]] = []
        self._bytes = 0

    def select(self, method: m.TxSelect) -> None:
        if self._publisher.is_confirming:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode")
        self.is_selected = True
        self._channel.send(m.TxSelectOk())

    def publish(self, run: PublishRun) -> None:
        """Check it now, and publish it at the commit."""
        self._publisher.check(run)
        self._publishes.append(run)
        size = run.size + _MESSAGE_OVERHEAD * len(run.bodies)
        self._bytes += size
        self._channel.connection.add_transaction_bytes(size)

    def settle(self, tags: list[int], action: SettleAction) -> None:
        deferred: dict[int, UnackedDelivery] = {}
        self._settlements.append((action, deferred))
        self._unacked.take(tags, deferred)

    def commit(self, method: m.TxCommit) -> None:
        self._require_selected()
        publishes, self._publishes = self._publishes, []
        self._release_bytes()
        is_complete = True
        for run in publishes:
            done, refused = self._publisher.publish_all(*run)
            if done < len(run.bodies):
                raise AmqpError(RESOURCE_ERROR, "the disk is full; the transaction is only done in part")
            is_complete = is_complete and not refused
        while self._settlements:
            action, deferred = self._settlements.pop(0)
            self._unacked.by_tag.update(deferred)
            self._unacked.settle(deferred, action)
        if not is_complete:
            raise AmqpError(PRECONDITION_FAILED, "partial tx completion")
        self._channel.reply(False, m.TxCommitOk())

    def rollback(self, method: m.TxRollback) -> None:
        self._require_selected()
        self.discard()
        self._channel.send(m.TxRollbackOk())

    def discard(self) -> None:
        """Forget the publishes; the settled deliveries are unacknowledged again."""
        self._publishes = []
        self._release_bytes()
        settlements, self._settlements = self._settlements, []
        for _, deferred in settlements:
            self._unacked.by_tag.update(deferred)
        if settlements:
            self._unacked.restore({})

    def _require_selected(self) -> None:
        if not self.is_selected:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional")

    def _release_bytes(self) -> None:
        self._channel.connection.add_transaction_bytes(-self._bytes)
        self._bytes = 0
