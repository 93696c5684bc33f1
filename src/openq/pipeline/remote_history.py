"""The history of a server over HTTP: `LocalHistory` for processes that cannot see the files.

A piece is small and is requested as a whole, so if the server becomes unreachable meanwhile, the request is
repeated and no row comes twice.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from itertools import islice
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from ..client.http import Refused
from ..errors import HistoryUnavailable, InvalidSetting, OpenQError
from ..history.local import ScanPiece, Snapshot
from ..history.schema import check_version
from ..history.selection import Selection
from .link import Link

PIECE_BYTES = 8 << 20  # the default: the next piece is fetched while one is processed
_READ_AHEAD = 2  # pieces that are fetched at once
_MAX_SELECTION_BYTES = 16 << 10  # longer ones do not fit into a URL, and are applied here


class RemoteHistory:
    """Can be pickled to executors; the methods are those of `openq.history.local.LocalHistory`."""

    def __init__(
        self, url: str, token: str | None = None, *, link: Link | None = None, **options: Any
    ) -> None:
        self.link = link or Link(url, token, **options)
        self._compression = "lz4" if _is_loopback(self.link.url) else "zstd"

    def __repr__(self) -> str:
        return f"RemoteHistory({self.link.url!r})"

    def snapshot(
        self, selection: Selection, as_of: int | datetime | None = None, max_bytes: int | None = None
    ) -> Snapshot:
        asked, _ = _sendable(selection)
        query = {
            "selection": _text(asked),
            "as_of": as_of.isoformat() if isinstance(as_of, datetime) else as_of,
            "max_bytes": PIECE_BYTES if max_bytes is None else min(max_bytes, PIECE_BYTES),
        }
        with _history_errors():
            answer = self.link.call("GET", "history/snapshot", query=query)
        return Snapshot.from_json(answer.json())

    def read(self, piece: ScanPiece, selection: Selection) -> Iterator[pa.RecordBatch]:
        yield from self._batches(selection, self._fetch(piece, selection))

    def read_many(self, pieces: Iterable[ScanPiece], selection: Selection) -> Iterator[pa.RecordBatch]:
        """The rows of one piece after the other; the next pieces are fetched meanwhile."""
        waiting = iter(pieces)
        coming: deque[Future[bytes]] = deque()
        stop = Event()
        threads = ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="openq-fetch")
        try:
            while True:
                for piece in islice(waiting, _READ_AHEAD - len(coming)):
                    coming.append(threads.submit(self._fetch, piece, selection, stop))
                if not coming:
                    return
                data = coming.popleft().result()
                for piece in islice(waiting, 1):
                    coming.append(threads.submit(self._fetch, piece, selection, stop))
                yield from self._batches(selection, data)
        finally:
            # A caller that stops reading does not wait for pieces fetched in advance.
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)

    def end_position(self, after: int | None = None, wait_s: float = 0.0) -> int:
        """The end of the history; with `after`, wait up to `wait_s` until it is beyond that."""
        query = {"after": after, "wait": wait_s or None}
        with _history_errors():
            answer = self.link.call("GET", "history/end", query=query, wait_s=wait_s)
        return int(answer.json()["position"])

    def _fetch(self, piece: ScanPiece, selection: Selection, stop: Event | None = None) -> bytes:
        asked, _ = _sendable(selection)
        query = {
            "piece": json.dumps(piece.to_json(), separators=(",", ":")),
            "selection": _text(asked),
            "compression": self._compression,
        }
        with _history_errors():
            return self.link.call("GET", "history/rows", query=query, accept="*/*", stop=stop).body

    def _batches(self, selection: Selection, data: bytes) -> Iterator[pa.RecordBatch]:
        _, is_whole = _sendable(selection)
        try:
            reader = pa.ipc.open_stream(data)
        except pa.ArrowException:
            raise InvalidSetting(f"{self.link.url} did not answer with rows; check url") from None
        check_version(reader.schema.metadata, self.link.url)
        for batch in reader:
            kept = batch if is_whole else selection.keep(batch)
            if kept.num_rows:
                yield kept


class _history_errors:
    """Raises errors of the server as those that a local history raises."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refused):
            if error.code == "history_unavailable":
                raise HistoryUnavailable(error.detail) from None
            if error.code in ("invalid_setting", "invalid"):
                raise InvalidSetting(error.detail) from None
            if error.hint and error.hint not in error.detail:
                raise HistoryRefused(error) from None


class HistoryRefused(OpenQError):
    """The error of the server, with its hint."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(f"{refused.detail.rstrip('.')}. {refused.hint}")
        self.code = refused.code
        self.status = refused.status
        self.hint = refused.hint


def _text(selection: Selection) -> str:
    return json.dumps(selection.to_json(), separators=(",", ":"), ensure_ascii=False)


def _sendable(selection: Selection) -> tuple[Selection, bool]:
    """The selection for the server, and whether it is complete: long lists are applied here instead."""
    if len(_text(selection)) <= _MAX_SELECTION_BYTES:
        return selection, True
    if len(_text(replace(selection, ids=()))) <= _MAX_SELECTION_BYTES:
        asked = replace(selection, ids=())
    else:
        asked = replace(selection, ids=(), queues=())
    return replace(asked, columns=tuple(selection.read_columns)), False


def _is_loopback(url: str) -> bool:
    """Whether the server is on this machine: then fast compression is better."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
