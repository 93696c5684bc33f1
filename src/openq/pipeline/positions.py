"""Positions that a stream needs to know: where the journal ends, and where its next rows are."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import OpenQError
from .source import is_local

if TYPE_CHECKING:
    from ..history.local import LocalHistory
    from ..history.selection import Selection
    from .remote_history import RemoteHistory

LOOK_S = 0.02  # maximum age of a local end position that is answered from memory
WAIT_S = 20.0
LOOK_ROWS = 1 << 16  # how far to look ahead for the ends of batches
LOOK_BYTES = 8 << 20
MAX_LOOKED_UP = 2 << 20


class LookAhead:
    """The positions of the next selected rows, so that a batch can be cut to an exact number of them.

    They are looked up without bodies, many at once: a run with a small limit looks once for many batches.
    """

    def __init__(self, history: LocalHistory | RemoteHistory, selection: Selection) -> None:
        self._history = history
        # The events of a record share its position; their size is that of its message.
        self._selection = replace(selection, columns=("position", "size"), body=False)
        self._start = 0
        self.through = 0  # every position before this one has been looked up
        self._positions = np.empty(0, np.int64)
        self._sizes = np.empty(0, np.int64)

    @property
    def rows(self) -> int:
        return len(self._positions)

    def forget_before(self, start: int) -> None:
        """Begin at `start`; keep what is known from there on."""
        is_known = self._start <= start <= self.through
        done = int(np.searchsorted(self._positions, start)) if is_known else self.rows
        self._positions, self._sizes = self._positions[done:], self._sizes[done:]
        self._start = start
        self.through = self.through if is_known else start

    def look(self, end: int, enough: int) -> None:
        """Look up rows until `enough` are known, or all before `end`."""
        if self.rows >= enough or self.through >= end:
            return
        selection = replace(self._selection, first_position=self.through, end_position=end)
        pieces = self._history.snapshot(selection, max_bytes=LOOK_BYTES).pieces
        known = np.stack((self._positions, self._sizes))
        more: list[Any] = []
        count = self.rows
        through = end
        # Rows in archive files are in any order, so all files come first; the journal comes in order.
        for piece in sorted(pieces, key=lambda each: (each.kind == "segment", each.start)):
            if piece.kind == "segment" and count >= enough:
                through = min(through, piece.start)
                break
            for batch in self._history.read(piece, selection):
                numbers = [batch.column(name).fill_null(0).to_numpy() for name in ("position", "size")]
                more.append(np.stack([each.astype(np.int64) for each in numbers]))
                count += batch.num_rows
            if count > 2 * MAX_LOOKED_UP:
                # A long archive: rows far ahead need not be known yet.
                known, more = _sorted_by_position(known, more), []
                through = int(known[0, MAX_LOOKED_UP])
                known = known[:, : np.searchsorted(known[0], through)]
                count = known.shape[1]
                selection = replace(selection, end_position=through)
        self._positions, self._sizes = _sorted_by_position(known, more)
        self.through = through

    def cut(self, rows: int | None, size: int | None) -> int:
        """The end of a batch of at most so many rows and bytes: never inside a record, and after at least
        one."""
        count = self.rows if rows is None else min(rows, self.rows)
        if size is not None:
            count = min(count, int(np.searchsorted(np.cumsum(self._sizes), size, side="right")))
        if count == self.rows:
            return self.through
        end = int(self._positions[count])  # the first row that is not in it
        if count == 0 or end == int(self._positions[0]):
            after = int(np.searchsorted(self._positions, self._positions[0], side="right"))
            return self.through if after == self.rows else int(self._positions[after])
        return end


class LocalEndPosition:
    """By path: looks at the files, at most every `LOOK_S`."""

    def __init__(self, history: LocalHistory) -> None:
        self._history = history
        self._position = -1
        self._looked = 0.0

    def now(self) -> int:
        self._position = self._history.end_position()
        self._looked = time.monotonic()
        return self._position

    def position(self) -> int:
        return self._position if time.monotonic() - self._looked < LOOK_S else self.now()

    def close(self) -> None:
        pass


class RemoteEndPosition:
    """From a server: a thread long-polls for a change, and callers read the last known position."""

    def __init__(self, history: RemoteHistory) -> None:
        self._history = history
        self._position = -1
        self._error: OpenQError | None = None
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    def now(self) -> int:
        self._position = max(self._position, self._history.end_position())
        return self._position

    def position(self) -> int:
        if self._error is not None:
            error, self._error, self._thread = self._error, None, None
            raise error
        if self._thread is None:
            self.now()
            self._thread = threading.Thread(target=self._follow, daemon=True, name="openq-end")
            self._thread.start()
        return self._position

    def _follow(self) -> None:
        while not self._closed.is_set():
            try:
                end = self._history.end_position(after=self._position, wait_s=WAIT_S)
            except OpenQError as error:
                self._error = error
                break
            self._position = max(self._position, end)
        self._history.link.close()

    def close(self) -> None:
        self._closed.set()
        self._history.link.close()


def make_end_position(history: LocalHistory | RemoteHistory) -> LocalEndPosition | RemoteEndPosition:
    return LocalEndPosition(history) if is_local(history) else RemoteEndPosition(history)


def is_near(start: int, end: int) -> bool:
    """Whether both are in the same segment and at most `LOOK_BYTES` apart."""
    return start >> 32 == end >> 32 and end - start <= LOOK_BYTES


def _sorted_by_position(known: Any, more: list[Any]) -> Any:
    rows = np.concatenate([known, *more], axis=1)
    return rows[:, np.argsort(rows[0], kind="stable")]
