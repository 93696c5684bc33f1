"""`openq pipeline`: jobs on Spark."""

from __future__ import annotations

from ..spec import Command, Option
from ..values import pair, positive, speed
from .options import CONFIRM, JSON, JSON_LINES, PROJECT_URL, RATE, SERVER, SERVER_OF_SPARK, TIME_RANGE
from .pipeline_archive import ARCHIVE
from .pipeline_options import HISTORY, SPARK

_TEMPLATES = ("queue-to-table", "table-to-queue", "queue-to-queue", "enrich")
_PLAN = Option(
    "--plan",
    metavar="FILE",
    help="file with the plan and its progress; an existing plan is resumed (default: a new one in "
    "./openq-pipelines)",
)
_MAX = Option("--max", metavar="N", type=positive, help="maximum number of messages in one micro-batch")


def _format(help: str, default: str | None) -> Option:
    choices = ("parquet", "json", "csv", "text")
    return Option("--format", choices=choices, default=default, metavar="NAME", help=help)


def _spark_option(help: str) -> Option:
    return Option("--option", metavar="NAME=VALUE", action="append", type=pair, help=help)


_ANALYTICS = Command(
    help="rates, waiting times, retries, failures and consumers, per queue and window",
    run="pipeline_analytics:analytics",
    examples=(
        ("openq pipeline analytics --data ./data --open", "everything, with the report in a browser"),
        ("openq pipeline analytics --data ./data --window 1h --since 30d", "a month by the hour"),
        ("openq pipeline analytics --queue 'orders*' --out figures", "some queues of a server"),
        ("openq pipeline analytics --publish", "of a server, with the results on its dashboard"),
        ("openq pipeline analytics --data ./data --json", "the summary, for programs"),
    ),
    details=(
        "Writes Parquet tables, summary.json and report.html (a self-contained page) to --out. A second run "
        "reads only new history, and corrects the windows that were still open."
    ),
    options=(
        Option(
            "--window",
            metavar="TIME",
            default="auto",
            help="length of a window (default: 5m, shorter for a short history)",
        ),
        *TIME_RANGE,
        Option("--queue", metavar="NAME", action="append", help="queue name or pattern; may be repeated"),
        Option(
            "--out",
            metavar="DIR",
            help="directory for the results (default: DATA/analytics, or ./openq-analytics)",
        ),
        Option("--anew", action="store_true", help="compute everything again, ignoring earlier results"),
        Option("--top", metavar="N", type=positive, default=20, help="rows of each list (default 20)"),
        Option("--open", action="store_true", help="open the report in a browser"),
        Option("--publish", action="store_true", help="show the results on the dashboard, too"),
        Option("--dry-run", action="store_true", help="only show what would be read"),
        JSON,
        *HISTORY,
        *SPARK,
    ),
)

_TRIAGE = Command(
    help="group dead letters by cause, with advice for each group",
    run="pipeline_analytics:triage",
    examples=(
        ("openq pipeline triage --data ./data", "all dead letters, the largest groups first"),
        ("openq pipeline triage --queue orders-dead --since 7d --top 5", "one queue of a server"),
        ("openq pipeline triage --data ./data --html dead.html", "as a page with timelines and samples"),
    ),
    details="Numbers, ids and addresses in a reason are ignored. `openq pipeline redrive` resends a group.",
    options=(
        Option(
            "--queue", metavar="NAME", action="append", help="dead-letter queue or pattern; may be repeated"
        ),
        *TIME_RANGE,
        Option("--top", metavar="N", type=positive, default=20, help="number of groups (default 20)"),
        Option("--samples", metavar="N", type=int, default=3, help="sample messages per group (default 3)"),
        Option("--html", metavar="FILE", help="write a self-contained page"),
        Option("--publish", action="store_true", help="show the results on the dashboard, too"),
        JSON,
        *HISTORY,
        *SPARK,
    ),
)

