"""`--reload`: restart the processes when a file of the application changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

log = logging.getLogger("openq.worker")

INTERVAL_S = 1.0
Stamp = tuple[int, int] | None  # time of change and size; None: the file does not exist
Stamps = dict[str, Stamp]


def stamp_of(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def read_stamps(value: dict[str, list[int] | None]) -> Stamps:
    """From JSON."""
    return {path: None if stamp is None else (stamp[0], stamp[1]) for path, stamp in value.items()}


class FileWatch:
    """Compares the files with how they were when they were imported, or at the last look.

    Polling: it works on every file system.
    """

    def __init__(self, files: Callable[[], Stamps], on_change: Callable[[], None]) -> None:
        self._files = files
        self._on_change = on_change
        self._known: Stamps = {}
        self._next = 0.0

    def look(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        # Files that are no longer imported stay watched: a failed import must be noticed when it is repaired.
        before = {**self._files(), **self._known}
        self._known = {path: stamp_of(path) for path in before}
        changed = [path for path, stamp in self._known.items() if stamp != before[path]]
        if changed:
            log.info("%s changed: rolling restart", os.path.relpath(changed[0]))
            self._on_change()
