"""What is published by each protocol is pushed over the WebSocket as REST shows it, and vice versa."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.protocol_clients import PROTOCOLS, REST, Protocols, protocols, require
from tests.push.streams import Stream, opened
from tests.real_clients.boto import fresh
from tests.test_protocols import ROWS

__all__ = ["protocols"]  # a fixture


@pytest.fixture(scope="module")
def socket(protocols: Protocols) -> Iterator[Stream]:
    with opened(protocols.server.url) as stream:
        yield stream


def rows(which: str) -> list[Any]:
    return [
        pytest.param(name, protocol, id=f"{name}-{protocol}")
        for name, row in ROWS.items()
        for protocol in (row.sent if which == "sent" else row.seen)
        if REST in (row.seen if which == "sent" else row.sent)
    ]


@pytest.mark.parametrize(("name", "sender"), rows("sent"))
def test_a_message_of_each_protocol_is_pushed_as_rest_shows_it(
    protocols: Protocols, socket: Stream, name: str, sender: str
) -> None:
    row = ROWS[name]
    queue = protocols.rest.make(fresh(".fifo" if row.queue else ""), **row.queue)
    socket.subscribe(queue)

    protocols.client(sender, name).send(queue, row.sent[sender])

    [seen] = messages = socket.messages(1)
    require(row.seen[REST], seen)
    assert socket.ack(messages)["count"] == 1
    socket.ask("unsubscribe", sub=queue)


@pytest.mark.parametrize(("name", "receiver"), rows("seen"))
def test_a_message_published_on_a_stream_is_shown_by_each_protocol(
    protocols: Protocols, socket: Stream, name: str, receiver: str
) -> None:
    row = ROWS[name]
    queue = protocols.rest.make(fresh(".fifo" if row.queue else ""), **row.queue)

    reply = socket.ask("publish", queue=queue, messages=[row.sent[REST]])

    assert reply["count"] == 1, reply
    require(row.seen[receiver], protocols.client(receiver, name).take(queue))


def test_every_protocol_takes_part() -> None:
    for which in ("sent", "seen"):
        assert {each.values[1] for each in rows(which)} == set(PROTOCOLS)
