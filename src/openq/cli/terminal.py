"""Exit codes, messages to the user, colours, and the progress of work measured in bytes."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than everything here
if TYPE_CHECKING:
    from typing import IO

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
DENIED = 4
EMPTY = 5  # nothing found, or timed out
INTERRUPTED = 130

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


def styled(text: str, style: str, stream: IO[str] | None = None) -> str:
    """In colour on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    if not is_terminal(stream or sys.stdout) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m"


def is_terminal(stream: IO[str]) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    """The width for text on stdout."""
    try:
        width = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        try:
            width = os.get_terminal_size(sys.__stdout__.fileno()).columns - 2  # type: ignore[union-attr]
        except (AttributeError, ValueError, OSError):
            width = 0
    return width if width > 0 else 78


def say(text: str) -> None:
    """One line on stderr."""
    print(f"{styled('openq:', 'bold', sys.stderr)} {text}", file=sys.stderr)


def size_text(count: int) -> str:
    """A number of bytes such as 1.5 MiB."""
    if count < 1024:
        return f"{count} bytes"
    size = count / 1024
    units = ["KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.1f} {units[0]}"


class ByteProgress:
    """How many of `total` bytes are done, on one line of stderr; only on a terminal."""

    _INTERVAL_S = 0.2

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._shows = is_terminal(sys.stderr)
        # Short work shows nothing.
        self._next = time.monotonic() + 2 * self._INTERVAL_S
        self._shown = False

    def add(self, count: int) -> None:
        self._done += count
        if self._shows and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._INTERVAL_S
            self._shown = True
            percent = min(99, 100 * self._done // max(self._total, 1))
            sys.stderr.write(f"\r{self._what}: {percent} % of {size_text(self._total)}\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._shown = False
