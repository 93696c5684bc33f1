"""Whole messages as they are, from another broker: what a migration needs besides the verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..broker.history import PastMessage
from ..engine.records import ACK, COPY, PUBLISH, REMOVE, REMOVED_CANCELLED, Record
from ..engine.replay import apply
from ..model import DeliveryOptions, Entry
from .operations import Operations

_RECORD_BYTES = 4096  # at most, beside the body: names, attributes, deaths
Remembered = tuple[str, str, int]  # what the window knows it by, the id of the message, until when


class Carrying(Operations):
    if TYPE_CHECKING:  # of the broker itself

        def atomically(self, measure: Callable[[], int], put: Callable[[int], None]) -> None: ...

    def import_messages(self, queue: str, entries: Sequence[Entry]) -> None:
        """To the end of the queue, with all that is known of them; only the sequence numbers are new.

        Each has its id in its extra. No limit of the queue holds them up: they were let in before.
        """
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            now_ms = self._now()
            for entry in entries:
                body = entry.body or b""
                self._require_room(len(body))
                if self._journal is None:
                    self._limit_memory(len(body))
                head = (COPY, now_ms, found.number, self.engine.next_seq, entry.sent_ms)
                self._apply((*head, entry.encoding, body, entry.properties, entry.options))
            self._end_change()

    def import_history(self, queue: str, messages: Sequence[PastMessage]) -> None:
        """Messages that were worked off elsewhere, so that they can be replayed here."""

        def put(now_ms: int) -> None:
            number = self._queue(queue).number
            first = self.engine.next_seq
            for each in messages:
                seq = self.engine.next_seq
                self.engine.log_record(
                    (PUBLISH, now_ms, number, seq, each.encoding, each.body, each.properties, each.options)
                )
                self.engine.next_seq = seq + 1
            self.engine.log_record((ACK, now_ms, number, 0, list(range(first, self.engine.next_seq))))

        self.atomically(lambda: sum(len(each.body) + _RECORD_BYTES for each in messages), put)

    def dedup_window(self, queue: str) -> list[Remembered]:
        """What the deduplication window holds, whether the messages are still there or not."""
        with self._lock:
            now_ms = self._now()
            window = self._queue(queue).dedup
            return [(key, id, until_ms) for key, (id, until_ms) in window.items() if until_ms > now_ms]

    def import_dedup_window(self, queue: str, window: Sequence[Remembered]) -> None:
        """The same, taken over: as if each message had come in its time and gone again."""

        def put(now_ms: int) -> None:
            found = self._queue(queue)
            settings = found.settings
            for key, id, until_ms in window:
                group, _, dedup = key.rpartition("\0") if settings.dedup_per_group else ("", "", key)
                options = DeliveryOptions(dedup=dedup, group=group or None, id=id).mark_plain()
                seq = self.engine.next_seq
                sent_ms = until_ms - settings.dedup_window_ms
                self._apply((COPY, now_ms, found.number, seq, sent_ms, 0, b"", None, options))
                self._apply((REMOVE, now_ms, found.number, 0, REMOVED_CANCELLED, [seq]))

        self.atomically(lambda: 2 * _RECORD_BYTES * len(window), put)

    def _apply(self, record: Record) -> None:
        apply(self.engine, record, self.engine.log_record(record))
