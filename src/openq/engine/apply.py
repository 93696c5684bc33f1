"""Re-applying records: the state after a restart is the state that told of them.

A record names what happened, so nothing is decided again here. Records about messages that are not
there (their beginning was in a segment long freed) are passed over; `COPY`, `EDIT` and `CHECKPOINT`
carry all that is needed to begin without them. A message for a queue that nobody defined can only mean
that the definition was lost to damage: it gets a queue of its own, until a checkpoint tells its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import OpenQError
from ..model import Delivery, Entry, Extra, Info, QueueSettings
from . import marks
from .admin import apply_exchange, purge_state
from .engine import Engine
from .queue import Queue
from .records import (
    ACK,
    CHECKPOINT,
    COPY,
    DEATH_NAMES,
    EDIT,
    EXCHANGE,
    EXTEND,
    GONE_DAMAGED,
    GONE_EXPIRED,
    GONE_RECEIVES,
    GONE_REJECTED,
    LEND,
    MARK,
    MOVE,
    PUBLISH,
    PURGE,
    QUEUE,
    REMOVE,
    RESCHEDULE,
    RETURN,
    ROUTE,
    RUN,
    UNQUEUE,
    Record,
)


def apply(engine: Engine, record: Record, at: int) -> None:
    """One record, stored at `at` (0 when it is only in memory)."""
    kind = record[0]
    if kind in _WITHOUT_QUEUE:
        _WITHOUT_QUEUE[kind](engine, record, at)
        return
    queue = engine.numbered.get(record[2])
    if queue is None and kind in _ARRIVALS:
        queue = _orphan(engine, record[2], record[1])
    if queue is not None:
        _APPLY[kind](engine, queue, record, at)


_ENDS = frozenset(
    (GONE_EXPIRED, GONE_RECEIVES, GONE_REJECTED)
)  # of a delivery, by its holder or the deadline
_ARRIVALS = frozenset((PUBLISH, RUN, COPY, EDIT))


def _orphan(engine: Engine, number: int, now_ms: int) -> Queue:
    """A queue for messages whose own queue is unknown, so that they are not lost with its definition."""
    engine.orphans.add(number)
    name = f"recovered-{number}"
    while name in engine.queues:
        name += "x"
    return engine._add_queue(Queue(name, number, QueueSettings(), now_ms))


def _publish(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    _, now_ms, _, seq, form, body, info, extra = record
    engine.next_seq = max(engine.next_seq, seq + 1)
    queue.counters.published += 1
    engine._enter(queue, _entry(seq, now_ms, at, form, body, info, extra), now_ms)


def _run(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    _, now_ms, _, seq, form, bodies, info, extra = record
    engine.next_seq = max(engine.next_seq, seq + len(bodies))
    queue.counters.published += len(bodies)
    sizes = [len(body) for body in bodies]
    engine._add_run(queue, seq, now_ms, at, sizes, form, None if at else bodies, info, extra)


def _route(engine: Engine, record: Record, at: int) -> None:
    _, now_ms, _, _, form, body, info, extra, pairs = record
    for number, seq in pairs:
        engine.next_seq = max(engine.next_seq, seq + 1)
        queue = engine.numbered.get(number) or _orphan(engine, number, now_ms)
        engine._enter_routed(queue, seq, now_ms, at, form, body, info, extra, keep=not at)


def _lend(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    _, now_ms, _, number, until_ms, consumer, seqs = record
    engine.next_number = max(engine.next_number, number + len(seqs))
    deliveries = []
    for i, seq in enumerate(seqs):
        entry = None if seq in queue.leases else queue.take_to_lend(seq, now_ms)
        if entry is not None:
            count = 1 if entry.extra is None else entry.extra.count + 1
            deliveries.append(Delivery(entry, number + i, now_ms, until_ms, count, consumer))
    queue.ready.end_batch()
    if deliveries:
        engine._lend(queue, deliveries, until_ms, now_ms)


def _ack(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    now_ms, seqs = record[1], record[4]
    for seq in seqs:
        delivery = queue.leases.pop(seq, None)
        if delivery is None:
            engine._ack_waiting(queue, seq)
            continue
        queue.counters.acked += 1
        extra = delivery.entry.extra
        if (extra is not None and not extra.light) or queue.fifo:
            engine._leave(queue, delivery.entry)
            engine._settled(queue, delivery.entry, now_ms)


def _return(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    now_ms, why, reason, pairs = record[1], record[4], record[5], record[6]
    for seq, due_ms in pairs:
        delivery = queue.leases.get(seq)
        if delivery is not None:
            engine._return(queue, delivery, why, reason, due_ms, now_ms)


def _extend(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    now_ms, until_ms, seqs = record[1], record[4], record[5]
    for seq in seqs:
        delivery = queue.leases.get(seq)
        if delivery is not None:
            engine._extended(queue, delivery, until_ms, now_ms)
        else:
            engine._lend_again(queue, seq, until_ms, now_ms)


def _move(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    now_ms, why, reason, moves = record[1], record[4], record[5], record[6]
    by_seq: dict[int, list[tuple[int, int, int]]] = {}
    for move in moves:
        by_seq.setdefault(move[0], []).append(move)
        if move[1] not in engine.numbered:
            _orphan(engine, move[1], now_ms)
        engine.next_seq = max(engine.next_seq, move[2] + 1)
    for seq, own in by_seq.items():
        delivery = queue.leases.pop(seq, None)
        if delivery is not None:
            entry: Entry | None = engine._counted(delivery, reason if why in DEATH_NAMES else None)
        else:
            entry = queue.take_waiting(seq)
        if entry is not None:
            if delivery is not None and why in DEATH_NAMES:
                engine._count_end(queue, delivery, now_ms)
            engine._moved(queue, entry, own, why, reason, now_ms)
            if delivery is not None:
                engine._settled(queue, entry, now_ms)


def _remove(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    now_ms, why, seqs = record[1], record[4], record[5]
    for seq in seqs:
        delivery = queue.leases.pop(seq, None)
        entry = delivery.entry if delivery is not None else queue.take_waiting(seq)
        if entry is not None:
            if delivery is not None and why == GONE_DAMAGED:
                queue.counters.released += 1
            elif delivery is not None and why in _ENDS:
                engine._count_end(queue, delivery, now_ms)
            engine._removed(queue, entry, why, now_ms)
            if delivery is not None:
                engine._settled(queue, entry, now_ms)


def _purge(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    purge_state(engine, queue, waiting_only=bool(record[3]))


def _rewrite(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    """Under a sequence number that may be there already; out of order if it is not."""
    _, now_ms, _, seq, sent_ms, form, body, info, extra = record
    entry = _entry(seq, sent_ms, at, form, body, info, extra)
    engine.next_seq = max(engine.next_seq, seq + 1)
    known = queue.find(seq)
    if known is None:
        engine._enter(queue, entry, now_ms, in_order=False)
        return
    if entry.seq not in queue.leases:
        queue.waiting_bytes += entry.size - known.size
    engine.replace_entry(queue, entry)


def _reschedule(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    entry = queue.find(record[3])
    if entry is not None:
        engine.redelay(queue, entry, record[4], record[1])


def _unqueue(engine: Engine, queue: Queue, record: Record, at: int) -> None:
    engine._drop_queue(queue)


def _queue(engine: Engine, record: Record, at: int) -> None:
    _, now_ms, number, _, name, settings, created_ms = record
    known = engine.numbered.get(number)
    if known is not None and number not in engine.orphans:
        engine._settle_settings(known, QueueSettings.from_json(settings), now_ms)
    elif known is not None:
        _adopt(engine, known, name, settings, created_ms, now_ms)
    else:
        engine._add_queue(Queue(name, number, QueueSettings.from_json(settings), created_ms))


def _exchange(engine: Engine, record: Record, at: int) -> None:
    try:
        apply_exchange(engine, record[4])
    except OpenQError:
        # It leads to or from an exchange whose own record was lost to damage; messages matter more.
        return


def _mark(engine: Engine, record: Record, at: int) -> None:
    _, now_ms, _, _, job, owner, batch, rows, is_last, rejected = record
    marks.note(engine, job, marks.Mark(owner, batch, rows, is_last, rejected, now_ms))


def checkpoint(engine: Engine, now_ms: int) -> Record:
    """Queues, exchanges and counters: what a journal needs to begin at this record."""
    state = {
        "prefix": engine.id_prefix,
        "seq": engine.next_seq,
        "number": engine.next_number,
        "queue": engine.next_queue,
        "queues": [[q.number, q.name, q.settings.to_json(), q.created_ms] for q in engine.queues.values()],
        "router": engine.router.dump(),
        "marks": marks.dump(engine),
    }
    return (CHECKPOINT, now_ms, 0, 0, state)


def _checkpoint(engine: Engine, record: Record, at: int) -> None:
    """The beginning of a journal needs it, and what damage took away; otherwise it repeats what is known."""
    state: dict[str, Any] = record[4]
    engine.id_prefix = state["prefix"]
    engine.next_seq = max(engine.next_seq, state["seq"])
    engine.next_number = max(engine.next_number, state["number"])
    engine.next_queue = max(engine.next_queue, state["queue"])
    marks.load(engine, state.get("marks", ()))
    if not engine.queues or engine.orphans:
        engine.router.load(state["router"])
    for number, name, settings, created_ms in state["queues"]:
        known = engine.numbered.get(number)
        if known is None:
            engine._add_queue(Queue(name, number, QueueSettings.from_json(settings), created_ms))
        elif number in engine.orphans:
            _adopt(engine, known, name, settings, created_ms, record[1])


def _adopt(
    engine: Engine, queue: Queue, name: str, settings: dict[str, Any], created_ms: int, now_ms: int
) -> None:
    """The true name and settings of a queue that damage had taken them from."""
    engine.orphans.discard(queue.number)
    del engine.queues[queue.name]
    queue.name = name
    queue.created_ms = created_ms
    engine._add_queue(queue)
    # How the messages lie depends on it; everything else can be set.
    settings = {**settings, "fifo": queue.fifo}
    engine._settle_settings(queue, QueueSettings.from_json(settings), now_ms)


def _entry(
    seq: int, sent_ms: int, at: int, form: int, body: bytes, info: Info | None, extra: Extra | None
) -> Entry:
    """What is on disk is not kept in memory too."""
    if at:
        return Entry(seq, sent_ms, at, len(body), form, None, None, extra)
    return Entry(seq, sent_ms, at, len(body), form, body, info, extra)


_WITHOUT_QUEUE: dict[int, Callable[[Engine, Record, int], None]] = {
    ROUTE: _route,
    QUEUE: _queue,
    EXCHANGE: _exchange,
    CHECKPOINT: _checkpoint,
    MARK: _mark,
}
_APPLY: dict[int, Callable[[Engine, Queue, Record, int], None]] = {
    PUBLISH: _publish,
    RUN: _run,
    LEND: _lend,
    ACK: _ack,
    RETURN: _return,
    EXTEND: _extend,
    MOVE: _move,
    REMOVE: _remove,
    PURGE: _purge,
    EDIT: _rewrite,
    RESCHEDULE: _reschedule,
    COPY: _rewrite,
    UNQUEUE: _unqueue,
}
