"""`openq exchange`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import pair
from .options import JSON, JSON_LINES, SERVER

_ENDS = (
    Option("source", metavar="EXCHANGE", help="name of the exchange"),
    Option("destination", metavar="QUEUE", help="name of the queue; of an exchange with --to-exchange"),
    Option(
        "key",
        nargs="?",
        default="",
        metavar="KEY",
        help="routing key, or pattern of a topic exchange: * is one word, # any number (default: empty)",
    ),
    Option("--to-exchange", action="store_true", help="the destination is another exchange"),
)

COMMANDS = {
    "exchange": Command(
        examples=(
            ("openq exchange ls", "every exchange with its bindings"),
            ("openq exchange bind openq.events audit 'orders.#'", "events of orders as messages in audit"),
            ("openq exchange unbind openq.events audit 'orders.#'", "end that"),
        ),
        commands={
            "ls": Command(
                help="list exchanges and their bindings",
                run="exchanges:ls",
                examples=(
                    ("openq exchange ls", "all"),
                    ("openq exchange ls openq.events", "one exchange"),
                    ("openq exchange ls --json", "one JSON object per line"),
                ),
                options=(
                    Option("exchange", nargs="?", metavar="EXCHANGE", help="only this exchange"),
                    JSON_LINES,
                    *SERVER,
                ),
            ),
            "bind": Command(
                help="bind a queue to an exchange",
                run="exchanges:bind",
                examples=(
                    ("openq exchange bind openq.events audit '#'", "every event, as messages in audit"),
                    ("openq exchange bind openq.events alarms '#.dead_lettered'", "every dead letter"),
                    ("openq exchange bind amq.fanout orders", "messages that are published to amq.fanout"),
                ),
                details=(
                    "The exchange openq.events has an event for each thing that happens, under the routing "
                    "key QUEUE.EVENT. A binding to it begins with the events from then on."
                ),
                options=(*_ENDS, JSON, *SERVER),
            ),
            "route": Command(
                help="show where a message would go, without sending it",
                run="exchanges:route",
                examples=(
                    ("openq exchange route shop order.7.paid", "the queues that its key leads to"),
                    ("openq exchange route by-shop --attribute shop=north", "by the bindings of headers"),
                ),
                details="Exit code 5 if no queue would get it.",
                options=(
                    Option("exchange", metavar="EXCHANGE", help="name of the exchange"),
                    Option("key", nargs="?", default="", metavar="KEY", help="routing key"),
                    Option(
                        "--attribute",
                        action="append",
                        metavar="NAME=VALUE",
                        type=pair,
                        help="attribute of the message, for exchanges of headers; may be repeated",
                    ),
                    JSON,
                    *SERVER,
                ),
            ),
            "unbind": Command(
                help="remove a binding",
                run="exchanges:unbind",
                examples=(("openq exchange unbind openq.events audit '#'", "messages stay in the queue"),),
                options=(*_ENDS, JSON, *SERVER),
            ),
        },
    ),
}
