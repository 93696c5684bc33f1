"""What the rest of OpenQ knows of disks: an append-only log of opaque records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from openq.errors import OpenQError


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One file of the journal. The times are those of its first and last message, where known."""

    number: int
    path: str
    bytes: int
    first_ms: int | None
    last_ms: int | None
    sealed: bool


class JournalProtocol(Protocol):
    """An append-only log of records, each with a location (`at`) that only grows; 0 is none.

    `lock` guards the engine and `append` alike: what the engine decides and what the journal notes
    happen in the same order. No method writes or syncs while it is held.
    To add a storage: implement these and join the list in tests/journal/test_journal.py.
    """

    lock: Lock
    durable_location: int  # every record with at < durable_at is on disk
    error: OpenQError | None  # set once, for good, by the first write or sync that failed
    first_record: Callable[[], bytes] | None  # if set: makes the first record of each new segment; lock held
    group: int  # number of the pending group; one callback per group is enough

    @property
    def end_location(self) -> int:
        """Where the next record goes, unless it begins a new segment. Equals durable_at when idle."""
        ...

    def append(self, record: bytes) -> int:
        """Lock held. The record's location; it is durable once `wait` or a callback says so."""
        ...

    def after_commit(self, callback: Callable[[], None]) -> None:
        """Lock held. Call back, without the lock, when all appended so far is durable or `error` is set."""
        ...

    def after_commit_of(self, location: int, callback: Callable[[], None]) -> bool:
        """Lock held. The same with the commit under way, if the record is in it; else False."""
        ...

    def flush(self) -> None:
        """Lock held or not. Ask for a commit now; does not wait for it."""
        ...

    def wait(self, location: int) -> None:
        """Lock not held. Return once the record is durable; raises JournalFailed."""
        ...

    def read(self, location: int) -> bytes: ...
    def read_many(self, locations: Sequence[int]) -> list[bytes]: ...
    def replay(self, start_location: int = 0) -> Iterator[tuple[int, bytes]]: ...

    def can_publish(self, size: int) -> bool:
        """Lock held. False when only what is reserved for acks and the like is left on the disk."""
        ...

    def segments(self) -> list[SegmentInfo]: ...

    def drop_before(self, segment_number: int) -> int:
        """Lock not held. Free all segments with a smaller number, except the current one; how many."""
        ...

    def close(self) -> None: ...
