"""What redrive and replay share: the history they choose from, the server they act on, and SQL of users.

A job reads by path or from the server, and always acts through the server. Conditions are Spark's SQL;
bodies are only read where one of them speaks of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError
from ..history.selection import Selection
from .calls import quoted
from .link import Link
from .options import READ, SourceOptions, as_options
from .session import reason

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ..history.local import LocalHistory
    from .remote_history import RemoteHistory
    from .sink import SinkTarget

BODIES = ("body", "body_json", "body_sha256")
REPLAY_OF, REPLAY_COUNT = "openq.replay_of", "openq.replay_count"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ATTRIBUTES = "MAP<STRING, STRUCT<type: STRING, string: STRING, binary: BINARY>>"

StrPath = str | os.PathLike[str]


class ResendContext:
    """Where a job reads, and the server on which it acts (`url`); without a `path` it reads there too."""

    def __init__(
        self,
        path: StrPath | None = None,
        url: str | None = None,
        token: str | None = None,
        archive: StrPath | None = None,
    ) -> None:
        if path is None and url is None and archive is None:
            raise InvalidSetting("say where the history is: path (a data directory) or url (a server)")
        self.url = url
        self.token = token
        self.reading: dict[str, Any] = {}
        if path is not None or archive is not None:
            given = {"path": path, "archive": archive}
            self.reading = {name: os.fspath(value) for name, value in given.items() if value is not None}
        else:
            self.reading = {"url": url, **({} if token is None else {"token": token})}
        self._link: Link | None = None

    @property
    def link(self) -> Link:
        if self._link is None:
            if self.url is None:
                raise InvalidSetting("this needs a running server: name its url")
            self._link = Link(self.url, self.token)
        return self._link

    def __enter__(self) -> ResendContext:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._link is not None:
            self._link.close()

    def open(self) -> LocalHistory | RemoteHistory:
        from .source import open_history

        return open_history(SourceOptions.parse(as_options(**self.reading), READ))

    def require(self, queues: Sequence[str]) -> None:
        """Raises QueueNotFound if a queue that is named, not matched by a pattern, never existed."""
        from .source import check_queues

        check_queues(self.open(), SourceOptions.parse(as_options(**self.reading, queues=queues), READ))

    def end(self) -> tuple[int, str]:
        """How far the history reaches, and which journal it is of."""
        history = self.open()
        position = history.end_position()
        return position, history.snapshot(Selection(columns=("seq",), first_position=position)).journal

    def check_same_journal(self) -> None:
        """Raises InvalidSetting if the server's journal is not the one that is read: ids differ."""
        if "url" in self.reading:
            return
        from .remote_history import RemoteHistory

        remote = RemoteHistory("", link=self.link)
        position = remote.end_position()
        theirs = remote.snapshot(Selection(columns=("seq",), first_position=position)).journal
        if theirs != self.end()[1]:
            raise InvalidSetting(
                f"the server {self.link.url} does not work on {self.reading.get('path') or 'that history'}: "
                "name the server of these data as url"
            )
        # Executors that do not see the path may ask the server, then.
        self.reading |= {"url": self.url, **({} if self.token is None else {"token": self.token})}

    def reader(self, spark: SparkSession, end_position: int) -> Callable[..., DataFrame]:
        """A function that takes the words of `history`, up to a position."""
        from .history import history

        def read(**words: Any) -> DataFrame:
            return history(spark, **{**self.reading, "end_position": end_position, **words})

        return read

    def settings(self, queue: str) -> dict[str, Any]:
        """Of a queue of the server. Raises Refused if it does not exist."""
        found: dict[str, Any] = self.link.call("GET", f"queues/{quoted(queue)}").json()["settings"]
        return found


def to_datetime(us: int | None) -> datetime | None:
    return None if us is None else _EPOCH + timedelta(microseconds=us)


# -- SQL of users ----------------------------------------------------------------------------------------


