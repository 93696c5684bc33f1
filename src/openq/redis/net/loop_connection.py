"""One connection to one Redis for an event loop: many callers, one write per loop iteration.

Commands sent in one iteration are written together; replies arrive in order, each to its callback. Everything
here runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any, cast

from openq.errors import StoreError, StoreUnavailable
from openq.redis.net.connection import CONNECT_S, STALL_S, Backoff
from openq.redis.net.copies import Copies, ReplicaFloor
from openq.redis.net.resp import INCOMPLETE, NotRedis, handshake, new_reader, pack
from openq.redis.net.round_trips import ROUND_TRIPS
from openq.redis.net.url import Address, Host

log = logging.getLogger("openq.redis")

FLUSH_BYTES = 64 * 1024

Callback = Callable[[Any], None]


class ReplyCollector:
    """The replies of several commands, as one list for one callback."""

    __slots__ = ("_callback", "_missing", "replies")

    def __init__(self, count: int, callback: Callback) -> None:
        self.replies: list[Any] = []
        self._missing = count
        self._callback = callback

    def add(self, reply: Any) -> None:
        self.replies.append(reply)
        self._missing -= 1
        if not self._missing:
            self._callback(self.replies)


class _ReplyProtocol(asyncio.Protocol):
    """The protocol of one connection. Its end may be reported after its owner has opened the next one."""

    def __init__(self, owner: LoopConnection) -> None:
        self._owner = owner
        self.transport: asyncio.Transport | None = None
        self.reader = new_reader()
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._owner.made(self)

    def data_received(self, data: bytes) -> None:
        self._owner.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.ended(self, str(exc or "the server closed the connection"))

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self._owner.writable(self)


class LoopConnection:
    """A connection that opens when it is first used, and again after a loss."""

    def __init__(
        self,
        address: Address,
        host: Host | None,
        loop: asyncio.AbstractEventLoop,
        context: ssl.SSLContext | None = None,
        floor: ReplicaFloor | None = None,
        on_stall: Callable[[], None] | None = None,
    ) -> None:
        """`on_stall` is called in a thread while a reply is late: see `ThreadConnection`."""
        self.address = address
        self.host = host
        self.copies = Copies(address, floor)
        self._loop = loop
        self._context = context
        self._on_stall = on_stall
        self._is_handling_stall = False
        self._closed = False
        self._backoff = Backoff()
        self._connection: _ReplyProtocol | None = None
        self._ready = False
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._unsent_callbacks: list[Callback] = []
        self._sent: deque[Callback] = deque()
        self._confirming: list[Callback] = []
        self._flush_is_due = False
        self._last_activity_s = 0.0
        self._awaited_s = 0.0  # when the commands were sent that nothing was sent before; 0: answered
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._lost_reason = ""

    def send(self, data: bytes, callback: Callback) -> None:
        """Send one packed command; `callback(reply)`, with an exception for an error."""
        self._unsent.append(data)
        self._unsent_callbacks.append(callback)
        self._unsent_bytes += len(data)
        if not self._flush_is_due:
            self._schedule()
        elif self._unsent_bytes > FLUSH_BYTES:
            self._flush()

    def send_many(self, data: bytes, count: int, callback: Callback) -> None:
        """Send several packed commands; `callback(replies)`."""
        add = ReplyCollector(count, callback).add
        self._unsent_callbacks.extend(repeat(add, count - 1))
        self.send(data, add)

    def confirm(self, callback: Callback) -> None:
        """`callback(None)` when all writes so far have their copies, or with the error."""
        self._confirming.append(callback)
        if not self._flush_is_due:
            self._schedule()

    def close(self) -> None:
        self._closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        if self._timeout_timer is not None:
            self._timeout_timer.cancel()
            self._timeout_timer = None
        self._disconnect("closed")

    def close_soon(self) -> None:
        """From any thread, even after the loop is closed."""
        self._closed = True
        try:
            self._loop.call_soon_threadsafe(self.close)
        except RuntimeError:
            pass

    # Called by the transport.

    def made(self, connection: _ReplyProtocol) -> None:
        self._connection = connection

    def received(self, connection: _ReplyProtocol, data: bytes) -> None:
        if connection is not self._connection:
            return
        reader = connection.reader
        sent = self._sent
        # Commands of callers that are woken here are collected and sent together.
        due, self._flush_is_due = self._flush_is_due, True
        try:
            reader.feed(data)
            reply = reader.gets()
            while reply is not INCOMPLETE:
                try:
                    sent.popleft()(reply)
                except Exception:
                    log.exception("a callback failed")
                if connection is not self._connection:
                    return  # a callback closed this connection
                reply = reader.gets()
        except NotRedis as error:
            self._disconnect(str(error))
            return
        finally:
            self._flush_is_due = due
        self._last_activity_s = self._loop.time()
        if self._awaited_s:
            ROUND_TRIPS.replied(self._last_activity_s - self._awaited_s)
            self._awaited_s = 0.0
        if not due and (self._unsent or self._confirming):
            self._flush()

    def ended(self, connection: _ReplyProtocol, why: str) -> None:
        if connection is self._connection:
            self._disconnect(why)

    def writable(self, connection: _ReplyProtocol) -> None:
        if connection is self._connection:
            self._flush()

    # Sending.

    def _schedule(self) -> None:
        self._flush_is_due = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        if not self._ready:
            self._connect()
            return
        connection = self._connection
        assert connection is not None
        if connection.paused:
            return
        if self._confirming:
            self._request_confirmation()
        if not self._unsent:
            return
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        if not self._sent:
            self._last_activity_s = self._awaited_s = self._loop.time()
        self._sent.extend(self._unsent_callbacks)
        self._unsent.clear()
        self._unsent_callbacks.clear()
        self._unsent_bytes = 0
        assert connection.transport is not None
        connection.transport.write(data)

    def _request_confirmation(self) -> None:
        """One request for all waiting callers; it covers the commands answered so far."""
        waiting, self._confirming = self._confirming, []
        copies = self.copies
        began_s = time.monotonic()
        question = copies.confirm_request(began_s)

        def answered(replies: list[Any]) -> None:
            if replies:
                ROUND_TRIPS.copied(time.monotonic() - began_s)
            verdict = copies.check_replies(question, replies)
            for callback in waiting:
                if verdict == "ask again":
                    self.confirm(callback)
                else:
                    self._call_back(callback, verdict)

        if not question.commands:
            answered([])
            return
        self._unsent.append(question.data)
        self._unsent_callbacks.extend(
            repeat(ReplyCollector(question.commands, answered).add, question.commands)
        )

    # Connecting and disconnecting.

    def _connect(self) -> None:
        if self._connecting is not None:
            return
        if self._closed or self._backoff.is_active(self._loop.time()):
            self._disconnect("closed" if self._closed else self._lost_reason)
            return
        self._last_activity_s = self._loop.time()
        self._connecting = self._loop.create_task(self._open())
        self._connecting.add_done_callback(self._opened)
        if self._timeout_timer is None:
            self._check_timeout()

    async def _open(self) -> None:
        async with asyncio.timeout(CONNECT_S):
            if self.address.path is not None:
                await self._loop.create_unix_connection(lambda: _ReplyProtocol(self), self.address.path)
            else:
                assert self.host is not None
                name = self.host[0] if self._context is not None else None
                await self._loop.create_connection(
                    lambda: _ReplyProtocol(self), *self.host, ssl=self._context, server_hostname=name
                )
        connection = self._connection
        if connection is None or connection.transport is None:
            raise ConnectionError(self._lost_reason)
        handshake_commands = handshake(self.address, "openq")
        commands = [*handshake_commands, *self.copies.info_commands()]
        answered: asyncio.Future[list[Any]] = self._loop.create_future()

        def answer(replies: list[Any]) -> None:
            if not answered.done():
                answered.set_result(replies)

        self._sent.extend(repeat(ReplyCollector(len(commands), answer).add, len(commands)))
        connection.transport.write(b"".join([pack(command) for command in commands]))
        async with asyncio.timeout(self.address.timeout_s):
            replies = await answered
        self.copies.new_connection(replies[len(handshake_commands) :], time.monotonic())
        for reply in replies[: len(handshake_commands)]:
            if isinstance(reply, Exception):
                raise reply

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if task.cancelled():
            self._disconnect("closed")
            return
        error = task.exception()
        if error is None and self._connection is not None:
            self._ready = True
            self._backoff.reset()
            self._last_activity_s = self._loop.time()
            if self._timeout_timer is None:
                self._check_timeout()
            self._flush()
            return
        self._backoff.begin(self._loop.time())
        if isinstance(error, OSError | TimeoutError) or error is None:
            self._disconnect(str(error or self._lost_reason) or "no answer in time")
        elif isinstance(error, StoreUnavailable):
            self._disconnect(error.detail)
        elif isinstance(error, StoreError):
            self._disconnect(str(error), error)
        else:
            log.error("connecting to Redis failed", exc_info=error)
            self._disconnect(repr(error))

    def _disconnect(self, why: str, error: StoreError | None = None) -> None:
        """Fail all callers at once: sent commands have an unknown outcome, the others were not executed."""
        self._lost_reason = why
        connection, self._connection = self._connection, None
        was_ready, self._ready = self._ready, False
        if connection is not None and connection.transport is not None:
            connection.transport.abort()
        if self._connecting is not None and not was_ready:
            # The callbacks of the handshake; `_opened` notifies the callers.
            greeted, self._sent = self._sent, deque()
            for callback in greeted:
                callback(StoreUnavailable(why))
            return
        sent, self._sent = self._sent, deque()
        unsent, self._unsent_callbacks = self._unsent_callbacks, []
        confirming, self._confirming = self._confirming, []
        self._unsent.clear()
        self._unsent_bytes = 0
        for callback in sent:
            self._call_back(callback, StoreUnavailable(why, sent=True))
        for callback in (*unsent, *confirming):
            self._call_back(callback, StoreUnavailable(why) if error is None else StoreError(why))

    def _call_back(self, callback: Callback, what: Any) -> None:
        try:
            callback(what)
        except Exception:
            log.exception("a callback failed")

    def _check_timeout(self) -> None:
        """Drop a connection whose reply is overdue."""
        if self._closed or (self._connection is None and self._connecting is None):
            self._timeout_timer = None
            return
        limit_s = self.address.timeout_s
        waited_s = self._loop.time() - self._last_activity_s if self._sent or self._connecting else 0.0
        if waited_s > limit_s and self._connecting is None:
            self._timeout_timer = None
            self._disconnect("no answer in time")
            return
        if self._on_stall is not None:
            limit_s = min(limit_s, 2 * STALL_S)
            if waited_s > STALL_S and not self._is_handling_stall:
                self._is_handling_stall = True
                self._loop.run_in_executor(None, self._on_stall).add_done_callback(self._stall_handled)
        self._timeout_timer = self._loop.call_later(limit_s / 4, self._check_timeout)

    def _stall_handled(self, looked: asyncio.Future[None]) -> None:
        self._is_handling_stall = False
        if not looked.cancelled() and (error := looked.exception()) is not None:
            log.error("looking for another server failed", exc_info=error)
