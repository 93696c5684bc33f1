"""The load: many keep-alive connections, one request under way on each, all from one thread.

Requests are finished bytes before the clock starts, and an answer is looked at only as far as needed to know
that it is whole and says yes. A client that did more would be what is measured.
"""

from __future__ import annotations

import gc
import itertools
import re
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

STUCK_S = 20.0
_ANSWER_BYTES = 16 << 10


class RequestRefused(RuntimeError):
    """A server rejected a request, or did not respond. The load ends: a rate of errors means nothing."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What a load did. `count` is in messages, not in requests."""

    count: int
    requests: int
    wall_s: float
    client_cpu_s: float


class RequestPlan(Protocol):
    """What to send next on a connection whose last answer had this body (None at its start); None: enough."""

    @property
    def count(self) -> int: ...
    @property
    def requests(self) -> int: ...

    def begin(self) -> None: ...
    def step(self, answer: bytes | None) -> bytes | None: ...


class Repeat:
    """The same few requests in a repeat_requests, until the time is over or `limit` were sent."""

    def __init__(
        self, requests: Sequence[bytes], *, messages: int = 1, seconds: float = 60.0, limit: int | None = None
    ) -> None:
        self._repeat_requests: Iterator[bytes] = itertools.cycle(requests)
        self._messages = messages
        self._seconds = seconds
        self._left = limit if limit is not None else 1 << 62
        self.requests = 0

    @property
    def count(self) -> int:
        return self.requests * self._messages

    def begin(self) -> None:
        self._end_s = time.perf_counter() + self._seconds

    def step(self, answer: bytes | None) -> bytes | None:
        if answer is not None:
            self.requests += 1
            if _REFUSED_ENTRY(answer) is not None:
                raise RequestRefused(f"an entry of a batch was refused: {answer[:500]!r}")
        self._left -= 1
        if self._left < 0 or time.perf_counter() >= self._end_s:
            return None
        return next(self._repeat_requests)


class Drain:
    """Receive ten and delete them, until `limit` messages are gone or the time is over."""

    def __init__(
        self,
        receive: bytes,
        delete: Callable[[list[bytes]], bytes],
        limit: int,
        seconds: float = 60.0,
    ) -> None:
        self._receive = receive
        self._delete = delete
        self._left = limit
        self._empty_answers = 0
        self._seconds = seconds
        self.count = 0
        self.requests = 0

    def begin(self) -> None:
        self._end_s = time.perf_counter() + self._seconds

    def step(self, answer: bytes | None) -> bytes | None:
        if answer is not None:
            self.requests += 1
            receipts = _RECEIPTS(answer)
            if receipts:
                self._left -= len(receipts)
                self.count += len(receipts)
                return self._delete(receipts)
            if _REFUSED_ENTRY(answer) is not None:
                raise RequestRefused(f"a delete was refused: {answer[:500]!r}")
            if b"Success" not in answer and b"DeleteMessageBatch" not in answer:
                self._empty_answers += 1
                if self._empty_answers > 10_000:
                    raise RequestRefused(f"{self._left} messages never came")
        if self._left <= 0 or time.perf_counter() >= self._end_s:
            return None
        return self._receive


# AWS JSON has them as members, the Query protocol as elements.
_RECEIPTS = re.compile(rb'(?:"ReceiptHandle":\s?"|<ReceiptHandle>)([^"<]+)').findall
_REFUSED_ENTRY = re.compile(rb'"Failed":\s?\[\s?\{|<BatchResultErrorEntry>').search


def drive(port: int, connections: int, plan: RequestPlan) -> Tally:
    """Connect, then start the clock, then work through the plan until its last answer is in."""
    shape = _Shape()
    with select.epoll() as poll:
        open_now: dict[int, _LoadConnection] = {}
        try:
            for _ in range(connections):
                connection = _LoadConnection(port, plan, shape)
                open_now[connection.fileno] = connection
            gc.collect()
            gc.disable()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            plan.begin()
            for fileno, connection in list(open_now.items()):
                poll.register(fileno, select.EPOLLIN)
                if not connection.start():
                    open_now.pop(fileno).close()
            while open_now:
                ready = poll.poll(STUCK_S, 512)
                if not ready:
                    raise RequestRefused(f"no answer in {STUCK_S:.0f} s on {len(open_now)} connections")
                for fileno, _ in ready:
                    connection = open_now[fileno]
                    if connection.advance():
                        continue
                    del open_now[fileno]
                    connection.close()
                    if connection.again is not None:
                        fresh = _LoadConnection(port, plan, shape)
                        open_now[fresh.fileno] = fresh
                        poll.register(fresh.fileno, select.EPOLLIN)
                        fresh.write(connection.again)
            return Tally(
                plan.count,
                plan.requests,
                time.perf_counter() - began_s,
                time.process_time() - began_cpu_s,
            )
        finally:
            gc.enable()
            for connection in open_now.values():
                connection.close()


class _Shape:
    """How this server writes Content-Length, and whether it closes after each response; learnt once."""

    def __init__(self) -> None:
        self.length_tag = b"\r\ncontent-length: "
        self.hangs_up = False

    def learn(self, head: bytes) -> None:
        lower = head.lower()
        at = lower.find(b"\r\ncontent-length:")
        if at < 0:
            raise RequestRefused(f"an answer without a length: {head!r}")
        self.length_tag = head[at : at + 17] + (b" " if head[at + 17 : at + 18] == b" " else b"")
        self.hangs_up = b"\r\nconnection: close" in lower


class _LoadConnection:
    __slots__ = ("_held", "_recv", "_send", "_shape", "_socket", "_step", "again", "fileno")

    def __init__(self, port: int, plan: RequestPlan, shape: _Shape) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=STUCK_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # With a timeout, Python would ask the kernel twice for every read and every write.
        self._socket.setblocking(True)
        self.fileno = self._socket.fileno()
        self._recv = self._socket.recv
        self._send = self._socket.send
        self._step = plan.step
        self._shape = shape
        self._held = b""
        self.again: bytes | None = None  # the request to repeat on a new connection

    def start(self) -> bool:
        request = self._step(None)
        if request is None:
            return False
        self.write(request)
        return True

    def write(self, request: bytes) -> None:
        if self._send(request) != len(request):
            raise RequestRefused("a request did not fit into the socket's buffer")

    def advance(self) -> bool:
        """Read what is there; after a whole answer, send the next request. False: this connection is done."""
        data = self._recv(_ANSWER_BYTES)
        if not data:
            raise RequestRefused(f"the server hung up after {self._held[:300]!r}")
        if self._held:
            data = self._held + data
        end = data.find(b"\r\n\r\n")
        shape = self._shape
        at = data.find(shape.length_tag, 0, end) if end >= 0 else -1
        if at < 0:
            if end < 0:
                self._held = data
                return True
            shape.learn(data[:end])
            at = data.find(shape.length_tag, 0, end + 2)
        at += len(shape.length_tag)
        whole = end + 4 + int(data[at : data.find(b"\r", at)])
        if len(data) < whole:
            self._held = data
            return True
        self._held = b""
        if data[9:10] != b"2":
            raise RequestRefused(f"the server answered {data[:800]!r}")
        request = self._step(data[end + 4 :])
        if request is None:
            return False
        if shape.hangs_up:
            self.again = request
            return False
        self.write(request)
        return True

    def close(self) -> None:
        self._socket.close()
