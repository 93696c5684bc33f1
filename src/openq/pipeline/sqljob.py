"""A pipeline in one statement of SQL, with queues in place of tables.

    INSERT INTO queue(b) SELECT body FROM stream(queue(a)) WHERE length(body) > 0

`sql_parser.py` has the words that belong to OpenQ.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError
from .options import as_options
from .session import ensure_session, reason
from .spark_errors import SQL_POSITION, spark_sentence
from .sql_parser import (
    BATCH,
    CONSUME,
    SqlSource,
    SqlStatement,
    SqlSyntaxError,
    SqlTarget,
    parse,
)
from .streaming import ack_last_batch, run_stream
from .target import StrPath, moment_datetime, moment_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .session import Spark

__all__ = ["CONSUME", "SqlSyntaxError", "explain_errors", "parse", "sql", "to_json_value"]

CREATE = "create it, or set --create (create=True)"


@dataclass
class SqlResult:
    """What a statement did. `rows` were read (a stream) or written (a batch); None if they were not
    counted."""

    target: SqlTarget | None
    rows: int | None
    checkpoint: str | None = None
    batches: int = 0
    frame: DataFrame | None = None  # of a query without INSERT, and of a dry run

    def to_json(self) -> dict[str, Any]:
        target = None if self.target is None else {"kind": self.target.kind, "name": self.target.name}
        return {"target": target, "rows": self.rows, "batches": self.batches, "checkpoint": self.checkpoint}


def sql(
    spark: Spark,
    text: str | SqlStatement,
    *,
    path: StrPath | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: StrPath | None = None,
    since: Any = None,
    until: Any = None,
    checkpoint: StrPath | None = None,
    continuous: bool = False,
    job: str | None = None,
    create: bool = False,
    max_messages: int | None = None,
    progress: Callable[[int], None] | None = None,
    options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> SqlResult:
    """Run one statement. Without INSERT its rows are in `frame`.

    A stream ends when it has read everything present at its start (`continuous`: never) and resumes from
    `checkpoint` the next time; by default that is a directory named after the statement. `since` and `until`
    bound what is read. `job` names a batch that writes to a queue: under one name it is published once.
    `create` creates the target queue; `max_messages` is the limit of a micro-batch; `options` go to the
    writer of files. `dry_run` only lets Spark check the statement.
    """
    statement = parse(text) if isinstance(text, str) else text
    target = statement.target
    if path is None and url is None:
        raise InvalidSetting("say where the queues are: url (a server) or path (its data directory)")
    if url is None and ((target is not None and target.kind == "queue") or statement.subscription_queues):
        raise InvalidSetting("publishing and consuming need a server: give url")
    if statement.is_stream and until is not None:
        raise InvalidSetting("until is for history: a stream has no end")
    if not statement.is_stream and (continuous or checkpoint is not None):
        what = "continuous" if continuous else "checkpoint"
        raise InvalidSetting(f"{what} is for streams, and this reads history: FROM stream(queue(...))")
    if statement.is_stream and job is not None:
        raise InvalidSetting("a stream is identified by its checkpoint: leave job out")
    read = {
        "path": None if path is None else os.fspath(path),
        "url": url,
        "token": token,
        "archive": None if archive is None else os.fspath(archive),
    }
    write = {} if target is None else _writer_options(target, url, token, job, create, options)
    if url is not None:
        _require_queues(statement, as_options(url=url, token=token), create)
    first, end = moment_datetime(since, "since"), moment_datetime(until, "until")
    session = ensure_session(spark)
    with _views(session, statement, read, first, end, max_messages), explain_errors(statement):
        frame = session.sql(statement.query)
        if target is None:
            return SqlResult(None, None, frame=frame)
        if target.kind == "queue":
            check_sink_columns(frame, write)
        if dry_run:
            return SqlResult(target, None, frame=frame)
        if not statement.is_stream:
            return SqlResult(target, _write(frame, target, write))
        where = os.fspath(checkpoint or checkpoint_of(statement, read["path"], url))
        where = where if "://" in where else os.path.abspath(where)
        kind = "openq" if target.kind == "queue" else target.kind
        if kind != "openq":
            write["path"] = target.name
        rows, batches = run_stream(frame, kind, write, where, continuous=continuous, progress=progress)
        if statement.subscription_queues and url is not None:
            ack_last_batch(where, url, token)
        return SqlResult(target, rows, where, batches)


def _require_queues(statement: SqlStatement, server: Mapping[str, str], create: bool) -> None:
    """Checks before Spark starts that the queues to consume from and to publish to exist."""
    from .calls import linked, require_queue
    from .options import WRITE, SourceOptions

    target = statement.target
    to = target.name if target is not None and target.kind == "queue" and not create else None
    if to is None and not statement.subscription_queues:
        return
    with linked(SourceOptions.parse(server, WRITE)) as link:
        for name in statement.subscription_queues:
            require_queue(link, name)
        if to is not None:
            require_queue(link, to, CREATE)


def checkpoint_of(statement: SqlStatement, path: str | None, url: str | None) -> str:
    """The directory of a statement's checkpoint: the same for the same words and the same server."""
    root = os.path.join(path, "pipelines") if path is not None else "openq-pipelines"
    return os.path.join(root, statement.key(url or ""))


