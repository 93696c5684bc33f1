"""Files into a queue and a queue into files: Parquet, JSON, CSV, lines of text.

A load is one job: all rows are published atomically and once, also if it is killed and run again. An export
appears under its name when it is complete; with `drain` its messages are taken out of the queue.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting
from ..history.selection import Selection
from .calls import require_queue
from .options import as_options
from .session import ensure_session
from .sqljob import CREATE, explain_errors
from .streaming import ack_last_batch, run_stream
from .target import StrPath, moment_datetime

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from .session import Spark

FORMATS = ("parquet", "json", "csv", "text")
MARKER = "_openq.json"
CHECKPOINT = "_openq"
_SUFFIXES = {
    "parquet": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "txt": "text",
    "text": "text",
    "log": "text",
}
_COMPRESSIONS = ("gz", "zst", "bz2", "snappy", "lz4", "deflate")
_NESTED = ("struct<", "array<", "map<", "variant")
_POLL_S = 0.3

Tick = Callable[[int, int], None]  # tasks done, of how many


class NoSuchFile(InvalidSetting):
    code = "not_found"


# -- load ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LoadResult:
    job: str
    queue: str
    published: int
    rejected: int  # into the dead-letter queue `dlq`
    repeated: bool  # an earlier run of this job did all this

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load(
    spark: Spark,
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    to: str,
    *,
    url: str,
    token: str | None = None,
    format: str | None = None,
    body: str | None = None,
    id: str | None = None,
    group: str | None = None,
    priority: str | None = None,
    job: str | None = None,
    create: bool = False,
    dlq: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Tick | None = None,
) -> LoadResult:
    """Publish the rows of files to a queue, each as one message.

    `body` is the column with the body; without one it is the whole row as JSON (a line of JSON or text as it
    is). `id`, `group` and `priority` are columns too. Files that were loaded before are not published again:
    the name of the job is derived from them, their columns and the queue, unless `job` is given. Rows that
    the queue refuses go to `dlq`; without one nothing is published if there are any. `options` are for
    Spark's reader.
    """
    listed = list_files(files)
    format = format_of(listed, format)
    job = job or job_of(listed, (to, format, body, id, group, priority, *sorted((options or {}).items())))
    link = _link(url, token)
    try:
        # Drop what an earlier run uploaded and did not commit.
        left = link.call("DELETE", f"pipeline/stages/{job}/0").json()
        repeated = bool(left["committed"])
        if not repeated:
            sink: dict[str, Any] = {"url": url, "token": token, "queue": to, "jobId": job, "dlq": dlq}
            sink |= {"createQueue": create or None, "onError": "dlq" if dlq else None}
            if not create:
                for queue in filter(None, (to, dlq)):
                    require_queue(link, queue, CREATE)
            session = ensure_session(spark)
            with explain_errors(), report_progress(session, progress):
                frame = rows(session, listed, format, body, id, group, priority, options)
                frame.write.format("openq").options(**as_options(**sink)).mode("append").save()
        # Committing a published batch again returns its result.
        done = link.call("POST", f"pipeline/stages/{job}/0/commit", json={"parts": [], "rows": 0}).json()
    finally:
        link.close()
    return LoadResult(job, to, int(done["published"]), int(done["rejected"]), repeated)


def rows(
    spark: SparkSession,
    files: Sequence[str],
    format: str,
    body: str | None = None,
    id: str | None = None,
    group: str | None = None,
    priority: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The rows of files as columns of messages."""
    from pyspark.sql.functions import col, expr

    named = {"message_id": id, "group": group, "priority": priority}
    wanted = {name: column for name, column in named.items() if column is not None}
    columns: dict[str, Column]
    reader = spark.read.options(**(options or {}))
    if format == "text" or (format == "json" and body is None):
        # Unchanged lines: parsing and writing them would change numbers and the order of names.
        frame = reader.text(list(files))
        if format == "text":
            if body is not None or wanted:
                raise InvalidSetting("lines of text have no columns: leave body, id, group and priority out")
            return frame.select(col("value").alias("body"))
        frame = frame.where("trim(value) <> ''")
        checked = (
            "CASE WHEN try_parse_json(value) IS NOT NULL THEN value "
            "ELSE raise_error(concat('a line is not JSON: ', substr(value, 1, 60))) END"
        )
        columns = {"body": expr(checked)}
        for name, column in wanted.items():
            columns[name] = expr(f"get_json_object(value, {_sql_text(_json_path(column))})")
    else:
        if format == "csv":
            frame = reader.option("header", (options or {}).get("header", "true")).csv(list(files))
        else:
            frame = reader.format(format).load(list(files))
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        for asked in (body, *wanted.values()):
            if asked is not None and asked not in types:
                raise InvalidSetting(f"there is no column {asked!r}: there are {', '.join(types)}")
        if body is None:
            whole = "to_json(struct(*), map('ignoreNullFields', 'false'))"
            columns = {"body": expr(whole)}
        elif types[body].startswith(_NESTED):
            columns = {"body": expr(f"to_json({_sql_name(body)})")}
        else:
            plain = col(_sql_name(body))
            columns = {"body": plain if types[body] in ("string", "binary") else plain.cast("string")}
        columns |= {name: col(_sql_name(column)) for name, column in wanted.items()}
    for name in wanted:
        columns[name] = columns[name].cast("bigint" if name == "priority" else "string")
    return frame.select(*(column.alias(name) for name, column in columns.items()))


