"""`openq dlq`, `replay`, `task`, `damage` and `journal`."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import count, location, pair, positive
from .options import CONFIRM, FILTER, JSON, JSON_ANYWAY, JSON_LINES, NO_WAIT, QUEUED, RATE, READ, SERVER

_DEAD_LETTERS = Option("queue", metavar="QUEUE", help="a dead-letter queue")
_TASK = Option("id", metavar="ID", help="id of the operation, as `openq task ls` shows it")
_DIRECTORY = Option("directory", metavar="DIR", help="the data directory")

_DLQ = Command(
    examples=(
        ("openq dlq ls", "every dead-letter queue"),
        ("openq dlq groups orders-dead", "the reasons, and how often each occurred"),
        ("openq dlq redrive orders-dead --reason timeout", "send those back to their source queues"),
    ),
    details="QUEUE is the dead-letter queue itself, as `openq dlq ls` shows it.",
    commands={
        "ls": Command(
            help="list dead-letter queues, or the dead letters in one",
            run="dead_letters:ls",
            examples=(
                ("openq dlq ls", "every dead-letter queue, with its count and source queues"),
                ("openq dlq ls orders-dead -n 20", "the dead letters in one: time, source and reason"),
                ("openq dlq ls orders-dead --traceback", "with the traceback of each last failure"),
            ),
            options=(
                Option("queue", nargs="?", metavar="QUEUE", help="a dead-letter queue"),
                Option(
                    "-n",
                    "--max",
                    metavar="N",
                    type=positive,
                    default=100,
                    help="maximum number of messages (default 100)",
                ),
                Option("--traceback", action="store_true", help="show tracebacks, where consumers sent one"),
                JSON_LINES,
                *READ,
            ),
        ),
        "groups": Command(
            help="group dead letters by reason",
            run="dead_letters:groups",
            examples=(("openq dlq groups orders-dead", "numbers and ids in reasons are ignored"),),
            options=(_DEAD_LETTERS, JSON, *READ),
        ),
        "redrive": Command(
            help="send dead letters back to the queues they came from",
            run="dead_letters:redrive",
            examples=(
                ("openq dlq redrive orders-dead --dry-run", "show how many"),
                (
                    "openq dlq redrive orders-dead --reason timeout --rate 50",
                    "some of them, at a limited rate",
                ),
                ("openq dlq redrive orders-dead --to orders-retry --yes", "to another queue, for scripts"),
                (
                    "openq dlq redrive orders-dead --set order.currency=EUR --remove old --dry-run",
                    "change fields of JSON bodies; the dry run shows samples",
                ),
                (
                    "openq dlq redrive orders-dead --stop-after 5",
                    "a few at first, more while they are acked; stop when 5 failed again",
                ),
            ),
            details=(
                "Ctrl-C leaves it running; `openq task` watches or cancels it. With --set and --remove, "
                "messages whose body is not JSON stay. With --stop-after it waits for consumers; "
                "`openq task resume --unwatched` ends that wait."
            ),
            options=(
                _DEAD_LETTERS,
                Option("--to", metavar="QUEUE", help="target queue (default: the source of each message)"),
                RATE,
                Option(
                    "--set",
                    action="append",
                    metavar="PATH=VALUE",
                    type=pair,
                    help="new value in a JSON body: order.total=12; may be repeated",
                ),
                Option(
                    "--remove",
                    action="append",
                    metavar="PATH",
                    help="field to remove from a JSON body; may be repeated",
                ),
                Option(
                    "--stop-after",
                    metavar="N",
                    type=positive,
                    help="stop when N of the messages have failed again",
                ),
                *FILTER,
                *QUEUED,
                *CONFIRM,
                NO_WAIT,
                JSON,
                *SERVER,
            ),
        ),
        "discard": Command(
            help="delete dead letters permanently",
            run="dead_letters:discard",
            examples=(
                ("openq dlq discard orders-dead --reason 'no such product'", "those with this reason"),
                ("openq dlq discard orders-dead --dry-run", "show how many"),
            ),
            details="Export them first if in doubt: `openq dlq export`.",
            options=(_DEAD_LETTERS, *FILTER, *QUEUED, *CONFIRM, NO_WAIT, JSON, *SERVER),
        ),
        "export": Command(
            help="write every message in a queue as JSON lines; removes nothing",
            run="dead_letters:export",
            examples=(
                ("openq dlq export orders-dead > dead.jsonl", "with reasons, ids and times"),
                ("openq dlq export orders-dead --out dead.jsonl", "the same, with a progress bar"),
                ("openq send orders --lines --as message --file dead.jsonl", "publish them again"),
            ),
            options=(
                Option("queue", metavar="QUEUE", help="a dead-letter queue, or any other queue"),
                Option("--out", metavar="FILE", help="write to a new file instead of stdout"),
                JSON_ANYWAY,
                *READ,
            ),
        ),
    },
)

_REPLAY = Command(
    run="dead_letters:replay",
    examples=(
        ("openq replay orders --since 2h --dry-run", "show how many"),
        ("openq replay orders --since 2026-01-31T10:30:00Z --to orders-again", "into another queue"),
        ("openq replay orders --since-id ID --rate 100 --yes", "from a message on, for scripts"),
    ),
    details=(
        "Messages keep their ids, and those still in the queue are skipped: a replay may be repeated. It "
        "reaches back as far as history is kept. Ctrl-C leaves it running; `openq task` watches or cancels "
        "it."
    ),
    options=(
        Option("queue", metavar="QUEUE", help="queue whose past messages are published"),
        Option("--since", metavar="TIME", help="2h (ago), or a time such as 2026-01-31T10:30:00Z"),
        Option("--since-id", metavar="ID", help="start with this message"),
        Option("--until", metavar="TIME", help="end before this time (default: now)"),
        Option("--to", metavar="QUEUE", help="target queue (default: the same queue)"),
        RATE,
        Option("--include-purged", action="store_true", help="include messages that a purge removed"),
        *FILTER,
        *CONFIRM,
        NO_WAIT,
        JSON,
        *SERVER,
    ),
)

_TASKS = Command(
    examples=(
        ("openq task ls", "running and recent operations"),
        ("openq task watch ID", "show its progress until it ends"),
        ("openq task cancel ID", "completed work is not undone"),
    ),
    details="Redrive, discard and replay run inside the server and continue when the client disconnects.",
    commands={
        "ls": Command(
            help="list running and recent operations",
            run="tasks:ls",
            examples=(("openq task ls", "as a table"), ("openq task ls --json", "one JSON object per line")),
            options=(JSON_LINES, *SERVER),
        ),
        "watch": Command(
            help="show the progress of an operation until it ends",
            run="tasks:watch",
            examples=(("openq task watch ID", "Ctrl-C stops watching, not the operation"),),
            details="Exit code 0 if it succeeded, 1 if it failed or was cancelled.",
            options=(_TASK, JSON, *SERVER),
        ),
        "pause": Command(
            help="pause an operation",
            run="tasks:pause",
            examples=(("openq task pause ID", "until it is resumed, cancelled, or the server ends"),),
            options=(_TASK, JSON, *SERVER),
        ),
        "resume": Command(
            help="continue a paused operation",
            run="tasks:resume",
            examples=(
                ("openq task resume ID", "at its rate; the pause is not made up for"),
                ("openq task resume ID --unwatched", "a redrive that waits for consumers sends the rest"),
            ),
            options=(
                _TASK,
                Option(
                    "--unwatched",
                    action="store_true",
                    help="a redrive with --stop-after no longer waits for consumers, nor stops",
                ),
                JSON,
                *SERVER,
            ),
        ),
        "cancel": Command(
            help="cancel an operation",
            run="tasks:cancel",
            examples=(("openq task cancel ID", "completed work is not undone"),),
            options=(_TASK, JSON, *SERVER),
        ),
    },
)

_DAMAGE = Command(
    examples=(
        ("openq damage ls", "damaged messages and records, with location and cause"),
        ("openq damage clear", "clear the list: health is ok again"),
    ),
    details=(
        "A server that found damage keeps serving; its health is degraded until the list is cleared. Needs "
        "the permission admin. `openq journal check` looks for damage in a data directory."
    ),
    commands={
        "ls": Command(
            help="list damaged messages and records",
            run="damage:ls",
            examples=(
                ("openq damage ls", "as a table"),
                ("openq damage ls --json", "one JSON object per line"),
                ("openq damage ls --data ./openq-data", "of a data directory that no process uses"),
            ),
            details="Exit code 5 if the list is empty.",
            options=(JSON_LINES, *READ),
        ),
        "clear": Command(
            help="clear the list, so that health is ok again",
            run="damage:clear",
            examples=(("openq damage clear", "restores nothing: messages that were set aside stay so"),),
            details="Exit code 5 if the list was empty. The counters in the metrics are not reset.",
            options=(JSON, *SERVER),
        ),
    },
)

_JOURNAL = Command(
    examples=(
        ("openq journal check ./data", "find damage; changes nothing"),
        ("openq journal repair ./data", "keep every intact record"),
        ("openq journal dump ./data", "one line of JSON per record"),
    ),
    details="A data directory is the `--data` of a server, or the `path` of a durable queue.",
    commands={
        "check": Command(
            help="verify every block; changes nothing",
            run="journal:check",
            examples=(
                ("openq journal check ./data", "a summary, and every damaged place"),
                ("openq journal check ./data --json", "the same for programs"),
            ),
            details="Works while another process uses the directory. Exit code 1 if anything is damaged.",
            options=(_DIRECTORY, JSON),
        ),
        "repair": Command(
            help="make a damaged journal usable again, with every intact record",
            run="journal:repair",
            examples=(
                ("openq journal repair ./data --dry-run", "show what would be done; changes nothing"),
                ("openq journal repair ./data", "asks for confirmation first"),
                ("openq journal repair ./data --yes", "for scripts"),
            ),
            details=(
                "Every intact record is kept; damaged bytes are copied to DIR/quarantine first. No other "
                "process may use the directory."
            ),
            options=(
                _DIRECTORY,
                Option("--dry-run", action="store_true", help="only report; exit code 1 if there is damage"),
                Option("--yes", action="store_true", help="do not ask for confirmation"),
                JSON,
            ),
        ),
        "dump": Command(
            help="print every intact record as a line of JSON",
            run="journal:dump",
            examples=(
                ("openq journal dump ./data | head", "the oldest records"),
                ("openq journal dump ./data --bodies --limit 1", "with message bodies"),
                ("openq journal dump ./data --from 4294967456", "start at the `at` of a record"),
            ),
            details=(
                "Oldest first. Damaged places are reported on stderr and skipped; the exit code is then 1. "
                "Works while another process uses the directory."
            ),
            options=(
                _DIRECTORY,
                Option("--bodies", action="store_true", help="include message bodies"),
                Option(
                    "--from",
                    dest="start",
                    metavar="AT",
                    type=location,
                    default=0,
                    help="start at this location",
                ),
                Option("--limit", metavar="N", type=count, help="maximum number of records"),
                JSON_ANYWAY,
            ),
        ),
    },
)

COMMANDS = {"dlq": _DLQ, "replay": _REPLAY, "task": _TASKS, "damage": _DAMAGE, "journal": _JOURNAL}
