"""`history(spark, ...)`: archive and journal as one DataFrame, the archive read by Spark's own Parquet scan.

The same rows as `format("openq")`, but faster: Spark prunes columns of the archive's files and pushes filters
into them, and only rows that are not archived yet are read by OpenQ. The call fixes the end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..history.moments import to_datetime
from .options import READ, SourceOptions, as_options, moment_us

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from ..history.archive import ArchiveFile
    from ..history.local import LocalHistory
    from ..history.selection import Selection
    from .remote_history import RemoteHistory

Moment = datetime | float | str

# A short tail is read here and sent along: Python tasks would take longer to start than to read it.
TAIL_BYTES = 8 << 20
MANY_IDS = 500  # more of them are joined with


def history(
    spark: SparkSession,
    *,
    path: str | os.PathLike[str] | None = None,
    url: str | None = None,
    archive: str | os.PathLike[str] | None = None,
    table: str = "messages",
    queues: str | Iterable[str] | None = (),
    since: Moment | None = None,
    until: Moment | None = None,
    ids: Iterable[str] | None = (),
    events: Iterable[str] | None = (),
    first_position: int | None = None,
    end_position: int | None = None,
    as_of: int | datetime | str | None = None,
    columns: Sequence[str] | None = None,
    body: bool | str = True,
    token: str | None = None,
    fail_on_data_loss: bool = True,
    opened: LocalHistory | RemoteHistory | None = None,
) -> DataFrame:
    """The history of a server's queues, `messages` or `events`, up to now.

    `path` is the server's data directory and `archive` its archive, if it is not in there; the executors must
    see both. With `url` alone everything comes from the server. `queues` are names or patterns with * and ?,
    `since` is included and `until` is not, `body` is true, false or "json" (adds `body_json`, a VARIANT).
    `as_of` is a version of the archive, or a time: what was archived then, and nothing else. Jobs that read
    several times pass the history that they have `opened`.
    """
    given = as_options(
        path=None if path is None else os.fspath(path),
        url=url,
        archive=None if archive is None else os.fspath(archive),
        token=token,
        table=table,
        queues=[queues] if isinstance(queues, str) else queues,
        messageIds=ids,
        events=events,
        startingPosition=first_position,
        endingPosition=end_position,
        asOf=as_of,
        columns=columns,
        body=body,
        failOnDataLoss=fail_on_data_loss,
    )
    for name, moment in (("startingTimestamp", since), ("endingTimestamp", until)):
        if moment is not None:
            given[name] = to_datetime(moment_us(moment, name)).isoformat()
    options = SourceOptions.parse(given, READ)
    if options.token is not None:
        given["token"] = options.token
    is_connected = "connect" in type(spark).__module__
    if is_connected:
        # The Spark server has the files, not this process: it plans by itself.
        return spark.read.format("openq").options(**given).load()

    from .source import check_queues, is_local, open_history

    source = open_history(options) if opened is None else opened
    check_queues(source, options)
    if not is_local(source):
        if as_of is None:
            end = source.end_position()
            given["endingPosition"] = str(end if end_position is None else min(end, end_position))
        return spark.read.format("openq").options(**given).load()
    return _archive_and_journal(spark, options, given, source)


def _archive_and_journal(
    spark: SparkSession, options: SourceOptions, given: dict[str, str], source: LocalHistory
) -> DataFrame:
    from .source import JSON_COLUMN, check_gap

    selection = options.selection()
    wanted = selection.names
    if options.body == "json" and "body" not in wanted:
        selection = replace(selection, columns=(*wanted, "body"))
    as_of = options.value("asOf")
    manifest = source.archive.latest() if as_of is None else source.archive.at(as_of)
    parts: list[DataFrame] = []
    first = selection.first_position
    if manifest is not None:
        files = manifest.pick(selection)
        if files:
            parts.append(_scan_archive(spark, source, files, selection))
        # From its end on: rows that are archived meanwhile are found there by their position.
        first = max(manifest.through, first or 0)
    if as_of is None:
        tail = replace(selection, first_position=first)
        if tail.end_position is None or first is None or first < tail.end_position:
            snapshot = source.snapshot(tail)
            check_gap(snapshot, options)
            size = sum(piece.bytes for piece in snapshot.pieces)
            if size > TAIL_BYTES:
                tail_options = {**given, "endingPosition": str(snapshot.end_position), "body": "true"}
                tail_options["columns"] = as_options(columns=selection.names)["columns"]
                if first is not None:
                    tail_options["startingPosition"] = str(first)
                parts.append(spark.read.format("openq").options(**tail_options).load())
            else:
                rows = _rows(source, snapshot.pieces, tail)
                if rows.num_rows or not parts:
                    parts.append(_frame(spark, rows, selection))
    if not parts:
        parts.append(_frame(spark, _rows(source, (), selection), selection))
    frame = parts[0]
    for part in parts[1:]:
        frame = frame.unionByName(part)
    if options.body != "json":
        return frame
    from pyspark.sql.functions import expr

    return frame.withColumn(JSON_COLUMN, expr("try_parse_json(CAST(body AS STRING))")).select(
        *wanted, JSON_COLUMN
    )


def _scan_archive(
    spark: SparkSession, source: LocalHistory, files: Sequence[ArchiveFile], selection: Selection
) -> DataFrame:
    """Spark's own scan of exactly these files."""
    from .source import spark_schema

    # With "file:": on a cluster a bare path may be on another file system. Globs are escaped.
    paths = [
        "file:" + re.sub(r"([\\*?\[\]{}])", r"\\\1", os.path.join(source.archive_path, file.path))
        for file in files
    ]
    frame = spark.read.schema(spark_schema(selection.table, selection.read_columns)).parquet(*paths)
    for condition in spark_conditions(selection):
        frame = frame.where(condition)
    if len(selection.ids) > MANY_IDS:
        from pyspark.sql.functions import broadcast

        listed = spark.createDataFrame([(each,) for each in selection.ids], "message_id STRING")
        frame = frame.join(broadcast(listed), "message_id", "left_semi")
    return frame.select(*selection.names)


