"""The history of a Redis store, as `openq.broker.history_source` describes it: streams, and no files."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .store import RedisStore
from .stream_positions import StreamHistoryEnd

_WHEREVER = 1 << 62  # a piece has its own end


class StreamTables:
    worker = "openq.redis.history_worker"
    poll_s = 0.03
    is_over = False

    def __init__(self, store: RedisStore) -> None:
        self._address = store.address
        self.end = StreamHistoryEnd(store).now

    def task(self, archive: str | None) -> dict[str, Any]:
        return {"data": "", "archive": "", "address": asdict(self._address), "end": _WHEREVER}
