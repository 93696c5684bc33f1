"""Acks of tasks to a server. Acks that come while a call is on its way are sent together with the next one.

A call for each ack would take a thread and a commit each: a consumer with hundreds of tasks acked less than a
thousand messages a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import Closed, MessageNotFoundError, OpenQError, VisibilityTimeoutExpired
from .threads import CallThreads

if TYPE_CHECKING:
    from ..client.core import QueueCore
    from .queue import Message

MAX_ACKS = 1_000  # in one call

Waiting = tuple["Message", "asyncio.Future[None]"]


class AckSender:
    """The acks of one loop. The call on its way ends even if the tasks that wait for it are cancelled."""

    def __init__(self, core: QueueCore, threads: CallThreads, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._core = core
        self._threads = threads
        self._waiting: list[Waiting] = []
        self._is_sending = False

    def ack(self, message: Message) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self.loop.create_future()
        self._waiting.append((message, future))
        if not self._is_sending:
            self._is_sending = True
            self.loop.call_soon(self._send)  # with all others of this iteration of the loop
        return future

    def _send(self) -> None:
        sent, self._waiting = self._waiting[:MAX_ACKS], self._waiting[MAX_ACKS:]
        if not sent:
            self._is_sending = False
            return
        receipts = [(message.delivery.entry.seq, message.delivery.number) for message, _ in sent]
        try:
            call = self._threads.start(self._core.broker.ack, self._core.name, receipts)
        except Closed as error:
            _settle(self._core.name, sent, [error] * len(sent))
            self._send()
            return
        call.add_done_callback(lambda call: self._sent(sent, call))

    def _sent(self, sent: list[Waiting], call: asyncio.Future[list[OpenQError | None]]) -> None:
        error = None if call.cancelled() else call.exception()
        if call.cancelled():
            for _, future in sent:
                future.cancel()
        else:
            _settle(self._core.name, sent, call.result() if error is None else [error] * len(sent))
        self._send()


def _settle(queue: str, sent: list[Waiting], results: Sequence[BaseException | None]) -> None:
    for (message, future), error in zip(sent, results, strict=True):
        if error is None:
            message.settled = True
        elif isinstance(error, MessageNotFoundError | VisibilityTimeoutExpired):
            error = type(error)(message.id, queue)
        if future.done():
            continue  # its task was cancelled
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
