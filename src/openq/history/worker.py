"""The process that decodes history for a server, which only passes the bytes on.

    python -m openq.history.worker FD

FD is one end of a pair of sockets. Both sides send frames: a length (4 bytes, little endian) and JSON. The
server sends one task; this side may ask which queues the caller may see, and ends with `done` or `failed`.
With `done` comes the descriptor of an anonymous file with the bytes of the answer. When the server ends, the
socket is closed and this process ends too.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from openq.errors import HistoryUnavailable, InvalidSetting, OpenQError

MAX_FRAME = 64 << 20
MAX_ANSWER = 1 << 30
PACKAGES_MISSING = "columns_missing"


class WorkerChannel:
    """Frames over a socket."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def receive(self) -> Any:
        """None if the other side has closed the socket."""
        head = self._take(4)
        data = None if head is None else self._take(int.from_bytes(head, "little"))
        return None if data is None else json.loads(data)

    def _take(self, size: int) -> bytes | None:
        parts = []
        while size:
            data = self._end.recv(min(size, 1 << 20))
            if not data:
                return None
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def send(self, value: Any, handle: int | None = None) -> None:
        data = frame(value)
        if handle is not None:
            sent = socket.send_fds(self._end, [data], [handle])
            data = data[sent:]
        self._end.sendall(data)


def frame(value: Any) -> bytes:
    data = json.dumps(value, separators=(",", ":")).encode()
    return len(data).to_bytes(4, "little") + data


class ServerClosed(Exception):
    """The server closed the socket."""


