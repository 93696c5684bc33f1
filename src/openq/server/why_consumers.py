"""Why the consumers of a queue take none of its ready messages.

A store knows its waiters. A server also knows the consumers that do not wait, because their credit is used
up, they do not read, or they select other messages; and the webhooks of the queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.why import NO_CONSUMER, Why
from .connection_info import WEBHOOK, ConnectionInfo, ConsumerInfo

if TYPE_CHECKING:
    from .context import ServerContext

MAX_SHOWN = 3


def with_consumers(why: Why, context: ServerContext, queue_key: str) -> Why:
    """In a thread: what `why` says of consumers is replaced by what this server knows of them."""
    if not why.lacks_consumer:
        return why
    connections = [*context.connections.here(), *context.fleet.connections_elsewhere()]
    found = [
        f"consumer {consumer.name} {_state(connection, consumer)}"
        for connection in connections
        if connection.protocol != WEBHOOK  # their states follow
        for consumer in connection.consumers
        if consumer.queue_key == queue_key
    ]
    if context.webhooks is not None:
        found += context.webhooks.states_for(queue_key)
    if not found:
        return why
    shown = [*found[:MAX_SHOWN], *([f"and {len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else [])]
    return Why(why.code, "; ".join([why.text.removesuffix(NO_CONSUMER), *shown]))


def _state(connection: ConnectionInfo, consumer: ConsumerInfo) -> str:
    if connection.state == "blocked":
        return "does not read what was sent to it"
    if not consumer.active:
        return "waits for its turn to be the active one"
    credit = consumer.credit
    if credit is None:
        return "takes none now: it has no limit of its own; its channel may have one, or be paused"
    if credit == 0:
        return "is paused: its credit is 0"
    if consumer.in_flight >= credit:
        return (
            f"has the {credit} that it takes at a time"
            if credit > 1
            else "has the one that it takes at a time"
        )
    return "takes none now: its credit is used up, or it selects others"
