"""Messages whose stored body cannot be read: they leave their queue, and nobody waits behind them.

A body is read long after it was stored, so damage shows when a message is handed out, looked at or copied.
The damaged message is *set aside*: one REMOVE record takes it out of its queue for good, the register of
damage names it (queue, id, file, offset), and everything that came with it goes on. It is in no count of the
queue's messages any more, and its delivery counts as released. What a consumer holds is left to that
consumer, whose copy of the body may be good: it is set aside when it comes back.

A disk that answers with an error may answer otherwise later. Its message stays in the queue, uncounted, and
is tried again after a minute.
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
    """A copy without what can be read from disk; the same where there is none."""
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
        """Those whose body can be read, with it. The others are set aside, or gone by now."""
        readable: list[Delivery] = []
        damaged: list[tuple[Entry, int, JournalDamaged]] = []
        for delivery in deliveries:
            try:
                self._core.load_bodies([delivery.entry])
            except JournalDamaged as error:
                damaged.append((delivery.entry, delivery.number, error))
            except HistoryUnavailable:
                # Copied out of an old segment in this moment: the delivery has another entry now. Or somebody
                # removed the message, and its segment was freed: there is nothing left to hand out.
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
        """The same for copies of entries that somebody only looks at."""
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
        """The same message where it was copied to meanwhile; None: it is gone."""
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
        """Lock held. Sequence numbers are those of the engine: one queue at most has it."""
        for queue in self._core.engine.queues.values():
            delivery = queue.leases.get(seq)
            if delivery is not None or queue.find(seq) is not None:
                return queue, delivery
        return None

    def _set_aside(self, damaged: Sequence[tuple[Entry, int, JournalDamaged]]) -> None:
        """Each with the number of its delivery, or 0 if it was only looked at."""
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
                            # The disk is full to the last byte: it stays, and is found again.
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
