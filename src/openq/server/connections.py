"""The open connections of a server, over all protocols, and their consumers.

Each protocol describes its own: AMQP connections, WebSocket streams, readers of events, and requests that
wait for messages (long polls). Other HTTP connections have neither user nor queue and are only counted.

A connection gets a number the first time it is looked at, so that it costs nothing until then. Its id is the
instance of its server and the number. Lists are made in a thread: what the loop may change meanwhile is
copied first.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING

from ..names import split_name
from .connection_info import (
    MAX_CLIENT,
    ConnectionInfo,
    ConsumerInfo,
    HttpSummary,
    IdOf,
    Numbered,
    PeerSummary,
    clean_reason,
    client_of,
)
from .long_polls import MessagePoll

if TYPE_CHECKING:
    from .context import ServerContext
    from .event_hub import EventReader

MAX_PEERS = 100  # of the summary of HTTP connections


class Connections:
    """The connections of this server."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._numbers = itertools.count(1)

    def id_of(self, connection: Numbered) -> str:
        if not connection.number:
            connection.number = next(self._numbers)
        return f"{self._context.fleet.instance}-{connection.number}"

    def here(self) -> list[ConnectionInfo]:
        """In a thread, or on the loop. The oldest first; webhooks, which nobody has opened, are the last."""
        context = self._context
        found: list[ConnectionInfo] = []
        if context.amqp is not None:
            found += context.amqp.described(self.id_of)
        if context.has_streams:
            found += context.streams.described(self.id_of)
        if context.event_hub_or_none is not None:
            found += [_describe_reader(each, self.id_of) for each in list(context.event_hub_or_none.readers)]
        found += [_describe_poll(each, self.id_of) for each in self._polls()]
        if context.webhooks is not None:
            found += context.webhooks.described(self.id_of)
        for each in found:
            each.server = context.fleet.name
            each.channel_count, each.consumer_count = len(each.channels), len(each.consumers)
        return found

    def counts(self) -> dict[str, int]:
        """By protocol. Of HTTP: all connections, those that wait for messages included."""
        context, hub = self._context, self._context.event_hub_or_none
        return {
            "amqp": 0 if context.amqp is None else len(context.amqp.open_connections),
            "ws": len(context.streams.sockets) if context.has_streams else 0,
            "sse": 0 if hub is None else len(hub.readers),
            "http": 0 if context.listener is None else len(context.listener.connections),
        }

    def http_summary(self) -> HttpSummary:
        listener = self._context.listener
        connections = [] if listener is None else list(listener.connections)
        waiting = Counter(each.request.peer for each in self._polls())
        peers = Counter(each.peer for each in connections)
        return HttpSummary(
            connections=len(connections),
            busy=sum(each.is_busy for each in connections),
            waiting=waiting.total(),
            peers=[
                PeerSummary(peer=peer, connections=count, waiting=waiting[peer])
                for peer, count in peers.most_common(MAX_PEERS)
            ],
        )

    def close(self, id: str, reason: str) -> bool:
        """On the loop. False if there is no such connection (any more)."""
        instance, _, text = id.rpartition("-")
        if instance != self._context.fleet.instance or not text.isdecimal():
            return False
        context, number, reason = self._context, int(text), clean_reason(reason)
        if context.amqp is not None and context.amqp.close_numbered(number, reason):
            return True
        if context.has_streams and context.streams.close_numbered(number, reason):
            return True
        hub = context.event_hub_or_none
        for reader in () if hub is None else hub.readers:
            if reader.number == number:
                reader.close(reason)
                return True
        for poll in self._polls():
            if poll.number == number:
                poll.close(reason)
                return True
        return False

    def _polls(self) -> list[MessagePoll]:
        return [each for each in list(self._context.long_polls) if isinstance(each, MessagePoll)]


def _describe_reader(reader: EventReader, id_of: IdOf) -> ConnectionInfo:
    access, stream = reader.group.access, reader.stream
    queues = reader.group.wanted.names
    return ConnectionInfo(
        id=id_of(reader),
        protocol="sse",
        user=access.user,
        account=access.account,
        peer=access.peer,
        port=0 if stream is None else stream.port,
        tls=access.is_tls,
        since_ms=reader.since_ms,
        state=reader.state.name.lower(),
        client=reader.client,
        # It only looks: nothing is in flight to a reader of events.
        name=", ".join(sorted(split_name(each)[1] for each in queues))[:MAX_CLIENT],
        unsent_bytes=0 if stream is None else stream.unsent,
    )


def _describe_poll(poll: MessagePoll, id_of: IdOf) -> ConnectionInfo:
    request = poll.request
    account = split_name(poll.queue_key)[0]
    consumer = ConsumerInfo(
        queue_key=poll.queue_key,
        name=poll.consumer,
        since_ms=poll.since_ms,
        credit=poll.limit,
    )
    return ConnectionInfo(
        id=id_of(poll),
        protocol="http",
        user=request.user,
        account=account,
        peer=request.peer,
        port=request.peer_port,
        tls=request.is_tls,
        since_ms=poll.since_ms,
        state="waiting",
        client=client_of(request),
        consumers=[consumer],
    )
