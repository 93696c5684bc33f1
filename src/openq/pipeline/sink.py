"""`df.write.format("openq")` and `writeStream`: rows become messages, each batch exactly once.

Tasks upload packed parts under random names; they are invisible until the driver's commit names the parts of
the successful attempts, and the server publishes those atomically under (job, batch). Committing the same
batch again is a no-op. The job is the query id of a stream; for a batch, the option `jobId` or a random one.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ..errors import InvalidSetting, OpenQError
from ..packed import MESSAGE_COLUMNS
from .calls import link_of, quoted, require_queue
from .options import WRITE, SourceOptions
from .packed_rows import parts

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .link import Link

log = logging.getLogger("openq.pipeline")

# Columns of the history that say where a message was, not what it is. They may be in a frame that is copied
# from queue to queue, and are ignored.
IGNORED_COLUMNS = frozenset(
    (
        *("position", "seq", "ts", "expires", "trace_id", "producer", "replay_of", "replay_count", "batch"),
        *("size", "body_sha256", "receive_count", "exchange", "routing_key"),
    )
)
_INTEGER_TYPES = ("tinyint", "smallint", "int", "bigint")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


# -- what Spark calls -------------------------------------------------------------------------------


def make_writer(
    options: SourceOptions | Mapping[str, str], schema: StructType, overwrite: bool
) -> BatchWriter:
    target = SinkTarget(_parsed(options))
    if overwrite:
        raise InvalidSetting('a queue cannot be overwritten: use mode("append"); to empty it, purge it')
    columns = columns_of(schema, target)
    target.check()
    return BatchWriter(target, columns)


def make_stream_writer(
    options: SourceOptions | Mapping[str, str], schema: StructType, overwrite: bool
) -> StreamWriter:
    target = SinkTarget(_parsed(options))
    if overwrite:
        raise InvalidSetting('a queue only grows: use outputMode("append") or "update", not "complete"')
    if target.job is not None:
        # With another checkpoint its batches would start at 0 again, and look like repetitions.
        raise InvalidSetting(
            "a stream is identified by its checkpoint: leave jobId out, or use it in foreachBatch"
        )
    columns = columns_of(schema, target)
    target.check(reached_before=True)  # stream and server may be restarted at the same time
    return StreamWriter(target, columns)


def _parsed(options: SourceOptions | Mapping[str, str]) -> SourceOptions:
    return options if isinstance(options, SourceOptions) else SourceOptions.parse(options, WRITE)


class SinkTarget:
    """Where messages go, and the job and number of the batch."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self.queue: str | None = options.value("queue")
        self.job: str | None = options.value("jobId")
        self.batch: int = options.value("batchId", 0)
        self.on_error: str = options.value("onError", "fail")
        self.dlq: str | None = options.value("dlq")
        self.creates: bool = options.value("createQueue", False)
        if (self.on_error == "dlq") != (self.dlq is not None):
            raise InvalidSetting("onError=dlq and dlq=QUEUE go together: give both or neither")
        if self.job is not None and not _NAME.fullmatch(self.job):
            raise InvalidSetting("jobId must be 1 to 100 letters, digits, '_', '.' or '-'")
        if "batchId" in options.values and self.job is None:
            raise InvalidSetting("batchId counts the batches of a job: give jobId too")

    def link(self, reached_before: bool = True) -> Link:
        return link_of(self._options, reached_before)

    def check(self, reached_before: bool = False) -> None:
        """Raises for a wrong address, token or queue before Spark computes anything."""
        link = self.link(reached_before)
        try:
            link.call("GET", "whoami")
            for queue in filter(None, (self.queue, self.dlq)):
                self.require(link, queue)
        finally:
            link.close()

    def require(self, link: Link, queue: str) -> None:
        if not self.creates:
            require_queue(link, queue, "create it, or set the option createQueue to true")


