"""`--reload`: restart the processes when a file of the application changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

log = logging.getLogger("openq.worker")

INTERVAL_S = 1.0
Stamp = tuple[int, int] | None  # time of change and size; None: the file does not exist


class FileWatch:
    """Compares the files with how they were at the last look. Polling: it works on every file system."""

    def __init__(self, files: Callable[[], Iterable[str]], on_change: Callable[[], None]) -> None:
        self._files = files
        self._on_change = on_change
        self._known: dict[str, Stamp] = {}
        self._next = 0.0

    def look(self, now: float) -> None:
        if now < self._next:
            return
        self._next = now + INTERVAL_S
        found = {path: _stamp(path) for path in self._files()}
        changed = [
            path for path, stamp in found.items() if path in self._known and self._known[path] != stamp
        ]
        # Files that are no longer imported stay watched: a failed import must be noticed when it is repaired.
        for path in self._known.keys() - found.keys():
            stamp = _stamp(path)
            if stamp != self._known[path]:
                changed.append(path)
            found[path] = stamp
        self._known = found
        if changed:
            log.info("%s changed: rolling restart", os.path.relpath(changed[0]))
            self._on_change()


def _stamp(path: str) -> Stamp:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
