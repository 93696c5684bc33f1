"""`openq pipeline sql`, `init`, `run`, `load` and `export`: pipelines between queues, tables and files."""

from __future__ import annotations

import os

from .parser import CommandGroup, Parser, add_json, pair, positive
from .terminal import EMPTY, OK, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Any

    from .progress import ProgressBar

_TEMPLATES = ("queue-to-table", "table-to-queue", "queue-to-queue", "enrich")
_FORMATS = ("parquet", "json", "csv", "text")


def add(verbs: CommandGroup) -> None:
    _add_sql(verbs)
    _add_init(verbs)
    _add_run(verbs)
    _add_load(verbs)
    _add_export(verbs)


def _add_range(parser: Parser) -> None:
    parser.add_argument("--since", metavar="TIME", help="from this time on: 2h, 7d, or 2026-01-31T12:00:00Z")
    parser.add_argument("--until", metavar="TIME", help="before this time")


def _add_options(parser: Parser, help: str) -> None:
    parser.add_argument("--option", metavar="NAME=VALUE", action="append", type=pair, help=help)


def _add_place(parser: Parser, history: bool = True) -> None:
    from .pipeline import add_address, add_history, add_spark

    if history:
        add_history(parser)
    else:
        add_address(parser)
    add_spark(parser)


def _add_sql(verbs: CommandGroup) -> None:
    sql = verbs.add(
        "sql",
        _sql,
        "run one statement of SQL over queues",
        [
            (
                'openq pipeline sql "SELECT queue, count(*) FROM queue(*) GROUP BY queue"',
                "what the history holds, as a table",
            ),
            (
                'openq pipeline sql "INSERT INTO queue(b) SELECT body FROM stream(queue(a))"',
                "copy what is new since the last run",
            ),
            (
                "openq pipeline sql \"INSERT INTO parquet('out') SELECT * FROM consume(queue(a))\"",
                "work a queue off, into files",
            ),
            (
                'openq pipeline sql --continuous "INSERT INTO queue(big) '
                'SELECT body FROM consume(queue(a)) WHERE body_json:total::double > 100"',
                "until it is interrupted",
            ),
        ],
        "queue(a) is the history of a queue up to now (names or patterns), events(a) what happened to\n"
        "its messages, stream(...) the same as a stream, consume(queue(a)) takes what waits and acks it\n"
        "when the result is safe. INSERT INTO writes to queue(b), parquet('dir'), json('dir') or\n"
        "csv('dir'). All else is Spark's SQL. A stream goes on where the last run of it ended.",
    )
    sql.add_argument("statement", metavar="STATEMENT", help="the statement, or @FILE")
    _add_range(sql)
    sql.add_argument("--continuous", action="store_true", help="a stream runs on until it is interrupted")
    sql.add_argument("--once", action="store_true", help="a stream ends with what is there now (default)")
    sql.add_argument(
        "--checkpoint",
        metavar="DIR",
        help="where a stream keeps how far it is (default: named after the statement, in DATA/pipelines "
        "or ./openq-pipelines)",
    )
    sql.add_argument("--job", metavar="NAME", help="under this name a batch is published once")
    sql.add_argument("--create", action="store_true", help="create the target queue if there is none")
    sql.add_argument("--max", metavar="N", type=positive, help="messages in one micro-batch, at most")
    sql.add_argument(
        "--limit", metavar="N", type=positive, default=100, help="rows of a SELECT to show (default 100)"
    )
    sql.add_argument(
        "--dry-run", action="store_true", help="only check the statement, and tell what it makes"
    )
    _add_options(sql, "for the writer of files; may be repeated")
    add_json(sql)
    _add_place(sql)


def _add_init(verbs: CommandGroup) -> None:
    init = verbs.add(
        "init",
        _init,
        "write a pipeline project to begin with",
        [
            ("openq pipeline init bills --from orders --to bills", "from queue to queue"),
            ("openq pipeline init history --template queue-to-table --from orders", "a queue as a table"),
            ("openq pipeline init import --template table-to-queue --to orders", "files into a queue"),
        ],
        "A project of Spark Declarative Pipelines, in SQL and Python, to be changed as you like. Templates:\n"
        "queue-to-table, table-to-queue, queue-to-queue (default), enrich (queue, table, queue).",
    )
    init.add_argument("directory", metavar="DIR", help="a directory that is new or empty")
    init.add_argument(
        "--template", choices=_TEMPLATES, default="queue-to-queue", metavar="NAME", help="see above"
    )
    init.add_argument("--name", metavar="NAME", help="of the pipeline (default: the directory's)")
    init.add_argument(
        "--from", metavar="QUEUE", dest="source", default="orders", help="to read (default orders)"
    )
    init.add_argument(
        "--to", metavar="QUEUE", dest="target", default="results", help="to write (default results)"
    )
    init.add_argument("--url", help="the server (OPENQ_URL; default http://127.0.0.1:9324)")
    add_json(init)


