"""`spark.read.format("openq")`: the history of queues as a table, and the entry to streams and sinks.

The driver takes one snapshot of the history and divides its pieces among tasks; each task reads its pieces by
path if it can see the journal, otherwise from the server, and passes Arrow batches to Spark. Spark 4.3 does
not prune columns of a Python source: `columns`, `body`, or a schema of the caller leave columns out.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType, VariantType

from ..errors import HistoryUnavailable, InvalidSetting, OpenQError, QueueNotFound
from .options import DEFAULT_PARTITION_BYTES, OPTIONS, READ, STREAM, SourceOptions
from .pushdown import ColumnFilter, column_filters, filter_batch, narrow_selection

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import TypeIs

    from ..history.local import LocalHistory, ScanPiece, Snapshot
    from ..history.selection import Selection
    from .remote_history import RemoteHistory

log = logging.getLogger("openq.pipeline")

JSON_COLUMN = "body_json"
MIN_PARTITION_BYTES = 4 << 20  # smaller partitions are not worth a task
PIECE_BYTES = 32 << 20
_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
_WORKERS = ("pyspark.worker", "pyspark.sql.worker.")
_MAX_CACHED_HISTORIES = 4
_MAX_FREEZES = 3  # when imported, and after the imports of the first tasks
_PLANNING_WORKERS = ("pyspark.sql.worker.", "pyspark.sql.streaming.python_streaming_source_runner")


class DefaultSource(DataSource):
    """The class that Spark discovers; the options are in `options.py`."""

    @classmethod
    def name(cls) -> str:
        return "openq"

    def schema(self) -> str:
        # Spark asks before it is known whether this is a read or a stream: the options show it.
        given = self._given()
        names = {
            option.name.lower() for option in OPTIONS if STREAM in option.uses and READ not in option.uses
        }
        is_stream = any(name.lower() in names for name in given)
        return SourceOptions.parse(given, STREAM if is_stream else READ).ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        # Spark refuses a reader with `pushFilters` if pushdown is off in the session, and does not tell that
        # to the source. But it plans with pushdown in a worker process of its own.
        kind = PushdownReader if _is_planning_with_pushdown() else HistoryReader
        return kind(self._read_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from .stream import make_stream_reader

        return make_stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from .sink import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from .sink import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)

    def _read_options(self) -> SourceOptions:
        return SourceOptions.parse(self._given(), READ)

    def _given(self) -> Mapping[str, str]:
        return self.options


class MetaSource(DefaultSource):
    """`openq.meta`: the same without bodies. Spark discovers one source per package, so this one must be
    registered."""

    @classmethod
    def name(cls) -> str:
        return "openq.meta"

    def _given(self) -> Mapping[str, str]:
        return {**dict(self.options.items()), "body": "false"}


@dataclass(frozen=True)
class HistoryPartition(InputPartition):
    """The pieces of the history that one task reads; `server` is where they were found, if not by path."""

    pieces: tuple[ScanPiece, ...]
    server: RemoteHistory | None = None


class HistoryReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._terms: list[ColumnFilter] = []
        self._selection: Selection | None = selection_for(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        options, selection = self._options, self._selection
        history = open_history(options)
        check_queues(history, options)
        if selection is None:
            return [HistoryPartition(())]
        share_bytes = int(options.value("maxBytesPerPartition", DEFAULT_PARTITION_BYTES))
        snapshot = history.snapshot(
            selection, as_of=options.value("asOf"), max_bytes=min(share_bytes, PIECE_BYTES)
        )
        check_gap(snapshot, options)
        found = make_partitions(snapshot.pieces, share_bytes, options.value("minPartitions"))
        if is_local(history):
            return found
        # The server was reached: tasks wait longer if it becomes unreachable.
        return [replace(share, server=history) for share in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if self._selection is None or not isinstance(partition, HistoryPartition) or not partition.pieces:
            return
        shape = SchemaAdapter(self._schema)
        history = open_history(self._options, partition.pieces, partition.server)
        for batch in read_pieces(history, partition.pieces, self._selection, self._options):
            kept = filter_batch(batch, self._terms) if self._terms else batch
            if kept.num_rows:
                yield shape.of(kept)


class PushdownReader(HistoryReader):
    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        self._terms = column_filters(filters)
        if self._selection is not None:
            self._selection = narrow_selection(self._selection, self._terms)
        # All of them: Spark applies each one again.
        yield from filters


def _is_planning_with_pushdown() -> bool:
    return _PUSHDOWN_WORKER in sys.modules or _program() == _PUSHDOWN_WORKER


def _program() -> str:
    """The main module of this process; for a fork of Spark's daemon, the one given to the daemon."""
    name: str = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) or ""
    return sys.argv[1] if name == "pyspark.daemon" and len(sys.argv) > 1 else name


_freezes = 0


def _freeze_imports() -> None:
    """Exclude imported objects from garbage collection, which Spark's workers run after every task: scanning
    them took a third of the time of a read."""
    global _freezes
    if _freezes < _MAX_FREEZES and _program().startswith(_WORKERS):
        _freezes += 1
        gc.freeze()


