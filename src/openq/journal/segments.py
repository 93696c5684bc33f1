"""Information about the files of a journal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One file of the journal. The times are those of its first and last message, where known."""

    number: int
    path: str
    bytes: int
    first_ms: int | None
    last_ms: int | None
    sealed: bool
