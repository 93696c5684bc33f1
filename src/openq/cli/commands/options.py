"""Options that several commands have."""

from __future__ import annotations

from ..spec import Option
from ..values import pair, rate, seconds

JSON = Option("--json", action="store_true", help="JSON on stdout, for programs")
JSON_LINES = Option("--json", action="store_true", help="one JSON object per line")
JSON_ANYWAY = Option("--json", action="store_true", help="accepted for uniformity: the output is always JSON")

_URL = Option(
    "--url", group="server", help="address of the server (OPENQ_URL; default http://127.0.0.1:9324)"
)
_TOKEN = Option("--token", group="server", help="bearer token (better: OPENQ_TOKEN or OPENQ_TOKEN_FILE)")
_TOKEN_FILE = Option("--token-file", group="server", metavar="FILE", help="file that holds the bearer token")
_CA = Option(
    "--ca", group="server", metavar="FILE", help="CA certificate to trust (OPENQ_CA), for your own HTTPS"
)
# The server that a command talks to, and the credentials for it.
SERVER = (
    _URL,
    _TOKEN,
    _TOKEN_FILE,
    Option(
        "--user",
        group="server",
        metavar="NAME",
        help="user name (OPENQ_USER); the password is OPENQ_PASSWORD, or asked for",
    ),
    Option("--account", group="server", metavar="ID", help="account to work in, if not your own"),
    _CA,
    Option(
        "--timeout",
        group="server",
        metavar="TIME",
        type=seconds,
        help="time to wait for a response (default 30s)",
    ),
)
# Spark's tasks talk to the server too: only by token, which can be limited and passed on.
SERVER_OF_SPARK = (_URL, _TOKEN, _TOKEN_FILE, _CA)
PROJECT_URL = Option("--url", help="address of the server (OPENQ_URL; default http://127.0.0.1:9324)")
# For commands that only read.
READ_DATA = Option(
    "--data",
    group="server",
    metavar="DIR",
    help="read a data directory that no process uses, without a server",
)
READ = (READ_DATA, *SERVER)

CONFIRM = (
    Option("--dry-run", action="store_true", help="only show how many messages are affected"),
    Option("--yes", "-y", action="store_true", help="do not ask for confirmation"),
)
NO_WAIT = Option(
    "--no-wait", action="store_true", help="print the id of the operation and exit; it keeps running"
)
RATE = Option("--rate", metavar="N", type=rate, help="maximum number of messages per second")

WANTED_ATTRIBUTE = Option(
    "--attribute",
    action="append",
    metavar="NAME=VALUE",
    type=pair,
    help="only messages with this attribute; may be repeated; NAME:=VALUE for a JSON value, or a list "
    "of values",
)

_WHICH = "which messages (every given condition must match)"
CONDITIONS = (
    Option("--type", group=_WHICH, metavar="TYPE", help="message type"),
    Option("--reason", group=_WHICH, metavar="TEXT", help="text in the reason of the last failure"),
    Option("--reason-group", group=_WHICH, metavar="TEXT", help="reason as `openq dlq groups` shows it"),
    Option(
        "--id", group=_WHICH, dest="ids", action="append", metavar="ID", help="message id; may be repeated"
    ),
    Option(
        "--attribute",
        group=_WHICH,
        action="append",
        metavar="NAME=VALUE",
        type=pair,
        help="attribute; may be repeated",
    ),
    Option(
        "--where",
        group=_WHICH,
        action="append",
        metavar="PATH=VALUE",
        type=pair,
        help="value in a JSON body: order.total=12",
    ),
)
FILTER = (Option("--text", group=_WHICH, help="text in the body"), *CONDITIONS)
# Of messages in a queue; the past messages of a replay have neither.
QUEUED = (
    Option(
        "--min-age", group=_WHICH, metavar="TIME", type=seconds, help="minimum time in the queue: 10m, 2h"
    ),
    Option("--max-age", group=_WHICH, metavar="TIME", type=seconds, help="maximum time in the queue"),
    Option("--min-receives", group=_WHICH, metavar="N", type=int, help="minimum number of failed deliveries"),
    Option("--max-receives", group=_WHICH, metavar="N", type=int, help="maximum number of failed deliveries"),
)

TIME_RANGE = (
    Option("--since", metavar="TIME", help="start of the time range: 2h, 7d, or 2026-01-31T12:00:00Z"),
    Option("--until", metavar="TIME", help="end of the time range, exclusive"),
)
