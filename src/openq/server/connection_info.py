"""The types that describe open connections, for every protocol; see `connections.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from .http_request import HttpRequest

WEBHOOK = "webhook"  # a protocol of consumers only: the server sends their messages to a URL
MAX_REASON = 100  # characters; a close frame of a WebSocket has 123 bytes
MAX_CLIENT = 200
MAX_ERROR = 300


class Numbered(Protocol):
    number: int  # 0: not looked at yet


IdOf = Callable[[Numbered], str]


class ConsumerInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A consumer of a queue. A consumer that waits for messages without a limit has no credit."""

    queue_key: str
    name: str
    since_ms: int
    in_flight: int = 0
    credit: int | None = None
    channel: int | None = None
    active: bool = True


class ChannelInfo(msgspec.Struct, kw_only=True):
    """A channel of AMQP. A prefetch of 0 is no limit."""

    number: int
    prefetch: int
    shared_prefetch: int
    unacked: int
    unconfirmed: int
    consumers: int
    confirms: bool
    transactional: bool


class SubscriptionInfo(msgspec.Struct, kw_only=True):
    """A subscription of a WebSocket stream: to a queue, or to the queues that match a pattern."""

    id: str
    queue: str | None
    pattern: str | None
    queues: int
    credit: int
    credit_bytes: int | None
    in_flight: int


class ConnectionInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    id: str
    protocol: str
    user: str
    account: str
    peer: str
    port: int
    tls: bool
    since_ms: int
    server: str = ""
    state: str = "running"
    client: str = ""  # the library, as it names itself
    name: str = ""  # as the client names the connection
    in_flight: int = 0
    unsent_bytes: int = 0
    # Since it was opened.
    published: int = 0
    delivered: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    last_error: str = ""  # that it was answered with
    channels: list[ChannelInfo] = msgspec.field(default_factory=list)
    subscriptions: list[SubscriptionInfo] = msgspec.field(default_factory=list)
    consumers: list[ConsumerInfo] = msgspec.field(default_factory=list)
    channel_count: int = 0
    consumer_count: int = 0

    @property
    def queue_keys(self) -> list[str]:
        return list(dict.fromkeys(each.queue_key for each in self.consumers))


class PeerSummary(msgspec.Struct, kw_only=True):
    peer: str
    connections: int
    waiting: int


class HttpSummary(msgspec.Struct, kw_only=True):
    """HTTP connections: `busy` ones have a request, `waiting` ones among them wait for messages."""

    connections: int
    busy: int
    waiting: int
    peers: list[PeerSummary]  # those with most connections


def clean_reason(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_REASON])


def client_of(request: HttpRequest) -> str:
    """The client, as it names itself."""
    return (request.header(b"user-agent") or b"").decode("latin-1")[:MAX_CLIENT]
