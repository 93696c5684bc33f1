"""Messages whose stored body cannot be read: they leave their queue and block no other message.

A body is read long after it was stored, so damage shows when a message is delivered, inspected or copied. The
damaged message is *set aside*: one REMOVE record removes it from its queue for good, the damage register
names it (queue, id, file, offset), and the other messages of the call are handled as usual. It is in no count
of the queue's messages any more, and its delivery counts as released. A message in flight is left to its
consumer, whose copy of the body may be good: it is set aside when it returns.

A disk that answers with an error may recover. The message stays in the queue, uncounted, and is retried after
a minute.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..broker.damage import FOUND, SET_ASIDE
from ..engine.queue import QueueState
from ..errors import HistoryUnavailable, JournalDamaged, OpenQError
from ..model import Delivery, Entry

if TYPE_CHECKING:
    from .core import BrokerCore

log = logging.getLogger("openq")

RETRY_MS = 60_000


def unloaded(entry: Entry) -> Entry:
    """A copy without the body and properties that are on disk; the same entry if they are not on disk."""
    if not entry.location:
        return entry
    return Entry(
        entry.seq, entry.sent_ms, entry.location, entry.size, entry.encoding, None, None, entry.options
    )


class UnreadableMessages:
    """The slow path of reading bodies, taken when reading many at once failed."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core

    def load_each(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """The deliveries whose body can be read, with it. The others are set aside, or gone by now."""
        readable: list[Delivery] = []
        damaged: list[tuple[Entry, int, JournalDamaged]] = []
        for delivery in deliveries:
            try:
                self._core.load_bodies([delivery.entry])
            except JournalDamaged as error:
                damaged.append((delivery.entry, delivery.number, error))
            except HistoryUnavailable:
                # Either the message was just copied out of an old segment, and the delivery has another entry
                # now. Or the message was removed and its segment freed, and there is nothing left to deliver.
                try:
                    self._core.load_bodies([delivery.entry])
                    readable.append(delivery)
                except HistoryUnavailable:
                    continue
            else:
                readable.append(delivery)
        self._set_aside(damaged)
        return readable

    def fill_each(self, entries: Sequence[Entry]) -> list[Entry]:
        """Like `load_each`, for copies of entries that are only inspected."""
        readable: list[Entry] = []
        damaged: list[tuple[Entry, int, JournalDamaged]] = []
        for entry in entries:
            try:
                self._core.load_bodies([entry])
            except JournalDamaged as error:
                damaged.append((entry, 0, error))
            except HistoryUnavailable:
                moved = self._moved(entry)
                if moved is not None:
                    readable.append(moved)
            else:
                readable.append(entry)
        self._set_aside(damaged)
        return readable

    def _moved(self, entry: Entry) -> Entry | None:
        """The same message at the location it was copied to meanwhile; None: it is gone."""
        core = self._core
        with core.lock:
            found = self._find(entry.seq)
            now = None if found is None else found[0].find(entry.seq)
        if now is None or now.location == entry.location:
            return None
        copy = Entry(
            now.seq, now.sent_ms, now.location, now.size, now.encoding, now.body, now.properties, now.options
        )
        try:
            core.load_bodies([copy])
        except (HistoryUnavailable, JournalDamaged):
            return None
        return copy

    def _find(self, seq: int) -> tuple[QueueState, Delivery | None] | None:
        """Lock held. Sequence numbers are unique in the engine: at most one queue has it."""
        for queue in self._core.engine.queues.values():
            delivery = queue.leases.get(seq)
            if delivery is not None or queue.find(seq) is not None:
                return queue, delivery
        return None

    def _set_aside(self, damaged: Sequence[tuple[Entry, int, JournalDamaged]]) -> None:
        """Each with the number of its delivery, or 0 if it was only inspected."""
        core = self._core
        for entry, number, error in damaged:
            kind = FOUND
            name = ""
            is_lasting = not isinstance(error.__cause__, OSError)
            with core.lock, core.guard:
                now_ms = core.now_ms()
                found = self._find(entry.seq)
                if found is not None:
                    queue, delivery = found
                    name = queue.name
                    if (0 if delivery is None else delivery.number) == number:
                        try:
                            if is_lasting:
                                core.engine.set_aside(queue, entry.seq, now_ms)
                                kind = SET_ASIDE
                            elif delivery is not None:
                                core.engine.release(queue, entry.seq, number, now_ms, RETRY_MS)
                        except OpenQError as refusal:
                            # The disk is completely full: the message stays and is found again.
                            log.warning("queue %r: an unreadable message stays in it: %s", name, refusal)
                core.end_change()
            core.damage.report(
                kind,
                error.detail,
                now_ms,
                queue=name,
                message_id=core.engine.id_of(entry),
                file=error.file,
                offset=error.offset,
                save=False,
            )
        if damaged:
            core.damage.save()
