"""Rebuild consistent structures after an interrupt in the middle of a change.

Ctrl-C can strike between any two steps of a call. With a journal, a restart restores the state from its
records. A queue in memory has only its own structures, so it is rebuilt from the messages in them.
"""

from __future__ import annotations

from ..model import Entry
from .engine import Engine
from .queue import QueueState


def rebuild(engine: Engine) -> None:
    engine.deferred_overflow = None
    for queue in engine.queues.values():
        _rebuild_queue(queue)
    engine.key_values.rebuild()
    engine.rebuild_timers()
    engine.woken.extend(queue for queue in engine.queues.values() if queue.watched)


def _rebuild_queue(queue: QueueState) -> None:
    waiting: dict[int, Entry] = {}
    for loose, pages in queue.ready.freeze():
        for entry in (*loose, *(entry for page in pages for entry in page.entries())):
            waiting[entry.seq] = entry
    for seq in queue.leases:
        waiting.pop(seq, None)
        queue.delayed.pop(seq)
    if queue.fifo:
        waiting.update(queue.delayed.items())
    else:
        for seq in queue.delayed:
            waiting.pop(seq, None)
    queue.ready = queue.new_order(queue.settings, 0)
    for seq in sorted(waiting):
        queue.ready.append(waiting[seq])
    for delivery in queue.leases.values():
        queue.ready.mark_in_flight(delivery.entry)
    queue.ready.offer_all()
    queue.waiting_bytes = sum(entry.size for entry in waiting.values())
    if not queue.fifo:
        queue.waiting_bytes += queue.delayed.size()
