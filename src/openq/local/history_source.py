"""The history of a local broker, as `openq.broker.history_source` describes it."""

from __future__ import annotations

import os
from typing import Any

from ..broker.history_source import HistorySegment, HistorySource
from ..errors import HistoryUnavailable
from ..journal.file_journal import Journal
from ..journal.format import BLOCK_BYTES, offset_of, segment_of
from ..journal.segments import SegmentInfo


def history_source(journal: Journal | None) -> HistorySource:
    return HistorySource(SegmentFiles(journal), None if journal is None else JournalTables(journal))


class SegmentFiles:
    def __init__(self, journal: Journal | None) -> None:
        self._journal = journal

    def segments(self) -> list[HistorySegment]:
        if self._journal is None:
            return []
        durable = self._journal.durable_location
        return [
            HistorySegment(
                each.number, _durable_bytes(each, durable), each.first_ms, each.last_ms, each.sealed
            )
            for each in self._journal.segments()
            if each.number <= segment_of(durable)
        ]

    def read(self, number: int, start: int, end: int) -> bytes:
        try:
            handle = os.open(self._find(number).path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _gone(number) from None
        try:
            data = os.pread(handle, end - start, start)
        finally:
            os.close(handle)
        self._find(number)  # the file of a freed segment may have been recycled for another one meanwhile
        if len(data) != end - start:
            raise _gone(number)
        return data

    def index(self, number: int) -> bytes:
        if self._journal is None:
            raise _gone(number)
        return self._journal.index(number).rows

    def clear_cache(self) -> None:
        if self._journal is not None:
            self._journal.clear_cache()

    def _find(self, number: int) -> SegmentInfo:
        for each in [] if self._journal is None else self._journal.segments():
            if each.number == number:
                return each
        raise _gone(number)


class JournalTables:
    worker = "openq.history.worker"
    poll_s = 0.01

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @property
    def is_over(self) -> bool:
        return self._journal.error is not None

    def task(self, archive: str | None) -> dict[str, Any]:
        path = self._journal.path
        return {
            "data": path,
            "archive": os.path.abspath(archive or os.path.join(path, "archive")),
            "end": self._journal.durable_location,
        }

    def end(self, settle: bool = False) -> int:
        return self._journal.durable_location


def _durable_bytes(segment: SegmentInfo, durable_location: int) -> int:
    """Later bytes may still be lost."""
    if segment_of(durable_location) == segment.number:
        return min(segment.bytes, offset_of(durable_location) - BLOCK_BYTES)
    return segment.bytes


def _gone(number: int) -> HistoryUnavailable:
    return HistoryUnavailable(f"segment {number} no longer exists")
