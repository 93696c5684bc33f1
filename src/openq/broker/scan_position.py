"""The position of a scan through a queue: a page ends at it, and the next page begins after it."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Entry

SECTIONS = ("ready", "delayed", "in_flight")

ScanPosition = tuple[int, int, int]  # section, rank within it (priority or due time), sequence
ScannedEntry = tuple[Entry, str, ScanPosition]


def position_of(section: int, entry: Entry, max_priority: int) -> ScanPosition:
    if section == 0:
        return (0, -min(entry.priority, max_priority), entry.seq)
    if section == 1:
        return (1, 0 if entry.options is None else entry.options.due_ms, entry.seq)
    return (2, 0, entry.seq)


def entries_after(
    parts: list[tuple[int, Iterator[Entry]]], max_priority: int, after: ScanPosition | None
) -> Iterator[ScannedEntry]:
    """The entries after the position, from the entries of each section in delivery order."""
    for section, entries in parts:
        for entry in entries:
            here = position_of(section, entry, max_priority)
            if after is None or here > after:
                yield entry, SECTIONS[section], here