@contextmanager
def user_sql_errors(what: str = "") -> Iterator[None]:
    """What Spark says to a user's SQL, or an error of ours inside of Spark, in one sentence."""
    from pyspark.errors import AnalysisException, PySparkException

    try:
        yield
    except OpenQError:
        raise
    except AnalysisException as error:
        raise InvalidSetting(f"{what}{spark_message(error)}") from None
    except Exception as error:
        sentence = reason(error)
        if sentence is not None:
            raise OpenQError(sentence) from None
        if isinstance(error, PySparkException):
            raise OpenQError(f"{what}{spark_message(error)}") from None
        raise


def spark_message(error: BaseException) -> str:
    """The sentence of one of Spark's errors, without its code, plan and stack trace."""
    text = str(error).strip()
    found = re.search(r"\[[A-Z0-9_.]+\]\s*([^\n]*)", text)
    line = found[1] if found else text.partition("\n")[0]
    return re.sub(r"\s*(SQLSTATE: \w+;?|;?\s*line \d+ pos \d+;?)\s*", " ", line).strip().rstrip(";")


def mentions(sql: str | None, columns: Iterable[str]) -> bool:
    """Whether one of these words is in it. One that only looks like a column costs time, nothing else."""
    words = {word.lower() for word in re.findall(r"\w+", sql or "")}
    return not words.isdisjoint(columns)


def matching(frame: DataFrame, where: str | None) -> DataFrame:
    """The rows for which the condition holds. Raises InvalidSetting if it makes no sense."""
    from pyspark.errors import AnalysisException

    if where is None:
        return frame
    try:
        chosen = frame.where(where)
        _ = chosen.schema  # a Connect session looks at it only now
        return chosen
    except AnalysisException as error:
        hint = f"; there are {', '.join(frame.columns)}" if "UNRESOLVED_COLUMN" in str(error) else ""
        raise InvalidSetting(f"where: {spark_message(error)}{hint}") from None


def with_json(frame: DataFrame) -> DataFrame:
    """Bodies that are JSON also as a VARIANT: body_json:order.total."""
    from pyspark.sql.functions import expr

    return frame.withColumn("body_json", expr("try_parse_json(CAST(body AS STRING))"))


def mark_as_copies(frame: DataFrame) -> DataFrame:
    """Rows of `messages` as copies of themselves: what they are, and of which message they are a copy."""
    from pyspark.sql.functions import expr

    names = f"'{REPLAY_OF}', '{REPLAY_COUNT}'"
    nothing = "CAST(NULL AS BINARY)"
    count = "CAST(coalesce(replay_count, 0) + 1 AS STRING)"
    own = f"map_filter(coalesce(attributes, CAST(map() AS {_ATTRIBUTES})), (k, v) -> k NOT IN ({names}))"
    marks = (
        f"map('{REPLAY_OF}', named_struct('type', 'String', 'string', coalesce(replay_of, message_id), "
        f"'binary', {nothing}), '{REPLAY_COUNT}', named_struct('type', 'Number', 'string', {count}, "
        f"'binary', {nothing}))"
    )
    # Headers are texts; what is an attribute too has its number or bytes there.
    others = "map_filter(headers, (k, v) -> NOT map_contains_key(attributes, k))"
    headers = f"CASE WHEN attributes IS NULL THEN headers ELSE {others} END"
    return frame.withColumns({"headers": expr(headers), "attributes": expr(f"map_concat({own}, {marks})")})


# -- sending ---------------------------------------------------------------------------------------------


def publish(link: Link, job: str, batch: int, parts: Iterable[bytes], rows: int, queue: str | None) -> bool:
    """Packed rows as one batch of a job, all of it or nothing. Whether it was there before."""
    names = []
    for number, data in enumerate(parts):
        names.append(f"{number:06d}")
        link.call("PUT", f"pipeline/stages/{job}/{batch}/parts/{names[-1]}", data=data)
    return commit(link, job, batch, names, rows, queue)


