"""The archive: Parquet files of both tables, and manifests that say which files belong to it.

    ARCHIVE/manifests/<version, 20 digits>.json
    ARCHIVE/messages/dt=YYYY-MM-DD/<name>.parquet      ARCHIVE/events/dt=YYYY-MM-DD/<name>.parquet

Files are written first and never changed; then one manifest, the next version, adds them to the history
atomically. A reader takes a manifest and sees exactly its files, whatever is written meanwhile. Files that no
manifest names are invisible; `vacuum` removes them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from openq.errors import DirectoryInUse, HistoryUnavailable, InvalidSetting, OpenQError
from openq.history.moments import to_us
from openq.history.schema import TABLES, VERSION, arrow_schema, check_version
from openq.history.selection import Selection
from openq.journal.lockfile import DirectoryLock

FORMAT = "openq.archive"
SUFFIX = ".parquet"
BATCH_ROWS = 1 << 16
BATCH_BYTES = 8 << 20
ORPHAN_S = 3600.0  # a job may be writing files that it has not committed yet
_MAX_MANIFEST = 1 << 30
_READ = 4 << 20
_ROW_BYTES = 256  # of a row beside its body, roughly


class ArchiveConflict(OpenQError):
    """Another job committed the same version first: read that version, and build on it."""

    code = "archive_conflict"

    def __init__(self, path: str, version: int) -> None:
        super().__init__(f"version {version} of the archive {path} was committed by another job; run again")
        self.version = version


class ArchiveBusy(OpenQError):
    code = "archive_busy"

    def __init__(self, path: str, pid: int | None) -> None:
        who = f"process {pid}" if pid else "another process"
        super().__init__(f"{who} is working on the archive {path}: wait until it is done, and run this again")


class ArchiveDamaged(OpenQError):
    """A file of the archive differs from what its manifest says, or is not a manifest of OpenQ."""

    code = "archive_damaged"

    def __init__(self, file: str, detail: str) -> None:
        super().__init__(f"{file}: {detail}; restore it from a backup, or archive again")
        self.file = file
        self.detail = detail
        self.public = (
            f"{os.path.basename(file)} of the archive: {detail}; restore it from a backup, or archive again"
        )


@dataclass(frozen=True, slots=True)
class ArchiveFile:
    """One Parquet file. Bounds are inclusive; None if it has no such value."""

    table: str
    path: str  # relative to the archive, with /
    rows: int
    bytes: int
    crc: int
    first_seq: int | None
    last_seq: int | None
    first_position: int | None
    last_position: int | None
    first_us: int | None
    last_us: int | None
    queues: list[str]
    raw_bytes: int = 0  # in memory, roughly; 0 if unknown

    def __post_init__(self) -> None:
        check_path(self.path, self.table)

    def may_hold(self, selection: Selection) -> bool:
        """False only if none of its rows can match."""
        if self.table != selection.table:
            return False
        for first, last, low, high in (
            (self.first_us, self.last_us, selection.since_us, _inclusive(selection.until_us)),
            (self.first_seq, self.last_seq, selection.first_seq, selection.last_seq),
            (
                self.first_position,
                self.last_position,
                selection.first_position,
                _inclusive(selection.end_position),
            ),
        ):
            if not _may_overlap(first, last, low, high):
                return False
        return not selection.queues or any(map(selection.matches_queue, self.queues))


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the archive: its files, and up to which position of the journal they reach."""

    version: int
    created_us: int
    journal: str  # salt of the journal it was made from, as hex
    id_prefix: str
    through: int  # position; all rows before it are in the files
    files: list[ArchiveFile] = field(default_factory=list)
    lineage: dict[str, Any] = field(default_factory=dict)  # `MessageTracker.state()` at `through`
    erased: list[dict[str, Any]] = field(default_factory=list)  # erased messages: when, why, how many
    segments: list[dict[str, Any]] = field(default_factory=list)  # checksums of each
    first: int = 0  # position; where the archive begins
    # An archive that was read from a server names the server, and has checksums of spans of positions instead
    # of segments. It does not allow a journal to free anything.
    origin: dict[str, Any] = field(default_factory=dict)
    spans: list[dict[str, Any]] = field(default_factory=list)

    def next(self, **changes: Any) -> Manifest:
        """The next version, with these changes, to be committed."""
        return replace(self, version=self.version + 1, created_us=0, **changes)

    def pick(self, selection: Selection) -> list[ArchiveFile]:
        return [file for file in self.files if file.may_hold(selection)]

    def rows(self, table: str) -> int:
        return sum(file.rows for file in self.files if file.table == table)

    def to_bytes(self) -> bytes:
        text = _json_bytes({"format": FORMAT, "columns": VERSION, **asdict(self)})
        return _json_bytes({"crc": crc32(text), "manifest": json.loads(text)}) + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> Manifest:
        """Raises ArchiveDamaged with the file's name."""
        try:
            outer = json.loads(data)
            inner = outer["manifest"]
            if crc32(_json_bytes(inner)) != outer["crc"]:
                raise ArchiveDamaged(where, "the manifest does not match its checksum")
            if inner.pop("format") != FORMAT:
                raise KeyError
            columns = inner.pop("columns")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ArchiveDamaged(where, "this is not a manifest of an OpenQ archive") from None
        if columns != VERSION:
            raise InvalidSetting(
                f"{where} was written for columns of version {columns!r}, this program knows {VERSION}: "
                "use a newer OpenQ"
            )
        try:
            # Fields that a later version added are ignored.
            known = {each.name for each in fields(cls)} & inner.keys()
            values = {name: inner[name] for name in known}
            values["files"] = [_archive_file(each) for each in values["files"]]
            return cls(**values)
        except (TypeError, KeyError, InvalidSetting) as error:
            raise ArchiveDamaged(where, f"the manifest lacks or misuses {error}") from None


