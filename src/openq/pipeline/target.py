"""Where a job finds its history: a data directory or a server, and between which times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting
from ..history.moments import to_datetime
from ..history.selection import Selection
from ..parsing import read_seconds
from .options import READ, SourceOptions, as_options
from .options import moment_us as exact_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..history.local import LocalHistory, Snapshot
    from .remote_history import RemoteHistory

StrPath = str | os.PathLike[str]
Moment = datetime | float | str


class HistoryTarget:
    """`path` is a data directory, `url` a server; with both, executors that cannot see the path ask the
    server."""

    def __init__(
        self,
        path: StrPath | None = None,
        url: str | None = None,
        token: str | None = None,
        archive: StrPath | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> None:
        if path is None and url is None and archive is None:
            raise InvalidSetting("say where the history is: path (a data directory) or url (a server)")
        self.since_us, self.until_us = time_range(since, until)
        self.read_options: dict[str, str] = {}
        given = {"path": path, "url": url, "token": token, "archive": archive}
        self.read_options = {name: os.fspath(value) for name, value in given.items() if value is not None}

    def _options(self, **more: object) -> SourceOptions:
        return SourceOptions.parse(as_options(**self.read_options, **more), READ)

    @cached_property
    def history(self) -> LocalHistory | RemoteHistory:
        """Opened once: finding the end of the newest segment means reading it."""
        from .source import open_history

        return open_history(self._options())

    def require(self, queues: Sequence[str]) -> None:
        """Raises QueueNotFound if a queue that is named, not matched by a pattern, never existed."""
        from .source import check_queues

        if queues:
            check_queues(self.history, self._options(queues=queues))

    def snapshot(self, first_position: int = 0) -> Snapshot:
        """The end of the history, its identity, and whether rows from `first_position` on are missing."""
        return self.history.snapshot(Selection(columns=("seq",), first_position=first_position or None))

    def reader(
        self, spark: SparkSession, first_position: int = 0, end_position: int | None = None
    ) -> Callable[..., DataFrame]:
        """A function with the keywords of `history`; everything it reads ends at the same position."""
        from .history import history

        if end_position is None:
            end_position = self.history.end_position()
        options: dict[str, Any] = {
            **self.read_options,
            "since": None if self.since_us is None else to_datetime(self.since_us),
            "until": None if self.until_us is None else to_datetime(self.until_us),
            "first_position": first_position or None,
            "end_position": end_position,
            "opened": self.history,
        }
        lock = Lock()  # an open history is not safe for several threads

        def read(**keywords: Any) -> DataFrame:
            with lock:
                return history(spark, **{**options, **keywords})

        return read


def queue_list(queues: str | Sequence[str]) -> tuple[str, ...]:
    """Names or patterns; a text is one or several, separated by commas."""
    listed = tuple(name.strip() for name in queues.split(",")) if isinstance(queues, str) else tuple(queues)
    Selection(queues=listed).validate()
    return listed


def time_range(since: Moment | None, until: Moment | None) -> tuple[int | None, int | None]:
    """Both in microseconds. Raises InvalidSetting if no time lies between them."""
    since_us, until_us = moment_us(since, "since"), moment_us(until, "until")
    if since_us is not None and until_us is not None and since_us >= until_us:
        raise InvalidSetting("since must be before until")
    return since_us, until_us


def moment_us(moment: Moment | None, name: str) -> int | None:
    """A point in time; a text may also be a duration before now: 2h, 7d."""
    if moment is None:
        return None
    if isinstance(moment, str):
        try:
            return round((time.time() - read_seconds(moment)) * 1e6)
        except ValueError:
            pass
        try:
            return exact_us(moment, name)
        except InvalidSetting:
            raise InvalidSetting(
                f"{name} must be a time such as 2026-01-31T12:00:00Z, or a duration before now such as 2h "
                f"or 7d, not {moment!r}"
            ) from None
    return exact_us(moment, name)


def moment_datetime(moment: Moment | None, name: str) -> datetime | None:
    us = moment_us(moment, name)
    return None if us is None else to_datetime(us)