def _add_run(verbs: CommandGroup) -> None:
    run = verbs.add(
        "run",
        _run,
        "run a pipeline project",
        [
            ("openq pipeline run bills --dry-run", "is everything right?"),
            ("openq pipeline run bills", "all that is new goes through it"),
            ("openq pipeline run history --full-refresh", "compute all tables anew"),
            ("openq pipeline run bills --master spark://10.0.0.5:7077", "on a cluster"),
        ],
        "Runs a project of Spark Declarative Pipelines once, from where the last run ended. Its programs\n"
        "find the server in OPENQ_URL, as --url says.",
    )
    run.add_argument("directory", metavar="DIR", help="the project, or its spec file")
    run.add_argument("--dry-run", action="store_true", help="only check it")
    run.add_argument("--refresh", metavar="TABLE", action="append", help="only this one; may be repeated")
    run.add_argument(
        "--full-refresh",
        metavar="TABLE",
        nargs="?",
        const="",
        action="append",
        help="compute this table anew, or without a name all; may be repeated",
    )
    add_json(run)
    _add_place(run, history=False)


def _add_load(verbs: CommandGroup) -> None:
    load = verbs.add(
        "load",
        _load,
        "publish the rows of files to a queue",
        [
            ("openq pipeline load orders.jsonl --to orders", "each line is a message"),
            ("openq pipeline load table/ --to orders --body payload --id order_id", "columns of Parquet"),
            ("openq pipeline load orders.csv --to orders --dry-run", "how many, and what they would be"),
        ],
        "All rows are published at once, or none. The same files are not published twice, also when a run\n"
        "was killed: the job is named after them, or as --job says.",
    )
    load.add_argument("files", metavar="FILE", nargs="+", help="files or directories")
    load.add_argument("--to", metavar="QUEUE", required=True, help="the queue")
    load.add_argument(
        "--format", choices=_FORMATS, metavar="NAME", help="parquet, json, csv or text; else by name"
    )
    load.add_argument("--body", metavar="COLUMN", help="the body (default: all columns as JSON)")
    load.add_argument("--id", metavar="COLUMN", help="the message id")
    load.add_argument("--group", metavar="COLUMN", help="the group")
    load.add_argument("--priority", metavar="COLUMN", help="the priority")
    load.add_argument("--job", metavar="NAME", help="under this name rows are published once")
    load.add_argument("--create", action="store_true", help="create the queue if there is none")
    load.add_argument(
        "--dlq", metavar="QUEUE", help="for rows that the queue refuses (default: nothing is published)"
    )
    load.add_argument("--dry-run", action="store_true", help="only count, and show some")
    _add_options(load, "for Spark's reader, such as inferSchema=true for CSV; may be repeated")
    add_json(load)
    _add_place(load, history=False)


def _add_export(verbs: CommandGroup) -> None:
    export = verbs.add(
        "export",
        _export,
        "write the messages of queues to files",
        [
            ("openq pipeline export orders --to out", "the history of a queue, as Parquet"),
            ("openq pipeline export 'orders*' --to out --format json --since 7d", "the last week"),
            ("openq pipeline export orders --to out --drain", "take what waits out of the queue"),
        ],
        "The queues are only read, unless --drain: then a message is deleted when its file is safe, and\n"
        "another drain into the same directory goes on. In JSON and CSV bodies are text, or body_base64.",
    )
    export.add_argument("queues", metavar="QUEUE", nargs="+", help="names or patterns")
    export.add_argument("--to", metavar="DIR", required=True, help="a directory that is new or empty")
    export.add_argument(
        "--format",
        choices=_FORMATS,
        default="parquet",
        metavar="NAME",
        help="parquet (default), json, csv or text",
    )
    _add_range(export)
    export.add_argument("--columns", metavar="NAMES", help="only these, with commas between them")
    export.add_argument("--drain", action="store_true", help="take the messages out of the queue")
    export.add_argument(
        "--max", metavar="N", type=positive, help="messages in one micro-batch of --drain, at most"
    )
    export.add_argument("--job", metavar="NAME", help="under this name it is exported once")
    export.add_argument("--dry-run", action="store_true", help="only tell how many there are")
    _add_options(export, "for Spark's writer, such as compression=gzip; may be repeated")
    add_json(export)
    _add_place(export)


