"""Many open streams in one thread: they answer pings, and pass what they get to the caller."""

from __future__ import annotations

import resource
import select
import socket
import time
from collections.abc import Callable, Iterator

from .harness import Run
from .push_client import MSGPACK, PONG, FrameReader
from .push_common import BENCH
from .server_load import STUCK_S, RequestRefused

PORTS_PER_ADDRESS = 5_000  # a machine may have few of them, but it has many loopback addresses
_AT_ONCE = 100
_READ_BYTES = 256 << 10
_SPARE_FILES = 200


def as_many_as_allowed(run: Run, wanted: int) -> int:
    """Each connection is an open file here and another one in the server."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and wanted + _SPARE_FILES > hard:
        run.log(f"{BENCH}: only {hard} open files are allowed here; FEWER THAN {wanted:,} connections")
        return hard - _SPARE_FILES
    return wanted


class Crowd:
    """Connections that only listen: WebSocket streams, and readers of server-sent events."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._readers: dict[int, FrameReader] = {}
        self._poll = select.epoll()

    def __len__(self) -> int:
        return len(self._sockets)

    def open_streams(self, port: int, count: int, queue_of: Callable[[int], str], credit: int) -> None:
        """WebSocket connections, each with one subscription."""
        for numbers in _groups(count):
            some = [self._connect(port) for _ in numbers]
            for each in some:
                each.sendall(MSGPACK.handshake(port))
            for number, each in zip(numbers, some, strict=True):
                rest = _read_head(each, b"HTTP/1.1 101 ")
                reader = self._readers[each.fileno()] = FrameReader()
                frames = reader.feed(rest)
                each.sendall(MSGPACK.subscribe(queue_of(number), credit))
                while len(frames) < 2:  # hello and ok
                    frames += reader.feed(_read(each))
                if b"error" in frames[1]:
                    raise RequestRefused(f"a subscription was answered with {frames[1][:300]!r}")
                each.setblocking(False)

    def open_events(self, port: int, count: int, path_of: Callable[[int], str]) -> None:
        """Readers of server-sent events."""
        for numbers in _groups(count):
            some = [self._connect(port) for _ in numbers]
            for number, each in zip(numbers, some, strict=True):
                head = f"GET {path_of(number)} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
                each.sendall(head.encode())
            for each in some:
                _read_head(each, b"HTTP/1.1 200 ")
                each.setblocking(False)

    def open_plain(self, port: int, count: int) -> None:
        """Connections that send nothing."""
        for _ in range(count):
            self._connect(port).setblocking(False)

    @property
    def filenos(self) -> list[int]:
        return list(self._sockets)

    def _connect(self, port: int) -> socket.socket:
        source = f"127.0.0.{1 + len(self._sockets) // PORTS_PER_ADDRESS}"
        found = socket.create_connection(("127.0.0.1", port), timeout=STUCK_S, source_address=(source, 0))
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sockets[found.fileno()] = found
        self._poll.register(found.fileno(), select.EPOLLIN)
        return found

    def read(self, timeout_s: float) -> Iterator[tuple[int, list[bytes]]]:
        """What arrives next on each connection: its number in the system, and the payloads of frames."""
        for fileno, _ in self._poll.poll(timeout_s):
            data = _read(self._sockets[fileno])
            reader = self._readers.get(fileno)
            if reader is None:
                yield fileno, [data]
                continue
            frames = reader.feed(data)
            if reader.take_pings():
                self.send(fileno, PONG)
            if frames:
                yield fileno, frames

    def send(self, fileno: int, data: bytes) -> None:
        if self._sockets[fileno].send(data) != len(data):
            raise RequestRefused("a request did not fit into the socket's buffer")

    def rest(self, seconds: float) -> None:
        """Answer pings for a while, and expect nothing else."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            for fileno, payloads in self.read(left_s):
                if fileno in self._readers:
                    raise RequestRefused(f"an idle stream got {payloads[0][:300]!r}")

    def close(self) -> None:
        self._poll.close()
        for each in self._sockets.values():
            each.close()


def _groups(count: int) -> Iterator[range]:
    for first in range(0, count, _AT_ONCE):
        yield range(first, min(first + _AT_ONCE, count))


def _read(found: socket.socket) -> bytes:
    data = found.recv(_READ_BYTES)
    if not data:
        raise RequestRefused("the server hung up")
    return data


def _read_head(found: socket.socket, expected: bytes) -> bytes:
    """Read the head of an answer; returns what came after it."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _read(found)
    if not answer.startswith(expected):
        raise RequestRefused(f"the request was answered with {answer[:300]!r}")
    return answer.partition(b"\r\n\r\n")[2]
