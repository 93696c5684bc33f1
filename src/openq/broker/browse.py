"""Where a walk through a queue stands: a mark that a page ends with and the next one begins after."""

from __future__ import annotations

from collections.abc import Iterator

from ..model import Entry

SECTIONS = ("ready", "delayed", "in_flight")

Mark = tuple[int, int, int]  # section, rank within it (priority or due time), sequence
Step = tuple[Entry, str, Mark]


def mark_of(section: int, entry: Entry, max_priority: int) -> Mark:
    if section == 0:
        return (0, -min(entry.priority, max_priority), entry.seq)
    if section == 1:
        return (1, 0 if entry.extra is None else entry.extra.due_ms, entry.seq)
    return (2, 0, entry.seq)


def after_mark(
    parts: list[tuple[int, Iterator[Entry]]], max_priority: int, after: Mark | None
) -> Iterator[Step]:
    """What comes after the mark, of the entries of each section in hand-out order."""
    for section, entries in parts:
        for entry in entries:
            here = mark_of(section, entry, max_priority)
            if after is None or here > after:
                yield entry, SECTIONS[section], here
