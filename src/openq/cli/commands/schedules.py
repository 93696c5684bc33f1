"""`openq schedule`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import count, pair, priority, seconds
from .options import JSON, JSON_LINES, READ, SERVER

_NAME = Option("name", metavar="NAME", help="name of the schedule")

COMMANDS = {
    "schedule": Command(
        examples=(
            ("openq schedule add tidy jobs --every 5m", "an empty message to jobs every five minutes"),
            ("openq schedule ls", "every schedule with its next and last run"),
            ("openq schedule run tidy", "publish its message now, out of turn"),
            ("openq schedule pause tidy", "no runs until `openq schedule resume tidy`"),
        ),
        commands={
            "add": Command(
                help="declare a schedule: publish a message by cron expression or at an interval",
                run="schedules:add",
                examples=(
                    ("openq schedule add tidy jobs 'tidy up' --every 5m", "every five minutes"),
                    (
                        "openq schedule add report jobs --cron '0 7 * * mon-fri' --timezone Europe/Berlin",
                        "on weekdays at seven, summer and winter",
                    ),
                    (
                        "openq schedule add bill jobs '{\"kind\": \"bill\"}' --as json --cron '0 0 L * *'",
                        "at midnight of the last day of each month",
                    ),
                    ("openq schedule add poll jobs --every 1m --unique-key poll", "one in the queue at most"),
                ),
                details=(
                    "A schedule of this name is replaced; its counts stay, and it stays paused if it was. "
                    "The server publishes each due time once, also if several servers share one Redis. Runs "
                    "that are more than a minute late are missed: --misfire decides about them."
                ),
                options=(
                    Option(
                        "--cron",
                        metavar="FIELDS",
                        one_of="when",
                        help="minute, hour, day, month and weekday, such as '*/5 * * * *', or @daily",
                    ),
                    Option(
                        "--every", metavar="TIME", type=seconds, one_of="when", help="interval: 30s, 5m, 2h"
                    ),
                    Option(
                        "--timezone", metavar="ZONE", help="of --cron, such as Europe/Berlin (default UTC)"
                    ),
                    Option(
                        "--misfire",
                        choices=("skip", "once", "all"),
                        help="missed runs: drop them, publish one message for all (default), or each",
                    ),
                    Option(
                        "--jitter", metavar="TIME", type=seconds, help="publish each run up to so much later"
                    ),
                    Option("--start", metavar="TIME", help="no run before, such as 2026-01-31T12:00:00Z"),
                    Option("--end", metavar="TIME", help="no run after"),
                    Option(
                        "--as",
                        dest="kind",
                        choices=("text", "json", "base64"),
                        default="text",
                        help="format of the body",
                    ),
                    Option("--type", metavar="TYPE", help="message type"),
                    Option("--group", metavar="ID", help="message group"),
                    Option(
                        "--priority", metavar="N", type=priority, help="0 to 255; higher is delivered first"
                    ),
                    Option("--delay", metavar="TIME", type=seconds, help="delay before delivery"),
                    Option("--ttl", metavar="TIME", type=seconds, help="how long it may wait for delivery"),
                    Option(
                        "--unique-key",
                        metavar="KEY",
                        help="publish nothing while a message with this key is in the queue",
                    ),
                    Option(
                        "--attribute",
                        action="append",
                        metavar="NAME=VALUE",
                        type=pair,
                        help="attribute; may be repeated; NAME:=VALUE for a JSON value",
                    ),
                    _NAME,
                    Option("queue", metavar="QUEUE", help="queue that the message is published to"),
                    Option("body", nargs="?", metavar="BODY", default="", help="the body (default: empty)"),
                    JSON,
                    *SERVER,
                ),
            ),
            "ls": Command(
                help="list schedules with their next and last runs",
                run="schedules:ls",
                examples=(
                    ("openq schedule ls", "all"),
                    ("openq schedule ls jobs", "those of one queue"),
                    ("openq schedule ls --json", "one JSON object per line"),
                    ("openq schedule ls --data ./openq-data", "of a data directory that no process uses"),
                ),
                options=(
                    Option("queue", nargs="?", metavar="QUEUE", help="only schedules of this queue"),
                    JSON_LINES,
                    *READ,
                ),
            ),
            "show": Command(
                help="show a schedule and its next runs",
                run="schedules:show",
                examples=(
                    ("openq schedule show report", "everything about it, and the next five runs"),
                    ("openq schedule show report --next 20", "more of the next runs"),
                ),
                options=(
                    Option("--next", metavar="N", type=count, default=5, help="number of runs (default 5)"),
                    _NAME,
                    JSON,
                    *READ,
                ),
            ),
            "rm": Command(
                help="remove schedules; published messages stay",
                run="schedules:rm",
                examples=(("openq schedule rm tidy", "no further runs"),),
                options=(
                    Option("names", nargs="+", metavar="NAME", help="names of the schedules"),
                    JSON,
                    *SERVER,
                ),
            ),
            "run": Command(
                help="publish the message of a schedule now, out of turn",
                run="schedules:run",
                examples=(("openq schedule run tidy", "prints the id of the message"),),
                options=(_NAME, JSON, *SERVER),
            ),
            "pause": Command(
                help="stop the runs of a schedule until it is resumed",
                run="schedules:pause",
                examples=(("openq schedule pause tidy", "declaring it again does not resume it"),),
                options=(_NAME, JSON, *SERVER),
            ),
            "resume": Command(
                help="continue the runs of a paused schedule",
                run="schedules:resume",
                examples=(("openq schedule resume tidy", "from the next due time on"),),
                options=(_NAME, JSON, *SERVER),
            ),
        },
    ),
}
