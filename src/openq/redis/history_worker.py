"""The process that reads history for a server on Redis: the counterpart of `openq.history.worker`.

    python -m openq.redis.history_worker FD

The frames are the same; a task names the store (`address`, the fields of an Address) instead of
directories.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from openq.history.worker import HistoryWorker, main, write


class StreamHistoryReader(HistoryWorker):
    def _history(self, task: dict[str, Any]) -> Any:
        from openq.redis.net.url import Address
        from openq.redis.stream_history import StreamHistory

        address_fields = task["address"]
        key = (json.dumps(address_fields, sort_keys=True), None)
        if key not in self._histories:
            for other in self._histories.values():
                other.close()
            hosts = tuple((host, port) for host, port in address_fields["hosts"])
            self._histories = {key: StreamHistory(Address(**{**address_fields, "hosts": hosts}))}
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

    def _piece(self, task: dict[str, Any], history: Any) -> Any:
        from openq.history.local import ScanPiece

        return ScanPiece.from_json(task["piece"])


if __name__ == "__main__":
    sys.exit(main(StreamHistoryReader))