def spark_conditions(selection: Selection) -> list[Column]:
    """A selection as conditions of Spark, except for long lists of ids."""
    from pyspark.sql.functions import col, lit, timestamp_micros

    found: list[Column] = []
    if selection.queues:
        names = [each for each in selection.queues if not set("*?") & set(each)]
        patterns = [each for each in selection.queues if each not in names]
        condition = col("queue").isin(names) if names else lit(False)
        for pattern in patterns:
            condition = condition | col("queue").rlike(_regex(pattern))
        found.append(condition)
    if selection.since_us is not None:
        found.append(col("ts") >= timestamp_micros(lit(selection.since_us)))
    if selection.until_us is not None:
        found.append(col("ts") < timestamp_micros(lit(selection.until_us)))
    for name, low, high in (
        ("seq", selection.first_seq, _exclusive(selection.last_seq)),
        ("position", selection.first_position, selection.end_position),
    ):
        if low is not None:
            found.append(col(name) >= low)
        if high is not None:
            found.append(col(name) < high)
    if 0 < len(selection.ids) <= MANY_IDS:
        found.append(col("message_id").isin(list(selection.ids)))
    if selection.events:
        found.append(col("event").isin(list(selection.events)))
    return found


def _exclusive(number: int | None) -> int | None:
    return None if number is None else number + 1


def _regex(pattern: str) -> str:
    """A pattern with * and ? as a regular expression of Java, where re.escape would not be right."""
    words = {"*": ".*", "?": "."}
    return "(?s)^" + "".join(words.get(c, c if re.match(r"[\w-]", c) else f"\\{c}") for c in pattern) + "$"


def _rows(source: LocalHistory, pieces: Iterable[Any], selection: Selection) -> Any:
    import pyarrow as pa

    from ..history.schema import arrow_schema

    schema = arrow_schema(selection.table, selection.names)
    batches = [batch.cast(schema) for batch in source.read_many(pieces, selection)]
    return pa.Table.from_batches(batches, schema)


def _frame(spark: SparkSession, rows: Any, selection: Selection) -> DataFrame:
    from .source import spark_schema

    # Spark cannot make a frame of an Arrow table with maps and without rows.
    return spark.createDataFrame(rows if len(rows) else [], spark_schema(selection.table, selection.names))
