"""Importing whole messages from another broker, for migrations."""

from __future__ import annotations

from collections.abc import Sequence

from ..broker.history import PastMessage
from ..engine.records import ACK, COPY, PUBLISH, REMOVE, REMOVED_CANCELLED, Record
from ..engine.replay import apply
from ..model import DeliveryOptions, Entry
from .core import BrokerCore

_RECORD_BYTES = 4096  # upper bound without the body: names, attributes, dead-letter events
DedupKey = tuple[str, str, int]  # the key in the window, the id of the message, the end of its window


class MessageImporter:
    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._engine = core.engine
        self._lock = core.lock
        self._guard = core.guard

    def import_messages(self, queue: str, entries: Sequence[Entry]) -> None:
        """Append messages to the queue with all their properties and options.

        Only the sequence numbers are new. Each has its id in its options. The queue's limits do not apply:
        the messages were accepted before.
        """
        with self._lock, self._guard:
            found = self._core.queue(queue)
            now_ms = self._core.now_ms()
            for entry in entries:
                body = entry.body or b""
                self._core.require_body_room(len(body))
                head = (COPY, now_ms, found.number, self._engine.next_seq, entry.sent_ms)
                self._apply((*head, entry.encoding, body, entry.properties, entry.options))
            self._core.end_change()

    def import_history(self, queue: str, messages: Sequence[PastMessage]) -> None:
        """Messages that were processed elsewhere, so that they can be replayed here."""

        def put(now_ms: int) -> None:
            number = self._core.queue(queue).number
            first = self._engine.next_seq
            for each in messages:
                seq = self._engine.next_seq
                self._engine.log_record(
                    (PUBLISH, now_ms, number, seq, each.encoding, each.body, each.properties, each.options)
                )
                self._engine.next_seq = seq + 1
            self._engine.log_record((ACK, now_ms, number, 0, list(range(first, self._engine.next_seq))))

        self._core.atomically(lambda: sum(len(each.body) + _RECORD_BYTES for each in messages), put)

    def dedup_window(self, queue: str) -> list[DedupKey]:
        """The keys of the deduplication window, whether or not their messages still exist."""
        with self._lock:
            now_ms = self._core.now_ms()
            window = self._core.queue(queue).dedup
            return [(key, id, until_ms) for key, (id, until_ms) in window.items() if until_ms > now_ms]

    def import_dedup_window(self, queue: str, window: Sequence[DedupKey]) -> None:
        """Import such a window, as if each message had been published at its time and removed again."""

        def put(now_ms: int) -> None:
            found = self._core.queue(queue)
            settings = found.settings
            for key, id, until_ms in window:
                group, _, dedup = key.rpartition("\0") if settings.dedup_per_group else ("", "", key)
                options = DeliveryOptions(dedup=dedup, group=group or None, id=id).mark_plain()
                seq = self._engine.next_seq
                sent_ms = until_ms - settings.dedup_window_ms
                self._apply((COPY, now_ms, found.number, seq, sent_ms, 0, b"", None, options))
                self._apply((REMOVE, now_ms, found.number, 0, REMOVED_CANCELLED, [seq]))

        self._core.atomically(lambda: 2 * _RECORD_BYTES * len(window), put)

    def _apply(self, record: Record) -> None:
        apply(self._engine, record, self._engine.log_record(record))
