"""One connection to one Redis, shared by all threads of a process.

Threads that call at the same time share round trips. The first one leads: it sends everything that is queued
and reads all replies. Callers that arrive meanwhile wait, and one of them leads next. So n threads cost few
system calls, and the connection needs no thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from openq.errors import NotReplicated, StoreError, StoreUnavailable
from openq.redis.net.copies import ConfirmRequest, Copies, ReplicaFloor, WriteMark
from openq.redis.net.resp import INCOMPLETE, handshake, new_reader, pack
from openq.redis.net.url import Address, Host

if TYPE_CHECKING:
    import ssl

CONNECT_S = 2.0
# After this time without a reply a server may have been replaced: `on_stall` queries other servers.
STALL_S = 1.0
RECEIVE_BYTES = 64 * 1024

_CONNECTIONS: weakref.WeakSet[ThreadConnection] = weakref.WeakSet()


class Backoff:
    """The delay before an unreachable server is tried again: longer each time, with jitter."""

    MIN_S = 0.02
    MAX_S = 0.5

    def __init__(self) -> None:
        self._next_s = self.MIN_S
        self._until_s = 0.0

    def begin(self, now_s: float) -> None:
        self._until_s = now_s + self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self.MAX_S)

    def is_active(self, now_s: float) -> bool:
        return now_s < self._until_s

    def reset(self) -> None:
        self._next_s = self.MIN_S
        self._until_s = 0.0


class PendingCommands:
    """One caller's commands and, later, the replies; the caller sleeps on `wakeup`.

    `mark` is the position of its writes among those of the connection, if they are to be confirmed.
    """

    __slots__ = ("confirms", "count", "data", "error", "mark", "replies", "wakeup", "writes")

    def __init__(self, data: bytes, count: int, writes: bool = False, confirms: bool = False) -> None:
        self.data = data
        self.count = count
        self.writes = writes
        self.confirms = confirms
        self.replies: list[Any] = []
        self.mark: WriteMark | None = None
        self.error: StoreError | None = None
        self.wakeup: threading.Lock | None = None


class ThreadConnection:
    """A connection that opens when it is first used, and again after a loss."""

    def __init__(
        self,
        address: Address,
        host: Host | None,
        context: ssl.SSLContext | None = None,
        floor: ReplicaFloor | None = None,
        on_stall: Callable[[], None] | None = None,
    ) -> None:
        """`on_stall` is called, and may block, while a reply is late: it closes this connection if another
        server has replaced this one."""
        self.address = address
        self.host = host
        self.copies = Copies(address, floor)
        self._context = context
        self._on_stall = on_stall
        self._closed = False
        self._reset()
        _CONNECTIONS.add(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queued: list[PendingCommands] = []
        self._batch: list[PendingCommands] = []
        self._leader: PendingCommands | None = None
        self._question: ConfirmRequest | None = None
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._backoff = Backoff()
        self._lost_reason = ""

    def after_fork(self) -> None:
        """In the child: the socket belongs to the parent, and the lock to a thread that does not exist
        here."""
        inherited = self._socket
        self._reset()
        if inherited is not None:
            with contextlib.suppress(OSError):
                inherited.close()

    def exchange(self, data: bytes, count: int, writes: bool = False) -> PendingCommands:
        """Send `count` packed commands and wait for their replies; error replies are items, not raised."""
        pending = PendingCommands(data, count, writes)
        self.begin(pending)
        return self.finish(pending)

    def begin(self, pending: PendingCommands) -> None:
        """Send, unless another caller does; `finish` or `abandon` must follow. Never waits for others."""
        try:
            with self._lock:
                self._queued.append(pending)
                if self._leader is None:
                    self._leader = pending
                else:
                    pending.wakeup = threading.Lock()
                    pending.wakeup.acquire()
            if pending.wakeup is None:
                self._send()
        except BaseException:
            self.abandon(pending)
            raise

    def finish(self, pending: PendingCommands) -> PendingCommands:
        """Wait for the replies; lead if no other caller does."""
        try:
            if pending.wakeup is None:
                self._receive()
            else:
                pending.wakeup.acquire()
                if self._leader is pending:
                    self._send()
                    self._receive()
        except BaseException:
            self.abandon(pending)
            raise
        if pending.error is not None:
            raise pending.error
        return pending

    def abandon(self, pending: PendingCommands) -> None:
        """After another error or a signal: no other caller may be left waiting for this one."""
        with self._lock:
            leader = self._leader
            if pending in self._queued:
                self._queued.remove(pending)
        if leader is not pending:
            # The caller may have been interrupted between naming the next leader and waking it.
            self._release(leader)
            return
        if self._batch:
            self._fail("interrupted", True)
        self._hand_over()

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._leader is not None:
                # The leader notices: a socket that is shut down reads as closed.
                if self._socket is not None:
                    with contextlib.suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                return
        self._drop("closed")

    def _send(self) -> None:
        with self._lock:
            self._batch, self._queued = self._queued, []
        sent = False
        try:
            connection = self._ready_socket()
            data = [pending.data for pending in self._batch]
            if any(pending.confirms for pending in self._batch):
                # One request for all callers that wait for a confirmation.
                self._question = self.copies.confirm_request(time.monotonic())
                data.append(self._question.data)
            sent = True
            connection.sendall(data[0] if len(data) == 1 else b"".join(data))
        except OSError as lost:
            self._fail(describe_error(lost), sent)
        except StoreError as refused:
            self._fail(str(refused), sent, None if isinstance(refused, StoreUnavailable) else StoreError)
        except BaseException:
            self._fail("interrupted", sent)
            raise

    def _receive(self) -> None:
        if self._batch:
            try:
                assert self._socket is not None
                self._read(self._socket, self._batch)
                if self._question is not None:
                    self._read_confirmation(self._socket, self._question)
            except OSError as lost:
                self._fail(describe_error(lost), True)
            except BaseException:
                # Only the main thread is interrupted, and only it gets the exception.
                self._fail("interrupted", True)
                raise
            self._wake()
        self._hand_over()

    def _read_confirmation(self, connection: socket.socket, question: ConfirmRequest) -> None:
        answer = PendingCommands(question.data, question.commands)
        self._read(connection, [answer])
        verdict = self.copies.check_replies(question, answer.replies)
        if verdict == "ask again":
            question = self.copies.confirm_request(time.monotonic())
            connection.sendall(question.data)
            self._read_confirmation(connection, question)
        elif verdict is not None:
            for pending in self._batch:
                if pending.confirms:
                    pending.error = NotReplicated(verdict.detail)

    def _fail(self, why: str, sent: bool, kind: type[StoreError] | None = None) -> None:
        self._drop(why)
        for pending in self._batch:
            if pending.confirms or len(pending.replies) < pending.count:
                pending.error = kind(why) if kind is not None else StoreUnavailable(why, sent=sent)
        self._wake()

    def _wake(self) -> None:
        self._question = None
        # In this order: `abandon` wakes callers in the batch when a signal interrupts this thread.
        while self._batch:
            pending = self._batch[-1]
            if pending is not self._leader:
                self._release(pending)
            self._batch.pop()

    def _hand_over(self) -> None:
        with self._lock:
            self._leader = self._queued[0] if self._queued else None
            following = self._leader
        if following is None and self._closed:
            self._drop("closed")  # left to the leader by `close`
        self._release(following)

    def _release(self, pending: PendingCommands | None) -> None:
        """Releasing twice is harmless: a caller sleeps on its lock once."""
        if pending is not None and pending.wakeup is not None:
            try:
                pending.wakeup.release()
            except RuntimeError:
                pass

    def _read(self, connection: socket.socket, batch: list[PendingCommands]) -> None:
        reader = self._reader
        for pending in batch:
            replies = pending.replies
            for _ in range(pending.count):
                reply = reader.gets()
                while reply is INCOMPLETE:
                    try:
                        received = connection.recv(RECEIVE_BYTES)
                    except (BlockingIOError, TimeoutError):
                        received = self._wait_longer(connection)
                    if not received:
                        raise ConnectionError("the server closed the connection")
                    reader.feed(received)
                    reply = reader.gets()
                replies.append(reply)
            if pending.writes:
                pending.mark = self.copies.mark()

    def _wait_longer(self, connection: socket.socket) -> bytes:
        """After the first timeout, wait up to the timeout of the address."""
        end_s = time.monotonic() + self.address.timeout_s - STALL_S
        while self._on_stall is not None and time.monotonic() < end_s:
            self._on_stall()
            try:
                return connection.recv(RECEIVE_BYTES)
            except (BlockingIOError, TimeoutError):
                continue
        raise TimeoutError

    def _ready_socket(self) -> socket.socket:
        if self._closed:
            raise ConnectionError("closed")
        connection = self._socket
        if connection is not None:
            # Redis sends nothing unrequested: readable data means the end of the connection, and a call sent
            # now would needlessly have an unknown outcome.
            if not self._closed_poll.poll(0):
                return connection
            self._drop("the server closed the connection")
        if self._backoff.is_active(time.monotonic()):
            raise ConnectionError(self._lost_reason)
        try:
            connection = self._open()
        except (OSError, StoreError):
            self._backoff.begin(time.monotonic())
            raise
        self._backoff.reset()
        return connection

    def _open(self) -> socket.socket:
        wait_s = None if self._on_stall is None else STALL_S
        connection = open_socket(self.address, self.host, self._context, wait_s)
        self._socket = connection
        self._closed_poll = select.poll()
        self._closed_poll.register(connection, select.POLLIN)
        self._reader = new_reader()
        handshake_commands = handshake(self.address, "openq")
        commands = [*handshake_commands, *self.copies.info_commands()]
        pending = PendingCommands(b"".join([pack(command) for command in commands]), len(commands))
        connection.sendall(pending.data)
        self._read(connection, [pending])
        self.copies.new_connection(pending.replies[len(handshake_commands) :], time.monotonic())
        for reply in pending.replies[: len(handshake_commands)]:
            if isinstance(reply, Exception):
                raise reply
        return connection

    def _drop(self, why: str) -> None:
        self._lost_reason = why
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def open_socket(
    address: Address, host: Host | None, context: ssl.SSLContext | None, wait_s: float | None = None
) -> socket.socket:
    """A connected socket whose operations time out after the timeout of the address, or after `wait_s`."""
    connect_s = min(CONNECT_S, address.timeout_s)
    wait_s = address.timeout_s if wait_s is None else min(wait_s, address.timeout_s)
    if address.path is not None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(connect_s)
            connection.connect(address.path)
        except BaseException:
            connection.close()
            raise
    else:
        assert host is not None
        connection = socket.create_connection(host, timeout=connect_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    try:
        if context is not None:
            assert host is not None
            connection = context.wrap_socket(connection, server_hostname=host[0])
        if context is None and sys.platform == "linux":
            # The kernel keeps the timeout: Python's own timeouts cost a poll() before each send and receive.
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(wait_s))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(address.timeout_s))
        else:
            connection.settimeout(wait_s)
    except BaseException:
        connection.close()
        raise
    return connection


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1_000_000))


def describe_error(lost: OSError) -> str:
    if isinstance(lost, BlockingIOError | TimeoutError):
        return "no answer in time"
    return str(lost) or type(lost).__name__


def _after_fork_in_child() -> None:
    for link in list(_CONNECTIONS):
        link.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
