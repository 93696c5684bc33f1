"""Commands for messages: `openq send`, `recv`, `peek`, `search`, `message`, `timeline` and their like."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import count, pair, positive, priority, seconds
from .options import CONDITIONS, CONFIRM, JSON, JSON_LINES, QUEUED, READ, SERVER, WANTED_ATTRIBUTE

_QUEUE = Option("queue", metavar="QUEUE", help="name of the queue")
_MESSAGE_ID = Option("id", metavar="ID", help="message id")
_MESSAGE_IDS = Option("ids", nargs="+", metavar="ID", help="message ids")
_DRY_RUN = Option("--dry-run", action="store_true", help="only show how many messages are affected")
_RECEIPTS = Option("receipts", nargs="+", metavar="RECEIPT", help="receipt_id of a delivery")


def _max(default: int) -> Option:
    return Option(
        "-n",
        "--max",
        metavar="N",
        type=positive,
        default=default,
        help=f"maximum number of messages (default {default})",
    )


def _state(default: str) -> Option:
    return Option(
        "--state",
        choices=("ready", "delayed", "in_flight", "all"),
        default=default,
        help=f"only messages in this state (default {default})",
    )


COMMANDS = {
    "send": Command(
        run="send:send",
        examples=(
            ("openq send orders 'hello'", "one message; prints its id"),
            ("openq send orders '{\"total\": 12}' --as json --type order", "a JSON value, with a type"),
            ("openq send orders --file photo.png --attribute kind=photo", "the contents of a file"),
            ("openq send orders --lines < orders.txt", "one message per line"),
            ("openq send orders --lines --as message < export.jsonl", "the output of `openq dlq export`"),
        ),
        details="Exit code 0 means that every message is durable (unless the server runs in memory).",
        options=(
            _QUEUE,
            Option("body", nargs="?", metavar="BODY", help="the body; stdin if it is - or missing"),
            Option("--lines", action="store_true", help="publish each line of the input as a message"),
            Option("--file", metavar="FILE", help="read the input from a file"),
            Option(
                "--as",
                dest="kind",
                choices=("text", "json", "base64", "message"),
                default="text",
                help="format of the input; message: JSON objects as `recv --json` prints them",
            ),
            Option("--delay", metavar="TIME", type=seconds, help="delay before delivery: 30, 5m, 2h"),
            Option("--group", metavar="ID", help="message group; its messages are delivered in order"),
            Option("--priority", metavar="N", type=priority, help="0 to 255; higher is delivered first"),
            Option("--type", metavar="TYPE", help="message type"),
            Option(
                "--ttl", metavar="TIME", type=seconds, help="time to live: how long it may wait for delivery"
            ),
            Option(
                "--attribute",
                action="append",
                metavar="NAME=VALUE",
                type=pair,
                help="attribute; may be repeated; NAME:=VALUE for a JSON value",
            ),
            Option("--dedup-id", metavar="ID", help="deduplication id: a second message with it is dropped"),
            JSON,
            *SERVER,
        ),
    ),
    "recv": Command(
        run="receive:recv",
        examples=(
            ("openq recv orders", "one message; it becomes visible again unless acknowledged"),
            ("openq recv orders --ack", "acknowledge it after printing it"),
            ("openq recv orders -n 100 --wait 20s --ack --json", "up to 100, one JSON object per line"),
        ),
        details=(
            "Without --ack no message is removed: each becomes visible to other consumers after the "
            "visibility timeout; --json shows the receipt for `openq ack` and `openq nack`. With --ack a "
            "message is acknowledged only after it was written to stdout. Exit code 5 if no message was "
            "received."
        ),
        options=(
            _QUEUE,
            _max(1),
            Option(
                "--wait",
                metavar="TIME",
                type=seconds,
                default=0.0,
                help="time to wait for the first message (default 0)",
            ),
            Option("--ack", action="store_true", help="acknowledge printed messages", one_of="ack"),
            Option("--no-ack", action="store_true", help="do not acknowledge them (default)", one_of="ack"),
            Option(
                "--visibility-timeout",
                metavar="TIME",
                type=seconds,
                help="instead of the queue's own setting",
            ),
            Option("--type", action="append", metavar="TYPE", help="only this type; may be repeated"),
            WANTED_ATTRIBUTE,
            JSON_LINES,
            *SERVER,
        ),
    ),
    "ack": Command(
        run="receive:ack",
        examples=(("openq ack orders RECEIPT", "the receipt_id that `openq recv --json` printed"),),
        options=(_QUEUE, _RECEIPTS, JSON, *SERVER),
    ),
    "nack": Command(
        run="receive:nack",
        examples=(
            ("openq nack orders RECEIPT --reason 'no such product'", "retry it"),
            ("openq nack orders RECEIPT --delay 5m", "retry it after five minutes"),
            ("openq nack orders RECEIPT --reject", "dead-letter it now"),
        ),
        options=(
            _QUEUE,
            _RECEIPTS,
            Option(
                "--delay",
                metavar="TIME",
                type=seconds,
                help="delay before the next delivery; 0: none (default: the queue's retry policy)",
            ),
            Option("--reason", metavar="TEXT", help="reason of the failure; stored with the message"),
            Option("--reject", action="store_true", help="no further deliveries: dead-letter it"),
            JSON,
            *SERVER,
        ),
    ),
    "peek": Command(
        run="browse:peek",
        examples=(
            ("openq peek orders", "the next ten"),
            ("openq peek orders -n 3 --rear", "the three newest"),
            ("openq peek orders --state delayed --json", "delayed messages"),
            ("openq peek orders --data ./openq-data", "from a data directory that no process uses"),
        ),
        details="Changes nothing: no message is received or counted. Exit code 5 if there is none.",
        options=(
            _QUEUE,
            _max(10),
            Option("--rear", action="store_true", help="from the end of the queue"),
            _state("ready"),
            JSON_LINES,
            *READ,
        ),
    ),
    "tail": Command(
        run="browse:tail",
        examples=(
            ("openq tail -f orders", "from now on, until Ctrl-C"),
            ("openq tail orders --since 1h -n 100", "the last hundred of the last hour"),
            ("openq tail -f orders -n 10", "the last ten, then new ones"),
            ("openq tail -f orders --since 5m --json", "of the last five minutes, then new ones"),
        ),
        details=(
            "Consumes nothing. Messages that were consumed are shown too, as long as history is kept. A "
            "server that restarts under -f is reported once, and nothing is missed."
        ),
        options=(
            _QUEUE,
            Option(
                "-f", "--follow", action="store_true", help="then show new messages as they are published"
            ),
            Option("-n", "--max", metavar="N", type=count, help="only the last N of the past messages"),
            Option("--since", metavar="TIME", help="start: 2h (ago), or a time (default 10m; with -f: now)"),
            JSON_LINES,
            *READ,
        ),
    ),
    "events": Command(
        run="events:events",
        examples=(
            ("openq events -f", "what happens to all queues from now on, until Ctrl-C"),
            ("openq events -f orders 'mail-*' --event published --bodies", "new messages of some queues"),
            ("openq events orders --event dead_lettered --event lease_expired", "past failures"),
            ("openq events orders -n 20 --json", "the last twenty, one JSON object per line"),
            ("openq events -f --after ID", "after the event with this id, without a gap"),
        ),
        details=(
            "Events are published, delivered, acked, nacked, released, lease_expired, extended, "
            "dead_lettered, redriven, moved, expired, removed, edited, rescheduled, purged, queue_created, "
            "queue_changed, queue_deleted, consumer_joined, consumer_left and alert. Without -f the events "
            "that are kept are shown, the oldest first. A server that restarts under -f is reported once, "
            "and nothing is missed. Exit code 5 if there is no event."
        ),
        options=(
            Option("queues", nargs="*", metavar="QUEUE", help="names or patterns with * and ?; default all"),
            Option("-f", "--follow", action="store_true", help="then show new events as they happen"),
            Option("--event", action="append", metavar="NAME", help="only this event; may be repeated"),
            Option(
                "--type", action="append", metavar="TYPE", help="only messages of this type; may be repeated"
            ),
            WANTED_ATTRIBUTE,
            Option("--after", metavar="ID", help="begin after this event; oldest: at the oldest (with -f)"),
            Option("-n", "--max", metavar="N", type=count, help="only the last N; not with -f"),
            Option("--bodies", action="store_true", help="show the bodies of published messages"),
            JSON_LINES,
            *READ,
        ),
    ),
    "search": Command(
        run="browse:search",
        examples=(
            ("openq search orders 'alice@'", "text in the body"),
            ("openq search orders --where order.total=12 --type order", "a value in a JSON body, and a type"),
            ("openq search orders-dead --reason timeout -n 5", "dead letters by their reason"),
        ),
        details="Changes nothing. Exit code 5 if no message matches.",
        options=(
            _QUEUE,
            Option("text", nargs="?", metavar="TEXT", help="text in the body"),
            *CONDITIONS,
            *QUEUED,
            _state("all"),
            _max(100),
            Option(
                "--budget", metavar="TIME", type=seconds, default=5.0, help="maximum search time (default 5s)"
            ),
            JSON_LINES,
            *READ,
        ),
    ),
    "message": Command(
        examples=(
            ("openq message move orders ID --to orders-eu", "to the end of another queue"),
            ("openq message delay orders ID --for 10m", "deliver it later"),
            ("openq message cancel orders ID", "delete it; asks first"),
        ),
        details="Ready and delayed messages; one that a consumer holds is refused. Counts and history stay.",
        commands={
            "move": Command(
                help="move messages to another queue",
                run="messages:move",
                examples=(("openq message move orders ID ID --to orders-eu", "they keep their ids"),),
                details="Exit code 3 if one of them is not in the queue.",
                options=(
                    Option("--to", metavar="QUEUE", required=True, help="the other queue"),
                    _DRY_RUN,
                    _QUEUE,
                    _MESSAGE_IDS,
                    JSON,
                    *SERVER,
                ),
            ),
            "delay": Command(
                help="change when messages are delivered",
                run="messages:delay",
                examples=(
                    ("openq message delay orders ID --for 10m", "not before ten minutes from now"),
                    ("openq message delay orders ID --for 0", "a delayed message is ready now"),
                ),
                details="Exit code 3 if one of them is not in the queue.",
                options=(
                    Option(
                        "--for",
                        dest="delay",
                        metavar="TIME",
                        type=seconds,
                        required=True,
                        help="from now: 30, 5m, 2h; 0 is now",
                    ),
                    _DRY_RUN,
                    _QUEUE,
                    _MESSAGE_IDS,
                    JSON,
                    *SERVER,
                ),
            ),
            "cancel": Command(
                help="delete messages; they are never delivered",
                run="messages:cancel",
                examples=(
                    ("openq message cancel orders ID", "asks first"),
                    ("openq message cancel orders ID ID --dry-run", "how many of them are still there?"),
                ),
                details="They are not dead-lettered. Exit code 3 if one of them is not in the queue.",
                options=(*CONFIRM, _QUEUE, _MESSAGE_IDS, JSON, *SERVER),
            ),
            "edit": Command(
                help="change the body, type or attributes of a message",
                run="messages:edit",
                examples=(
                    ("openq message edit orders ID '{\"total\": 12}' --as json", "another body"),
                    ("openq message edit orders ID - --as json < order.json", "another body, of a file"),
                    ("openq message edit orders ID --type order.eu", "another type; the body stays"),
                ),
                details="It keeps its place, its id and its history.",
                options=(
                    Option(
                        "--as",
                        dest="kind",
                        choices=("text", "json", "base64"),
                        default="text",
                        help="format of the body",
                    ),
                    Option("--type", metavar="TYPE", help="message type; empty for none"),
                    Option("--attributes", metavar="JSON", help="all attributes, as a JSON object"),
                    _QUEUE,
                    _MESSAGE_ID,
                    Option("body", nargs="?", metavar="BODY", help="the new body; - reads it from stdin"),
                    JSON,
                    *SERVER,
                ),
            ),
        },
    ),
    "why": Command(
        run="browse:why",
        examples=(("openq why orders ID", "paused, delayed, in flight or gone?"),),
        options=(_QUEUE, _MESSAGE_ID, JSON, *READ),
    ),
    "timeline": Command(
        run="browse:timeline",
        examples=(
            ("openq timeline orders ID", "published, delivered, failed, moved, acknowledged: when and why"),
        ),
        details="As far back as history is kept. Exit code 3 if the message is unknown.",
        options=(_QUEUE, _MESSAGE_ID, JSON, *READ),
    ),
}
