"""The stream over sockets: the roles of `push_client`, driven like those of AMQP."""

from __future__ import annotations

import socket

from .amqp_client import PREFETCH, Role, body
from .amqp_load import Clock, drive
from .push_client import MSGPACK, Codec, StreamPublisher, Subscriber
from .server_load import STUCK_S, RequestRefused, Tally

_BODIES = 1_000


class StreamLink:
    """An open stream: the handshake is done, and everything after it is for its role."""

    def __init__(self, port: int, role: Role, codec: Codec = MSGPACK) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=STUCK_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(codec.handshake(port))
        answer = b""
        while b"\r\n\r\n" not in answer:
            data = self.socket.recv(4096)
            if not data:
                raise RequestRefused(f"the server hung up after {answer[:300]!r}")
            answer += data
        head, _, rest = answer.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 101 "):
            raise RequestRefused(f"the handshake was answered with {head[:300]!r}")
        if rest:
            role.heard(rest)

    def close(self) -> None:
        self.socket.close()


def fill(port: int, queue: str, count: int, size: int = 100) -> None:
    publisher = StreamPublisher(queue, [body(number, size) for number in range(_BODIES)], count)
    link = StreamLink(port, publisher)
    drive([(link, publisher)])
    link.close()
    if publisher.count != count:
        raise RequestRefused(f"only {publisher.count} of {count} messages went in")


def consume(port: int, queue: str, count: int, codec: Codec = MSGPACK) -> Tally:
    """From a queue that holds them; the commit of the last ack ends the lap."""
    subscriber = Subscriber(queue, PREFETCH, lambda taken: taken >= count, codec)
    link = StreamLink(port, subscriber, codec)
    clock = Clock()
    drive([(link, subscriber)])
    tally = clock.count_records(subscriber.count)
    link.close()
    return tally
