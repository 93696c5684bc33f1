"""The archive of a history: `archive` adds what is new, `watch` does so again and again.

`archive_job.py` has the job itself; `compact`, `erase`, `vacuum` and `verify` maintain an archive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..client.http import TimedOut, Unreachable
from ..errors import InvalidSetting
from ..history.archive import Archive
from ..history.journal import JournalFiles
from .archive_job import TASK_BYTES, run_archive
from .archive_journal import ArchiveCursor, JournalSource
from .archive_maintenance import compact, erase, vacuum
from .archive_server import ServerSource
from .archive_tasks import ArchiveResult, Progress, archive_path
from .archive_verify import verify
from .remote_history import RemoteHistory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveResult", "archive", "compact", "erase", "vacuum", "verify", "watch"]

log = logging.getLogger("openq.pipeline")

_POLL_S = 2.0
_REFRESH_S = 3600.0  # a server drops a cursor that is not moved for days


def archive(
    spark: SparkSession | None,
    *,
    path: str | None = None,
    url: str | None = None,
    archive: str | None = None,
    token: str | None = None,
    through: int | None = None,
    include_open: bool = False,
    accept_gap: bool = False,
    task_bytes: int = TASK_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ArchiveResult:
    """Archive all full segments that are not archived yet; with `include_open` also the open one, so far.

    `through` (a position) ends it earlier. With `url` beside `path` the cursor of that server is moved to the
    end of the archive; without, that of the server that holds `path`, if it allows it. With `url` and
    `archive` alone the rows come from the server, up to its last one. `spark=None` runs in this process.
    """
    return _archive(
        spark,
        (path, url, archive, token),
        _server_history(path, url, token),
        through=through,
        include_open=include_open,
        accept_gap=accept_gap,
        task_bytes=task_bytes,
        dry_run=dry_run,
        progress=progress,
    )


class ArchiveOptions(TypedDict, total=False):
    through: int | None
    include_open: bool
    accept_gap: bool
    task_bytes: int


def _server_history(path: str | None, url: str | None, token: str | None) -> RemoteHistory | None:
    """None if the rows are read by path."""
    if path is None and url is None:
        raise InvalidSetting(
            "where is the history? give path=, a data directory, or url=, a server, and archive="
        )
    return RemoteHistory(url, token) if path is None and url is not None else None


def _archive(
    spark: SparkSession | None,
    target: tuple[str | None, str | None, str | None, str | None],
    history: RemoteHistory | None,
    dry_run: bool = False,
    progress: Progress | None = None,
    **options: Unpack[ArchiveOptions],
) -> ArchiveResult:
    path, url, archive, token = target
    through, accept_gap = options.get("through"), options.get("accept_gap", False)
    task_bytes = options.get("task_bytes", TASK_BYTES)
    if task_bytes < 1:
        raise InvalidSetting(f"task_bytes must be 1 or more, not {task_bytes}")
    into = Archive(archive_path(path, archive))
    if history is not None:
        source = ServerSource(into, history, through, accept_gap, task_bytes)
        return run_archive(spark, into, source, dry_run=dry_run, progress=progress)
    assert path is not None
    cursor = ArchiveCursor(path, None if dry_run else url, token)
    journal = JournalSource(
        into, path, cursor, through, options.get("include_open", False), accept_gap, task_bytes
    )
    result = run_archive(spark, into, journal, dry_run=dry_run, progress=progress)
    return replace(result, cursor=cursor.problem)


def watch(
    spark: SparkSession | None,
    *,
    stop: threading.Event | None = None,
    on_result: Callable[[ArchiveResult], None] | None = None,
    every_s: float = _POLL_S,
    path: str | None = None,
    url: str | None = None,
    token: str | None = None,
    archive: str | None = None,
    **options: Any,
) -> None:
    """Archive whenever a segment is full, until `stop` is set; from a server (`url` without `path`), every
    `every_s`. A server that was reached once may be unreachable for a while. `on_result` is called after runs
    that committed a version."""
    stop = stop or threading.Event()
    history = _server_history(path, url, token)
    files = None if path is None else JournalFiles(path)
    archived: int | None = None
    ran_at: float | None = None
    while not stop.is_set():
        newest = None if files is None else files.segments()[-1].number
        is_due = ran_at is None or files is None or time.monotonic() - ran_at > _REFRESH_S
        if is_due or newest != archived:
            try:
                result = _archive(spark, (path, url, archive, token), history, **options)
            except (Unreachable, TimedOut) as error:
                if files is not None or ran_at is None:
                    raise
                log.warning("%s", error)
            else:
                archived, ran_at = newest, time.monotonic()
                if on_result is not None and result.version is not None:
                    on_result(result)
        stop.wait(every_s)
