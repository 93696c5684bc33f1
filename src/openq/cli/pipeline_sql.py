"""`openq pipeline sql`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..pipeline import sqljob
from ..pipeline.sqljob import CONSUME, explain_errors, to_json_value
from .api import UsageError
from .output import count_text, escape_control, print_json, print_table
from .pipeline import history_source, json_text, server_options, spark_factory, validate_source
from .progress import ProgressBar
from .terminal import EMPTY, OK, say, styled


def sql(options: Namespace) -> int:
    if options.once and options.continuous:
        raise UsageError("--once and --continuous cannot be combined")
    text = options.statement
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8") as file:
            text = file.read()
    statement = sqljob.parse(text)
    place = history_source(options)
    read = {name for source in statement.sources if source.mode != CONSUME for name in source.queues}
    validate_source(place, options.since, options.until, sorted(read))
    if statement.subscription_queues or (statement.target is not None and statement.target.kind == "queue"):
        place |= server_options(options)
    bar = ProgressBar("rows", None)
    try:
        done = sqljob.sql(
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
        print(f"the statement is valid; rows of ({made}) {where}")
        return OK
    batches = f" in {count_text(done.batches, 'batch')}" if done.checkpoint else ""
    rows = "rows" if done.rows is None else count_text(done.rows, "row")
    print(f"{rows}{' read' if done.checkpoint else ''}{batches}, into {done.target}")
    if done.checkpoint:
        print(f"{styled('checkpoint', 'dim')}  {done.checkpoint}")
    return OK


def _show_rows(frame: Any, limit: int, as_json: bool) -> int:
    with explain_errors():
        rows = frame.limit(limit + 1).collect()
    names = frame.columns
    shown = [[to_json_value(value) for value in row] for row in rows[:limit]]
    if as_json:
        for row in shown:
            print_json(dict(zip(names, row, strict=True)))
    else:
        texts = [
            ["" if value is None else escape_control(json_text(value)) for value in row] for row in shown
        ]
        print_table([escape_control(name) for name in names], texts)
    if len(rows) > limit:
        say(f"only {limit} rows are shown; see --limit, or write all with INSERT INTO parquet('dir')")
    return OK if rows else EMPTY