def list_files(files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[str]:
    """Absolute paths. Raises InvalidSetting for one that does not exist."""
    several = [files] if isinstance(files, str | os.PathLike) else files
    found: list[str] = []
    for each in several:
        path = os.fspath(each)
        if not is_remote(path):
            path = os.path.abspath(path)
            if not os.path.exists(path):
                raise NoSuchFile(f"{os.fspath(each)} does not exist")
        found.append(path)
    if not found:
        raise InvalidSetting("name at least one file or directory")
    return found


def format_of(files: Sequence[str], given: str | None = None) -> str:
    """The given format, or that of the file names."""
    if given is not None:
        if given not in FORMATS:
            raise InvalidSetting(f"format must be {', '.join(FORMATS)}, not {given!r}")
        return given
    formats = {_SUFFIXES.get(_suffix(name), "") for name in _leaves(files)}
    if len(formats) == 1 and (only := formats.pop()):
        return only
    raise InvalidSetting(f"the file names do not show the format: give it, one of {', '.join(FORMATS)}")


def job_of(files: Sequence[str], more: Sequence[object]) -> str:
    """The same name for the same files; a new one if the files are remote."""
    if any(is_remote(path) for path in files):
        return f"load-{uuid.uuid4().hex}"
    facts = []
    for path in _leaves(files):
        found = os.stat(path)
        facts.append((path, found.st_size, found.st_mtime_ns))
    text = json.dumps([sorted(facts), [str(each) for each in more]])
    return f"load-{hashlib.sha256(text.encode()).hexdigest()[:24]}"


def is_remote(path: str) -> bool:
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", path) is not None


def _leaves(files: Sequence[str]) -> Iterator[str]:
    for path in files:
        if is_remote(path) or not os.path.isdir(path):
            yield path
            continue
        for folder, inside, names in os.walk(path):
            # Spark does not read these.
            inside[:] = sorted(each for each in inside if each[0] not in "._")
            yield from (os.path.join(folder, name) for name in sorted(names) if name[0] not in "._")


def _suffix(path: str) -> str:
    parts = os.path.basename(path).lower().split(".")
    while len(parts) > 2 and parts[-1] in _COMPRESSIONS:
        parts.pop()
    return parts[-1] if len(parts) > 1 else ""


def _sql_name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _sql_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _json_path(name: str) -> str:
    if "'" in name or "]" in name:
        raise InvalidSetting(f"a line of JSON has no column {name!r}: name one without ' and ]")
    return f"$['{name}']"


# -- export -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExportResult:
    to: str
    format: str
    rows: int
    repeated: bool = False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def export(
    spark: Spark,
    queues: str | Sequence[str],
    to: str | os.PathLike[str],
    *,
    format: str = "parquet",
    since: Any = None,
    until: Any = None,
    path: StrPath | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: StrPath | None = None,
    columns: Sequence[str] | None = None,
    drain: bool = False,
    job: str | None = None,
    max_messages: int | None = None,
    options: Mapping[str, str] | None = None,
    progress: Tick | None = None,
) -> ExportResult:
    """Write messages of queues as files into the directory `to`, which is new or empty; the queues are only
    read.

    With `drain`, the messages that are ready in one queue now are taken out of it, into a directory that may
    have earlier drains of it: a message is acked when its file is durable. Under one name `job` an export is
    made once. In JSON and CSV a body is text, or `body_base64` if it is not text; the format text has only
    bodies.
    """
    if format not in FORMATS:
        raise InvalidSetting(f"format must be {', '.join(FORMATS)}, not {format!r}")
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names:
        raise InvalidSetting("name at least one queue")
    out = os.fspath(to)
    out = out if is_remote(out) else os.path.abspath(out)
    if drain:
        given = {"since": since, "until": until, "path": path, "archive": archive, "job": job}
        for name, value in given.items():
            if value is not None and name != "path":
                raise InvalidSetting(f"{name} does not go with drain, which takes all ready messages")
        if url is None:
            raise InvalidSetting("draining a queue needs its server: give url")
        return _drain(spark, names, out, format, url, token, columns, max_messages, options, progress)
    if max_messages is not None:
        raise InvalidSetting("max_messages is for drain")
    if job is not None and _marked(out).get("job") == job:
        return ExportResult(out, format, int(_marked(out).get("rows", 0)), True)
    _require_empty(out)
    wanted = _read_columns(columns, format)
    read = _reader(names, since, until, path=path, url=url, token=token, archive=archive)
    session = ensure_session(spark)
    with explain_errors(), report_progress(session, progress):
        has_body = columns is None or "body" in columns or format == "text"
        frame = read(session, columns=wanted, body=has_body)
        return _write_atomically(format_columns(frame, format), out, format, job, options)


def count(
    spark: Spark,
    queues: str | Sequence[str],
    *,
    drain: bool = False,
    url: str | None = None,
    token: str | None = None,
    since: Any = None,
    until: Any = None,
    **files: Any,
) -> int:
    """The number of messages that an export with the same arguments would write now."""
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if drain:
        from .calls import quoted

        if url is None:
            raise InvalidSetting("draining a queue needs its server: give url")
        with _link(url, token) as link:
            return int(link.call("GET", f"queues/{quoted(_only(names))}/stats").json()["ready"])
    read = _reader(names, since, until, url=url, token=token, **files)
    with explain_errors():
        return read(ensure_session(spark), columns=("seq",)).count()


def _reader(names: tuple[str, ...], since: Any, until: Any, **target: Any) -> Callable[..., DataFrame]:
    """`history` of these queues; the times are checked before Spark starts."""
    from .history import history

    first, end = moment_datetime(since, "since"), moment_datetime(until, "until")
    return partial(history, queues=names, since=first, until=end, **target)


def _only(names: tuple[str, ...]) -> str:
    if len(names) > 1 or set("*?") & set(names[0]):
        raise InvalidSetting("one queue can be drained at a time: its name without * and ?")
    return names[0]


def _write_atomically(
    frame: DataFrame, out: str, format: str, job: str | None, options: Mapping[str, str] | None
) -> ExportResult:
    """Written beside its target, and renamed to it."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    seen = Observation(f"openq-{uuid.uuid4().hex}")
    writer = frame.observe(seen, count(lit(1)).alias("rows")).write.format(format)
    writer = writer.options(**_file_options(format, options)).mode("errorifexists")
    if is_remote(out):
        writer.save(out)
        return ExportResult(out, format, int(seen.get["rows"]))
    part = f"{out}.part-{uuid.uuid4().hex[:8]}"
    try:
        writer.save(part)
        exported = ExportResult(out, format, int(seen.get["rows"]))
        _mark(part, {"job": job, "format": format, "rows": exported.rows})
        _require_empty(out)
        os.replace(part, out)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    return exported


def _drain(
    spark: Spark,
    names: tuple[str, ...],
    out: str,
    format: str,
    url: str,
    token: str | None,
    columns: Sequence[str] | None,
    max_messages: int | None,
    options: Mapping[str, str] | None,
    progress: Tick | None,
) -> ExportResult:
    queue = _only(names)
    with _link(url, token) as link:
        require_queue(link, queue)
    checkpoint = f"{out}/{CHECKPOINT}"
    mark = {"drains": queue, "format": format}
    if not is_remote(out):
        known = _marked(out)
        if known and known != mark:
            what = (
                f"queue {known['drains']!r} as {known['format']}" if "drains" in known else "another export"
            )
            raise InvalidSetting(f"{out} holds {what}: name another directory")
        if not known:
            _require_empty(out)
            os.makedirs(out, exist_ok=True)
            _mark(out, mark)
    read_columns = _read_columns(columns, format)
    session = ensure_session(spark)
    source = {
        "url": url,
        "token": token,
        "mode": "consume",
        "queue": queue,
        # The name of its batches: the same directory continues where it was.
        "subscription": f"export-{hashlib.sha256(out.encode()).hexdigest()[:16]}",
        "columns": read_columns,
        "maxMessagesPerTrigger": max_messages,
    }
    with explain_errors():
        frame = session.readStream.format("openq").options(**as_options(**source)).load()
        writing = {**_file_options(format, options), "path": out}
        ticked = None if progress is None else lambda done: progress(done, 0)
        count, _ = run_stream(format_columns(frame, format), format, writing, checkpoint, progress=ticked)
    if not is_remote(out):
        ack_last_batch(checkpoint, url, token)
    return ExportResult(out, format, count)


def _read_columns(columns: Sequence[str] | None, format: str) -> Sequence[str] | None:
    """The columns to read. Raises InvalidSetting for one that messages do not have."""
    if format == "text":
        if columns is not None:
            raise InvalidSetting("the format text has only bodies: leave columns out")
        return ("body",)
    if columns is not None:
        Selection(columns=tuple(columns)).validate()
    return columns


def format_columns(frame: DataFrame, format: str) -> DataFrame:
    """Columns as a format supports them: bodies as text, maps as JSON in CSV."""
    from pyspark.sql.functions import col, expr

    if format == "parquet":
        return frame
    text = "CAST(body AS STRING)"
    if format == "text":
        return frame.select(expr(text).alias("value"))
    columns: list[Column] = []
    for field in frame.schema.fields:
        name, kind = field.name, field.dataType.simpleString()
        if name == "body":
            columns.append(expr(f"CASE WHEN is_valid_utf8({text}) THEN {text} END").alias("body"))
            columns.append(
                expr(f"CASE WHEN NOT is_valid_utf8({text}) THEN base64(body) END").alias("body_base64")
            )
        elif kind == "binary":
            columns.append(expr(f"lower(hex({_sql_name(name)}))").alias(name))
        elif format == "csv" and kind.startswith(_NESTED):
            columns.append(expr(f"to_json({_sql_name(name)})").alias(name))
        else:
            columns.append(col(_sql_name(name)))
    return frame.select(*columns)


def _file_options(format: str, options: Mapping[str, str] | None) -> dict[str, str]:
    defaults = {"parquet": {"compression": "zstd"}, "csv": {"header": "true", "escape": '"'}}.get(format, {})
    return {**defaults, **(options or {})}


def _require_empty(out: str) -> None:
    if is_remote(out):
        return  # Spark checks that itself
    if os.path.lexists(out) and (not os.path.isdir(out) or os.listdir(out)):
        raise InvalidSetting(f"{out} exists already: name a directory that is new or empty")
    os.makedirs(os.path.dirname(out), exist_ok=True)


def _marked(out: str) -> dict[str, Any]:
    try:
        with open(os.path.join(out, MARKER), encoding="utf-8") as file:
            found = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except ValueError:
        raise InvalidSetting(f"{out} holds a damaged {MARKER}: name another directory") from None
    return found if isinstance(found, dict) else {}


def _mark(out: str, facts: Mapping[str, Any]) -> None:
    with open(os.path.join(out, MARKER), "w", encoding="utf-8") as file:
        json.dump(facts, file)


# -- while it runs ------------------------------------------------------------------------------------


@contextmanager
def report_progress(spark: SparkSession, tick: Tick | None) -> Iterator[None]:
    """Report how many tasks are done, of those that Spark knows so far."""
    if tick is None or "connect" in type(spark).__module__:
        yield
        return
    over = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def look() -> None:
        while not over.wait(_POLL_S):
            stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                tick(sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known))

    watcher = threading.Thread(target=look, daemon=True, name="openq-progress")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _link(url: str, token: str | None) -> Any:
    from .calls import link_of
    from .options import WRITE, SourceOptions

    return link_of(SourceOptions.parse(as_options(url=url, token=token), WRITE))
