"""What the commands of `openq pipeline archive` share: paths, the Spark session, progress."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from ..config import Config
from .directory import require_journal
from .pipeline import spark_session
from .progress import ProgressBar

NO_SPARK = "none"  # as Spark master: run in this process


def archive_paths(options: Namespace, data: bool = False) -> dict[str, Any]:
    """`path=` and `archive=` for the functions of `openq.pipeline`."""
    path = options.data or os.environ.get("OPENQ_DATA") or None
    if path is None and (data or options.archive is None):
        path = Config().data
    if path is not None:
        require_journal(path)
    return {"path": path, "archive": options.archive}


def session(options: Namespace) -> Any:
    """The Spark session, or None to run in this process."""
    master = options.master or os.environ.get("OPENQ_SPARK_MASTER")
    if master == NO_SPARK:
        return None

    return spark_session(options)


class _LazyProgressBar:
    """A progress bar whose total comes with the first update."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count: Any = None

    def __call__(self, done: int, total: int) -> None:
        if self._count is None:
            self._count = ProgressBar(self._what, total)
        self._count.update(done)

    def end(self) -> None:
        if self._count is not None:
            self._count.end()


def with_progress(what: str, work: Callable[..., Any], *words: Any, **options: Any) -> Any:
    bar = _LazyProgressBar(what)
    try:
        return work(*words, progress=bar, **options)
    finally:
        bar.end()
