"""The part `broker.events` over Redis: the streams of all queues, and one of the store, as one history.

A queue keeps its events as long as its history. A queue without a history keeps them only while somebody
watches. Order and ids: `event_entries.py`; reading: `event_reader.py`; waiting: `event_watch.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..broker.events import EVENT_NAMES, EventFilter, EventPage
from ..errors import InvalidSetting
from .event_reader import EventReader
from .functions import call_function
from .store import RedisStore

if TYPE_CHECKING:
    from .waiters import WaiterServiceRef


class RedisEvents:
    """The `Events` role of the broker over Redis."""

    def __init__(self, store: RedisStore, waiters: WaiterServiceRef) -> None:
        self._store = store
        self._waiters = waiters
        reader = EventReader(store)
        self.end = reader.end
        self._read = reader.read

    def read(self, after: str | None, limit: int, wanted: EventFilter) -> EventPage:
        return self._read(after, max(1, limit), wanted)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._store.state.check_open()
        service = self._waiters.service
        service.start()
        return service.events.add(callback)

    def add(self, event: str, queue: str, detail: Mapping[str, Any]) -> None:
        """May be recorded twice if the connection is lost at that moment."""
        store = self._store
        store.state.check_open()
        if event not in EVENT_NAMES or "\x1f" in queue:
            raise InvalidSetting(f"{event!r} of queue {queue!r} is not an event")
        key = store.registry.docs_key
        call_function(store.calls, key, "add_event", store.now_argument(), event, queue, json.dumps(detail))