def commit(link: Link, job: str, batch: int, parts: list[str], rows: int, queue: str | None) -> bool:
    """Publish what was uploaded. Whether it was there before."""
    wanted: dict[str, Any] = {"parts": parts, "rows": rows, "on_error": "fail"}
    if queue is not None:
        wanted["queue"] = queue
    answer = link.call("POST", f"pipeline/stages/{job}/{batch}/commit", json=wanted).json()
    return bool(answer["repeated"])


def upload_function(target: SinkTarget, columns: Sequence[str], job: str, batch: int) -> Callable[..., Any]:
    """For `mapInArrow`: a task uploads its rows, and gives the names of the parts they went into."""

    def upload_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from .sink import upload

        done = upload(target, columns, job, batch, batches)
        # The number of rows with the first of them: an attempt is one task's, whatever it wrote.
        rows = [done.rows, *[0] * (len(done.parts) - 1)]
        if done.parts:
            yield pa.RecordBatch.from_pydict({"part": done.parts, "rows": pa.array(rows, pa.int64())})

    return upload_rows


def excerpt(body: bytes | None, most: int = 200) -> str | None:
    """The beginning of a body as text."""
    if body is None:
        return None
    text = bytes(body[:most]).decode("utf-8", "replace")
    shown = sum(character.isprintable() or character in "\r\n\t" for character in text)
    return text if shown >= 0.8 * len(text) else "hex " + bytes(body[: most // 4]).hex()


class RemovalTracker:
    """Which messages have left a queue since a position, and how: read from the journal as it grows."""

    LEAVING = ("ack", "redrive", "move", "dead_letter", "expire", "cancel", "drop", "purge", "delete")

    def __init__(self, context: ResendContext, queue: str, position: int, seqs: Any) -> None:
        import numpy as np

        self._history = context.open()
        self._queue = queue
        self._position = position
        self._seqs = np.sort(np.asarray(seqs, np.int64))
        self._known: dict[int, tuple[str, str | None]] = {}
        self._purged = False

    def of(self, seq: int) -> tuple[str, str | None] | None:
        """The event and the queue it went to; None if it is still there."""
        found = self._known.get(seq)
        return ("purge", None) if found is None and self._purged else found

    def advance(self) -> None:
        selection = Selection(
            table="events",
            queues=(self._queue,),
            events=self.LEAVING,
            columns=("seq", "event", "to_queue"),
            first_position=self._position,
        )
        snapshot = self._history.snapshot(selection)
        if snapshot.gap is not None:
            from ..errors import HistoryUnavailable

            raise HistoryUnavailable(
                "the journal does not reach back to where this plan is: keep more of it, or archive in time"
            )
        for batch in self._history.read_many(snapshot.pieces, selection):
            self._apply(batch)
        self._position = max(self._position, snapshot.end_position)

    def _apply(self, batch: pa.RecordBatch) -> None:
        import numpy as np
        import pyarrow.compute as pc

        events = batch.column("event")
        if pc.any(pc.is_in(events, text_array(("purge", "delete")))).as_py():
            self._purged = True  # of that queue: everything that was planned is older
        seqs = batch.column("seq").fill_null(-1).to_numpy(zero_copy_only=False)
        at = np.searchsorted(self._seqs, seqs)
        at[at == len(self._seqs)] = 0
        ours = np.flatnonzero(self._seqs[at] == seqs) if len(self._seqs) else ()
        for row in ours:
            self._known[int(seqs[row])] = (
                events[int(row)].as_py(),
                batch.column("to_queue")[int(row)].as_py(),
            )


def text_array(values: Iterable[str]) -> Any:
    import pyarrow as pa

    return pa.array(list(values), pa.string())


def plain_attributes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """For a function of a user: a name and its value, as text, number or bytes."""
    found: dict[str, Any] = {}
    for name, value in (attributes or {}).items():
        kind, text, data = value["type"], value["string"], value["binary"]
        if data is not None:
            found[name] = bytes(data)
        elif kind == "Number" and text is not None and re.fullmatch(r"-?\d{1,18}", text):
            found[name] = int(text)
        else:
            found[name] = text
    return found
