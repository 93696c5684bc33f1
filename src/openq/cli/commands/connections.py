"""`openq connections` and `openq server`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import positive
from .options import JSON, JSON_LINES, SERVER

_ID = Option("id", metavar="ID", help="id of a connection, as `openq connections ls` shows it")
_LIMIT = Option("--limit", metavar="N", type=positive, default=1000, help="at most so many (default 1000)")
_PROTOCOLS = ("amqp", "ws", "sse", "http")

COMMANDS = {
    "connections": Command(
        examples=(
            ("openq connections ls", "who is connected: AMQP, WebSockets, readers of events, long polls"),
            ("openq connections ls --queue orders", "connections that consume the queue orders"),
            ("openq connections consumers orders", "its consumers: credit, in flight, since"),
            ("openq connections close 1f9a2c07-12 --reason 'rolling restart'", "the client gets the reason"),
        ),
        details=(
            "Users see and close their own connections, administrators all. HTTP connections without a "
            "waiting request are only counted. With Redis the connections of all servers are listed."
        ),
        commands={
            "ls": Command(
                help="list connections of all protocols",
                run="connections:ls",
                examples=(
                    ("openq connections ls --protocol amqp --by ann", "AMQP connections of the user ann"),
                    ("openq connections ls --peer 10.0.0.7", "connections from an address"),
                    ("openq connections ls --json", "for programs"),
                ),
                options=(
                    Option("--protocol", choices=_PROTOCOLS, help="only this protocol"),
                    Option("--by", metavar="USER", help="only connections of this user"),
                    Option("--queue", metavar="QUEUE", help="only connections that consume this queue"),
                    Option("--peer", metavar="ADDRESS", help="only from this address, or ADDRESS:PORT"),
                    Option(
                        "--server", metavar="NAME", help="only those of this server; see `openq server ls`"
                    ),
                    _LIMIT,
                    JSON_LINES,
                    *SERVER,
                ),
            ),
            "consumers": Command(
                help="list consumers of a queue, or of all queues",
                run="connections:consumers",
                examples=(
                    ("openq connections consumers orders", "who consumes the queue orders"),
                    ("openq connections consumers --protocol ws", "all consumers by WebSocket"),
                ),
                options=(
                    Option("queue", nargs="?", metavar="QUEUE", help="name of the queue (default: all)"),
                    Option(
                        "--protocol", choices=("amqp", "ws", "http", "webhook"), help="only this protocol"
                    ),
                    _LIMIT,
                    JSON_LINES,
                    *SERVER,
                ),
            ),
            "show": Command(
                help="show a connection with its channels, subscriptions and consumers",
                run="connections:show",
                examples=(("openq connections show 1f9a2c07-12", "one connection"),),
                options=(_ID, JSON, *SERVER),
            ),
            "close": Command(
                help="close a connection; its client gets a reason, its messages return",
                run="connections:close",
                examples=(
                    ("openq connections close 1f9a2c07-12", "closed by an operator"),
                    ("openq connections close 1f9a2c07-12 --reason 'moved to queue-2'", "with a reason"),
                ),
                options=(
                    _ID,
                    Option("--reason", metavar="TEXT", help="text for the client, up to 100 characters"),
                    JSON,
                    *SERVER,
                ),
            ),
        },
    ),
    "server": Command(
        examples=(("openq server ls", "the servers that share a Redis, or the one server"),),
        commands={
            "ls": Command(
                help="list the servers that share a store: version, uptime, health, roles, connections",
                run="connections:servers",
                examples=(
                    ("openq server ls", "one line for each server"),
                    ("openq server ls --json", "for programs"),
                ),
                details=(
                    "Roles are tasks that one server does for all: sweeper (expiry, delays, limits of all "
                    "queues), webhook-sender, event-sender. A server without Redis does everything: all."
                ),
                options=(JSON_LINES, *SERVER),
            ),
        },
    ),
}
