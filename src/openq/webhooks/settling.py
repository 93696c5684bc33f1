"""Settles the deliveries of a webhook: acks of one turn in one call, and calls that a store refuses again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ..broker.interface import Broker, Receipt
from ..errors import Closed, OpenQError, QueueNotFound
from ..model import Delivery
from ..server.traffic import ProtocolTraffic

log = logging.getLogger("openq.webhooks")


class _Return(NamedTuple):
    receipts: list[Receipt]
    is_release: bool  # not counted as a delivery
    delay_ms: int | None
    reason: str


class Settlements:
    def __init__(self, broker: Broker, queue: str, traffic: ProtocolTraffic) -> None:
        self._broker = broker
        self._traffic = traffic
        self._queue = queue
        self._acks: list[Receipt] = []
        self._returns: list[_Return] = []

    def ack(self, deliveries: list[Delivery]) -> None:
        self._acks += _receipts(deliveries)

    def nack(self, deliveries: list[Delivery], delay_ms: int | None, reason: str) -> None:
        self._returns.append(_Return(_receipts(deliveries), False, delay_ms, reason))

    def release(self, deliveries: list[Delivery]) -> None:
        self._returns.append(_Return(_receipts(deliveries), True, None, ""))

    def __bool__(self) -> bool:
        return bool(self._acks or self._returns)

    def flush(self) -> bool:
        """Whether everything is settled; if not, the store is in trouble: call again later.

        A receipt that is refused is no trouble: its message was settled by somebody else, or purged.
        """
        acks, self._acks = self._acks, []
        if acks and not self._settled(partial(self._ack, acks)):
            self._acks += acks
            return False
        returns, self._returns = self._returns, []
        for at, each in enumerate(returns):
            if not self._settled(partial(self._return, each)):
                self._returns += returns[at:]
                return False
        return True

    def _ack(self, acks: list[Receipt]) -> None:
        self._traffic.acking()
        self._traffic.acked += self._broker.ack(self._queue, acks).count(None)

    def _return(self, each: _Return) -> object:
        if each.is_release:
            return self._broker.release(self._queue, each.receipts)
        results = self._broker.nack(self._queue, each.receipts, each.delay_ms, each.reason)
        return self._traffic.count_nacks(results)

    def _settled(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except (QueueNotFound, Closed):
            pass  # nothing is in flight any more
        except OpenQError as error:
            log.error("webhook of queue %r: cannot settle: %s", self._queue, error)
            return False
        return True


def _receipts(deliveries: list[Delivery]) -> list[Receipt]:
    return [(each.entry.seq, each.number) for each in deliveries]
