"""The process that reads history for a server on Redis: what `openq.history.worker` is for a journal.

    python -m openq.redis.history_worker FD

The frames are the same; a task names the store (`address`, the fields of an Address) instead of directories.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
from typing import Any

from openq.errors import InvalidSetting
from openq.history.worker import (
    MAX_ANSWER,
    HistoryWorker,
    ServerClosed,
    WorkerChannel,
    die_with_parent,
    prepare,
    write,
)


class StreamHistoryReader(HistoryWorker):
    def _history(self, task: dict[str, Any]) -> Any:
        from openq.redis.net.url import Address
        from openq.redis.stream_history import StreamHistory

        told = task["address"]
        key = (json.dumps(told, sort_keys=True), None)
        if key not in self._histories:
            for other in self._histories.values():
                other.close()
            hosts = tuple((host, port) for host, port in told["hosts"])
            self._histories = {key: StreamHistory(Address(**{**told, "hosts": hosts}))}
        return self._histories[key]

    def _snapshot(self, task: dict[str, Any], handle: int) -> None:
        from dataclasses import replace

        from openq.history.local import MIN_PIECE_BYTES
        from openq.redis.stream_history import StreamRange

        history, selection = self._history(task), self._selection(task)
        max_bytes = max(task["max_bytes"], MIN_PIECE_BYTES)
        snapshot = history.snapshot(selection, task["end"], as_of=task["as_of"], max_bytes=max_bytes)
        names = history.names({StreamRange.of(piece).queue for piece in snapshot.pieces})
        seen = self._visible_queues(set(names.values()))
        pieces = [piece for piece in snapshot.pieces if names.get(StreamRange.of(piece).queue) in seen]
        shown = replace(snapshot, pieces=tuple(pieces))
        write(handle, json.dumps(shown.to_json(), separators=(",", ":")).encode())

    def _rows(self, task: dict[str, Any], handle: int) -> None:
        from dataclasses import replace

        import pyarrow as pa

        from openq.history.local import Piece
        from openq.history.schema import arrow_schema

        history, selection = self._history(task), self._selection(task)
        piece = Piece.from_json(task["piece"])
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
                        "this piece is too large to be sent; ask for smaller ones, or no bodies"
                    )


def main() -> int:
    # The terminal's Ctrl-C is for the server, which ends this in its own time.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent()
    try:
        with socket.socket(fileno=int(sys.argv[1])) as end:
            channel = WorkerChannel(end)
            reader = StreamHistoryReader(channel)
            prepare()
            while (task := channel.receive()) is not None:
                reader.run_task(task)
    except (ServerClosed, BrokenPipeError, ConnectionResetError):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