_REDRIVE = Command(
    help="send dead letters that match an SQL condition back to the queues they came from",
    run="pipeline_resend:redrive",
    examples=(
        ("openq pipeline redrive orders-dead --dry-run", "count, reasons and samples"),
        (
            "openq pipeline redrive orders-dead --where \"error_type = 'TimeoutError'\" --rate 50",
            "some of them, at a limited rate",
        ),
        (
            "openq pipeline redrive orders-dead --transform fix.py:fixed --dry-run",
            "with changed bodies; shows both",
        ),
        ("openq pipeline redrive --plan fix.json --yes", "resume an interrupted redrive"),
    ),
    details=(
        "Columns of a dead letter: message_id, seq, ts (when it was dead-lettered), dlq_source, "
        "receive_count, error_type, error_signature, error_text, group, priority, size; of its publish: "
        "published, type, attributes, headers, body, body_json (body_json:order.total), replay_count and "
        "more. Messages keep their ids; one whose body changed gets a new id, and openq.replay_of holds the "
        "old one. The audit file has one line per dead letter."
    ),
    options=(
        Option("queue", nargs="?", metavar="QUEUE", help="the dead-letter queue"),
        Option("--where", metavar="SQL", help="condition (default: all)"),
        Option("--to", metavar="QUEUE", help="target queue (default: the source of each message)"),
        Option(
            "--transform",
            metavar="SQL|FILE.py:NAME",
            help="new body: an expression, or a function of the dead letter as a dict; None skips it",
        ),
        RATE,
        Option("--audit", metavar="FILE", help="file for the outcomes (default: beside the plan)"),
        _PLAN,
        *CONFIRM,
        JSON,
        *HISTORY,
        *SPARK,
    ),
)

_REPLAY = Command(
    help="publish past messages again, chosen by time, id or SQL",
    run="pipeline_resend:replay",
    examples=(
        ("openq pipeline replay --from orders --since 2h --to orders-again --dry-run", "show how many"),
        (
            "openq pipeline replay --from 'shop-*' --where \"body_json:total > 100\" --to audit --yes",
            "chosen by content",
        ),
        ("openq pipeline replay --from orders --since 1d --to test --speed 10x", "a day in 2.4 hours"),
        ("openq pipeline replay --plan again.json --yes", "resume an interrupted replay"),
    ),
    details=(
        "From journal and archive, in the original order. Each copy has a new id; its attributes "
        "openq.replay_of and openq.replay_count identify the original. With one plan no message is published "
        "twice."
    ),
    options=(
        Option("--from", metavar="QUEUE", dest="queues", action="append", help="queue name or pattern"),
        Option("--to", metavar="QUEUE", help="target queue; may be the same queue"),
        *TIME_RANGE,
        Option("--ids", metavar="FILE", help="file with message ids, one per line"),
        Option("--where", metavar="SQL", help="condition on the columns of `messages`, and body_json"),
        Option("--again", action="store_true", help="repeat a replay with the same arguments"),
        Option("--include-purged", action="store_true", help="include messages that a purge removed"),
        RATE,
        Option("--speed", metavar="N", type=speed, help="original timing, N times as fast: 1, 10x"),
        _PLAN,
        *CONFIRM,
        JSON,
        *HISTORY,
        *SPARK,
    ),
)

_SQL = Command(
    help="run one SQL statement over queues",
    run="pipeline_sql:sql",
    examples=(
        (
            'openq pipeline sql "SELECT queue, count(*) FROM queue(*) GROUP BY queue"',
            "the contents of the history, as a table",
        ),
        (
            'openq pipeline sql "INSERT INTO queue(b) SELECT body FROM stream(queue(a))"',
            "copy what is new since the last run",
        ),
        (
            "openq pipeline sql \"INSERT INTO parquet('out') SELECT * FROM consume(queue(a))\"",
            "consume a queue into files",
        ),
        (
            'openq pipeline sql --continuous "INSERT INTO queue(big) '
            'SELECT body FROM consume(queue(a)) WHERE body_json:total::double > 100"',
            "until it is interrupted",
        ),
    ),
    details=(
        "queue(a) is the history of a queue up to now (names or patterns), events(a) the events of its "
        "messages, stream(...) the same as a stream; consume(queue(a)) receives waiting messages and "
        "acknowledges them when the result is durable. INSERT INTO writes to queue(b), parquet('dir'), "
        "json('dir') or csv('dir'). Everything else is Spark SQL. A stream resumes where its last run ended."
    ),
    options=(
        Option("statement", metavar="STATEMENT", help="the statement, or @FILE"),
        *TIME_RANGE,
        Option("--continuous", action="store_true", help="run a stream until it is interrupted"),
        Option("--once", action="store_true", help="process what a stream holds now, then end (default)"),
        Option(
            "--checkpoint",
            metavar="DIR",
            help="directory for the progress of a stream (default: named after the statement, in "
            "DATA/pipelines or ./openq-pipelines)",
        ),
        Option("--job", metavar="NAME", help="job name: each batch of a job is published once"),
        Option("--create", action="store_true", help="create the target queue if it does not exist"),
        _MAX,
        Option(
            "--limit", metavar="N", type=positive, default=100, help="rows of a SELECT to show (default 100)"
        ),
        Option("--dry-run", action="store_true", help="only check the statement, and show its columns"),
        _spark_option("option of the file writer; may be repeated"),
        JSON,
        *HISTORY,
        *SPARK,
    ),
)

