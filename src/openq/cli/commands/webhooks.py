"""`openq webhook`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import pair, positive, seconds
from .options import JSON, JSON_LINES, NO_WAIT, READ, SERVER, TIME_RANGE, WANTED_ATTRIBUTE

_NAME = Option("name", metavar="NAME", help="name of the webhook")
_SECRET_FILE = Option(
    "--secret-file",
    metavar="FILE",
    help="file with a secret of your own: whsec_ and base64 (default: a new one)",
)

COMMANDS = {
    "webhook": Command(
        examples=(
            ("openq webhook add shop https://example.com/hook --queue orders", "post each message of orders"),
            ("openq webhook ls", "every webhook with its state and counts"),
            ("openq webhook test shop", "send a sample, show what the endpoint answers"),
            ("openq webhook log shop", "the last attempts"),
        ),
        commands={
            "add": Command(
                help="declare a webhook: send the messages of a queue, or events, to a URL",
                run="webhooks:add",
                examples=(
                    (
                        "openq webhook add shop https://example.com/hook --queue orders",
                        "each message, one POST",
                    ),
                    (
                        "openq webhook add bulk https://example.com/ --queue orders --mode json --batch 99",
                        "up to 99 messages in a JSON array",
                    ),
                    (
                        "openq webhook add audit https://example.com/ --events 'orders*' --event published",
                        "an event for each message that is published",
                    ),
                    (
                        "openq webhook add s https://example.com/ --queue orders --rate 10/s --concurrency 2",
                        "at most 10 requests a second, 2 at once",
                    ),
                ),
                details=(
                    "A webhook of this name is replaced; it keeps its secret, and stays disabled if it was. "
                    "A response 2xx acknowledges the message; 410 disables the webhook; 429 and 503 with "
                    "Retry-After pause it; any other response returns the message to its queue, which tries "
                    "it again by its retry and max_receives settings. Requests are signed as in Standard "
                    "Webhooks."
                ),
                options=(
                    Option("--queue", metavar="QUEUE", help="send the messages of this queue"),
                    Option(
                        "--events",
                        action="append",
                        metavar="PATTERN",
                        help="send events of the queues that match, * for all; may be repeated",
                    ),
                    Option(
                        "--event",
                        action="append",
                        metavar="EVENT",
                        help="only this event, such as published or dead_lettered; may be repeated",
                    ),
                    Option(
                        "--type",
                        action="append",
                        metavar="TYPE",
                        help="only this message type; may be repeated",
                    ),
                    WANTED_ATTRIBUTE,
                    Option("--bodies", action="store_true", help="events have the bodies of messages"),
                    Option(
                        "--mode",
                        choices=("raw", "json", "cloudevents-binary", "cloudevents-structured"),
                        help="form of the requests (default raw for messages, json for events)",
                    ),
                    Option("--batch", metavar="N", type=positive, help="up to N in one request (default 1)"),
                    Option(
                        "--header",
                        action="append",
                        metavar="NAME=VALUE",
                        type=pair,
                        help="header of every request; may be repeated; values are never shown",
                    ),
                    _SECRET_FILE,
                    Option("--concurrency", metavar="N", type=positive, help="requests at once (default 8)"),
                    Option("--rate", metavar="RATE", help="maximum rate of requests, such as 10/s"),
                    Option(
                        "--request-timeout",
                        metavar="TIME",
                        type=seconds,
                        help="time for a request and its response (default 30s)",
                    ),
                    Option(
                        "--failures",
                        metavar="N",
                        type=positive,
                        help="failures in a row that open the circuit breaker (default 10)",
                    ),
                    Option(
                        "--max-attempts",
                        metavar="N",
                        type=positive,
                        help="attempts for an event before it is dropped (default: no limit)",
                    ),
                    _NAME,
                    Option("target", metavar="URL", help="http or https"),
                    JSON,
                    *SERVER,
                ),
            ),
            "ls": Command(
                help="list webhooks with their state",
                run="webhooks:ls",
                examples=(
                    ("openq webhook ls", "all"),
                    ("openq webhook ls orders", "those of one queue"),
                    ("openq webhook ls --json", "one JSON object per line"),
                ),
                options=(
                    Option("queue", nargs="?", metavar="QUEUE", help="only webhooks of this queue"),
                    JSON_LINES,
                    *READ,
                ),
            ),
            "show": Command(
                help="show a webhook and its state",
                run="webhooks:show",
                examples=(("openq webhook show shop", "everything but its secrets"),),
                options=(_NAME, JSON, *READ),
            ),
            "rm": Command(
                help="remove webhooks; messages stay in their queues",
                run="webhooks:rm",
                examples=(("openq webhook rm shop", "with its delivery log"),),
                options=(
                    Option("names", nargs="+", metavar="NAME", help="names of the webhooks"),
                    JSON,
                    *SERVER,
                ),
            ),
            "enable": Command(
                help="enable a webhook",
                run="webhooks:enable",
                examples=(("openq webhook enable shop", "after the endpoint was repaired"),),
                options=(_NAME, JSON, *SERVER),
            ),
            "disable": Command(
                help="disable a webhook: nothing is sent until it is enabled",
                run="webhooks:disable",
                examples=(("openq webhook disable shop --reason maintenance", "messages wait in the queue"),),
                options=(Option("--reason", metavar="TEXT", help="why, for others"), _NAME, JSON, *SERVER),
            ),
            "test": Command(
                help="send a signed sample to the endpoint and show what it answers",
                run="webhooks:test",
                examples=(("openq webhook test shop", "also if the webhook is disabled"),),
                options=(_NAME, JSON, *SERVER),
            ),
            "log": Command(
                help="show the last attempts of a webhook",
                run="webhooks:log",
                examples=(
                    ("openq webhook log shop", "the last 20"),
                    ("openq webhook log shop --failed -n 100", "only failures"),
                ),
                options=(
                    Option("--failed", action="store_true", help="only attempts that failed"),
                    Option(
                        "-n",
                        dest="limit",
                        metavar="N",
                        type=positive,
                        default=20,
                        help="number of attempts (default 20)",
                    ),
                    _NAME,
                    JSON_LINES,
                    *READ,
                ),
            ),
            "rotate": Command(
                help="give a webhook a new secret",
                run="webhooks:rotate",
                examples=(
                    ("openq webhook rotate shop", "prints the new secret; the old one is valid for a day"),
                    ("openq webhook rotate shop --keep 0", "the old one is not valid any more"),
                ),
                details="Until the old secret expires, requests have a signature for each of them.",
                options=(
                    Option(
                        "--keep",
                        metavar="TIME",
                        type=seconds,
                        help="how long the old secret stays valid (default 24h)",
                    ),
                    _SECRET_FILE,
                    _NAME,
                    JSON,
                    *SERVER,
                ),
            ),
            "replay": Command(
                help="send past messages to the endpoint again",
                run="webhooks:replay",
                examples=(
                    ("openq webhook replay shop --since 2h", "those published in the last two hours"),
                    ("openq webhook replay shop --id ID --id ID", "single messages"),
                    ("openq webhook replay shop --since 1d --rate 50/s", "not too fast"),
                ),
                details=(
                    "As far as history is kept. The queue is not changed. It is a long operation of the "
                    "server: Ctrl-C leaves it running."
                ),
                options=(
                    *TIME_RANGE,
                    Option(
                        "--id", dest="ids", action="append", metavar="ID", help="message id; may be repeated"
                    ),
                    Option("--rate", metavar="RATE", help="maximum rate of requests, such as 50/s"),
                    NO_WAIT,
                    _NAME,
                    JSON,
                    *SERVER,
                ),
            ),
        },
    ),
}