@dataclass
class UploadedParts(WriterCommitMessage):
    """What one task's attempt has uploaded."""

    job: str
    batch: int
    parts: list[str]
    rows: int
    queues: list[str]


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, target: SinkTarget, columns: list[str]) -> None:
        self._target = target
        self._columns = columns
        # Created once on the driver and pickled into every task and the commit.
        self._job = target.job or f"batch-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> UploadedParts:
        return upload(self._target, self._columns, self._job, self._target.batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._target, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._target, self._job, self._target.batch)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, target: SinkTarget, columns: list[str]) -> None:
        self._target = target
        self._columns = columns

    def write(self, iterator: Iterator[pa.RecordBatch]) -> UploadedParts:
        query, batch = _query_and_batch()
        return upload(self._target, self._columns, query, batch, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # If no task succeeded, the query is unknown: the server drops such parts after a while.
        for message in messages:
            if isinstance(message, UploadedParts):
                abort(self._target, message.job, message.batch)
                return


def _query_and_batch() -> tuple[str, int]:
    """The query and batch of a task: not an argument of write(), but a local property of the task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise OpenQError(
            "Spark does not say which batch this task writes; "
            "use foreachBatch with the options jobId and batchId"
        )
    return str(query), int(batch)


# -- the schema -------------------------------------------------------------------------------------


def columns_of(schema: StructType, target: SinkTarget) -> list[str]:
    """The columns to send, with checked types. Raises InvalidSetting before anything is uploaded."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "body" not in types:
        raise InvalidSetting(
            f"there is no column body (there is: {', '.join(types) or 'nothing'}); make one, "
            "for example .selectExpr('to_json(struct(*)) AS body')"
        )
    for name, kind in types.items():
        if name in MESSAGE_COLUMNS:
            _check_type(name, kind)
        elif name == "delay":
            if not (kind in _INTEGER_TYPES or kind in ("float", "double") or kind.startswith("decimal")):
                raise InvalidSetting(f"column delay must be a number of seconds, not {kind}")
        elif name not in IGNORED_COLUMNS:
            raise InvalidSetting(
                f"a message has no column {name!r}; it has {', '.join(MESSAGE_COLUMNS)} and delay. "
                "Put other data into body or attributes, or drop the column"
            )
    if "delay" in types and "delay_us" in types:
        raise InvalidSetting("there are two delays, delay and delay_us: keep one")
    if target.queue is None and "queue" not in types:
        raise InvalidSetting("which queue? Give option('queue', NAME), or a column queue")
    # The option has priority, as with Kafka's topic: the history of a queue names that queue.
    unwanted = () if target.queue is None else ("queue",)
    return [name for name in types if (name in MESSAGE_COLUMNS or name == "delay") and name not in unwanted]


def _check_type(name: str, kind: str) -> None:
    wanted = MESSAGE_COLUMNS[name]
    if wanted == "bytes" and kind not in ("binary", "string"):
        raise InvalidSetting(
            f"column body must be binary or string, not {kind}; "
            "for JSON: .withColumn('body', to_json('body'))"
        )
    if wanted == "text" and kind != "string":
        raise InvalidSetting(f"column {name} must be string, not {kind}: cast it")
    if wanted == "int" and kind not in _INTEGER_TYPES:
        raise InvalidSetting(f"column {name} must be a whole number, not {kind}: cast it to bigint")
    if wanted == "json" and not (kind == "string" or kind.startswith(("map<string,", "struct<"))):
        raise InvalidSetting(f"column {name} must be a map, a struct or a string of JSON, not {kind}")


# -- a batch ----------------------------------------------------------------------------------------


def upload(
    target: SinkTarget, columns: Sequence[str], job: str, batch: int, batches: Iterable[pa.RecordBatch]
) -> UploadedParts:
    """Upload the rows of a task as parts: one is sent while the next is packed."""
    done = UploadedParts(job, batch, [], 0, [])
    queues: dict[str, None] = {} if target.queue is None else {target.queue: None}
    pending: Future[None] | None = None
    link = target.link()
    try:
        with ThreadPoolExecutor(1) as sender:
            for part in parts(batches, columns):
                if pending is not None:
                    pending.result()
                if target.dlq is None:  # otherwise rows without a queue become dead letters
                    for queue in part.queues:
                        if queue not in queues:
                            target.require(link, queue)
                name = uuid.uuid4().hex
                path = f"pipeline/stages/{job}/{batch}/parts/{name}"
                pending = sender.submit(_put, link, path, part.data)
                done.parts.append(name)
                done.rows += part.rows
                queues.update(dict.fromkeys(part.queues))
            if pending is not None:
                pending.result()
    finally:
        link.close()
    done.queues = list(queues)
    return done


def _put(link: Link, path: str, data: bytes) -> None:
    link.call("PUT", path, data=data)


def commit(target: SinkTarget, messages: Sequence[WriterCommitMessage | None]) -> None:
    uploaded = [message for message in messages if isinstance(message, UploadedParts)]
    names = [name for message in uploaded for name in message.parts]
    if not names:
        return  # no rows, nothing to publish
    job, batch = uploaded[0].job, uploaded[0].batch
    link = target.link()
    try:
        if target.creates:
            queues = dict.fromkeys(queue for message in uploaded for queue in message.queues)
            for queue in [*queues, *([target.dlq] if target.dlq else [])]:
                create_queue(link, queue)
        rows = sum(message.rows for message in uploaded)
        wanted = {"parts": names, "rows": rows, "on_error": target.on_error}
        if target.queue is not None:
            wanted["queue"] = target.queue  # of all rows
        if target.dlq is not None:
            wanted["dlq"] = target.dlq
        done = link.call("POST", f"pipeline/stages/{job}/{batch}/commit", json=wanted).json()
        if done["repeated"]:
            log.warning("batch %s of job %s was published before; nothing is published again", batch, job)
    finally:
        link.close()


def abort(target: SinkTarget, job: str, batch: int) -> None:
    link = target.link()
    try:
        link.call("DELETE", f"pipeline/stages/{job}/{batch}")
    except OpenQError:
        pass  # the server drops uncommitted parts after a while, and the error of the job matters more
    finally:
        link.close()


def create_queue(link: Link, name: str) -> None:
    settings = {"fifo": True} if name.endswith(".fifo") else {}
    link.call("PUT", f"queues/{quoted(name)}", query={"if_absent": "true"}, json=settings)