_INIT = Command(
    help="write a new pipeline project",
    run="pipeline_project:init",
    examples=(
        ("openq pipeline init bills --from orders --to bills", "from queue to queue"),
        ("openq pipeline init history --template queue-to-table --from orders", "a queue as a table"),
        ("openq pipeline init import --template table-to-queue --to orders", "files into a queue"),
    ),
    details=(
        "A project of Spark Declarative Pipelines, in SQL and Python, as a starting point. Templates: queue- "
        "to-table, table-to-queue, queue-to-queue (default), enrich (queue, table, queue)."
    ),
    options=(
        Option("directory", metavar="DIR", help="a new or empty directory"),
        Option("--template", choices=_TEMPLATES, default="queue-to-queue", metavar="NAME", help="see above"),
        Option("--name", metavar="NAME", help="name of the pipeline (default: the name of the directory)"),
        Option(
            "--from", metavar="QUEUE", dest="source", default="orders", help="source queue (default orders)"
        ),
        Option(
            "--to", metavar="QUEUE", dest="target", default="results", help="target queue (default results)"
        ),
        PROJECT_URL,
        JSON,
    ),
)

_RUN = Command(
    help="run a pipeline project",
    run="pipeline_project:run_project",
    examples=(
        ("openq pipeline run bills --dry-run", "only validate it"),
        ("openq pipeline run bills", "process everything that is new"),
        ("openq pipeline run history --full-refresh", "compute all tables again"),
        ("openq pipeline run bills --master spark://10.0.0.5:7077", "on a cluster"),
    ),
    details=(
        "Runs a project of Spark Declarative Pipelines once, from where the last run ended. Its programs "
        "find the server in OPENQ_URL, which --url sets."
    ),
    options=(
        Option("directory", metavar="DIR", help="the project, or its spec file"),
        Option("--dry-run", action="store_true", help="only validate it"),
        Option("--refresh", metavar="TABLE", action="append", help="only this table; may be repeated"),
        Option(
            "--full-refresh",
            metavar="TABLE",
            nargs="?",
            const="",
            action="append",
            help="compute this table again, or all without a name; may be repeated",
        ),
        JSON,
        *SERVER_OF_SPARK,
        *SPARK,
    ),
)

_LOAD = Command(
    help="publish the rows of files to a queue",
    run="pipeline_transfer:load_files",
    examples=(
        ("openq pipeline load orders.jsonl --to orders", "one message per line"),
        ("openq pipeline load table/ --to orders --body payload --id order_id", "columns of Parquet"),
        ("openq pipeline load orders.csv --to orders --dry-run", "count and samples"),
    ),
    details=(
        "All rows are published together, or none. The same files are not published twice, even if a run was "
        "killed: the job is named after them, or by --job."
    ),
    options=(
        Option("files", metavar="FILE", nargs="+", help="files or directories"),
        Option("--to", metavar="QUEUE", required=True, help="target queue"),
        _format("parquet, json, csv or text (default: by file name)", None),
        Option("--body", metavar="COLUMN", help="column of the body (default: all columns as JSON)"),
        Option("--id", metavar="COLUMN", help="column of the message id"),
        Option("--group", metavar="COLUMN", help="column of the message group"),
        Option("--priority", metavar="COLUMN", help="column of the priority"),
        Option("--job", metavar="NAME", help="job name: the rows of a job are published once"),
        Option("--create", action="store_true", help="create the queue if it does not exist"),
        Option("--dlq", metavar="QUEUE", help="queue for rejected rows (default: publish nothing then)"),
        Option("--dry-run", action="store_true", help="only count the rows, and show some"),
        _spark_option("option of Spark's reader, such as inferSchema=true for CSV; may be repeated"),
        JSON,
        *SERVER_OF_SPARK,
        *SPARK,
    ),
)

