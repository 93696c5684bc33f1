"""Journals and servers with messages of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from openq import OpenQ
from openq.local.broker import LocalBroker


class Sent(NamedTuple):
    """A message as its publisher sent it: rows of the history must equal it."""

    queue: str
    body: bytes
    priority: int = 0
    group: str | None = None
    attributes: dict[str, str] | None = None


class Filled(NamedTuple):
    sent: dict[str, Sent]  # by message id
    acked: list[str]
    nacked: list[str]
    dead: list[str]


QUEUES = ("dead", "events", "mails", "orders")


def fill(open_queue: Callable[..., Any], count: int = 100) -> Filled:
    """Messages of all kinds, some of them received, acked, nacked and dead: `count` in each of three queues.

    `open_queue(name, **settings)` opens a queue, embedded or behind a server.
    """
    sent: dict[str, Sent] = {}
    acked, nacked, dead = [], [], []
    with (
        open_queue("dead", codec="raw") as letters,
        open_queue("orders", codec="raw", dlq="dead", max_receives=2) as orders,
        open_queue("mails", codec="raw", fifo=True) as mails,
        open_queue("events", codec="raw") as events,
    ):
        bodies = [json.dumps({"order": n, "amount": n / 4}).encode() for n in range(count)]
        for message_id, body in zip(orders.publish_many(bodies), bodies, strict=True):
            sent[message_id] = Sent("orders", body)
        for n in range(count):
            body, group = b"mail %d" % n, f"customer-{n % 7}"
            sent[mails.publish(body, group=group)] = Sent("mails", body, group=group)
        for n in range(count):
            body, attributes = b"\x00\xff" * (n % 50), {"shop": "north" if n % 3 else "south", "n": str(n)}
            message_id = events.publish(body, priority=n % 10, attributes=attributes)
            sent[message_id] = Sent("events", body, n % 10, attributes=attributes)
        for message in orders.receive_many(count // 2):
            orders.ack(message)
            acked.append(message.id)
        for n in range(2):
            message = orders.receive()
            orders.nack(message, delay=3600, reason=f"TimeoutError: no answer within {n} s")
            nacked.append(message.id)
        message = orders.receive()
        orders.reject(message, reason="ValueError: 'x' is no amount")
        dead.append(message.id)
        assert letters.peek() is not None
    return Filled(sent, acked, nacked, dead)


def fill_path(path: Path, count: int = 100, segment_bytes: int = 64 << 20) -> Filled:
    """A closed data directory. `segment_bytes` sets the number of segments."""
    broker = LocalBroker(path, segment_bytes=segment_bytes)
    try:
        return fill(lambda name, **settings: OpenQ(name, broker=broker, **settings), count)
    finally:
        broker.close()


def fill_server(url: str, count: int = 100, token: str | None = None) -> Filled:
    return fill(lambda name, **settings: OpenQ(name, url=url, token=token, **settings), count)
