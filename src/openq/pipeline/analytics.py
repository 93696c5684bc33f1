"""The analytics job: rates, waits, retries, failures, producers and consumers, per queue and window.

    analytics(spark, path="data", window="5m", out="metrics")

A run reads what is new since the last one and adds it to the aggregates of that run (`lifecycle.py`), then
writes a new version of the results beside the old one; a pointer file, replaced atomically, names the current
version. A run that is killed leaves the last results unchanged.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..client.times import from_ms, iso
from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from ..history.selection import Selection
from ..parsing import read_seconds
from .events import PURGES
from .metrics import write_metrics
from .report import render
from .target import HistoryTarget, Moment, StrPath, queue_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 1  # of the pointer, the aggregates and the tables
POINTER = "current.json"
_VERSIONS = "versions"
_KEPT_VERSIONS = 2  # the current one, and one that may still be being read
_US = 1_000_000
AUTO = "auto"  # a window that fits the span of the history
_DEFAULT_WINDOW_US = 300 * _US
_SHORT_WINDOWS_S = (1, 2, 5, 10, 30, 60)
_FITTING_WINDOWS = 120
# A longer history has more than some hours anyway, and is not read twice to learn that.
_MAX_LOOKED_AT_BYTES = 256 << 20


class ResultsBusy(OpenQError):
    code = "results_busy"

    def __init__(self, out: Path) -> None:
        super().__init__(f"another run is writing to {out}: wait for it, or choose another directory (out)")


@dataclass(frozen=True)
class Results:
    """The results of a run, and where they are."""

    out: Path
    version: int
    directory: Path
    summary: dict[str, Any]
    first_position: int  # where this run began to read; 0: at the beginning
    end_position: int
    repeated: bool = False  # there was nothing new

    @property
    def report(self) -> Path:
        return self.out / "report.html"

    def table(self, name: str) -> Any:
        """One of `metrics.TABLES` as an Arrow table."""
        import pyarrow.parquet as pq

        return pq.read_table(self.directory / f"{name}.parquet")


@dataclass(frozen=True)
class AnalyticsPlan:
    """What a run would do."""

    out: Path
    first_position: int
    end_position: int
    anew: str | None  # why it starts over; None if it continues from the last results
    journal: str = ""

    @property
    def nothing(self) -> bool:
        return self.anew is None and self.first_position >= self.end_position


def analytics(
    spark: SparkSession,
    path: StrPath | None = None,
    url: str | None = None,
    *,
    token: str | None = None,
    archive: StrPath | None = None,
    window: str | float = "5m",
    since: Moment | None = None,
    until: Moment | None = None,
    queues: str | Sequence[str] = (),
    out: StrPath | None = None,
    incremental: bool = True,
    top: int = 20,
    progress: Callable[[str], None] | None = None,
) -> Results:
    """Analyse the history of a data directory (`path`) or of a server (`url`); results go to `out`.

    Results of an earlier run with the same settings are continued, unless `incremental` is false. `queues`
    are names or patterns with * and ?. With the window "auto" a short history has short windows; results that
    are continued keep theirs. Returns when the new results are in place.
    """
    target = HistoryTarget(path, url, token, archive, since, until)
    job = _job(target, _out(out, path), window, queues, top)
    return job.run(_HistoryTables(target, spark), incremental, progress or (lambda text: None))


def plan(
    path: StrPath | None = None,
    url: str | None = None,
    *,
    out: StrPath | None = None,
    window: str | float = "5m",
    queues: str | Sequence[str] = (),
    incremental: bool = True,
    **target: Any,
) -> AnalyticsPlan:
    """What `analytics` with the same arguments would read; needs no Spark and writes nothing."""
    source = HistoryTarget(path, url, **target)
    tables = _HistoryTables(source, None)
    job = _job(source, _out(out, path), window, queues).with_window(tables, incremental)
    return job.plan(tables, incremental)


def _job(
    target: HistoryTarget, out: Path, window: str | float, queues: str | Sequence[str], top: int = 20
) -> AnalyticsJob:
    chosen = None if window == AUTO else window_us(window)
    return AnalyticsJob(out, chosen, target.since_us, target.until_us, queue_list(queues), top)


# -- settings ----------------------------------------------------------------------------------------


def window_us(window: str | float) -> int:
    try:
        seconds = read_seconds(window)
    except ValueError as error:
        raise InvalidSetting(f"window must be {error}, not {window!r}") from None
    if not 1 <= seconds <= 366 * 86_400:
        raise InvalidSetting(f"window must be from 1s to 366d, not {window!r}")
    return round(seconds * _US)


def short_window_us(span_s: float) -> int:
    """The shortest window that divides a span into few enough parts; at most the default."""
    fitting = (each for each in _SHORT_WINDOWS_S if span_s / each <= _FITTING_WINDOWS)
    return next(fitting, _DEFAULT_WINDOW_US // _US) * _US


def _out(out: StrPath | None, path: StrPath | None) -> Path:
    if out is not None:
        return Path(out)
    return Path(path) / "analytics" if path is not None else Path("openq-analytics")


@dataclass(frozen=True)
class _HistoryTables:
    """Both tables of one history, between two positions."""

    target: HistoryTarget
    spark: SparkSession | None

    def snapshot(self, first_position: int) -> Any:
        return self.target.snapshot(first_position)

    def fitting_window_us(self) -> int:
        """A window of which the whole history has some dozens; at most the default."""
        found = self.snapshot(0)
        if self.spark is None or sum(piece.bytes for piece in found.pieces) > _MAX_LOOKED_AT_BYTES:
            return _DEFAULT_WINDOW_US
        from pyspark.sql import functions as sql

        _, events, _ = self.tables(0, found.end_position)
        row = events.agg(sql.min("ts"), sql.max("ts")).first()
        if row is None or row[0] is None:
            return _DEFAULT_WINDOW_US
        return short_window_us((row[1] - row[0]).total_seconds())

    def tables(self, first_position: int, end_position: int) -> tuple[DataFrame, DataFrame, DataFrame]:
        """`messages`, the `events` of single messages, and those that emptied a queue."""
        from .lifecycle import EVENT_COLUMNS, MESSAGE_COLUMNS, STEPS

        assert self.spark is not None
        read = self.target.reader(self.spark, first_position, end_position)
        return (
            read(table="messages", columns=MESSAGE_COLUMNS, body=False),
            read(table="events", columns=EVENT_COLUMNS, events=STEPS),
            read(table="events", columns=EVENT_COLUMNS, events=PURGES),
        )


# -- a run ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AnalyticsJob:
    """Results in one directory, and the settings they were made with."""

    out: Path
    window_us: int | None  # None: "auto", until the job knows its history
    since_us: int | None = None
    until_us: int | None = None
    queues: tuple[str, ...] = ()
    top: int = 20

    @property
    def settings(self) -> dict[str, Any]:
        """Results can be continued only with the same settings."""
        return {
            "format": FORMAT,
            "window_us": self.window_us,
            "since_us": self.since_us,
            "until_us": self.until_us,
            "queues": list(self.queues),
        }

    def pointer(self) -> dict[str, Any] | None:
        """The content of the pointer file; None if there are no results yet."""
        path = self.out / POINTER
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {
                **found,
                "version": int(found["version"]),
                "position": int(found["position"]),
                "journal": found["journal"],
            }
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidSetting(
                f"{path} cannot be read ({error}): remove it to start over, or choose another directory (out)"
            ) from None

    def with_window(self, source: Any, incremental: bool) -> AnalyticsJob:
        """With the window of the results that can be continued, or one that fits the history."""
        if self.window_us is not None:
            return self
        last = self.pointer()
        if last is not None and incremental:
            same = replace(self, window_us=last["settings"].get("window_us") or _DEFAULT_WINDOW_US)
            if same.settings == last["settings"]:
                return same
        return replace(self, window_us=source.fitting_window_us())

    def plan(self, source: Any, incremental: bool) -> AnalyticsPlan:
        """Raises HistoryUnavailable or InvalidSetting if the last results cannot be continued."""
        last = self.pointer()
        anew = None
        if last is None:
            anew = "there are no results yet"
        elif not incremental:
            anew = "asked for"
        elif last["settings"] != self.settings:
            anew = "the settings differ from those of the last results"
        first = 0 if anew is not None or last is None else last["position"]
        snapshot = source.snapshot(first)
        if anew is None and last is not None:
            if last["journal"] != snapshot.journal or first > snapshot.end_position:
                raise InvalidSetting(
                    f"the results in {self.out} are those of another history: choose another directory "
                    "(out), or start over (incremental=False, --anew)"
                )
            if snapshot.gap is not None:
                raise HistoryUnavailable(
                    f"positions {snapshot.gap[0]} to {snapshot.gap[1]}, since the last results, are neither "
                    "in the journal nor in the archive: start over (incremental=False, --anew), and "
                    "archive in time"
                )
        return AnalyticsPlan(self.out, first, snapshot.end_position, anew, snapshot.journal)

    def run(self, source: Any, incremental: bool, progress: Callable[[str], None]) -> Results:
        with self._locked():
            job = self.with_window(source, incremental)
            chosen = job.plan(source, incremental)
            if chosen.nothing:
                return job._last(chosen)
            progress(f"reading everything: {chosen.anew}" if chosen.anew else "reading what is new")
            return job._new_version(source, chosen, progress)

    def _new_version(self, source: Any, chosen: AnalyticsPlan, progress: Callable[[str], None]) -> Results:
        from . import lifecycle

        assert self.window_us is not None
        last = self.pointer()
        version = (last["version"] if last is not None else 0) + 1
        directory = self.out / _VERSIONS / f"{version:08d}"
        shutil.rmtree(directory, ignore_errors=True)  # of a run that was killed
        directory.mkdir(parents=True)
        messages, events, purges = source.tables(chosen.first_position, chosen.end_position)
        before = None
        if chosen.anew is None and last is not None:
            old = self.out / _VERSIONS / f"{last['version']:08d}" / "cells"
            before = events.sparkSession.read.schema(lifecycle.AGGREGATE_SCHEMA).parquet(str(old.absolute()))
        purged = lifecycle.purges_of(purges)
        found = lifecycle.aggregate(messages, events, self.window_us, before, purged, self.queues)
        # Each queue contiguous in one file: `metrics` holds one queue in memory at a time.
        placed = found.repartition("queue").sortWithinPartitions("queue", "kind", "window_us")
        cells = directory / "cells"
        placed.write.option("compression", "zstd").parquet(str(cells.absolute()))
        progress("computing metrics")
        selection = Selection(queues=self.queues)
        summary = write_metrics(cells, directory, self.window_us, selection.matches_queue, self.top)
        now_ms = time.time_ns() // 1_000_000
        summary = {
            "version": version,
            "made": iso(from_ms(now_ms)),
            "position": chosen.end_position,
            "selected": list(self.queues),
            **summary,
        }
        _write(directory / "summary.json", json.dumps(summary, indent=1))
        _write(directory / "report.html", render(summary))
        pointer = {
            "version": version,
            "position": chosen.end_position,
            "journal": chosen.journal,
            "settings": self.settings,
        }
        _write(self.out / POINTER, json.dumps(pointer, indent=1))
        # For people: the same path after every run. Programs follow the pointer.
        for name in ("summary.json", "report.html"):
            _write(self.out / name, (directory / name).read_text(encoding="utf-8"))
        self._remove_old_versions(version)
        return Results(
            self.out, version, directory, summary, chosen.first_position, chosen.end_position, repeated=False
        )

    def _last(self, chosen: AnalyticsPlan) -> Results:
        last = self.pointer()
        assert last is not None
        directory = self.out / _VERSIONS / f"{last['version']:08d}"
        summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
        return Results(
            self.out,
            last["version"],
            directory,
            summary,
            chosen.first_position,
            chosen.end_position,
            repeated=True,
        )

    def _remove_old_versions(self, version: int) -> None:
        for path in (self.out / _VERSIONS).iterdir():
            if path.name.isdigit() and int(path.name) <= version - _KEPT_VERSIONS:
                shutil.rmtree(path, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.out / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidSetting(f"results cannot be written to {self.out}: {error.strerror}") from None
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ResultsBusy(self.out) from None
            yield
        finally:
            os.close(handle)


def _write(path: Path, text: str) -> None:
    """Atomic: a reader sees the old text or the new one."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