_EXPORT = Command(
    help="write the messages of queues to files",
    run="pipeline_transfer:export_queues",
    examples=(
        ("openq pipeline export orders --to out", "the history of a queue, as Parquet"),
        ("openq pipeline export 'orders*' --to out --format json --since 7d", "the last week"),
        ("openq pipeline export orders --to out --drain", "move waiting messages out of the queue"),
    ),
    details=(
        "The queues are only read, unless --drain: then a message is deleted when its file is durable, and "
        "another drain into the same directory resumes. In JSON and CSV, bodies are text, or body_base64."
    ),
    options=(
        Option("queues", metavar="QUEUE", nargs="+", help="queue names or patterns"),
        Option("--to", metavar="DIR", required=True, help="a new or empty directory"),
        _format("parquet (default), json, csv or text", "parquet"),
        *TIME_RANGE,
        Option("--columns", metavar="NAMES", help="only these columns, separated by commas"),
        Option("--drain", action="store_true", help="delete exported messages from the queue"),
        Option(
            "--max",
            metavar="N",
            type=positive,
            help="maximum number of messages in one micro-batch of --drain",
        ),
        Option("--job", metavar="NAME", help="job name: a job exports once"),
        Option("--dry-run", action="store_true", help="only count the messages"),
        _spark_option("option of Spark's writer, such as compression=gzip; may be repeated"),
        JSON,
        *HISTORY,
        *SPARK,
    ),
)


def _readers(what: str, kind: str, ls_help: str, rm_help: str) -> dict[str, Command]:
    """`ls` and `rm` of cursors or of subscriptions."""
    return {
        "ls": Command(
            help=ls_help,
            run=f"pipeline_cursors:ls_{kind}s",
            examples=(
                (f"openq pipeline {what} ls", "as a table"),
                (f"openq pipeline {what} ls --json", "one JSON object per line"),
            ),
            options=(JSON_LINES, *SERVER),
        ),
        "rm": Command(
            help=rm_help,
            run=f"pipeline_cursors:rm_{kind}",
            examples=(
                (f"openq pipeline {what} rm NAME", "asks for confirmation"),
                (f"openq pipeline {what} rm NAME --yes", "for scripts"),
            ),
            options=(
                Option("name", metavar="NAME", help=f"as `openq pipeline {what} ls` shows it"),
                Option("--dry-run", action="store_true", help="only show what would be removed"),
                Option("--yes", "-y", action="store_true", help="do not ask for confirmation"),
                JSON,
                *SERVER,
            ),
        ),
    }


_CURSORS = Command(
    help="list or remove the cursors that keep the journal for a reader",
    examples=(
        ("openq pipeline cursors ls", "the position of each cursor"),
        ("openq pipeline cursors rm NAME", "the journal is no longer kept for it"),
    ),
    details="A cursor keeps the journal from its position on, until it lags too far or is idle for too long.",
    commands=_readers(
        "cursors",
        "cursor",
        "list cursors, with their lag and whether the journal is kept for them",
        "remove a cursor: the journal is no longer kept for it",
    ),
)

_SUBSCRIPTIONS = Command(
    help="list or end the subscriptions that read queues in batches",
    examples=(
        ("openq pipeline subscriptions ls", "the open batches of each subscription"),
        ("openq pipeline subscriptions rm NAME", "its messages return to the queue"),
    ),
    details="A batch stays the same until it is acknowledged, or returns to its queue when its lease ends.",
    commands=_readers(
        "subscriptions",
        "subscription",
        "list subscriptions, with their open batches",
        "end a subscription: messages of its batches return to the queue, counted as a delivery",
    ),
)

COMMANDS = {
    "pipeline": Command(
        examples=(
            ("openq pipeline archive run", "archive the journal as Parquet, verified"),
            ("openq pipeline analytics --open", "rates, waiting times, failures; an HTML report"),
            ("openq pipeline triage", "dead letters by cause"),
            ("openq pipeline replay --from orders --since 1h --to orders", "publish again, exactly once"),
            (
                'openq pipeline sql "INSERT INTO queue(b) SELECT body FROM stream(queue(a))"',
                "a pipeline in one line",
            ),
        ),
        details=(
            "Jobs on Spark, in this process or on a cluster (--master). They need `pip install "
            "'openq[spark]'` and Java 17 or later (or `pip install 'openq[spark-java]'`)."
        ),
        commands={
            "archive": ARCHIVE,
            "analytics": _ANALYTICS,
            "triage": _TRIAGE,
            "redrive": _REDRIVE,
            "replay": _REPLAY,
            "sql": _SQL,
            "init": _INIT,
            "run": _RUN,
            "load": _LOAD,
            "export": _EXPORT,
            "cursors": _CURSORS,
            "subscriptions": _SUBSCRIPTIONS,
        },
    ),
}