# -- commands ----------------------------------------------------------------------------------------------


class _TaskProgress:
    """Tasks of Spark as a bar; how many there are changes while it runs."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._total = -1
        self._bar: ProgressBar | None = None

    def __call__(self, done: int, total: int) -> None:
        from .progress import ProgressBar

        if self._bar is None or total != self._total:
            self.end()
            self._total = total
            self._bar = ProgressBar(self._what, total or None)
        self._bar.update(done)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end()


def _server_options(options: Namespace) -> dict[str, Any]:
    """`url=` and `token=` of the server, also where the history is read from a directory."""
    from .api import token_of, url_of

    return {"url": url_of(options), "token": token_of(options)}


def _sql(options: Namespace) -> int:
    from ..pipeline.sqljob import CONSUME, parse, sql
    from .api import UsageError
    from .output import print_json
    from .pipeline import history_source, spark_factory, validate_source
    from .progress import ProgressBar

    if options.once and options.continuous:
        raise UsageError("--once and --continuous contradict each other: give one of them")
    text = options.statement
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8") as file:
            text = file.read()
    statement = parse(text)
    place = history_source(options)
    read = {name for source in statement.sources if source.mode != CONSUME for name in source.queues}
    validate_source(place, options.since, options.until, sorted(read))
    if statement.subscription_queues or (statement.target is not None and statement.target.kind == "queue"):
        place |= _server_options(options)
    bar = ProgressBar("rows", None)
    try:
        done = sql(
            spark_factory(options),
            statement,
            **place,
            since=options.since,
            until=options.until,
            checkpoint=options.checkpoint,
            continuous=options.continuous,
            job=options.job,
            create=options.create,
            max_messages=options.max,
            progress=bar.update,
            options=dict(options.option or ()),
            dry_run=options.dry_run,
        )
    finally:
        bar.end()
    if done.frame is not None and not options.dry_run:
        return _show_rows(done.frame, options.limit, options.json)
    if options.json:
        print_json(done.to_json())
        return OK
    if done.frame is not None:
        made = ", ".join(
            f"{field.name} {field.dataType.simpleString()}" for field in done.frame.schema.fields
        )
        where = f"would go to {done.target}" if done.target else "would be shown"
        print(f"the statement is right; rows of ({made}) {where}")
        return OK
    batches = f" in {done.batches} batches" if done.checkpoint else ""
    print(f"{done.rows} rows{' read' if done.checkpoint else ''}{batches}, into {done.target}")
    if done.checkpoint:
        print(f"{styled('checkpoint', 'dim')}  {done.checkpoint}")
    return OK


def _show_rows(frame: Any, limit: int, as_json: bool) -> int:
    from ..pipeline.sqljob import explain_errors, to_json_value
    from .output import escape_control, print_json, print_table

    with explain_errors():
        rows = frame.limit(limit + 1).collect()
    names = frame.columns
    shown = [[to_json_value(value) for value in row] for row in rows[:limit]]
    if as_json:
        for row in shown:
            print_json(dict(zip(names, row, strict=True)))
    else:
        texts = [["" if value is None else escape_control(_text(value)) for value in row] for row in shown]
        print_table([escape_control(name) for name in names], texts)
    if len(rows) > limit:
        say(f"there are more than {limit} rows; --limit shows more, INSERT INTO parquet('dir') keeps all")
    return OK if rows else EMPTY


def _text(value: Any) -> str:
    import json

    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:79] + "…"


def _init(options: Namespace) -> int:
    from ..pipeline.project import init
    from .api import url_of
    from .output import print_json

    url = url_of(options)
    made = init(
        options.directory,
        options.template,
        name=options.name,
        source=options.source,
        target=options.target,
        url=url,
    )
    if options.json:
        print_json({"directory": options.directory, "files": [str(path) for path in made]})
        return OK
    for path in made:
        print(path)
    print(f"{styled('next', 'dim')}  openq pipeline run {options.directory}")
    return OK


def _run(options: Namespace) -> int:
    from ..pipeline.project import run
    from .api import NotFound
    from .output import print_json

    if not os.path.exists(options.directory):
        raise NotFound(f"{options.directory}: no such directory; `openq pipeline init` makes a project")
    anew = options.full_refresh or []
    ran = run(
        options.directory,
        **_server_options(options),
        master=options.master or os.environ.get("OPENQ_SPARK_MASTER") or None,
        conf=dict(options.conf or ()),
        dry_run=options.dry_run,
        refresh=options.refresh or (),
        full_refresh=True if "" in anew else anew,
        progress=_print_event,
    )
    if options.json:
        print_json(ran.to_json())
    elif options.dry_run:
        print(f"{options.directory} is right")
    else:
        done = sum(1 for state in ran.flows.values() if state == "COMPLETED")
        print(f"{done} of {len(ran.flows)} flows completed")
    return OK


def _print_event(line: str) -> None:
    """How Spark finds and loads the files is of interest to nobody who has no mistake in them."""
    if line.startswith(("Flow ", "Run ")) and "QUEUED" not in line:
        say(line)
    elif line.startswith("Error: "):  # of a flow that is tried again
        say(line[:200])
    elif line.startswith("openq.") and ": " in line:
        say(line.partition(": ")[2])


def _load(options: Namespace) -> int:
    from ..pipeline.transfer import load
    from .output import print_json
    from .pipeline import spark_factory

    words: dict[str, Any] = {
        "format": options.format,
        "body": options.body,
        "id": options.id,
        "group": options.group,
        "priority": options.priority,
        "options": dict(options.option or ()),
    }
    if options.dry_run:
        return _dry_run_load(options, words)
    tasks = _TaskProgress("tasks")
    try:
        loaded = load(
            spark_factory(options),
            options.files,
            options.to,
            **_server_options(options),
            **words,
            job=options.job,
            create=options.create,
            dlq=options.dlq,
            progress=tasks,
        )
    finally:
        tasks.end()
    if options.json:
        print_json(loaded.to_json())
        return OK
    if loaded.repeated:
        print(
            f"job {loaded.job} has published {loaded.published} messages to {loaded.queue} before, "
            "and publishes nothing again; --job NAME makes it another one"
        )
    else:
        print(f"{loaded.published} messages published to {loaded.queue} ({loaded.job})")
    if loaded.rejected:
        say(f"{loaded.rejected} rows were refused and went to {options.dlq}")
    return OK


def _dry_run_load(options: Namespace, words: dict[str, Any]) -> int:
    from ..pipeline.sqljob import explain_errors, to_json_value
    from ..pipeline.transfer import format_of, list_files, rows
    from .output import escape_control, print_json
    from .pipeline import spark_session

    files = list_files(options.files)
    words["format"] = format_of(files, words["format"])
    spark = spark_session(options)
    with explain_errors():
        frame = rows(spark, files, **words)
        count, some_rows = frame.count(), frame.limit(3).collect()
    samples = [{name: to_json_value(row[name]) for name in frame.columns} for row in some_rows]
    if options.json:
        print_json({"rows": count, "format": words["format"], "samples": samples})
        return OK
    print(f"would publish {count} messages to {options.to}, read as {words['format']}")
    for sample in samples:
        print(styled(f"  {escape_control(_text(sample['body']))}", "dim"))
    return OK


def _export(options: Namespace) -> int:
    from ..pipeline.transfer import count, export
    from .output import print_json
    from .pipeline import history_source, spark_factory, validate_source

    place = history_source(options)
    if options.drain:
        place = _server_options(options)
    else:
        validate_source(place, options.since, options.until, options.queues)
    if options.dry_run:
        told = count(
            spark_factory(options),
            options.queues,
            **place,
            since=options.since,
            until=options.until,
            drain=options.drain,
        )
        if options.json:
            print_json({"rows": told})
        else:
            print(f"would {'drain' if options.drain else 'export'} {told} messages to {options.to}")
        return OK
    tasks = _TaskProgress("messages" if options.drain else "tasks")
    try:
        exported = export(
            spark_factory(options),
            options.queues,
            options.to,
            **place,
            format=options.format,
            since=options.since,
            until=options.until,
            columns=None
            if options.columns is None
            else [each.strip() for each in options.columns.split(",")],
            drain=options.drain,
            job=options.job,
            max_messages=options.max,
            options=dict(options.option or ()),
            progress=tasks,
        )
    finally:
        tasks.end()
    if options.json:
        print_json(exported.to_json())
    elif exported.repeated:
        print(f"{exported.to} holds this export already, {exported.rows} messages")
    else:
        print(f"{exported.rows} messages exported to {exported.to}, as {exported.format}")
    return OK
