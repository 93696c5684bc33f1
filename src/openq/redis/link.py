"""One connection to one Redis, shared by all threads of a process.

Threads that call at the same time share round trips: whoever comes first leads, sends everything that is
queued and reads all replies; who comes meanwhile waits, and one of them leads next. So n threads cost few
system calls, and no thread is needed for the connection itself.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import socket
import ssl
import struct
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from openq.errors import NotReplicated, StoreError, StoreUnavailable
from openq.redis.copies import Copies, Floor, Mark, Question
from openq.redis.url import Address, Host
from openq.redis.wire import NOTHING_YET, greeting, new_reader, pack

CONNECT_S = 2.0
# After so long without an answer a server may have been replaced: whoever knows others asks them.
STALL_S = 1.0
RECEIVE_BYTES = 64 * 1024

_LINKS: weakref.WeakSet[ThreadLink] = weakref.WeakSet()


class Pause:
    """How long to leave a server alone that could not be reached: longer each time, never in step."""

    SHORTEST_S = 0.02
    LONGEST_S = 0.5

    def __init__(self) -> None:
        self._next_s = self.SHORTEST_S
        self._until_s = 0.0

    def begin(self, now_s: float) -> None:
        self._until_s = now_s + self._next_s * random.uniform(0.5, 1.0)
        self._next_s = min(self._next_s * 2, self.LONGEST_S)

    def lasts(self, now_s: float) -> bool:
        return now_s < self._until_s

    def over(self) -> None:
        self._next_s = self.SHORTEST_S
        self._until_s = 0.0


class Turn:
    """One caller's commands and, later, the replies; the caller sleeps on `baton`.

    `mark` is where its writes stand among those of the link, if they are to be confirmed.
    """

    __slots__ = ("baton", "confirms", "count", "data", "error", "mark", "replies", "writes")

    def __init__(self, data: bytes, count: int, writes: bool = False, confirms: bool = False) -> None:
        self.data = data
        self.count = count
        self.writes = writes
        self.confirms = confirms
        self.replies: list[Any] = []
        self.mark: Mark | None = None
        self.error: StoreError | None = None
        self.baton: threading.Lock | None = None


class ThreadLink:
    """A connection that opens when it is first used, and again after a loss."""

    def __init__(
        self,
        address: Address,
        host: Host | None,
        context: ssl.SSLContext | None = None,
        floor: Floor | None = None,
        stalled: Callable[[], None] | None = None,
    ) -> None:
        """`stalled` is called, and may block, while an answer is late: it closes this link if another server
        has taken the place of this one."""
        self.address = address
        self.host = host
        self.copies = Copies(address, floor)
        self._context = context
        self._stalled = stalled
        self._closed = False
        self._fresh()
        _LINKS.add(self)

    def _fresh(self) -> None:
        self._gate = threading.Lock()
        self._turns: list[Turn] = []
        self._batch: list[Turn] = []
        self._leader: Turn | None = None
        self._question: Question | None = None
        self._socket: socket.socket | None = None
        self._reader: Any = None
        self._pause = Pause()
        self._why_lost = ""

    def after_fork(self) -> None:
        """In the child: the socket belongs to the parent, and the lock to a thread that is not here."""
        inherited = self._socket
        self._fresh()
        if inherited is not None:
            with contextlib.suppress(OSError):
                inherited.close()

    def exchange(self, data: bytes, count: int, writes: bool = False) -> Turn:
        """Send `count` packed commands and wait for their replies; error replies are items, not raised."""
        turn = Turn(data, count, writes)
        self.begin(turn)
        return self.finish(turn)

    def begin(self, turn: Turn) -> None:
        """Send, if nobody else does; `finish` or `abandon` must follow. Never waits for another caller."""
        try:
            with self._gate:
                self._turns.append(turn)
                if self._leader is None:
                    self._leader = turn
                else:
                    turn.baton = threading.Lock()
                    turn.baton.acquire()
            if turn.baton is None:
                self._send()
        except BaseException:
            self.abandon(turn)
            raise

    def finish(self, turn: Turn) -> Turn:
        """Wait for the replies, and lead if it comes to that."""
        try:
            if turn.baton is None:
                self._receive()
            else:
                turn.baton.acquire()
                if self._leader is turn:
                    self._send()
                    self._receive()
        except BaseException:
            self.abandon(turn)
            raise
        if turn.error is not None:
            raise turn.error
        return turn

    def abandon(self, turn: Turn) -> None:
        """Something else went wrong, or a signal came: nobody may be left waiting for this caller."""
        with self._gate:
            leader = self._leader
            if turn in self._turns:
                self._turns.remove(turn)
        if leader is not turn:
            # It may have been stopped between naming the next leader and waking him.
            self._release(leader)
            return
        if self._batch:
            self._fail("interrupted", True)
        self._hand_over()

    def close(self) -> None:
        self._closed = True
        with self._gate:
            if self._leader is not None:
                # The one who leads sees it: a socket that is shut down reads as ended.
                if self._socket is not None:
                    with contextlib.suppress(OSError):
                        self._socket.shutdown(socket.SHUT_RDWR)
                return
        self._drop("closed")

    def _send(self) -> None:
        with self._gate:
            self._batch, self._turns = self._turns, []
        sent = False
        try:
            connection = self._ready_socket()
            data = [turn.data for turn in self._batch]
            if any(turn.confirms for turn in self._batch):
                # One question for all who want to know.
                self._question = self.copies.question(time.monotonic())
                data.append(self._question.data)
            sent = True
            connection.sendall(data[0] if len(data) == 1 else b"".join(data))
        except OSError as lost:
            self._fail(reason(lost), sent)
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
                    self._hear(self._socket, self._question)
            except OSError as lost:
                self._fail(reason(lost), True)
            except BaseException:
                # Only the main thread is interrupted, and only it should see that.
                self._fail("interrupted", True)
                raise
            self._wake()
        self._hand_over()

    def _hear(self, connection: socket.socket, question: Question) -> None:
        answer = Turn(question.data, question.commands)
        self._read(connection, [answer])
        verdict = self.copies.verdict(question, answer.replies)
        if verdict == "ask again":
            question = self.copies.question(time.monotonic())
            connection.sendall(question.data)
            self._hear(connection, question)
        elif verdict is not None:
            for turn in self._batch:
                if turn.confirms:
                    turn.error = NotReplicated(verdict.detail)

    def _fail(self, why: str, sent: bool, kind: type[StoreError] | None = None) -> None:
        self._drop(why)
        for turn in self._batch:
            if turn.confirms or len(turn.replies) < turn.count:
                turn.error = kind(why) if kind is not None else StoreUnavailable(why, sent=sent)
        self._wake()

    def _wake(self) -> None:
        self._question = None
        # In this order: whoever is in the batch when a signal stops us is woken by `abandon`.
        while self._batch:
            turn = self._batch[-1]
            if turn is not self._leader:
                self._release(turn)
            self._batch.pop()

    def _hand_over(self) -> None:
        with self._gate:
            self._leader = self._turns[0] if self._turns else None
            following = self._leader
        if following is None and self._closed:
            self._drop("closed")  # who closed it left that to us
        self._release(following)

    def _release(self, turn: Turn | None) -> None:
        """Once too often does no harm: nobody sleeps twice on the same baton."""
        if turn is not None and turn.baton is not None:
            try:
                turn.baton.release()
            except RuntimeError:
                pass

    def _read(self, connection: socket.socket, batch: list[Turn]) -> None:
        reader = self._reader
        for turn in batch:
            replies = turn.replies
            for _ in range(turn.count):
                reply = reader.gets()
                while reply is NOTHING_YET:
                    try:
                        received = connection.recv(RECEIVE_BYTES)
                    except (BlockingIOError, TimeoutError):
                        received = self._wait_longer(connection)
                    if not received:
                        raise ConnectionError("the server closed the connection")
                    reader.feed(received)
                    reply = reader.gets()
                replies.append(reply)
            if turn.writes:
                turn.mark = self.copies.mark()

    def _wait_longer(self, connection: socket.socket) -> bytes:
        """After the first time-out, up to the one of the address."""
        end_s = time.monotonic() + self.address.timeout_s - STALL_S
        while self._stalled is not None and time.monotonic() < end_s:
            self._stalled()
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
            # Redis says nothing unasked: what is readable is the end, and a call sent into it would have
            # an unknown outcome for nothing.
            if not self._ends.poll(0):
                return connection
            self._drop("the server closed the connection")
        if self._pause.lasts(time.monotonic()):
            raise ConnectionError(self._why_lost)
        try:
            connection = self._open()
        except (OSError, StoreError):
            self._pause.begin(time.monotonic())
            raise
        self._pause.over()
        return connection

    def _open(self) -> socket.socket:
        wait_s = None if self._stalled is None else STALL_S
        connection = open_socket(self.address, self.host, self._context, wait_s)
        self._socket = connection
        self._ends = select.poll()
        self._ends.register(connection, select.POLLIN)
        self._reader = new_reader()
        greetings = greeting(self.address, "openq")
        commands = [*greetings, *self.copies.look()]
        turn = Turn(b"".join([pack(command) for command in commands]), len(commands))
        connection.sendall(turn.data)
        self._read(connection, [turn])
        self.copies.new_connection(turn.replies[len(greetings) :], time.monotonic())
        for reply in turn.replies[: len(greetings)]:
            if isinstance(reply, Exception):
                raise reply
        return connection

    def _drop(self, why: str) -> None:
        self._why_lost = why
        connection, self._socket = self._socket, None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def open_socket(
    address: Address, host: Host | None, context: ssl.SSLContext | None, wait_s: float | None = None
) -> socket.socket:
    """A connected socket that gives up waiting after the time-out of the address, or after `wait_s`."""
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
            # The kernel keeps the time: Python's own time-outs cost a poll() before each send and receive.
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


def reason(lost: OSError) -> str:
    if isinstance(lost, BlockingIOError | TimeoutError):
        return "no answer in time"
    return str(lost) or type(lost).__name__


def _after_fork_in_child() -> None:
    for link in list(_LINKS):
        link.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
