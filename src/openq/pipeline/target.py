"""Where a job finds its history, and how much of it: a data directory or a server, from a time to a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting
from ..history.selection import Selection
from ..parsing import read_seconds
from .options import READ, SourceOptions, as_options
from .options import moment_us as exact_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ..history.local import LocalHistory, Snapshot
    from .remote_history import RemoteHistory

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class HistoryTarget:
    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        url: str | None = None,
        token: str | None = None,
        archive: str | os.PathLike[str] | None = None,
        since: datetime | float | str | None = None,
        until: datetime | float | str | None = None,
    ) -> None:
        if path is None and url is None:
            raise InvalidSetting("say where the history is: path (a data directory) or url (a server)")
        given: dict[str, Any] = {"path": path, "url": url, "token": token, "archive": archive}
        self._read_options = {name: value for name, value in given.items() if value is not None}
        self.since_us = moment_us(since, "since")
        self.until_us = moment_us(until, "until")
        if self.since_us is not None and self.until_us is not None and self.since_us >= self.until_us:
            raise InvalidSetting("since must be before until")

    @cached_property
    def history(self) -> LocalHistory | RemoteHistory:
        """Opened once: how far the newest segment reaches is found by reading it."""
        from .source import open_history

        texts = {name: os.fspath(value) for name, value in self._read_options.items()}
        return open_history(SourceOptions.parse(as_options(**texts), READ))

    def require(self, queues: Sequence[str]) -> None:
        """Raises QueueNotFound if a queue that is named, not matched by a pattern, never existed."""
        from .source import check_queues

        if queues:
            texts = {name: os.fspath(value) for name, value in self._read_options.items()}
            check_queues(self.history, SourceOptions.parse(as_options(**texts, queues=queues), READ))

    def snapshot(self, first_position: int = 0) -> Snapshot:
        """Where the history ends, which one it is, and whether something from there on is missing."""
        return self.history.snapshot(Selection(columns=("seq",), first_position=first_position or None))

    def reader(
        self, spark: SparkSession, first_position: int = 0, end_position: int | None = None
    ) -> Callable[..., DataFrame]:
        """A function that takes the words of `history`; whatever it reads ends at the same position."""
        from .history import history

        if end_position is None:
            end_position = self.history.end_position()
        options: dict[str, Any] = {
            **self._read_options,
            "since": None if self.since_us is None else _EPOCH + timedelta(microseconds=self.since_us),
            "until": None if self.until_us is None else _EPOCH + timedelta(microseconds=self.until_us),
            "first_position": first_position or None,
            "end_position": end_position,
            "opened": self.history,
        }
        one_at_a_time = Lock()  # what was opened is not for several threads

        def read(**words: Any) -> DataFrame:
            with one_at_a_time:
                return history(spark, **{**options, **words})

        return read


def queue_list(queues: str | Sequence[str]) -> tuple[str, ...]:
    """Names or patterns; a text is one or several with commas between them."""
    listed = tuple(name.strip() for name in queues.split(",")) if isinstance(queues, str) else tuple(queues)
    Selection(queues=listed).validate()
    return listed


def moment_us(moment: datetime | float | str | None, name: str) -> int | None:
    """A point in time; a text may also be a span before now: 2h, 7d."""
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
                f"{name} must be a time such as 2026-01-31T12:00:00Z, or a span before now such as 2h or 7d, "
                f"not {moment!r}"
            ) from None
    return exact_us(moment, name)
