"""AMQP 0.9.1 as the load speaks it: frames that are finished before the clock starts, answers read by size.

Nothing here knows a socket: `amqp_load` brings one, `amqp_profile` a server in the same process. A client
that built and parsed frames one by one would be slower than the servers that it is to measure.
"""

from __future__ import annotations

import itertools
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .server_load import RequestRefused

Method = tuple[int, int]

START, START_OK, TUNE, TUNE_OK = (10, 10), (10, 11), (10, 30), (10, 31)
OPEN, OPEN_OK, CLOSE, CLOSE_OK = (10, 40), (10, 41), (10, 50), (10, 51)
CHANNEL_OPEN, CHANNEL_OPEN_OK, CHANNEL_CLOSE = (20, 10), (20, 11), (20, 40)
QUEUE_DECLARE, QUEUE_DECLARE_OK, QUEUE_DELETE, QUEUE_DELETE_OK = (50, 10), (50, 11), (50, 40), (50, 41)
QOS, QOS_OK, CONSUME, PUBLISH, ACK = (60, 10), (60, 11), (60, 20), (60, 40), (60, 80)
CONFIRM_SELECT, CONFIRM_SELECT_OK = (85, 10), (85, 11)

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
BURST = 50  # messages in one write of a publisher
WINDOW = 2_000  # messages that may wait for their confirm
PREFETCH = 500
CHANNEL = 1
_METHOD, _HEADER, _BODY, _HEARTBEAT = 1, 2, 3, 8
_END = b"\xce"
HEARTBEAT = struct.pack(">BHI", _HEARTBEAT, 0, 0) + _END
_PASSIVE, _DURABLE = 1, 2
_MAX_FRAME = 131_072
_CONSUMER = b"bench"
_PERSISTENT = struct.pack(">HB", 1 << 12, 2)  # property flags: only the delivery mode
_VARIETY = 1_000
_MANY = 20_000  # more than any server remembers
_TAG = struct.Struct(">Q")
_FRAME_HEADER = struct.Struct(">BHI")


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME_HEADER.pack(kind, channel, len(payload)) + payload + _END


