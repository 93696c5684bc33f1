"""What readers of the history get from a store: segment files, and tasks for processes that read tables."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class HistorySegment(NamedTuple):
    """One segment, as far as it is durable. The times are those of its first and last message, if known."""

    number: int
    bytes: int
    first_ms: int | None
    last_ms: int | None
    sealed: bool


class HistoryFiles(Protocol):
    """The segments of a journal; none where messages are in memory only."""

    def segments(self) -> list[HistorySegment]: ...
    def read(self, number: int, start: int, end: int) -> bytes: ...  # raises HistoryUnavailable; waits
    def index(self, number: int) -> bytes: ...  # the same
    def clear_cache(self) -> None: ...


class HistoryTables(Protocol):
    """The history as tables, which a process beside the server reads (`history/worker.py`)."""

    @property
    def worker(self) -> str: ...  # the module that the process runs
    @property
    def poll_s(self) -> float: ...  # minimum interval at which the end may be asked for
    @property
    def is_over(self) -> bool: ...  # nothing is added any more: the store has failed
    def task(self, archive: str | None) -> dict[str, Any]: ...  # where the process finds the history
    # The position after the last row. `settle`: every row that exists now lies before it. It waits where
    # calls of the broker do.
    def end(self, settle: bool = False) -> int: ...


class HistorySource(NamedTuple):
    files: HistoryFiles | None  # None: the store has no files
    tables: HistoryTables | None  # None: the store keeps no history