def anonymous_file() -> int:
    """A file without a name; in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("openq-rows", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class HistoryWorker:
    """Executes the tasks of one server."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._histories: dict[tuple[str, str | None], Any] = {}
        self._permissions: dict[str, bool] = {}  # by queue, for this task

    def run_task(self, task: dict[str, Any]) -> None:
        self._permissions = {}
        handle = anonymous_file()
        try:
            try:
                {"snapshot": self._snapshot, "rows": self._rows}[task["do"]](task, handle)
            except OpenQError as error:
                self._channel.send({"failed": error.code, "detail": hide_paths(str(error), task)})
            except ImportError as error:
                self._channel.send({"failed": PACKAGES_MISSING, "detail": str(error)})
            except (OSError, MemoryError) as error:
                self._channel.send({"failed": "internal_error", "detail": f"{type(error).__name__}: {error}"})
            else:
                self._channel.send({"done": os.fstat(handle).st_size}, handle)
        finally:
            os.close(handle)

    def _history(self, task: dict[str, Any]) -> Any:
        from openq.history.local import LocalHistory

        key = (task["data"], task["archive"])
        if key not in self._histories:
            self._histories = {key: LocalHistory(*key)}
        return self._histories[key]

    def _visible_queues(self, names: set[str]) -> set[str]:
        """Those of the queues whose rows the caller may see, as the server decides."""
        unknown = sorted(names - self._permissions.keys())
        if unknown:
            self._channel.send({"ask": unknown})
            answer = self._channel.receive()
            if answer is None:
                raise ServerClosed
            self._permissions |= dict.fromkeys(unknown, False) | dict.fromkeys(answer["allowed"], True)
        return {name for name in names if self._permissions[name]}

    def _selection(self, task: dict[str, Any]) -> Any:
        from dataclasses import replace

        from openq.history.selection import Selection

        selection = Selection.from_json(task["selection"] or {})
        end: int = task["end"]
        if selection.end_position is None or selection.end_position > end:
            first = selection.first_position
            # Only durable rows are shown; a selection of later rows is empty.
            selection = replace(
                selection,
                end_position=end,
                first_position=None if first is None else min(first, end),
            )
        return selection

    def _snapshot(self, task: dict[str, Any], handle: int) -> None:
        from dataclasses import replace

        from openq.history.local import MIN_PIECE_BYTES

        history, selection = self._history(task), self._selection(task)
        # A short request must not cause millions of pieces.
        max_bytes = max(task["max_bytes"], MIN_PIECE_BYTES)
        snapshot = history.snapshot(selection, as_of=_parse_as_of(task["as_of"]), max_bytes=max_bytes)
        files = [piece for piece in snapshot.pieces if piece.kind == "file"]
        segments = [piece for piece in snapshot.pieces if piece.kind == "segment"]
        queues: dict[str, list[str]] = {}
        if files:
            manifest = history.archive.read(snapshot.archive_version)
            queues = {file.path: file.queues for file in manifest.files}
        seen = self._visible_queues({name for piece in files for name in queues[piece.path]})
        pieces = []
        for piece in files:
            named = set(queues[piece.path])
            if named <= seen:
                pieces.append(piece)
            elif named & seen:
                pieces += self._visible_part(history, piece, selection)
        for piece in segments:
            named = history.names(piece.segment)
            if named and self._visible_queues(named) == named:
                pieces.append(piece)
            elif self._visible_queues(named):
                pieces += self._visible_part(history, piece, selection)
        shown = replace(snapshot, pieces=tuple(pieces))
        write(handle, json.dumps(shown.to_json(), separators=(",", ":")).encode())

    def _visible_part(self, history: Any, piece: Any, selection: Any) -> list[Any]:
        """The piece with the volume of the rows that the caller may see; nothing if there are none.

        A segment or file holds rows of many queues: the volume of other queues must not be disclosed.
        """
        from dataclasses import replace

        narrow = replace(selection, columns=("queue",))
        own = sum(batch.num_rows for batch in self._visible_rows(history.read(piece, narrow)))
        return [replace(piece, rows=own, bytes=piece.bytes * own // max(piece.rows, own))] if own else []

    def _rows(self, task: dict[str, Any], handle: int) -> None:
        from dataclasses import replace

        import pyarrow as pa

        from openq.history.schema import arrow_schema

        history, selection = self._history(task), self._selection(task)
        piece = self._piece(task, history)
        schema = arrow_schema(selection.table, selection.names, selection.body)
        wide = selection
        if "queue" not in selection.names:
            wide = replace(selection, columns=(*selection.names, "queue"))
        options = pa.ipc.IpcWriteOptions(compression=task["compression"])
        with (
            pa.PythonFile(open(handle, "wb", buffering=0, closefd=False), "w") as sink,
            pa.ipc.new_stream(sink, schema, options=options) as writer,
        ):
            for batch in self._visible_rows(history.read(piece, wide)):
                writer.write_batch(batch.select(schema.names).replace_schema_metadata(schema.metadata))
                if sink.tell() > MAX_ANSWER:
                    raise InvalidSetting(
                        "this piece is too large to send; ask for smaller ones, or no bodies"
                    )

    def _piece(self, task: dict[str, Any], history: Any) -> Any:
        from openq.history.local import ScanPiece

        return check_piece(ScanPiece.from_json(task["piece"]), history, task["end"])

    def _visible_rows(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            encoded = batch.column("queue").dictionary_encode()
            names = encoded.dictionary.to_pylist()
            seen = self._visible_queues(set(names))
            if len(seen) < len(names):
                mask = pa.array([name in seen for name in names], pa.bool_()).take(encoded.indices)
                batch = batch.filter(mask)
            if batch.num_rows:
                yield batch


def check_piece(piece: Any, history: Any, end: int) -> Any:
    """Check a piece that a client sent, which is not trusted. Raises InvalidSetting or HistoryUnavailable."""
    from dataclasses import replace

    from openq.history.archive import group_bytes
    from openq.history.local import PIECE_BYTES

    if piece.kind == "segment":
        if piece.start >= end:
            raise HistoryUnavailable(f"the history ends at {end}, before {piece.start}")
        stop = min(piece.stop, end)
        if stop - piece.start > PIECE_BYTES:
            raise InvalidSetting(f"a piece has at most {PIECE_BYTES} bytes, not {stop - piece.start}")
        return replace(piece, stop=stop)
    files = history.archive.read(piece.version).files
    file = next((each for each in files if each.path == piece.path), None)
    if file is None:
        raise InvalidSetting(f"{piece.path[:200]!r} is not in version {piece.version} of the archive")
    with history.archive.open(file) as opened:
        weights = group_bytes(opened, file)
    if piece.end_group > len(weights):
        raise InvalidSetting(f"{file.path} has {len(weights)} row groups, not {piece.end_group}")
    # A single row group cannot be cut.
    size = sum(weights[piece.first_group : piece.end_group])
    if size > PIECE_BYTES and piece.end_group - piece.first_group > 1:
        raise InvalidSetting(f"a piece has at most {PIECE_BYTES} bytes, not {size}")
    return piece


def hide_paths(text: str, task: dict[str, Any]) -> str:
    """An error text for clients: files by their paths below the data directory or the archive."""
    for root in sorted({task["archive"] or "", task["data"] or ""} - {"", "/"}, key=len, reverse=True):
        for each in (root, os.path.realpath(root)):
            text = text.replace(each + os.sep, "").replace(" " + each, "").replace(each, "the server")
    return text


def _parse_as_of(text: str | None) -> Any:
    from datetime import datetime

    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSetting(
            f"as_of must be a version or a time such as 2026-01-31T12:00Z, not {text[:60]!r}"
        ) from None


def write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def prepare() -> None:
    """Import what every task needs before the first one. Missing packages are reported by the first task."""
    try:
        import pyarrow as pa

        import openq.history.local  # noqa: F401
    except ImportError:
        return
    # The cores are for the server: one worker is one thread.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    # What is loaded now stays: keep the garbage collector from scanning it.
    gc.collect()
    gc.freeze()


def _die_with_parent() -> None:
    """Also in the middle of a task, when nothing reads the socket that a killed server has closed."""
    if sys.platform == "linux":
        import ctypes

        set_death_signal = 1
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def main(make_worker: Callable[[WorkerChannel], HistoryWorker] = HistoryWorker) -> int:
    # Ctrl-C of the terminal is for the server, which ends this process itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    try:
        with socket.socket(fileno=int(sys.argv[1])) as end:
            channel = WorkerChannel(end)
            worker = make_worker(channel)
            prepare()
            while (task := channel.receive()) is not None:
                worker.run_task(task)
    except (ServerClosed, BrokenPipeError, ConnectionResetError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
