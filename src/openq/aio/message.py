"""A delivered message of `openq.aio`."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from ..client import queues
from ..client.failures import retry_delay, was_interrupted
from ..client.message import ReceivedMessage
from ..errors import OpenQError
from ..model import Delivery

if TYPE_CHECKING:
    from .queue import Queue


class Message(ReceivedMessage):
    """A delivered message. `async with message:` acks at the end, nacks with the reason on an exception."""

    __slots__ = ()
    queue: Queue  # type: ignore[assignment]

    def __init__(self, queue: Queue, delivery: Delivery) -> None:
        # Not through super(): one is made for every message.
        self.queue = queue
        self.delivery = delivery
        self.settled = False

    async def ack(self) -> None:  # type: ignore[override]
        await self.queue.ack(self)

    async def nack(  # type: ignore[override]
        self, delay: float | None = None, reason: str | BaseException | None = None
    ) -> str:
        return await self.queue.nack(self, delay, reason)

    async def reject(self, reason: str | BaseException | None = None) -> str:  # type: ignore[override]
        return await self.queue.reject(self, reason)

    async def extend(self, seconds: float) -> datetime | None:  # type: ignore[override]
        return await self.queue.extend(self, seconds)

    async def release(self) -> None:
        """Return the message at once and uncounted: the work on it was interrupted."""
        await self.queue.runner.change(_release, self)

    def __enter__(self) -> ReceivedMessage:
        raise TypeError("use `async with` for a message of openq.aio")

    async def __aenter__(self) -> Message:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            if was_interrupted(error):
                await self.release()
            else:
                await self.nack(retry_delay(error), error)
        except OpenQError:
            pass  # its lease is over: it returns anyway, and the caller must see the first error


def _release(queue: queues.Queue, message: Message) -> None:
    queue.core.release([message])
