"""What the commands of `openq pipeline archive` share: where it is, who does the work, how far that is."""

from __future__ import annotations

import os

from .parser import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from typing import Any

NO_SPARK = "none"  # instead of a Spark master: in this process


def add_archive_paths(parser: Parser) -> None:
    where = parser.add_argument_group("where")
    where.add_argument("--data", metavar="DIR", help="the data directory (OPENQ_DATA; default ./openq-data)")
    where.add_argument(
        "--archive", metavar="DIR", help="the archive (default: `archive` in the data directory)"
    )


def archive_paths(options: Namespace, data: bool = False) -> dict[str, Any]:
    """`path=` and `archive=` as the functions of the pipeline take them."""
    from ..config import Config
    from .api import NotFound

    path = options.data or os.environ.get("OPENQ_DATA") or None
    if path is None and (data or options.archive is None):
        path = Config().data
    if path is not None:
        from .journal import missing_reason

        if (reason := missing_reason(path)) is not None:
            raise NotFound(reason)
    return {"path": path, "archive": options.archive}


def session(options: Namespace) -> Any:
    """Spark, or None where the work is to be done here."""
    master = options.master or os.environ.get("OPENQ_SPARK_MASTER")
    if master == NO_SPARK:
        return None
    from .pipeline import spark_session

    return spark_session(options)


class _LazyProgressBar:
    """A progress bar that learns the total with the first news."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count: Any = None

    def __call__(self, done: int, total: int) -> None:
        from .progress import ProgressBar

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
