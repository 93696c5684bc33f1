"""`openq demo`, `healthcheck`, `doctor` and `migrate`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import load, seconds, size
from .options import CONFIRM, JSON, SERVER

COMMANDS = {
    "demo": Command(
        run="demo:demo",
        examples=(
            ("openq demo", "runs for ten seconds; then look around"),
            ("openq demo --seconds 2m", "longer, to watch it at work"),
            ("openq demo --remove", "delete the queues of the demo"),
        ),
        details=(
            "Needs a server: `openq serve --memory` in another terminal. The demo creates queues whose names "
            "begin with demo-, publishes and consumes messages, fails some of them, and leaves dead letters, "
            "delayed and waiting messages behind."
        ),
        options=(
            Option("--seconds", metavar="TIME", type=seconds, default=10.0, help="duration (default 10s)"),
            Option("--remove", action="store_true", help="delete the queues of the demo instead"),
            *CONFIRM,
            JSON,
            *SERVER,
        ),
    ),
    "healthcheck": Command(
        run="doctor:healthcheck",
        examples=(
            ("openq healthcheck", "exit code 0: ready, or degraded with the reason; 1: not ready"),
            ("openq healthcheck --live", "only check that the server responds"),
            ("openq healthcheck --url http://127.0.0.1:9324 --timeout 2s", "for a container's health check"),
        ),
        options=(
            Option("--live", action="store_true", help="only check that the server responds"),
            JSON,
            *SERVER,
        ),
    ),
    "doctor": Command(
        run="doctor:doctor",
        examples=(
            ("openq doctor", "every check, for ./openq-data and port 9324"),
            ("openq doctor --data /var/lib/openq", "another data directory"),
            (
                "openq doctor --store redis://127.0.0.1",
                "what this Redis can lose, and which settings to change",
            ),
            (
                "openq doctor --plan 5000/s --size 1KiB --retention 3d",
                "whether this disk and machine carry such a load",
            ),
            ("openq doctor --json", "for programs"),
        ),
        details=(
            "Exit code 1 if a check finds what would keep a server from working, or a plan what is not "
            "enough. Changes nothing. A plan measures for a few seconds in a directory of its own beside the "
            "data, which it removes; a server may run meanwhile, and then shares the disk."
        ),
        options=(
            Option("--data", metavar="DIR", help="data directory (OPENQ_DATA)"),
            Option("--store", metavar="URL", help="Redis that stores the messages (OPENQ_STORE)"),
            Option(
                "--profile",
                choices=("safe", "fast"),
                help="durability to check for (default: as the URL says, or safe)",
            ),
            Option("--plan", metavar="RATE", type=load, help="messages per second to plan for, as 5000/s"),
            Option("--size", metavar="SIZE", type=size, default=1024, help="of a body (default 1KiB)"),
            Option(
                "--retention",
                metavar="TIME",
                type=seconds,
                default=86_400.0,
                help="how long messages and their history are kept (default 1d)",
            ),
            JSON,
            *SERVER,
        ),
    ),
    "migrate": Command(
        run="migrate:migrate",
        examples=(
            ("openq migrate --from ./openq-data --to redis://127.0.0.1", "into Redis"),
            ("openq migrate --from redis://127.0.0.1 --to ./openq-data", "and back"),
            (
                "openq migrate --from ./openq-data --to redis://127.0.0.1 --dry-run",
                "show what would be copied",
            ),
        ),
        details=(
            "Copies queues with their settings, exchanges and bindings; messages in order with ids, receive "
            "counts, delays, times to live, groups, priorities and reasons; deduplication ids, and history. "
            "The source keeps its messages. Stop every server on both sides first. Run the same command "
            "again to resume after an interruption. At the end both sides are compared: counts, ids in order "
            "and digests of all bodies. Users with their keys, tokens and permissions, AMQP policies, "
            "schedules, key-values, webhooks, changed alert rules and silences, cursors and subscriptions "
            "come too. The audit log, the history of counts, counter totals and sessions stay behind."
        ),
        options=(
            Option(
                "--from", dest="source", required=True, metavar="SOURCE", help="a data directory or a URL"
            ),
            Option("--to", dest="target", required=True, metavar="TARGET", help="the other kind, empty"),
            Option("--no-history", action="store_true", help="copy current messages only, without history"),
            Option(
                "--keep-users",
                action="store_true",
                help="leave users and policies of the target as they are; those of the source are not copied",
            ),
            Option("--dry-run", action="store_true", help="only show what would be copied"),
            JSON,
        ),
    ),
}