@contextmanager
def _views(
    spark: SparkSession,
    statement: SqlStatement,
    read: Mapping[str, str | None],
    since: Any,
    until: Any,
    max_messages: int | None,
) -> Iterator[None]:
    made: list[str] = []
    try:
        for source in statement.sources:
            if source.mode == BATCH:
                frame = _history(spark, statement, source, read, since, until)
            else:
                options = _stream_options(statement, source, read, since, max_messages)
                frame = spark.readStream.format("openq").options(**options).load()
            frame.createOrReplaceTempView(source.view)
            made.append(source.view)
        yield
    finally:
        for view in made:
            spark.catalog.dropTempView(view)


def _history(
    spark: SparkSession,
    statement: SqlStatement,
    source: SqlSource,
    read: Mapping[str, str | None],
    since: Any,
    until: Any,
) -> DataFrame:
    from .history import history

    return history(
        spark,
        **read,  # type: ignore[arg-type]
        table=source.table,
        queues=source.queues,
        since=since,
        until=until,
        body=_body(statement, source),
    )


def _stream_options(
    statement: SqlStatement,
    source: SqlSource,
    read: Mapping[str, str | None],
    since: Any,
    max_messages: int | None,
) -> dict[str, str]:
    options: dict[str, Any] = {"maxMessagesPerTrigger": max_messages, "body": _body(statement, source)}
    if source.mode == CONSUME:
        if since is not None:
            raise InvalidSetting(
                "since is for history and for streams of it: consume takes the messages that are ready"
            )
        number = statement.sources.index(source)
        options |= {"url": read["url"], "token": read["token"], "mode": "consume"}
        options["queue"] = source.queues[0]
        options["subscription"] = f"sql-{statement.key()}" + (f"-{number}" if number else "")
    else:
        us = moment_us(since, "since")
        options |= {**read, "table": source.table, "queues": source.queues}
        options["startingTimestamp"] = None if us is None else us // 1000
    return as_options(**options)


def _body(statement: SqlStatement, source: SqlSource) -> str:
    """Bodies are most of the bytes, and Spark does not prune columns of a Python source: read only if
    named."""
    if source.table != "messages":
        return "true"
    words = statement.words()
    if "body_json" in words:
        return "json"
    return "true" if words & {"body", "*"} else "false"


def _writer_options(
    target: SqlTarget,
    url: str | None,
    token: str | None,
    job: str | None,
    create: bool,
    options: Mapping[str, str] | None,
) -> dict[str, str]:
    if target.kind != "queue":
        if job is not None or create:
            raise InvalidSetting(f"{'job' if job else 'create'} is for INSERT INTO queue(...)")
        return dict(options or {})
    own = as_options(url=url, token=token, queue=target.name, jobId=job, createQueue=create or None)
    return {**own, **(options or {})}


def check_sink_columns(frame: DataFrame, options: Mapping[str, str]) -> None:
    """Raises before anything runs what the sink would refuse."""
    from .options import WRITE, SourceOptions
    from .sink import SinkTarget, columns_of

    columns_of(frame.schema, SinkTarget(SourceOptions.parse(options, WRITE)))


def to_json_value(value: Any) -> Any:
    """A value of a row as JSON; bytes as text if they are UTF-8, else as base64."""
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            import base64

            return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(to_json_value(key)): to_json_value(each) for key, each in value.items()}
    if hasattr(value, "asDict"):  # a nested row
        return {name: to_json_value(each) for name, each in value.asDict().items()}
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _write(frame: DataFrame, target: SqlTarget, options: Mapping[str, str]) -> int:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation(f"openq-{uuid.uuid4().hex}")
    writer = frame.observe(seen, count(lit(1)).alias("rows")).write.options(**options)
    if target.kind == "queue":
        writer.format("openq").mode("append").save()
    else:
        writer.format(target.kind).mode("overwrite" if target.overwrite else "append").save(target.name)
    return int(seen.get["rows"])


@contextmanager
def explain_errors(statement: SqlStatement | None = None) -> Iterator[None]:
    """Errors of Spark as one sentence: that of an OpenQ error, or Spark's with its position in the
    statement."""
    from pyspark.errors import PySparkException

    try:
        yield
    except OpenQError:
        raise
    except PySparkException as error:
        ours = reason(error)
        if ours is not None:
            raise OpenQError(ours) from None
        text = str(error)
        found = SQL_POSITION.search(text)
        sentence = spark_sentence(text)
        if statement is None:
            raise SparkRefused(sentence) from None
        for source in statement.sources:
            sentence = sentence.replace(source.view, f"{source.mode}({', '.join(source.queues)})")
        if found is None:
            raise SparkRefused(sentence) from None
        lines = statement.query.split("\n")
        at = sum(len(line) + 1 for line in lines[: int(found[1]) - 1]) + int(found[2])
        raise SqlSyntaxError(statement.text, statement.original_position(at), sentence) from None


class SparkRefused(OpenQError):
    """Spark failed; the sentence is Spark's."""

    code = "spark_refused"