def method(which: Method, arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    return frame(_METHOD, channel, struct.pack(">HH", *which) + arguments)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text


class Link:
    """A connection with one channel. Subclasses bring `write` and `read`."""

    def __init__(self) -> None:
        self._held = b""

    def write(self, data: bytes) -> None:
        raise NotImplementedError

    def read(self) -> bytes:
        """Wait for some bytes, at least one."""
        raise NotImplementedError

    def open(self) -> None:
        self.ask(PROTOCOL_HEADER, START)
        answer = long(b"\x00guest\x00guest")
        self.ask(
            method(START_OK, long(b"") + short(b"PLAIN") + answer + short(b"en_US"), channel=0),
            TUNE,
        )
        self.write(method(TUNE_OK, struct.pack(">HIH", 2_047, _MAX_FRAME, 0), channel=0))
        self.ask(method(OPEN, short(b"/") + b"\x00\x00", channel=0), OPEN_OK)
        self.ask(method(CHANNEL_OPEN, b"\x00"), CHANNEL_OPEN_OK)

    def ask(self, request: bytes, answer: Method) -> bytes:
        """The arguments of the answer."""
        self.write(request)
        while True:
            kind, payload = self._frame()
            if kind == _HEARTBEAT:
                continue
            which = struct.unpack_from(">HH", payload)
            if which == answer:
                return payload[4:]
            raise RequestRefused(f"waited for {answer}, got {which}: {payload[4:300]!r}")

    def declare(self, queue: str, kind: str = "") -> None:
        arguments = short(b"x-queue-type") + b"S" + long(kind.encode()) if kind else b""
        self.ask(_declare(queue, _DURABLE, arguments), QUEUE_DECLARE_OK)

    def waiting(self, queue: str) -> int:
        """Asked on the same channel, so everything that was written before has been done."""
        answer = self.ask(_declare(queue, _PASSIVE), QUEUE_DECLARE_OK)
        count: int = struct.unpack_from(">I", answer, 1 + answer[0])[0]
        return count

    def delete(self, queue: str) -> None:
        self.ask(method(QUEUE_DELETE, b"\x00\x00" + short(queue.encode()) + b"\x00"), QUEUE_DELETE_OK)

    def confirm(self) -> None:
        self.ask(method(CONFIRM_SELECT, b"\x00"), CONFIRM_SELECT_OK)

    def prefetch(self, count: int = PREFETCH) -> None:
        self.ask(method(QOS, struct.pack(">IHB", 0, count, 0)), QOS_OK)

    def close(self) -> None:
        self.ask(method(CLOSE, struct.pack(">H", 200) + b"\x00" + bytes(4), channel=0), CLOSE_OK)

    def _frame(self) -> tuple[int, bytes]:
        while True:
            if len(self._held) >= 7:
                kind, _, size = _FRAME_HEADER.unpack_from(self._held)
                if self._held[:4] == b"AMQP":
                    raise RequestRefused("the server does not speak AMQP 0.9.1")
                if len(self._held) >= size + 8:
                    payload = self._held[7 : 7 + size]
                    self._held = self._held[size + 8 :]
                    return kind, payload
            self._held += self.read()


def _declare(queue: str, flags: int, arguments: bytes = b"") -> bytes:
    return method(QUEUE_DECLARE, b"\x00\x00" + short(queue.encode()) + bytes([flags]) + long(arguments))


def body(number: int, size: int) -> bytes:
    return (b"%09d " % number).ljust(size, b"x")


def _own_properties(number: int) -> bytes:
    """Content type, headers, delivery mode, message id: no two messages have the same, all the same size."""
    headers = short(b"attempt") + struct.pack(">cI", b"I", number) + short(b"tenant") + b"S" + long(b"acme")
    flags = 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7
    message_id = b"%08x-0000-4000-8000-%012x" % (number, number)
    return struct.pack(">H", flags) + short(b"application/json") + long(headers) + b"\x02" + short(message_id)


def message(queue: str, content: bytes, properties: bytes = _PERSISTENT) -> bytes:
    """Persistent, through the default exchange."""
    return (
        method(PUBLISH, b"\x00\x00" + short(b"") + short(queue.encode()) + b"\x00")
        + frame(_HEADER, CHANNEL, struct.pack(">HHQ", 60, 0, len(content)) + properties)
        + frame(_BODY, CHANNEL, content)
    )


def bursts(queue: str, size: int, *, varied: bool = False, count: int = BURST) -> list[bytes]:
    """`count` messages each. Bodies differ; `varied`: so do the properties, as with most real programs."""
    return [
        b"".join(
            message(queue, body(number, size), _own_properties(number) if varied else _PERSISTENT)
            for number in range(first, first + count)
        )
        for first in range(0, _MANY if varied else _VARIETY, count)
    ]


class Role(Protocol):
    """One side of a conversation, without its socket."""

    @property
    def done(self) -> bool: ...

    def more(self) -> bytes:
        """What to write next; nothing, if it waits for the other side."""

    def heard(self, data: bytes) -> None: ...

    def wait_s(self) -> float | None:
        """When to ask for more at the latest, though nothing was heard."""


class Flood:
    """Publish without confirms: `limit` messages as fast as they are taken."""

    def __init__(self, written: Sequence[bytes], limit: int) -> None:
        self._repeat_requests: Iterator[bytes] = itertools.cycle(written)
        self.limit = limit // BURST * BURST
        self.sent = 0

    @property
    def done(self) -> bool:
        return self.sent == self.limit

    def more(self) -> bytes:
        if self.done:
            return b""
        self.sent += BURST
        return next(self._repeat_requests)

    def heard(self, data: bytes) -> None:
        raise RequestRefused(f"the server said {data[:300]!r}")

    def wait_s(self) -> float | None:
        return None


class Confirms:
    """Which of the messages sent are confirmed, whatever order the server confirms them in."""

    _ACKS = struct.Struct(">9xHQBx")

    def __init__(self) -> None:
        self.count = 0
        self._all_until = 0
        self._beyond: set[int] = set()
        self._held = b""

    def heard(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        whole = len(data) - len(data) % self._ACKS.size
        self._held = data[whole:]
        until, beyond = self._all_until, self._beyond
        for method_id, tag, multiple in self._ACKS.iter_unpack(memoryview(data)[:whole]):
            if method_id != ACK[1]:
                raise RequestRefused(f"not a confirm: {data[:300]!r}")
            if multiple:
                until = max(until, tag)
                if beyond:
                    beyond = {each for each in beyond if each > until}
            elif tag == until + 1:
                until = tag
                while beyond and until + 1 in beyond:
                    until += 1
                    beyond.discard(until)
            else:
                beyond.add(tag)
        self._all_until, self._beyond = until, beyond
        self.count = until + len(beyond)


class Publisher:
    """Publish with confirms, at most `WINDOW` outstanding, until the time is over or the limit is sent.

    `written`: what one write holds, `count` messages each.
    """

    def __init__(
        self,
        written: Sequence[bytes],
        seconds: float = 600.0,
        limit: int = 1 << 62,
        *,
        count: int = BURST,
    ) -> None:
        self._repeat_requests: Iterator[bytes] = itertools.cycle(written)
        self._seconds = seconds
        self._end_s: float | None = None
        self._written_count = count
        self._left = limit // count
        self._confirms = Confirms()
        self.sent = 0

    @property
    def count(self) -> int:
        return self._confirms.count

    @property
    def done(self) -> bool:
        return self._left <= 0 and self._confirms.count == self.sent

    def more(self) -> bytes:
        if self._left <= 0 or self.sent - self._confirms.count > WINDOW - self._written_count:
            return b""
        now_s = time.perf_counter()
        if self._end_s is None:
            self._end_s = now_s + self._seconds
        elif now_s >= self._end_s:
            self._left = 0
            return b""
        self._left -= 1
        self.sent += self._written_count
        return next(self._repeat_requests)

    def heard(self, data: bytes) -> None:
        self._confirms.heard(data)

    def wait_s(self) -> float | None:
        return None


class PacedPublisher:
    """So many messages a second, each with the monotonic time at which it was written."""

    SIZE = 100

    def __init__(self, queue: str, rate: int, limit: int) -> None:
        # The stamp has a fixed place: everything around it is written once.
        self._before, self._after = message(queue, b"stampher".ljust(self.SIZE, b"x")).split(b"stampher")
        self._rate = rate
        self._limit = limit
        self._began_ns: int | None = None
        self._confirms = Confirms()
        self.sent = 0
        self.sent_ns: list[int] = []
        self.confirmed_ns: list[int] = []  # how long, one per confirm that covered new messages
        self.late_ns = 0  # the longest that a message was written after its time

    @property
    def done(self) -> bool:
        return self.sent == self._limit and self._confirms.count == self.sent

    def more(self) -> bytes:
        now_ns = time.monotonic_ns()
        if self._began_ns is None:
            self._began_ns = now_ns
        due = min((now_ns - self._began_ns) * self._rate // 10**9, self._limit) - self.sent
        if due <= 0:
            return b""
        self.late_ns = max(self.late_ns, now_ns - self._began_ns - self.sent * 10**9 // self._rate)
        self.sent += due
        self.sent_ns += [now_ns] * due
        return (self._before + _TAG.pack(now_ns) + self._after) * due

    def heard(self, data: bytes) -> None:
        before = self._confirms.count
        self._confirms.heard(data)
        now_ns = time.monotonic_ns()
        # Confirms come in order, or nearly so: who exactly was confirmed makes no difference at this rate.
        self.confirmed_ns += [now_ns - sent for sent in self.sent_ns[before : self._confirms.count]]

    def wait_s(self) -> float | None:
        if self._began_ns is None or self.sent == self._limit:
            return None
        next_ns = self._began_ns + (self.sent + 1) * 10**9 // self._rate
        return max(0.0, (next_ns - time.monotonic_ns()) / 1e9)


class Acks:
    """Ready-made acks of the deliveries 1, 2, 3, ...; grows as needed."""

    _ACK = struct.Struct(">BHIHHQBB")
    _written = bytearray()

    @classmethod
    def of(cls, first: int, last: int) -> bytes:
        size = cls._ACK.size
        while len(cls._written) < last * size:
            known = len(cls._written) // size
            cls._written += b"".join(cls._one(tag, 0) for tag in range(known + 1, known + 16_385))
        return bytes(memoryview(cls._written)[(first - 1) * size : last * size])

    @classmethod
    def up_to(cls, last: int) -> bytes:
        return cls._one(last, 1)

    @classmethod
    def _one(cls, tag: int, multiple: int) -> bytes:
        return cls._ACK.pack(_METHOD, CHANNEL, cls._ACK.size - 8, *ACK, tag, multiple, _END[0])


class Consumer:
    """Consume and ack until `enough` says so.

    All deliveries of one queue have the same size here, and the first shows it.
    `multiple`: one ack for everything that one read brought, instead of one each. `singly`: each ack is a
    write of its own, as clients for programs do it.
    """

    def __init__(
        self, queue: str, enough: Callable[[int], bool], *, multiple: bool = False, singly: bool = False
    ) -> None:
        tag = short(_CONSUMER)
        self._request = method(CONSUME, b"\x00\x00" + short(queue.encode()) + tag + b"\x00" + bytes(4))
        self._consume_ok = method((60, 21), tag)
        self._enough = enough
        self._multiple = multiple
        self._singly = singly
        self._held = b""
        self._size = 0
        self._tag_at = 7 + 4 + len(tag)
        self._acked = 0
        self.count = 0

    @property
    def done(self) -> bool:
        return self._acked == self.count and self._enough(self.count)

    def more(self) -> bytes:
        if self._request:
            request, self._request = self._request, b""
            return request
        if self._acked == self.count:
            return b""
        first = self._acked + 1
        self._acked = first if self._singly else self.count
        if self._singly:
            return Acks.of(first, first)
        return Acks.up_to(self.count) if self._multiple else Acks.of(first, self.count)

    def heard(self, data: bytes) -> None:
        if self._held:
            data = self._held + data
        if self._consume_ok:
            if not self._begins(data):
                return
            data = data[len(self._consume_ok) :]
            self._consume_ok = b""
        size = self._size or self._learn(data)
        count = len(data) // size if size else 0
        if count:
            end = count * size
            tag = _TAG.unpack_from(data, end - size + self._tag_at)[0]
            if data[size - 1 : end : size] != _END * count or tag != self.count + count:
                raise RequestRefused(f"not the deliveries after {self.count}: {data[:500]!r}")
            self.took(data, count)
            self.count += count
            data = data[end:]
        self._held = data

    def took(self, data: bytes, count: int) -> None:
        """For those who look at the deliveries."""

    def wait_s(self) -> float | None:
        return None

    def _begins(self, data: bytes) -> bool:
        if data[: len(self._consume_ok)] == self._consume_ok:
            return True
        if not self._consume_ok.startswith(data):
            raise RequestRefused(f"consume was answered with {data[:300]!r}")
        self._held = data
        return False

    def _learn(self, data: bytes) -> int:
        """Method, header, body: three frames. 0: the first delivery is not whole yet."""
        at = 0
        for kind in (_METHOD, _HEADER, _BODY):
            if len(data) < at + 7:
                return 0
            found, _, size = _FRAME_HEADER.unpack_from(data, at)
            if found != kind:
                raise RequestRefused(f"not a delivery: {data[:300]!r}")
            at += size + 8
        if len(data) < at:
            return 0
        self._size = at
        return at


class TimedConsumer(Consumer):
    """Reads the stamps of a `PacedPublisher`."""

    def __init__(self, queue: str, enough: Callable[[int], bool]) -> None:
        super().__init__(queue, enough)
        self.took_ns: list[int] = []

    def took(self, data: bytes, count: int) -> None:
        now_ns = time.monotonic_ns()
        at = self._size - 1 - PacedPublisher.SIZE
        for _ in range(count):
            self.took_ns.append(now_ns - _TAG.unpack_from(data, at)[0])
            at += self._size
