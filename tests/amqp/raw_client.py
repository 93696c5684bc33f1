"""A client for rough tests: sends what the test gives it, however wrong, and counts what it receives."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.amqp.dialogue import Answer, ConnectionEnded, DialogueConnection
from tests.amqp.dialogue_codec import BODY, HEADER, METHOD, PROTOCOL_HEADER, content, encode_method, frame

NO_PROGRESS_S = 1.0  # a socket that takes nothing for so long takes nothing more


def method(channel: int, name: str, **fields: Any) -> bytes:
    return frame(METHOD, channel, encode_method(name, fields))


def publish(channel: int, key: str, body: bytes, *, exchange: str = "", **more: Any) -> bytes:
    properties = more.pop("properties", {})
    head = method(channel, "basic.publish", exchange=exchange, routing_key=key, **more)
    return head + content(channel, properties, body)


class RawClient(DialogueConnection):
    """Signed in, with channel 1 open."""

    def __init__(self, port: int, *, heartbeat: int = 0, **options: Any) -> None:
        self.received: list[Answer] = []  # what came while something else was awaited
        super().__init__("a", "127.0.0.1", port)
        try:
            if heartbeat:
                self._open_with(heartbeat)
            else:
                self.open(options)
            self.open_channel(1)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_with(self, heartbeat: int) -> None:
        self.send(PROTOCOL_HEADER)
        self.await_method("connection.start")
        start = {"mechanism": "PLAIN", "response": "\0guest\0guest", "locale": "en_US"}
        self.ask(0, "connection.start-ok", start, "connection.tune")
        tune = {"channel_max": 0, "frame_max": 131_072, "heartbeat": heartbeat}
        self.send(method(0, "connection.tune-ok", **tune))
        self.ask(0, "connection.open", {"virtual_host": "/"}, "connection.open-ok")

    def call(self, name: str, reply: str = "", channel: int = 1, **fields: Any) -> Answer:
        return self.ask(channel, name, fields, reply or f"{name}-ok")

    def await_method(self, name: str) -> Answer:
        """What else comes is kept."""
        [answer, *more] = self.receive_methods(name, 1)
        self.received[:0] = more
        return answer

    def declare(self, queue: str, **fields: Any) -> int:
        """How many messages it has."""
        return int(self.call("queue.declare", queue=queue, durable=True, **fields)[2]["message_count"])

    def confirming(self) -> RawClient:
        self.call("confirm.select")
        return self

    def publish_all(self, queue: str, bodies: Sequence[bytes], **more: Any) -> None:
        """And wait until the last one is confirmed."""
        self.send(b"".join(publish(1, queue, body, **more) for body in bodies))
        self.settled(len(bodies))

    def settled(self, count: int) -> list[int]:
        """Wait for as many confirms; the numbers that were refused. Starts counting with each call."""
        done: set[int] = set()
        refused: list[int] = []
        first = getattr(self, "_confirmed", 0)
        while len(done) < count:
            for answer in self.next():
                if answer[1] not in ("basic.ack", "basic.nack"):
                    self.received.append(answer)
                    continue
                tag = answer[2]["delivery_tag"]
                tags = range(first + 1, tag + 1) if answer[2]["multiple"] else [tag]
                fresh = [each for each in tags if each not in done]
                done.update(fresh)
                if answer[1] == "basic.nack":
                    refused += fresh
        self._confirmed = first + count
        return [tag - first for tag in refused]

    def next(self, seconds: float = 30.0) -> list[Answer]:
        answers = self.read(seconds)
        while not answers and self.buffer:
            answers = self.read(seconds)
        if not answers:
            raise ConnectionEnded("nothing came")
        for answer in answers:
            if answer[1] in ("eof", "connection.close", "channel.close"):
                raise ConnectionEnded(str(answer))
        return answers

    def receive_methods(self, wanted: str, count: int) -> list[Answer]:
        """That many methods of one name; others are kept in `heard`."""
        found: list[Answer] = [each for each in self.received if each[1] == wanted]
        self.received = [each for each in self.received if each[1] != wanted]
        while len(found) < count:
            for answer in self.next():
                (found if answer[1] == wanted else self.received).append(answer)
        return found

    def send_until_full(self, data: bytes, is_held: Callable[[], bool] = lambda: True) -> int:
        """Again and again, until the other side takes nothing any more: how often it went out whole.

        `is_held` tells a side that holds its clients back from one that is only slow, and is waited for.
        """
        self.socket.setblocking(False)
        times, at = 0, 0
        deadline = time.monotonic() + 120
        try:
            while True:
                assert time.monotonic() < deadline, "neither held back nor served"
                if not select.select([], [self.socket], [], NO_PROGRESS_S)[1]:
                    if is_held():
                        break
                    continue
                try:
                    at += self.socket.send(data[at:])
                except BlockingIOError:
                    continue
                if at == len(data):
                    at = 0
                    times += 1
        finally:
            self.socket.setblocking(True)
        self._unsent = data[at:] if at else b""
        return times

    def send_rest(self) -> None:
        """What `send_until_full` left in the middle."""
        self.send(self._unsent)


class RawClientWithBodies(RawClient):
    """With whole bodies."""

    def _take(self, kind: int, channel: int, payload: bytes) -> Answer | None:
        pending = self._contents.get(channel)
        answer = super()._take(kind, channel, payload)
        if answer is not None and kind != METHOD and pending is not None:
            answer[-1] = bytes(pending[2]).decode()
        return answer


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


def raw_socket(port: int, data: bytes = b"") -> socket.socket:
    connected = socket.create_connection(("127.0.0.1", port), timeout=30)
    if data:
        connected.sendall(data)
    return connected


def closed_by_server(sockets: Sequence[socket.socket]) -> list[socket.socket]:
    """Those of them that the server has closed."""
    poller = select.poll()
    by_number = {each.fileno(): each for each in sockets}
    for number in by_number:
        poller.register(number, select.POLLIN | select.POLLHUP | select.POLLERR)
    gone = []
    for number, _ in poller.poll(0):
        try:
            data = by_number[number].recv(65536)
        except OSError:
            data = b""
        if not data:
            gone.append(by_number[number])
    return gone


def content_start(channel: int, size: int) -> bytes:
    """A publish and its header, which promises a body of this size."""
    header = struct.pack(">HHQH", 60, 0, size, 0)
    return method(channel, "basic.publish", routing_key="q") + frame(HEADER, channel, header)


def body_frame(channel: int, body: bytes) -> bytes:
    return frame(BODY, channel, body)


def error_of(act: Callable[[], object]) -> str:
    """How it ended the channel or the connection."""
    try:
        act()
    except ConnectionEnded as error:
        return str(error)
    raise AssertionError("it went well")