def _archive_file(value: dict[str, Any]) -> ArchiveFile:
    known = {each.name for each in fields(ArchiveFile)} & value.keys()
    return ArchiveFile(**{name: value[name] for name in known})


def check_path(path: str, table: str) -> None:
    """Paths of a manifest are not trusted: each must be below the folder of its table."""
    parts = path.split("/") if isinstance(path, str) else []
    clean = all(part and part.strip(".") and not {"\\", "\0"} & set(part) for part in parts)
    if table not in TABLES or len(parts) < 2 or parts[0] != table or not clean or not path.endswith(SUFFIX):
        raise InvalidSetting(
            f"{str(path)[:200]!r} is not a file of the table {str(table)[:40]!r} of an archive"
        )


class Archive:
    """A directory of files and manifests. Any number of processes may read it and commit to it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self._manifests = os.path.join(self.path, "manifests")
        # Manifests never change: the last one read is valid as long as its file is the same.
        self._known: tuple[tuple[int, ...], Manifest] | None = None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One job at a time changes an archive. Readers need no lock: they see committed versions only."""
        os.makedirs(self.path, exist_ok=True)
        try:
            lock = DirectoryLock(self.path, time.time_ns() // 1_000_000)
        except DirectoryInUse as error:
            raise ArchiveBusy(self.path, error.pid) from None
        try:
            yield
        finally:
            lock.release()

    # -- manifests

    def versions(self) -> list[int]:
        try:
            names = os.listdir(self._manifests)
        except (FileNotFoundError, NotADirectoryError):
            return []
        stems = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(int(stem) for stem in stems if len(stem) == 20 and stem.isascii() and stem.isdigit())

    def latest(self) -> Manifest | None:
        while versions := self.versions():
            try:
                return self.read(versions[-1])
            except HistoryUnavailable:
                continue  # removed between the listing and the reading
        return None

    def read(self, version: int) -> Manifest:
        path = self._manifest_path(version)
        try:
            with open(path, "rb") as source:
                status = os.fstat(source.fileno())
                # An archive that was removed and created again has the same version numbers.
                identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if self._known is not None and self._known[0] == identity:
                    return self._known[1]
                data = source.read(_MAX_MANIFEST)
        except FileNotFoundError:
            have = self.versions()
            there = f"there are {have[0]} to {have[-1]}" if have else "there are none"
            raise HistoryUnavailable(f"the archive {self.path} has no version {version}; {there}") from None
        manifest = Manifest.from_bytes(data, path)
        if manifest.version != version:
            raise ArchiveDamaged(path, f"the file is named {version} but is version {manifest.version}")
        self._known = (identity, manifest)
        return manifest

    def at(self, as_of: int | datetime) -> Manifest:
        """The manifest of a version, or the newest at a time. Raises HistoryUnavailable."""
        if isinstance(as_of, datetime):
            moment = as_of if as_of.tzinfo is not None else as_of.replace(tzinfo=UTC)
            limit_us = to_us(moment)
            for version in reversed(self.versions()):
                manifest = self.read(version)
                if manifest.created_us <= limit_us:
                    return manifest
            raise HistoryUnavailable(
                f"the archive {self.path} has no version as old as {moment.isoformat()}; choose a later time"
            )
        if isinstance(as_of, bool) or not isinstance(as_of, int) or as_of < 0:
            raise InvalidSetting(f"as_of must be a version of the archive or a time, not {as_of!r}")
        return self.read(as_of)

    def commit(self, manifest: Manifest) -> int:
        """Make it the newest version, atomically and durably. Raises ArchiveConflict."""
        versions = self.versions()
        newest = versions[-1] if versions else 0
        if manifest.version <= newest:
            raise ArchiveConflict(self.path, manifest.version)
        if manifest.version != newest + 1:
            raise InvalidSetting(f"version {manifest.version} cannot follow version {newest}")
        now_us = time.time_ns() // 1000
        if versions:
            # Times rise with versions, also if the clock was set back.
            now_us = max(now_us, self.read(newest).created_us + 1)
        os.makedirs(self._manifests, exist_ok=True)
        path = self._manifest_path(manifest.version)
        temporary = f"{path}.{os.getpid()}.{os.urandom(4).hex()}.tmp"
        try:
            with open(temporary, "xb") as target:
                target.write(replace(manifest, created_us=now_us).to_bytes())
                target.flush()
                os.fsync(target.fileno())
            try:
                os.link(temporary, path)  # unlike a rename it fails if the file exists
            except FileExistsError:
                raise ArchiveConflict(self.path, manifest.version) from None
        finally:
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass
        for directory in (self._manifests, self.path):
            sync_path(directory)
        return manifest.version

    def _manifest_path(self, version: int) -> str:
        return os.path.join(self._manifests, f"{version:020d}.json")

    # -- files

    def path_of(self, file: ArchiveFile | str) -> str:
        """The path of a file. Raises InvalidSetting if it leads out of the archive, also by links."""
        relative = file if isinstance(file, str) else file.path
        check_path(relative, relative.partition("/")[0])
        path = os.path.join(self.path, *relative.split("/"))
        root = os.path.realpath(self.path)
        if os.path.commonpath((root, os.path.realpath(path))) != root:
            raise InvalidSetting(f"{relative!r} leads out of the archive")
        return path

    def open(self, file: ArchiveFile | str) -> pq.ParquetFile:
        """Raises HistoryUnavailable if it was removed, ArchiveDamaged if it is not a Parquet file of
        OpenQ."""
        path = self.path_of(file)
        try:
            opened = pq.ParquetFile(path, memory_map=True)
        except FileNotFoundError:
            name = file if isinstance(file, str) else file.path
            raise HistoryUnavailable(
                f"{name} is no longer in the archive {self.path}: its version was vacuumed; take a newer one"
            ) from None
        except (pa.ArrowException, OSError) as error:
            raise ArchiveDamaged(path, f"this is not an intact Parquet file ({_first_line(error)})") from None
        check_version(opened.metadata.metadata, path)
        return opened

    def read_file(
        self, file: ArchiveFile | str, selection: Selection, groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The selected rows of a file, or of some of its row groups; row groups that cannot match are not
        read."""
        with self.open(file) as opened:
            path = self.path_of(file)
            metadata = opened.metadata
            wanted = range(metadata.num_row_groups) if groups is None else groups
            if any(not 0 <= each < metadata.num_row_groups for each in wanted):
                # A range is cut before it is printed: its end is not trusted.
                raise InvalidSetting(
                    f"{path} has {metadata.num_row_groups} row groups, not {list(wanted[:9])}"
                )
            wanted = matching_groups(opened, selection, wanted)
            if not wanted:
                return
            schema = arrow_schema(selection.table, selection.read_columns)
            there = set(opened.schema_arrow.names)
            names = [name for name in schema.names if name in there]
            try:
                for batch in _batches(opened, wanted, names):
                    kept = selection.keep(conform(batch, schema))
                    if kept.num_rows:
                        yield kept
            except (pa.ArrowException, OSError) as error:
                raise ArchiveDamaged(path, f"its rows cannot be read ({_first_line(error)})") from None

    def describe(self, table: str, path: str) -> ArchiveFile:
        """The entry of a manifest for a file that was just written, from the file itself."""
        with self.open(path) as opened:
            metadata = opened.metadata
            bounds = {name: _bounds(opened, name) for name in ("seq", "position", "ts")}
            queues: set[str] = set()
            raw = 0
            for number in range(metadata.num_row_groups):
                part = opened.read_row_group(number, columns=["queue", "size"], use_threads=False)
                queues.update(pc.unique(part["queue"]).drop_null().to_pylist())
                raw += part.num_rows * _ROW_BYTES
                if table == "messages":
                    raw += pc.sum(part["size"]).as_py() or 0
        crc, size = checksum(self.path_of(path))
        return ArchiveFile(
            table, path, metadata.num_rows, size, crc,
            *bounds["seq"], *bounds["position"], *bounds["ts"], sorted(queues), raw,
        )  # fmt: skip

    def verify(self, file: ArchiveFile) -> None:
        """Raises ArchiveDamaged if it is not, byte for byte, what the manifest says."""
        path = self.path_of(file)
        try:
            crc, size = checksum(path)
        except FileNotFoundError:
            raise ArchiveDamaged(path, "the file is missing") from None
        if size != file.bytes:
            raise ArchiveDamaged(path, f"it has {size} bytes, the manifest says {file.bytes}")
        if crc != file.crc:
            raise ArchiveDamaged(path, "it does not match its checksum")
        with self.open(file) as opened:
            rows = opened.metadata.num_rows
        if rows != file.rows:
            raise ArchiveDamaged(path, f"it has {rows} rows, the manifest says {file.rows}")

    # -- cleaning up

    def vacuum(
        self,
        keep_versions: int = 1,
        keep_s: float = 0.0,
        *,
        orphan_s: float = ORPHAN_S,
        dry_run: bool = False,
    ) -> list[str]:
        """Remove versions that are neither among the newest `keep_versions` nor younger than `keep_s`, then
        every file that no version names and that was not touched for `orphan_s`. Returns relative paths.

        The newest version always stays. A reader that still uses a removed one gets HistoryUnavailable.
        """
        versions = self.versions()
        if not versions:
            return self._remove(self._orphans(set(), orphan_s), dry_run)
        limit_us = (time.time_ns() // 1000) - int(keep_s * 1e6)
        old = versions[: max(0, len(versions) - max(1, keep_versions))]
        going = [each for each in old if self.read(each).created_us < limit_us]
        named = {file.path for each in versions if each not in going for file in self.read(each).files}
        # Manifests first: none may name a file that is gone.
        removed = self._remove([f"manifests/{each:020d}.json" for each in going], dry_run)
        return removed + self._remove(self._orphans(named, orphan_s), dry_run)

    def _orphans(self, named: set[str], orphan_s: float) -> list[str]:
        found = []
        limit = time.time() - orphan_s
        for table in (*TABLES, "manifests"):
            for directory, _, names in os.walk(os.path.join(self.path, table)):
                for name in names:
                    path = os.path.join(directory, name)
                    relative = os.path.relpath(path, self.path).replace(os.sep, "/")
                    if relative in named or (table == "manifests" and not name.endswith(".tmp")):
                        continue
                    try:
                        if os.lstat(path).st_mtime <= limit:
                            found.append(relative)
                    except FileNotFoundError:
                        continue
        return sorted(found)

    def _remove(self, paths: list[str], dry_run: bool) -> list[str]:
        for path in paths if not dry_run else ():
            try:
                os.unlink(os.path.join(self.path, *path.split("/")))
            except FileNotFoundError:
                continue
        return paths


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch in these columns and types; columns it lacks are null."""
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for each in schema:
        at = batch.schema.get_field_index(each.name)
        if at < 0:
            arrays.append(pa.nulls(batch.num_rows, each.type))
        else:
            array = batch.column(at)
            arrays.append(array if array.type.equals(each.type) else array.cast(each.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def checksum(path: str) -> tuple[int, int]:
    """CRC-32 and size of a file."""
    crc = size = 0
    with open(path, "rb") as source:
        while data := source.read(_READ):
            crc = crc32(data, crc)
            size += len(data)
    return crc, size


def group_bytes(opened: pq.ParquetFile, file: ArchiveFile) -> list[int]:
    """The size of each row group in memory, roughly."""
    metadata = opened.metadata
    groups = [metadata.row_group(each) for each in range(metadata.num_row_groups)]
    each_row = file.raw_bytes / max(1, file.rows)
    return [max(each.total_byte_size, int(each.num_rows * each_row)) for each in groups]


def matching_groups(opened: pq.ParquetFile, selection: Selection, groups: Sequence[int]) -> list[int]:
    """Those of the row groups that may hold a row of the selection, by their statistics."""
    columns = _column_numbers(opened)
    return [each for each in groups if _may_match(opened.metadata.row_group(each), columns, selection)]


def _column_numbers(opened: pq.ParquetFile) -> dict[str, int]:
    metadata = opened.metadata
    return {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}


def _batches(opened: pq.ParquetFile, groups: Sequence[int], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of some row groups, without the columns that are all null there."""
    rows = _batch_rows(opened, groups, "body" in names)
    columns = _column_numbers(opened)
    for empty, run in groupby(groups, lambda each: _null_columns(opened.metadata.row_group(each), columns)):
        held = [name for name in names if name not in empty] or names[:1]
        yield from opened.iter_batches(rows, row_groups=[*run], columns=held, use_threads=False)


def _batch_rows(opened: pq.ParquetFile, groups: Sequence[int], body: bool) -> int:
    """How many rows make a batch of a good size. Equal bodies take little room in the file but much in
    memory, so the column `size` is read."""
    metadata = opened.metadata
    rows = sum(metadata.row_group(each).num_rows for each in groups)
    weight = sum(metadata.row_group(each).total_byte_size for each in groups)
    if body and "size" in opened.schema_arrow.names:
        sizes = opened.read_row_groups(list(groups), columns=["size"], use_threads=False)["size"]
        weight = max(weight, (pc.sum(sizes).as_py() or 0) + rows * _ROW_BYTES)
    fitting: int = BATCH_BYTES * rows // max(1, weight)
    return max(1, min(BATCH_ROWS, fitting))


def _may_match(group: Any, columns: dict[str, int], selection: Selection) -> bool:
    """By the statistics of a row group; False only if no row can match."""
    for name, low, high in (
        ("ts", selection.since_us, _inclusive(selection.until_us)),
        ("seq", selection.first_seq, selection.last_seq),
        ("position", selection.first_position, _inclusive(selection.end_position)),
    ):
        if (low is not None or high is not None) and not _may_overlap(
            *_statistics(group, columns, name), low, high
        ):
            return False
    if selection.queues:
        first, last = _statistics(group, columns, "queue")
        if first is not None and last is not None:
            exact = all("*" not in queue and "?" not in queue for queue in selection.queues)
            if exact and not any(first <= queue <= last for queue in selection.queues):
                return False
            if first == last and not selection.matches_queue(first):
                return False
    return True


def _null_columns(group: Any, columns: dict[str, int]) -> frozenset[str]:
    """The columns of a row group that are all null, by its statistics: reading them would take as long as
    others. The statistics of a map do not tell null from empty, so maps are read."""
    found = ((name, group.column(at).statistics) for name, at in columns.items() if "." not in name)
    return frozenset(
        name
        for name, known in found
        if known is not None and known.has_null_count and known.null_count == group.num_rows
    )


def _statistics(group: Any, columns: dict[str, int], name: str) -> tuple[Any, Any]:
    """The minimum and the maximum; None if the file does not have them."""
    at = columns.get(name)
    found = None if at is None else group.column(at).statistics
    if found is None or not found.has_min_max:
        return None, None
    return _comparable(found.min), _comparable(found.max)


def _comparable(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_us(value)
    return value


def _bounds(opened: pq.ParquetFile, name: str) -> tuple[int | None, int | None]:
    metadata = opened.metadata
    columns = _column_numbers(opened)
    pairs = [_statistics(metadata.row_group(each), columns, name) for each in range(metadata.num_row_groups)]
    if any(first is None for first, _ in pairs):
        # No statistics, or only nulls in a group: read the column.
        found = pc.min_max(opened.read(columns=[name], use_threads=False)[name].cast(pa.int64())).as_py()
        return found["min"], found["max"]
    return min((a for a, _ in pairs), default=None), max((b for _, b in pairs), default=None)


def _may_overlap(first: Any, last: Any, low: int | None, high: int | None) -> bool:
    if first is None or last is None:
        return True
    return not ((low is not None and last < low) or (high is not None and first > high))


def _inclusive(bound: int | None) -> int | None:
    return None if bound is None else bound - 1


def _json_bytes(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]


def sync_path(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