def _skip_pandas() -> None:
    """Keep pyarrow from importing pandas in processes that only plan, where it took half of the time.

    pyarrow looks for pandas when it creates its first array, and never again.
    """
    if not _program().startswith(_PLANNING_WORKERS) or "pandas" in sys.modules:
        return
    import numpy as np
    import pyarrow as pa

    class Refuse:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "pandas":
                raise ImportError("not needed here")

    refuse: Any = Refuse()
    sys.meta_path.insert(0, refuse)
    try:
        pa.array(np.zeros(1))
    finally:
        sys.meta_path.remove(refuse)


_skip_pandas()
_freeze_imports()


# -- where the history is ---------------------------------------------------------------------------


def open_history(
    options: SourceOptions, pieces: Sequence[ScanPiece] = (), server: RemoteHistory | None = None
) -> LocalHistory | RemoteHistory:
    """By path if this process can read it, otherwise from the server.

    With `pieces` the path must hold their journal: on another machine the same path may be another journal.
    """
    _freeze_imports()
    local = _local(options)
    if local is not None and (options.url is None or _has_pieces(local, pieces)):
        return local
    if server is not None:
        return server
    if options.url is not None:
        from .remote_history import RemoteHistory

        return RemoteHistory(options.url, options.token, **retry_options(options))
    path = options.path
    raise HistoryUnavailable(
        f"{socket.gethostname()} cannot read {path}: "
        + (
            "it is not a data directory of OpenQ"
            if os.path.isdir(str(path))
            else "there is no such directory"
        )
        + "; correct the option path, or set url so that the history comes from the server"
    )


def _local(options: SourceOptions) -> LocalHistory | None:
    path, archive = options.path, options.value("archive")
    if path is not None and not is_readable(path):
        return None
    if path is None and (archive is None or options.url is not None or not os.path.isdir(archive)):
        return None
    from ..history.local import LocalHistory

    if not _program().startswith(_WORKERS):
        return LocalHistory(path, archive)
    return _cached_history(LocalHistory(path, archive))


_cached_histories: dict[tuple[str | None, str], tuple[tuple[int, ...], LocalHistory]] = {}


def _cached_history(history: LocalHistory) -> LocalHistory:
    """The same history as this process opened before. Spark reuses its workers, one task at a time, and each
    task would read the open segment from its beginning."""
    try:
        identity = () if history.journal is None else history.journal.identity()
    except OSError:
        return history
    key = (history.data_path, history.archive_path)
    known = _cached_histories.pop(key, None)
    if known is None or known[0] != identity:
        known = (identity, history)
    _cached_histories[key] = known
    while len(_cached_histories) > _MAX_CACHED_HISTORIES:
        del _cached_histories[next(iter(_cached_histories))]
    return known[1]


def _has_pieces(local: LocalHistory, pieces: Sequence[ScanPiece]) -> bool:
    if any(piece.kind == "file" for piece in pieces) and not os.path.isdir(local.archive_path):
        return False
    if not pieces or local.journal is None:
        return True
    try:
        return f"{local.journal.salt:016x}" == pieces[0].journal
    except OpenQError:
        return False


def is_local(history: LocalHistory | RemoteHistory) -> TypeIs[LocalHistory]:
    from ..history.local import LocalHistory

    return isinstance(history, LocalHistory)


def retry_options(options: SourceOptions) -> dict[str, Any]:
    seconds = options.value("retryTimeout")
    return {} if seconds is None else {"retry_s": seconds}


def is_readable(path: str) -> bool:
    journal = os.path.join(path, "journal")
    return os.path.isdir(journal) and os.access(journal, os.R_OK | os.X_OK)


def check_gap(snapshot: Snapshot, options: SourceOptions) -> None:
    if snapshot.gap is None:
        return
    first, end = snapshot.gap
    lost = f"the history has a hole: positions {first} to {end} are neither in the archive nor in the journal"
    if options.fail_on_data_loss:
        raise HistoryUnavailable(f"{lost}; to continue without them, set failOnDataLoss to false")
    log.warning("%s", lost)


def read_pieces(
    history: LocalHistory | RemoteHistory,
    pieces: Sequence[ScanPiece],
    selection: Selection,
    options: SourceOptions,
) -> Iterator[pa.RecordBatch]:
    """The rows of the pieces. A piece that vanished since it was planned is an error, or skipped by
    option."""
    if options.fail_on_data_loss:
        yield from history.read_many(pieces, selection)
        return
    for piece in pieces:
        try:
            yield from history.read(piece, selection)
        except HistoryUnavailable as error:
            log.warning("%s", error)


def check_queues(history: LocalHistory | RemoteHistory, options: SourceOptions) -> None:
    """Raises QueueNotFound for a name that never existed: a misspelled name must not look like an empty
    table."""
    missing = {name for name in options.value("queues", ()) if not set("*?") & set(name)}
    if not missing:
        return
    known = _names_by_path(history) if is_local(history) else _names_on_server(history, missing)
    for names in known:
        missing -= names
        if not missing:
            return
    raise QueueNotFound(min(missing))


