"""Consumers of messages that others send: the handler gets the whole `Message`, or a list of them."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..client.message import ReceivedMessage
from ..errors import OpenQError

if TYPE_CHECKING:
    from ..client.queues import Queue
    from ..model import Delivery

log = logging.getLogger("openq.worker")


@dataclass(frozen=True, slots=True)
class Consumer:
    """A handler of the messages of one queue."""

    queue: str
    function: Callable[..., Any]
    batch: int | None  # None: one message, not a list
    concurrency: int
    timeout: float | None

    @property
    def is_batch(self) -> bool:
        return self.batch is not None

    @property
    def is_coroutine(self) -> bool:
        return inspect.iscoroutinefunction(self.function)


class ConsumerMessage(ReceivedMessage):
    """A message given to a consumer. Its `ack`, `nack` and `reject` do not block, so coroutines may use them.

    A message that the handler settled is left alone at the end; the others are acked, or nacked after an
    exception.
    """

    __slots__ = ("_pool",)

    def __init__(self, queue: Queue, delivery: Delivery, pool: Callable[[], ThreadPoolExecutor]) -> None:
        super().__init__(queue, delivery)
        self._pool = pool

    def ack(self) -> None:
        self._settle(self.queue.ack)

    def nack(self, delay: float | None = None, reason: str | BaseException | None = None) -> str:
        self._settle(self.queue.nack, delay, reason)
        return "returned"

    def reject(self, reason: str | BaseException | None = None) -> str:
        self._settle(self.queue.reject, reason)
        return "dead-lettered"

    def _settle(self, act: Callable[..., object], *args: Any) -> None:
        if self.settled:
            return
        self.settled = True
        self._pool().submit(self._act, act, *args)

    def _act(self, act: Callable[..., object], *args: Any) -> None:
        try:
            act(self, *args)
        except OpenQError as error:
            log.warning("message %s of queue %r could not be settled: %s", self.id, self.queue.name, error)
