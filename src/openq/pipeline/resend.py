"""What redrive and replay share: the history they choose from, the server that sends, and how copies are
sent.

A job reads by path or from the server, and always sends through the server. Conditions are SQL of Spark;
bodies are read only where a condition mentions them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import HistoryUnavailable, InvalidSetting
from ..history.selection import Selection
from .calls import quoted
from .events import PURGES, REMOVALS
from .link import Link
from .target import HistoryTarget, StrPath

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from .sink import SinkTarget

BODIES = ("body", "body_json", "body_sha256")
REPLAY_OF, REPLAY_COUNT = "openq.replay_of", "openq.replay_count"
_ATTRIBUTES = "MAP<STRING, STRUCT<type: STRING, string: STRING, binary: BINARY>>"


@dataclass
class ResendContext:
    """Where a job reads, and the server through which it sends (`url`); without a `path` it reads there
    too."""

    path: StrPath | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    archive: StrPath | None = None

    def __post_init__(self) -> None:
        self._reads_server = self.path is None and self.archive is None
        server = (self.url, self.token) if self._reads_server else (None, None)
        self.target = HistoryTarget(self.path, *server, self.archive)
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

    def end(self) -> tuple[int, str]:
        """The end position of the history, and the identity of its journal."""
        return _end_of(self.target.history)

    def check_same_journal(self) -> None:
        """Raises InvalidSetting if the server's journal is not the one that is read: ids would differ."""
        if self._reads_server:
            return
        from .remote_history import RemoteHistory

        if _end_of(RemoteHistory("", link=self.link))[1] != self.end()[1]:
            path = self.target.read_options.get("path") or "that history"
            raise InvalidSetting(
                f"the server {self.link.url} does not serve {path}: name the server of this data as url"
            )
        # Now executors that cannot see the path may ask the server.
        self.target.read_options |= {"url": self.link.url}
        if self.token is not None:
            self.target.read_options |= {"token": self.token}

    def reader(self, spark: SparkSession, end_position: int) -> Callable[..., DataFrame]:
        """A function with the keywords of `history`, which reads up to a position."""
        return self.target.reader(spark, end_position=end_position)

    def settings(self, queue: str) -> dict[str, Any]:
        """The settings of a queue of the server. Raises Refused if it does not exist."""
        found: dict[str, Any] = self.link.call("GET", f"queues/{quoted(queue)}").json()["settings"]
        return found


def _end_of(history: Any) -> tuple[int, str]:
    position: int = history.end_position()
    return position, history.snapshot(Selection(columns=("seq",), first_position=position)).journal


# -- copies ------------------------------------------------------------------------------------------------


def with_json(frame: DataFrame) -> DataFrame:
    """Adds `body_json`, the body as a VARIANT where it is JSON: body_json:order.total."""
    from pyspark.sql.functions import expr

    return frame.withColumn("body_json", expr("try_parse_json(CAST(body AS STRING))"))


def mark_as_copies(frame: DataFrame) -> DataFrame:
    """Rows of `messages` as copies of themselves: attributes name the original and count the replays."""
    from pyspark.sql.functions import expr

    names = f"'{REPLAY_OF}', '{REPLAY_COUNT}'"
    null = "CAST(NULL AS BINARY)"
    count = "CAST(coalesce(replay_count, 0) + 1 AS STRING)"
    own = f"map_filter(coalesce(attributes, CAST(map() AS {_ATTRIBUTES})), (k, v) -> k NOT IN ({names}))"
    marks = (
        f"map('{REPLAY_OF}', named_struct('type', 'String', 'string', coalesce(replay_of, message_id), "
        f"'binary', {null}), '{REPLAY_COUNT}', named_struct('type', 'Number', 'string', {count}, "
        f"'binary', {null}))"
    )
    # Headers are texts; a header that is also an attribute has its number or bytes there.
    others = "map_filter(headers, (k, v) -> NOT map_contains_key(attributes, k))"
    headers = f"CASE WHEN attributes IS NULL THEN headers ELSE {others} END"
    return frame.withColumns({"headers": expr(headers), "attributes": expr(f"map_concat({own}, {marks})")})


