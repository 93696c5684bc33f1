"""Calls of many tasks that share requests to a server: client-side group commit.

Calls that begin in one iteration of the loop leave as one request, and those that begin while it is on its
way leave together with the next. There is no timer: a call that is alone is sent at once. The requests of one
kind follow each other, so calls arrive in the order in which they began. For threads see
`openq.client.grouped`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from ..client.grouped import copy_of, leading, one_for_each
from ..errors import Closed, MessageNotFoundError, OpenQError, VisibilityTimeoutExpired

if TYPE_CHECKING:
    from ..broker.interface import Receipt
    from ..client.core import QueueCore
    from ..client.remote import RemoteBroker
    from ..model import Draft
    from .message import Message
    from .threads import CallThreads

Item = TypeVar("Item")
Result = TypeVar("Result")


class GroupedCalls(Generic[Item, Result]):
    """The calls of one kind on one loop. A request ends even if the tasks that wait for it are cancelled."""

    def __init__(
        self,
        send: Callable[[list[Item]], Sequence[Result | OpenQError]],
        size_of: Callable[[Item], int],
        threads: CallThreads,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.loop = loop
        self._send = send
        self._size_of = size_of
        self._threads = threads
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._is_sending = False

    def call(self, item: Item) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = self.loop.create_future()
        self._waiting.append((item, future))
        if not self._is_sending:
            self._is_sending = True
            self.loop.call_soon(self._send_waiting)  # with all others of this iteration of the loop
        return future

    def _send_waiting(self) -> None:
        # A task that was cancelled before its call left does not make it.
        waiting = [each for each in self._waiting if not each[1].done()]
        count = leading([self._size_of(item) for item, _ in waiting]) if len(waiting) > 1 else len(waiting)
        self._waiting = waiting[count:]
        if not count:
            self._is_sending = False
            return
        sent = waiting[:count]
        try:
            self._threads.start(self._carry_out, sent)
        except Closed as error:
            self._done(sent, [error] * count)

    def _carry_out(self, sent: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """In a thread."""
        results: Sequence[Result | BaseException]
        try:
            results = one_for_each(len(sent), self._send([item for item, _ in sent]))
        except BaseException as error:
            results = [error] * len(sent)
        try:
            self.loop.call_soon_threadsafe(self._done, sent, results)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    def _done(
        self, sent: list[tuple[Item, asyncio.Future[Result]]], results: Sequence[Result | BaseException]
    ) -> None:
        # After the tasks of these calls: what they call next leaves with the calls that wait already.
        for (_, future), result in zip(sent, results, strict=True):
            if future.done():
                continue  # its task was cancelled
            if isinstance(result, BaseException):
                future.set_exception(copy_of(result))
            else:
                future.set_result(result)
        self.loop.call_soon(self._send_waiting)


class QueueCalls:
    """What the tasks of one loop do with the messages of one queue on a server."""

    def __init__(self, core: QueueCore, threads: CallThreads, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._core = core
        self._publishes: GroupedCalls[Draft, tuple[str, bool]] = GroupedCalls(
            self._publish, _body_size, threads, loop
        )
        self._acks: GroupedCalls[Receipt, None] = GroupedCalls(self._ack, _no_size, threads, loop)

    def _publish(self, drafts: list[Draft]) -> Sequence[tuple[str, bool] | OpenQError]:
        return cast("RemoteBroker", self._core.broker).publish_each(self._core.name, drafts)

    def _ack(self, receipts: list[Receipt]) -> Sequence[OpenQError | None]:
        return self._core.broker.ack(self._core.name, receipts)

    def publish(self, draft: Draft) -> asyncio.Future[tuple[str, bool]]:
        """The id, and whether it is that of an earlier message."""
        return self._publishes.call(draft)

    async def ack(self, message: Message) -> None:
        delivery = message.delivery
        try:
            await self._acks.call((delivery.entry.seq, delivery.number))
        except (MessageNotFoundError, VisibilityTimeoutExpired) as error:
            raise type(error)(message.id, self._core.name) from None
        message.settled = True


def _body_size(draft: Draft) -> int:
    return len(draft.body)


def _no_size(receipt: Receipt) -> int:
    return 0