def _names_by_path(history: LocalHistory) -> Iterator[set[str]]:
    """The queues in the history, newest first: most are found at once."""
    journal = history.journal
    if journal is not None:
        from ..history.tracker import bare_context

        for ref in reversed(journal.segments()):
            try:
                yield set(bare_context(ref, journal.index(ref.number)).names.values())
            except HistoryUnavailable:
                continue  # freed meanwhile
    manifest = history.archive.latest()
    for file in [] if manifest is None else manifest.files:
        yield set(file.queues)


def _names_on_server(history: RemoteHistory, asked: set[str]) -> Iterator[set[str]]:
    from ..client.http import Refused
    from ..history.selection import Selection
    from .calls import quoted

    for name in sorted(asked):
        try:
            history.link.call("GET", f"queues/{quoted(name)}")
        except Refused as refused:
            if refused.status != 404:
                raise  # not allowed, most likely
            # It may have been deleted: then its history has events.
            selection = Selection("events", queues=(name,), columns=("position",))
            pieces = history.snapshot(selection).pieces
            if next(history.read_many(pieces[::-1], selection), None) is None:
                continue
        yield {name}


# -- partitions -------------------------------------------------------------------------------------


def make_partitions(
    pieces: Sequence[ScanPiece], share_bytes: int, least: int | None
) -> list[HistoryPartition]:
    """Adjacent pieces in partitions of about the same size, at least `least` of them if there are so many
    pieces. Their number is a multiple of the cores, so that no core waits for the last one."""
    total = sum(piece.bytes for piece in pieces)
    cores = os.cpu_count() or 1
    rounds = max(1, math.ceil(1.1 * total / (share_bytes * cores)))
    wanted = least or min(rounds * cores, max(1, total // MIN_PARTITION_BYTES))
    found: list[HistoryPartition] = []
    held: list[ScanPiece] = []
    have = done = 0
    for piece in pieces:
        # A piece belongs to the partition that its middle is in.
        is_others = (done + piece.bytes / 2) * wanted >= total * (len(found) + 1)
        if held and (is_others or have + piece.bytes > share_bytes):
            found.append(HistoryPartition(tuple(held)))
            held, have = [], 0
        held.append(piece)
        have += piece.bytes
        done += piece.bytes
    if held:
        found.append(HistoryPartition(tuple(held)))
    return found or [HistoryPartition(())]


# -- columns ------------------------------------------------------------------------------------------


def selection_for(options: SourceOptions, schema: StructType) -> Selection:
    """The selection with the columns of the schema, which may be the caller's."""
    check_schema(options, schema)
    return replace(options.selection(), columns=tuple(read_names(schema)), body=True)


def read_names(schema: StructType) -> list[str]:
    """The columns to read for a schema: `body_json` is made of the body."""
    names = [name for name in schema.fieldNames() if name != JSON_COLUMN]
    if JSON_COLUMN in schema.fieldNames() and "body" not in names:
        names.append("body")
    return names


def spark_schema(table: str, names: Sequence[str] | None = None) -> StructType:
    """A table's columns as types of Spark; works without Java, as in the workers."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from ..history.schema import arrow_schema

    return from_arrow_schema(arrow_schema(table, names))


def check_schema(options: SourceOptions, schema: StructType) -> None:
    """Raises InvalidSetting for a column that the table does not have, or has with another type."""
    known = {field.name: field.dataType for field in spark_schema(options.table)}
    if options.table == "messages":
        known[JSON_COLUMN] = VariantType()
    if not schema.fields:
        raise InvalidSetting("the schema must name at least one column")
    for field in schema.fields:
        if field.name not in known:
            raise InvalidSetting(
                f"table {options.table} has no column {field.name!r}; it has {', '.join(known)}"
            )
        wanted, own = field.dataType.simpleString(), known[field.name].simpleString()
        if wanted != own:
            raise InvalidSetting(
                f"column {field.name} is {own}, not {wanted}: read it as it is, then cast or parse it"
            )


class SchemaAdapter:
    """Converts batches to the schema of Spark: its columns in its order with exactly its types."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._has_json = any(isinstance(field.dataType, VariantType) for field in schema.fields)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        columns = []
        for field in self._schema:
            if self._has_json and field.name == JSON_COLUMN:
                columns.append(_variants(batch.column("body"), field.type))
                continue
            column = batch.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _variants(bodies: pa.Array, kind: pa.DataType) -> pa.Array:
    """Bodies as VARIANT; null if they are not JSON. Row by row in Python; `history()` lets Java do it."""
    import pyarrow as pa
    from pyspark.sql.types import VariantVal

    found: list[dict[str, bytes] | None] = []
    for body in bodies.to_pylist():
        try:
            value = VariantVal.parseJson(body.decode())
        except (ValueError, AttributeError, RecursionError, OverflowError):
            found.append(None)
        else:
            found.append({"value": value.value, "metadata": value.metadata})
    return pa.array(found, kind)