# -- sending -----------------------------------------------------------------------------------------------


def publish(link: Link, job: str, batch: int, parts: Iterable[bytes], rows: int, queue: str | None) -> bool:
    """Publish packed rows as one batch of a job, all or nothing. Returns whether it was published before."""
    names = []
    for number, data in enumerate(parts):
        names.append(f"{number:06d}")
        link.call("PUT", f"pipeline/stages/{job}/{batch}/parts/{names[-1]}", data=data)
    return commit(link, job, batch, names, rows, queue)


def commit(link: Link, job: str, batch: int, parts: list[str], rows: int, queue: str | None) -> bool:
    """Publish what was uploaded. Returns whether it was published before."""
    request: dict[str, Any] = {"parts": parts, "rows": rows, "on_error": "fail"}
    if queue is not None:
        request["queue"] = queue
    answer = link.call("POST", f"pipeline/stages/{job}/{batch}/commit", json=request).json()
    return bool(answer["repeated"])


def upload_function(target: SinkTarget, columns: Sequence[str], job: str, batch: int) -> Callable[..., Any]:
    """For `mapInArrow`: a task uploads its rows, and returns the names of the parts they went into."""

    def upload_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from .sink import upload

        done = upload(target, columns, job, batch, batches)
        # The number of rows stands beside the first part only.
        rows = [done.rows, *[0] * (len(done.parts) - 1)]
        if done.parts:
            yield pa.RecordBatch.from_pydict({"part": done.parts, "rows": pa.array(rows, pa.int64())})

    return upload_rows


def excerpt(body: bytes | None, max_bytes: int = 200) -> str | None:
    """The beginning of a body as text, or as hex if it is not text."""
    if body is None:
        return None
    # The last character may have been cut in the middle.
    text = bytes(body[:max_bytes]).decode("utf-8", "replace").rstrip("\ufffd")
    printable = sum(character.isprintable() or character in "\r\n\t" for character in text)
    return text if printable >= 0.8 * len(text) else "hex " + bytes(body[: max_bytes // 4]).hex()


class RemovalTracker:
    """Which messages have left a queue since a position, and by which event: read from the journal as it
    grows."""

    def __init__(self, context: ResendContext, queue: str, position: int, seqs: Any) -> None:
        import numpy as np

        self._history = context.target.history
        self._queue = queue
        self._position = position
        self._seqs = np.sort(np.asarray(seqs, np.int64))
        self._removed: dict[int, tuple[str, str | None]] = {}
        self._purged = False

    def of(self, seq: int) -> tuple[str, str | None] | None:
        """The event, and the queue the message went to; None if it is still there."""
        found = self._removed.get(seq)
        return ("purge", None) if found is None and self._purged else found

    def advance(self) -> None:
        selection = Selection(
            table="events",
            queues=(self._queue,),
            events=(*REMOVALS, *PURGES),
            columns=("seq", "event", "to_queue"),
            first_position=self._position,
        )
        snapshot = self._history.snapshot(selection)
        if snapshot.gap is not None:
            raise HistoryUnavailable(
                "the journal no longer reaches back to the position of this plan: keep more of it, or "
                "archive in time"
            )
        for batch in self._history.read_many(snapshot.pieces, selection):
            self._apply(batch)
        self._position = max(self._position, snapshot.end_position)

    def _apply(self, batch: pa.RecordBatch) -> None:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        events = batch.column("event")
        if pc.any(pc.is_in(events, pa.array(PURGES, pa.string()))).as_py():
            self._purged = True  # every planned message is older than this
        seqs = batch.column("seq").fill_null(-1).to_numpy(zero_copy_only=False)
        at = np.searchsorted(self._seqs, seqs)
        at[at == len(self._seqs)] = 0
        ours = np.flatnonzero(self._seqs[at] == seqs) if len(self._seqs) else ()
        for row in ours:
            self._removed[int(seqs[row])] = (
                events[int(row)].as_py(),
                batch.column("to_queue")[int(row)].as_py(),
            )
