"""A pipeline in one statement of SQL: queues stand where tables stand, and Spark does the rest.

    INSERT INTO queue(b) SELECT body FROM stream(queue(a)) WHERE length(body) > 0

Only the words below are ours; everything else is Spark's SQL and goes there as it is.

    queue(a)            the history of a queue, up to now; names or patterns: queue(a, 'b.*')
    events(a)           what happened to its messages
    stream(queue(a))    the same as a stream: each run goes on where the last one ended
    consume(queue(a))   takes what waits in the queue, and acks it when the result is safe
    queue(b), parquet('dir'), json('dir'), csv('dir')     where INSERT INTO may write to
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError
from .options import as_options
from .session import ensure_session, reason
from .target import moment_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from .session import Spark

BATCH, STREAM, CONSUME = "batch", "stream", "consume"
CREATE = "create it, or say so: --create (create=True)"
FORMATS = ("parquet", "json", "csv")
_TABLES = {"queue": "messages", "events": "events"}
_WORDS = (*_TABLES, STREAM, CONSUME)
_BEFORE_TABLE = {"from", "join", ",", "table"}
_POLL_S = 0.1


class SqlSyntaxError(InvalidSetting):
    """A statement that cannot be followed; `at` is the place of the mistake in it."""

    code = "usage"

    def __init__(self, text: str, at: int, why: str) -> None:
        line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
        where = f"column {column}" if "\n" not in text.strip() else f"line {line}, column {column}"
        super().__init__(f"{where}: {why}")
        self.at = at
        self.line, self.column = line, column


# -- the statement ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SqlSource:
    """Queues where a table is wanted; `view` is what stands there instead."""

    table: str
    mode: str
    queues: tuple[str, ...]
    view: str


@dataclass(frozen=True)
class SqlTarget:
    kind: str  # "queue" or a format of files
    name: str
    overwrite: bool = False

    def __str__(self) -> str:
        return f"queue {self.name}" if self.kind == "queue" else f"{self.kind} files in {self.name}"


@dataclass(frozen=True)
class SqlStatement:
    text: str
    target: SqlTarget | None
    query: str  # for Spark
    sources: tuple[SqlSource, ...]
    shifts: tuple[tuple[int, int], ...]  # from these places in `query` on: the same place in `text`

    @property
    def is_stream(self) -> bool:
        return any(source.mode != BATCH for source in self.sources)

    @property
    def subscription_queues(self) -> tuple[str, ...]:
        return tuple(source.queues[0] for source in self.sources if source.mode == CONSUME)

    def original_position(self, at: int) -> int:
        """From a place in `query` to the place in `text`."""
        known = [(start, original) for start, original in self.shifts if start <= at]
        start, original = known[-1] if known else (0, 0)
        return min(original + at - start, len(self.text))

    def key(self, *more: str) -> str:
        """The same for the same statement, however it is laid out."""
        parts = [token.text for token in _tokens(self.text) if token.text != ";"]
        return hashlib.sha256("\0".join((*parts, *more)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Token:
    kind: str  # word, text, name, sign
    text: str
    at: int

    @property
    def end(self) -> int:
        return self.at + len(self.text)

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*.*?\*/)
    |(?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    |(?P<name>`(?:[^`]|``)*`)
    |(?P<word>\w+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None
        assert found.lastgroup is not None
        if found.lastgroup == "sign" and found[0] in "'\"`":
            raise SqlSyntaxError(text, at, f"the {found[0]} here is never closed")
        if found.lastgroup == "sign" and text.startswith("/*", at):
            raise SqlSyntaxError(text, at, "the comment here is never closed")
        if found.lastgroup != "space":
            yield _Token(found.lastgroup, found[0], at)
        at = found.end()


def parse(text: str) -> SqlStatement:
    """Raises SqlMistake, which says where."""
    return _Parser(text).statement()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        while self._tokens and self._tokens[-1].text == ";":
            self._tokens.pop()
        if not self._tokens:
            raise SqlSyntaxError(
                text, 0, "there is no statement: say INSERT INTO queue(b) SELECT ... or SELECT ..."
            )
        self._sources: list[SqlSource] = []

    def statement(self) -> SqlStatement:
        tokens = self._tokens
        for token in tokens:
            if token.text == ";" and token.kind == "sign":
                raise self._wrong(token, "one statement at a time: nothing may follow the semicolon")
        target, at = None, 0
        if tokens[0].is_word("insert"):
            target, at = self._target()
        first = tokens[at] if at < len(tokens) else None
        if first is None or not (
            first.is_word("select", "with", "from", "values", "table") or first.text == "("
        ):
            what = "a query (SELECT ...) is wanted" + (" after the target" if target else "")
            raise self._wrong(first, what if target else f"{what}, or INSERT INTO ...")
        query, shifts = self._query(at)
        made = SqlStatement(self._text, target, query, tuple(self._sources), shifts)
        if made.is_stream and target is None:
            raise self._wrong(
                tokens[0], "a stream has no end to show: say where it goes, INSERT INTO queue(b)"
            )
        if made.is_stream and target is not None and target.overwrite:
            raise self._wrong(tokens[1], "a stream only adds: say INSERT INTO")
        if target is not None and target.kind == "queue":
            for source in self._sources:
                if source.mode != BATCH and source.table == "messages" and target.name in source.queues:
                    raise self._wrong(
                        tokens[0], f"queue {target.name!r} is read and written: its results would come again"
                    )
        return made

    def _target(self) -> tuple[SqlTarget, int]:
        tokens = self._tokens
        if len(tokens) < 2 or not tokens[1].is_word("into", "overwrite"):
            raise self._wrong(tokens[1] if len(tokens) > 1 else None, "INTO is wanted after INSERT")
        kinds = ("queue", *FORMATS)
        word = tokens[2] if len(tokens) > 2 else None
        if word is None or not word.is_word(*kinds):
            raise self._wrong(
                word, "INSERT INTO writes to queue(NAME), parquet('DIR'), json('DIR') or csv('DIR')"
            )
        names, at = self._names(3, word)
        if len(names) != 1:
            raise self._wrong(word, f"{word.text} takes one name here")
        kind = word.text.lower()
        overwrite = tokens[1].is_word("overwrite")
        if kind == "queue" and overwrite:
            raise self._wrong(
                tokens[1], "a queue cannot be overwritten: say INSERT INTO; to empty it, purge it"
            )
        if kind == "queue" and set("*?") & set(names[0]):
            raise self._wrong(word, "messages go to one queue: its name without * and ?")
        return SqlTarget(kind, names[0], overwrite), at

    def _query(self, at: int) -> tuple[str, tuple[tuple[int, int], ...]]:
        tokens = self._tokens
        done = tokens[at].at
        made: list[str] = []
        length = 0
        shifts = [(0, done)]
        before: _Token | None = None
        is_table_list = False
        while at < len(tokens):
            token = tokens[at]
            opens = at + 1 < len(tokens) and tokens[at + 1].text == "("
            if token.is_word(*_WORDS) and opens and not (before is not None and before.text == "."):
                if before is None or not (
                    before.is_word(*_BEFORE_TABLE) or (before.text == "," and is_table_list)
                ):
                    raise self._wrong(token, f"{token.text}(...) is a table: it stands after FROM or JOIN")
                source, at = self._source(at)
                piece = self._text[done : token.at] + source.view
                made.append(piece)
                length += len(piece)
                done = tokens[at - 1].end
                shifts.append((length, done))
                before = tokens[at - 1]
                continue
            if opens and before is not None and before.is_word("from", "join") and token.kind == "word":
                near = _near(token.text)
                if near is not None:
                    raise self._wrong(token, f"there is no {token.text}(...): did you mean {near}(...)?")
            if token.is_word("from"):
                is_table_list = True
            elif token.is_word("where", "group", "order", "having", "limit", "select", "on", "using"):
                is_table_list = False
            before = token
            at += 1
        made.append(self._text[done : tokens[-1].end])
        return "".join(made), tuple(shifts)

    def _source(self, at: int) -> tuple[SqlSource, int]:
        word = self._tokens[at]
        mode = word.text.lower()
        if mode in _TABLES:
            names, after = self._names(at + 1, word)
            return self._add(_TABLES[mode], BATCH, names), after
        inner = self._tokens[at + 2] if at + 2 < len(self._tokens) else None
        allowed = ("queue",) if mode == CONSUME else tuple(_TABLES)
        if inner is None or not inner.is_word(*allowed):
            wanted = " or ".join(f"{mode}({each}(NAME))" for each in allowed)
            raise self._wrong(inner, f"{wanted} is wanted")
        names, after = self._names(at + 3, inner)
        if after >= len(self._tokens) or self._tokens[after].text != ")":
            raise self._wrong(
                self._tokens[after] if after < len(self._tokens) else None,
                f"{word.text}( is not closed: ) is wanted",
            )
        if mode == CONSUME and (len(names) > 1 or set("*?") & set(names[0])):
            raise self._wrong(inner, "messages are consumed from one queue: its name without * and ?")
        return self._add(_TABLES[inner.text.lower()], mode, names), after + 1

    def _add(self, table: str, mode: str, queues: tuple[str, ...]) -> SqlSource:
        for known in self._sources:
            if (known.table, known.mode, known.queues) == (table, mode, queues) and mode == BATCH:
                return known  # one snapshot for both
        source = SqlSource(table, mode, queues, f"openq_{mode}_{len(self._sources) + 1}")
        self._sources.append(source)
        return source

    def _names(self, at: int, word: _Token) -> tuple[tuple[str, ...], int]:
        """(a, 'b c', d.*): the names, and where they end. Names with dots and dashes need no quotes."""
        tokens = self._tokens
        if at >= len(tokens) or tokens[at].text != "(":
            raise self._wrong(tokens[at] if at < len(tokens) else None, f"( is wanted after {word.text}")
        names: list[str] = []
        while True:
            at += 1
            start = tokens[at] if at < len(tokens) else None
            if start is not None and start.kind in ("text", "name"):
                names.append(_unquoted(start.text))
                at += 1
            else:
                first = at
                while at < len(tokens) and (tokens[at].kind == "word" or tokens[at].text in ".-*?:/@"):
                    if at > first and tokens[at].at != tokens[at - 1].end:
                        raise self._wrong(tokens[at], "a name with a space in it needs quotes")
                    at += 1
                if at > first:
                    names.append(self._text[tokens[first].at : tokens[at - 1].end])
            if start is None or at >= len(tokens):
                raise self._wrong(None, f"{word.text}( is not closed: ) is wanted")
            if not names or not names[-1] or tokens[at].text not in (",", ")"):
                raise self._wrong(
                    tokens[at], f"{word.text}(...) wants a name, in quotes if it is an unusual one"
                )
            if tokens[at].text == ")":
                return tuple(dict.fromkeys(names)), at + 1

    def _wrong(self, token: _Token | None, why: str) -> SqlSyntaxError:
        at = token.at if token is not None else len(self._text.rstrip())
        return SqlSyntaxError(self._text, at, why)


def _unquoted(text: str) -> str:
    sign, inner = text[0], text[1:-1]
    inner = inner.replace(sign * 2, sign)
    return inner if sign == "`" else re.sub(r"\\(.)", r"\1", inner)


def _near(word: str) -> str | None:
    from difflib import get_close_matches

    # Spark has functions that make tables, such as range(10): those are none of our business.
    return next(iter(get_close_matches(word.lower(), _WORDS, 1, 0.75)), None)


# -- running it ---------------------------------------------------------------------------------------


@dataclass
class SqlResult:
    """What a statement did. `rows` went in (a stream) or out (a batch); None where nobody counted."""

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
    path: str | os.PathLike[str] | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: str | os.PathLike[str] | None = None,
    since: Any = None,
    until: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    continuous: bool = False,
    job: str | None = None,
    create: bool = False,
    max_messages: int | None = None,
    progress: Callable[[int], None] | None = None,
    options: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> SqlResult:
    """Run one statement. Without INSERT its rows are in `frame`.

    Streams end when they have all that was there (`continuous`: never) and go on from `checkpoint` the next
    time; by default that is a directory named after the statement. `since` and `until` bound what is read.
    `job` names a batch that writes to a queue: under the same name it is published once. `create` makes
    the target queue; `max_messages` is for each micro-batch; `options` go to the writer of files.
    `dry_run` only lets Spark check the statement.
    """
    statement = parse(text) if isinstance(text, str) else text
    target = statement.target
    if path is None and url is None:
        raise InvalidSetting("say where the queues are: url (a server) or path (its data directory)")
    if url is None and ((target is not None and target.kind == "queue") or statement.subscription_queues):
        raise InvalidSetting("to publish and to consume needs a server: give url")
    if statement.is_stream and until is not None:
        raise InvalidSetting("until is for history: a stream reads on")
    if not statement.is_stream and (continuous or checkpoint is not None):
        what = "continuous" if continuous else "checkpoint"
        raise InvalidSetting(f"{what} is for streams, and this reads history: FROM stream(queue(...))")
    if statement.is_stream and job is not None:
        raise InvalidSetting("a stream is known by its checkpoint: leave job out")
    place = {
        "path": None if path is None else os.fspath(path),
        "url": url,
        "token": token,
        "archive": None if archive is None else os.fspath(archive),
    }
    write = {} if target is None else _writer_options(target, url, token, job, create, options)
    if url is not None:
        _require_queues(statement, as_options(url=url, token=token), create)
    first, end = parse_moment(since, "since"), parse_moment(until, "until")
    session = ensure_session(spark)
    with _views(session, statement, place, first, end, max_messages), explain_errors(statement):
        frame = session.sql(statement.query)
        if target is None:
            return SqlResult(None, None, frame=frame)
        if target.kind == "queue":
            check_sink_columns(frame, write)
        if dry_run:
            return SqlResult(target, None, frame=frame)
        if not statement.is_stream:
            return SqlResult(target, _write(frame, target, write))
        where = os.fspath(checkpoint or checkpoint_of(statement, place["path"], url))
        where = where if "://" in where else os.path.abspath(where)
        kind = "openq" if target.kind == "queue" else target.kind
        if kind != "openq":
            write["path"] = target.name
        rows, batches = run_stream(frame, kind, write, where, continuous=continuous, progress=progress)
        if statement.subscription_queues and url is not None:
            ack_last_batch(where, url, token)
        return SqlResult(target, rows, where, batches)


def _require_queues(statement: SqlStatement, server: Mapping[str, str], create: bool) -> None:
    """Queues that are consumed from and published to must be there before Spark starts."""
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
    """Where a statement keeps how far it is: the same place for the same words about the same server."""
    root = os.path.join(path, "pipelines") if path is not None else "openq-pipelines"
    return os.path.join(root, statement.key(url or ""))


@contextmanager
def _views(
    spark: SparkSession,
    statement: SqlStatement,
    place: Mapping[str, str | None],
    since: Any,
    until: Any,
    max_messages: int | None,
) -> Iterator[None]:
    made: list[str] = []
    try:
        for source in statement.sources:
            if source.mode == BATCH:
                frame = _history(spark, statement, source, place, since, until)
            else:
                told = _stream_options(statement, source, place, since, max_messages)
                frame = spark.readStream.format("openq").options(**told).load()
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
    place: Mapping[str, str | None],
    since: Any,
    until: Any,
) -> DataFrame:
    from .history import history

    return history(
        spark,
        **place,  # type: ignore[arg-type]
        table=source.table,
        queues=source.queues,
        since=since,
        until=until,
        body=_body(statement, source),
    )


def _stream_options(
    statement: SqlStatement,
    source: SqlSource,
    place: Mapping[str, str | None],
    since: Any,
    max_messages: int | None,
) -> dict[str, str]:
    told: dict[str, Any] = {"maxMessagesPerTrigger": max_messages, "body": _body(statement, source)}
    if source.mode == CONSUME:
        if since is not None:
            raise InvalidSetting("since is for history and streams of it: consume takes what waits")
        number = statement.sources.index(source)
        told |= {"url": place["url"], "token": place["token"], "mode": "consume", "queue": source.queues[0]}
        told["subscription"] = f"sql-{statement.key()}" + (f"-{number}" if number else "")
    else:
        us = moment_us(since, "since")
        told |= {**place, "table": source.table, "queues": source.queues}
        told["startingTimestamp"] = None if us is None else us // 1000
    return as_options(**told)


def parse_moment(told: Any, name: str) -> datetime | None:
    us = moment_us(told, name)
    return None if us is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)


def _body(statement: SqlStatement, source: SqlSource) -> str:
    """Bodies are most of the bytes, and Spark prunes no columns of a source like ours: only if asked for."""
    if source.table != "messages":
        return "true"
    words = {token.text.lower().strip("`") for token in _tokens(statement.query)}
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
    told = as_options(url=url, token=token, queue=target.name, jobId=job, createQueue=create or None)
    return {**told, **(options or {})}


def check_sink_columns(frame: DataFrame, options: Mapping[str, str]) -> None:
    """What the sink would refuse, before anything runs."""
    from .options import WRITE, SourceOptions
    from .sink import SinkTarget, columns_of

    columns_of(frame.schema, SinkTarget(SourceOptions.parse(options, WRITE)))


def to_json_value(value: Any) -> Any:
    """A value of a row as JSON knows it; bytes as text where they are text."""
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            import base64

            return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(to_json_value(key)): to_json_value(each) for key, each in value.items()}
    if hasattr(value, "asDict"):  # a row within a row
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


def run_stream(
    frame: DataFrame,
    kind: str,
    options: Mapping[str, str],
    checkpoint: str,
    *,
    continuous: bool = False,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, int]:
    """Run a stream to its end, or until somebody interrupts it; how many rows and batches went through."""
    writer = frame.writeStream.format(kind).options(**options).option("checkpointLocation", checkpoint)
    if not continuous:
        writer = writer.trigger(availableNow=True)
    query = writer.start()
    rows: dict[int, int] = {}

    def look() -> None:
        for each in query.recentProgress:
            rows[each.batchId] = max(each.numInputRows, rows.get(each.batchId, 0))
        if progress is not None:
            progress(sum(rows.values()))

    try:
        while not query.awaitTermination(_POLL_S):  # type: ignore[arg-type]
            look()
    except KeyboardInterrupt:
        query.stop()
        if not continuous:
            raise
    except BaseException:
        query.stop()
        raise
    look()
    return sum(rows.values()), sum(1 for count in rows.values() if count)


def ack_last_batch(checkpoint: str, url: str, token: str | None = None) -> None:
    """Ack the last batch of a stream that consumed, and is over; nothing if there never was one."""
    from .closer import close_stream

    if not os.path.isdir(os.path.join(checkpoint, "commits")):
        return
    close_stream(checkpoint, url, token)


_SQL_POSITION = re.compile(r"[;,]?\s*\(?line (\d+),? pos (\d+)\)?;?")


@contextmanager
def explain_errors(statement: SqlStatement | None = None) -> Iterator[None]:
    """What Spark raises as one sentence: ours, or Spark's with the place in the statement."""
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
        found = _SQL_POSITION.search(text)
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
    """Spark did not do it; the sentence is Spark's."""

    code = "spark_refused"


def spark_sentence(text: str) -> str:
    """The first sentence of an error of Spark, without its class, its state and the plan behind it."""
    raised = re.search(r"\[USER_RAISED_EXCEPTION\]\s+(.+?)\s+SQLSTATE", text, re.DOTALL)
    if raised:
        return raised[1].strip()
    kept = [
        line.strip()
        for line in text.split("\n")
        if line.strip() and not line.startswith(("JVM stacktrace", "==", "\tat "))
    ]
    first = kept[0] if kept else "Spark failed and said nothing"
    first = re.sub(r"^\[[A-Z_0-9.]+\]\s*", "", first)
    first = re.sub(r"\s*SQLSTATE:? \w+", "", first)
    return _SQL_POSITION.sub("", first).strip().rstrip(";")[:600]
