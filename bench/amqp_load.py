"""The load over sockets: each role has a connection, all of them in one thread.

One process for producer and consumer: on two cores a third process would take time from the server.
"""

from __future__ import annotations

import gc
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .amqp_client import (
    BURST,
    HEARTBEAT,
    PREFETCH,
    Consumer,
    Flood,
    Link,
    PacedPublisher,
    Publisher,
    Role,
    TimedConsumer,
    bursts,
)
from .server_load import STUCK_S, RequestRefused, Tally

_READ_BYTES = 256 << 10


class HasSocket(Protocol):
    """A connection that `drive` reads and writes."""

    socket: socket.socket


class SocketLink(Link):
    def __init__(self, port: int, *, greets: bool = True) -> None:
        super().__init__()
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=STUCK_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if greets:
            try:
                self.open()
            except BaseException:
                self.socket.close()
                raise

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> bytes:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise RequestRefused("the server hung up")
        return data

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.socket.close()


def drive(roles: Sequence[tuple[HasSocket, Role]]) -> None:
    """Until all of them are done."""
    lines = [_Line(link.socket, role) for link, role in roles]
    sockets = {line.socket: line for line in lines}
    for line in lines:
        line.socket.setblocking(False)
    gc.collect()
    gc.disable()
    try:
        while True:
            for line in lines:
                line.push()
            if all(line.role.done and not line.pending for line in lines):
                return
            waits_s = [wait_s for line in lines if (wait_s := line.role.wait_s()) is not None]
            blocked = [line.socket for line in lines if line.pending]
            readable, writable, _ = select.select(sockets, blocked, (), min(waits_s, default=STUCK_S))
            if not readable and not writable and not waits_s:
                raise RequestRefused(f"nothing happened for {STUCK_S:.0f} s")
            for each in readable:
                data = each.recv(_READ_BYTES)
                if not data:
                    raise RequestRefused("the server hung up")
                sockets[each].role.heard(data)
    finally:
        gc.enable()
        for line in lines:
            line.socket.settimeout(STUCK_S)


class _Line:
    __slots__ = ("pending", "role", "socket")

    def __init__(self, line: socket.socket, role: Role) -> None:
        self.socket = line
        self.role = role
        self.pending = memoryview(b"")

    def push(self) -> None:
        while True:
            if not self.pending:
                more = self.role.more()
                if not more:
                    return
                self.pending = memoryview(more)
            try:
                sent = self.socket.send(self.pending)
            except BlockingIOError:
                return
            self.pending = self.pending[sent:]


class Clock:
    """Wall time, and CPU time of this process."""

    def __init__(self) -> None:
        self._began_s, self._began_cpu_s = time.perf_counter(), time.process_time()

    def count_records(self, count: int) -> Tally:
        return Tally(
            count, count, time.perf_counter() - self._began_s, time.process_time() - self._began_cpu_s
        )


def publish(
    port: int,
    queue: str,
    size: int,
    seconds: float,
    limit: int = 1 << 62,
    *,
    varied: bool = False,
    count: int = BURST,
) -> Tally:
    """With confirms; the last one ends the lap. `count`: messages in one write."""
    link = SocketLink(port)
    link.confirm()
    publisher = Publisher(bursts(queue, size, varied=varied, count=count), seconds, limit, count=count)
    clock = Clock()
    drive([(link, publisher)])
    tally = clock.count_records(publisher.count)
    link.close()
    return tally


def fill(port: int, queue: str, count: int, size: int = 100) -> None:
    done = publish(port, queue, size, seconds=900.0, limit=count)
    if done.count != count:
        raise RequestRefused(f"only {done.count} of {count} messages went in")


def flood(port: int, queue: str, size: int, limit: int, *, varied: bool = False) -> Tally:
    """Without confirms; the server's answer to a question behind them ends the lap."""
    link = SocketLink(port)
    role = Flood(bursts(queue, size, varied=varied), limit)
    clock = Clock()
    drive([(link, role)])
    waiting = link.waiting(queue)
    tally = clock.count_records(role.sent)
    if waiting != role.sent:
        raise RequestRefused(f"{waiting} of {role.sent} messages are in the queue")
    link.close()
    return tally


def flood_walker(port: int, queue: str, size: int, limit: int, *, varied: bool = False) -> Tally:
    """The same bytes to a server that only counts frames, and echoes a heartbeat."""
    link = SocketLink(port, greets=False)
    role = Flood(bursts(queue, size, varied=varied), limit)
    clock = Clock()
    drive([(link, role)])
    link.write(HEARTBEAT)
    echo = b""
    while len(echo) < len(HEARTBEAT):
        echo += link.read()
    tally = clock.count_records(role.sent)
    link.socket.close()
    return tally


def consume(
    port: int,
    queue: str,
    count: int,
    *,
    multiple: bool = False,
    singly: bool = False,
    prefetch: int = PREFETCH,
) -> Tally:
    """From a queue that holds them. The server's answer to a question behind the last ack ends the lap."""
    link = SocketLink(port)
    link.prefetch(prefetch)
    consumer = Consumer(queue, lambda taken: taken >= count, multiple=multiple, singly=singly)
    clock = Clock()
    drive([(link, consumer)])
    link.waiting(queue)
    tally = clock.count_records(consumer.count)
    link.close()
    return tally


def end_to_end(port: int, queue: str, size: int, seconds: float, *, varied: bool = False) -> Tally:
    """A producer with confirms and a consumer, until everything that was sent is acked."""
    sending, receiving = SocketLink(port), SocketLink(port)
    sending.confirm()
    receiving.prefetch()
    publisher = Publisher(bursts(queue, size, varied=varied), seconds)
    consumer = Consumer(queue, lambda taken: publisher.done and taken == publisher.sent)
    clock = Clock()
    drive([(sending, publisher), (receiving, consumer)])
    receiving.waiting(queue)
    tally = clock.count_records(consumer.count)
    sending.close()
    receiving.close()
    return tally


@dataclass(frozen=True, slots=True)
class Latency:
    """In milliseconds, from the moment a message is written."""

    delivered: list[float]
    confirmed: list[float]
    late_ms: float  # how far the sender fell behind its pace, at worst

    @property
    def p99_ms(self) -> float:
        return percentile(self.delivered, 99)


def percentile(sorted_values: Sequence[float], percent: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * percent / 100))]


def paced(port: int, queue: str, rate: int, limit: int) -> Latency:
    sending, receiving = SocketLink(port), SocketLink(port)
    sending.confirm()
    receiving.prefetch()
    publisher = PacedPublisher(queue, rate, limit)
    consumer = TimedConsumer(queue, lambda taken: taken == limit)
    drive([(receiving, consumer), (sending, publisher)])
    sending.close()
    receiving.close()
    warm_up = limit // 10
    return Latency(
        sorted(ns / 1e6 for ns in consumer.took_ns[warm_up:]),
        sorted(ns / 1e6 for ns in publisher.confirmed_ns[warm_up:]),
        publisher.late_ns / 1e6,
    )
