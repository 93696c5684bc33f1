"""`openq pipeline load` and `openq pipeline export`."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from ..pipeline import transfer
from ..pipeline.sqljob import explain_errors, to_json_value
from .output import count_text, escape_control, print_json
from .pipeline import (
    history_source,
    json_text,
    server_options,
    spark_factory,
    spark_session,
    validate_source,
)
from .progress import ProgressBar
from .terminal import OK, say, styled


class _TaskProgress:
    """The tasks of Spark as a progress bar; their number changes while it runs."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._total = -1
        self._bar: ProgressBar | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None or total != self._total:
            self.end()
            self._total = total
            self._bar = ProgressBar(self._what, total or None)
        self._bar.update(done)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.end()


def load_files(options: Namespace) -> int:
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
        loaded = transfer.load(
            spark_factory(options),
            options.files,
            options.to,
            **server_options(options),
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
        published = count_text(loaded.published, "message")
        print(
            f"job {loaded.job} has published {published} to {loaded.queue} already; "
            "another --job NAME publishes them again"
        )
    else:
        print(f"{count_text(loaded.published, 'message')} published to {loaded.queue} ({loaded.job})")
    if loaded.rejected:
        say(f"{count_text(loaded.rejected, 'row')} rejected and published to {options.dlq}")
    return OK


def _dry_run_load(options: Namespace, words: dict[str, Any]) -> int:
    files = transfer.list_files(options.files)
    words["format"] = transfer.format_of(files, words["format"])
    spark = spark_session(options)
    with explain_errors():
        frame = transfer.rows(spark, files, **words)
        count, some_rows = frame.count(), frame.limit(3).collect()
    samples = [{name: to_json_value(row[name]) for name in frame.columns} for row in some_rows]
    if options.json:
        print_json({"rows": count, "format": words["format"], "samples": samples})
        return OK
    print(f"would publish {count_text(count, 'message')} to {options.to}, read as {words['format']}")
    for sample in samples:
        print(styled(f"  {escape_control(json_text(sample['body']))}", "dim"))
    return OK


def export_queues(options: Namespace) -> int:
    place = history_source(options)
    if options.drain:
        place = server_options(options)
    else:
        validate_source(place, options.since, options.until, options.queues)
    if options.dry_run:
        rows = transfer.count(
            spark_factory(options),
            options.queues,
            **place,
            since=options.since,
            until=options.until,
            drain=options.drain,
        )
        if options.json:
            print_json({"rows": rows})
        else:
            verb = "drain" if options.drain else "export"
            print(f"would {verb} {count_text(rows, 'message')} to {options.to}")
        return OK
    tasks = _TaskProgress("messages" if options.drain else "tasks")
    try:
        exported = transfer.export(
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
        print(f"{exported.to} contains this export already, {count_text(exported.rows, 'message')}")
    else:
        print(f"{count_text(exported.rows, 'message')} exported to {exported.to}, as {exported.format}")
    return OK
