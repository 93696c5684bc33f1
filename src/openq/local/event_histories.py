"""The histories of a data directory: which of them the id of an event belongs to.

A restored backup goes on with a history of its own. What the earlier directory recorded after the backup is
not part of it, although positions are used again. So each restore begins a new history, whose name is in the
ids of its events; those before it keep their ids. `event-histories.json` has the names, with the position at
which each begins: the end of the journal when the directory is opened for the first time after the restore.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from ..journal.disk import DiskIo, replace_file

log = logging.getLogger("openq.local")

FILE = "event-histories.json"


class History(NamedTuple):
    name: str  # 8 hex digits
    start: int | None  # None: the directory was not opened since the restore


def read_histories(directory: str) -> list[History]:
    """Those that restores began, the oldest first. Raises OSError, or ValueError if the file is damaged."""
    try:
        with open(os.path.join(directory, FILE), "rb") as file:
            found = json.load(file)["histories"]
        return [History(str(each["name"]), each["start"]) for each in found]
    except FileNotFoundError:
        return []
    except (KeyError, TypeError) as error:
        raise ValueError(f"{FILE} cannot be read") from error


def encode_histories(histories: Sequence[History]) -> bytes:
    return json.dumps({"histories": [each._asdict() for each in histories]}).encode()


def with_new_history(known: Sequence[History]) -> list[History]:
    if known and known[-1].start is None:
        return list(known)  # the restore was interrupted and goes on
    return [*known, History(secrets.token_hex(4), None)]


class EventHistories:
    """Names for positions, and the other way round."""

    def __init__(self, first: str, later: Sequence[History] = (), end: int = 0) -> None:
        """`first` names the history before all restores; `end` is that of the journal."""
        self._starts: list[tuple[int, str]] = [(-1, first)]
        self._starts += [(end if each.start is None else each.start, each.name) for each in later]

    def name_at(self, position: int, number: int) -> str:
        found = self._starts[0][1]
        for start, name in self._starts[1:]:
            if (position, number) <= (start, 0):
                break
            found = name
        return found

    def end_of(self, name: str) -> int | None:
        """Where the history ends for its successor; None: it is the last one. Raises KeyError."""
        names = [each for _, each in self._starts]
        if name not in names:
            raise KeyError(name)
        at = names.index(name)
        return self._starts[at + 1][0] if at + 1 < len(names) else None


def open_histories(directory: str, first: str, end: int, io: DiskIo) -> EventHistories:
    """Before anything is appended to the journal: its beginning is on disk before its first event."""
    try:
        known = read_histories(directory)
    except (OSError, ValueError) as error:
        # A history of its own for this process: readers get a gap too many, never one too few.
        log.error("%s cannot be read, readers of events get a gap: %s", FILE, error)
        return EventHistories(first, [History(secrets.token_hex(4), end)])
    if any(each.start is None for each in known):
        known = [each if each.start is not None else each._replace(start=end) for each in known]
        replace_file(io, os.path.join(directory, FILE), encode_histories(known), ".tmp")
    return EventHistories(first, known)
