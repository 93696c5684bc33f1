"""Replay: applying the records of a journal gives the state of the engine that logged them.

A record names what happened, so nothing is decided again here. Records about unknown messages (they began in
a segment that was freed) are skipped. `COPY`, `EDIT` and `CHECKPOINT` carry everything needed to begin
without earlier records. A message for an undefined queue means that the definition was lost to damage: it
gets a queue of its own until a checkpoint gives the name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import OpenQError
from ..model import Delivery, DeliveryOptions, Entry, Properties, QueueSettings
from . import progress, schedules
from .admin import apply_exchange, purge_state
from .engine import Engine
from .queue import QueueState
from .records import (
    ACK,
    CHECKPOINT,
    COPY,
    DEAD_LETTER_NAMES,
    DELIVER,
    EDIT,
    EVENT,
    EXCHANGE,
    EXTEND,
    KV_DELETE,
    KV_PUT,
    MARK,
    MOVE,
    PUBLISH,
    PURGE,
    QUEUE,
    REMOVE,
    REMOVED_DAMAGED,
    REMOVED_EXPIRED,
    REMOVED_RECEIVES,
    REMOVED_REJECTED,
    RESCHEDULE,
    RETURN,
    ROUTE,
    RUN,
    SCHEDULE,
    UNQUEUE,
    Record,
)


def apply(engine: Engine, record: Record, location: int) -> None:
    """Apply one record, stored at `location` (0 when it is only in memory)."""
    kind = record[0]
    if kind in _WITHOUT_QUEUE:
        _WITHOUT_QUEUE[kind](engine, record, location)
        return
    queue = engine.numbered.get(record[2])
    if queue is None and kind in _ARRIVALS:
        queue = _orphan(engine, record[2], record[1])
    if queue is not None:
        _APPLY[kind](engine, queue, record, location)


_ENDS = frozenset(
    (REMOVED_EXPIRED, REMOVED_RECEIVES, REMOVED_REJECTED)
)  # of a delivery, by its consumer or its deadline
_ARRIVALS = frozenset((PUBLISH, RUN, COPY, EDIT))


def _orphan(engine: Engine, number: int, now_ms: int) -> QueueState:
    """A queue for messages whose own queue is unknown, so that they are not lost with its definition."""
    engine.orphans.add(number)
    name = f"recovered-{number}"
    while name in engine.queues:
        name += "x"
    return engine.add_queue(QueueState(name, number, QueueSettings(), now_ms))


def _publish(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    _, now_ms, _, seq, encoding, body, properties, options = record
    engine.next_seq = max(engine.next_seq, seq + 1)
    queue.counters.published += 1
    engine.add_entry(queue, _entry(seq, now_ms, location, encoding, body, properties, options), now_ms)


def _run(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    _, now_ms, _, seq, encoding, bodies, properties, options = record
    engine.next_seq = max(engine.next_seq, seq + len(bodies))
    queue.counters.published += len(bodies)
    sizes = [len(body) for body in bodies]
    engine.publishing.add_run(
        queue, seq, now_ms, location, sizes, encoding, None if location else bodies, properties, options
    )


def _route(engine: Engine, record: Record, location: int) -> None:
    _, now_ms, _, _, encoding, body, properties, options, pairs = record
    for number, seq in pairs:
        engine.next_seq = max(engine.next_seq, seq + 1)
        queue = engine.numbered.get(number) or _orphan(engine, number, now_ms)
        engine.publishing.enter_routed(
            queue, seq, now_ms, location, encoding, body, properties, options, keep=not location
        )


def _deliver(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    _, now_ms, _, number, until_ms, consumer, seqs = record
    engine.next_number = max(engine.next_number, number + len(seqs))
    deliveries = []
    for i, seq in enumerate(seqs):
        entry = None if seq in queue.leases else queue.take_for_delivery(seq, now_ms)
        if entry is not None:
            count = 1 if entry.options is None else entry.options.count + 1
            deliveries.append(Delivery(entry, number + i, now_ms, until_ms, count, consumer))
    queue.ready.end_batch()
    if deliveries:
        engine.leases.deliver(queue, deliveries, until_ms, now_ms)


def _ack(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    now_ms, seqs = record[1], record[4]
    for seq in seqs:
        delivery = queue.leases.pop(seq, None)
        if delivery is None:
            engine.leases.ack_waiting(queue, seq)
            continue
        queue.counters.acked += 1
        options = delivery.entry.options
        if (options is not None and not options.is_plain) or queue.ends_matter:
            engine.forget_entry(queue, delivery.entry)
            engine.delivery_ended(queue, delivery.entry, now_ms)


def _requeue(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    now_ms, why, reason, pairs = record[1], record[4], record[5], record[6]
    for seq, due_ms in pairs:
        delivery = queue.leases.get(seq)
        if delivery is not None:
            engine.leases.requeue(queue, delivery, why, reason, due_ms, now_ms)


def _extend(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    now_ms, until_ms, seqs = record[1], record[4], record[5]
    for seq in seqs:
        delivery = queue.leases.get(seq)
        if delivery is not None:
            engine.set_deadline(queue, delivery, until_ms, now_ms)
        else:
            engine.leases.deliver_again(queue, seq, until_ms, now_ms)


def _move(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
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
            entry: Entry | None = engine.leases.with_delivery_count(
                delivery, reason if why in DEAD_LETTER_NAMES else None
            )
        else:
            entry = queue.take_waiting(seq)
        if entry is not None:
            if delivery is not None and why in DEAD_LETTER_NAMES:
                engine.dead_letters.count_end(queue, delivery, now_ms)
            engine.dead_letters.moved(queue, entry, own, why, reason, now_ms)
            if delivery is not None:
                engine.delivery_ended(queue, entry, now_ms)


def _remove(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    now_ms, why, seqs = record[1], record[4], record[5]
    for seq in seqs:
        delivery = queue.leases.pop(seq, None)
        entry = delivery.entry if delivery is not None else queue.take_waiting(seq)
        if entry is not None:
            if delivery is not None and why == REMOVED_DAMAGED:
                queue.counters.released += 1
            elif delivery is not None and why in _ENDS:
                engine.dead_letters.count_end(queue, delivery, now_ms)
            engine.dead_letters.removed(queue, entry, why, now_ms)
            if delivery is not None:
                engine.delivery_ended(queue, entry, now_ms)


def _purge(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    purge_state(engine, queue, waiting_only=bool(record[3]), now_ms=record[1])


def _rewrite(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    """Store a message under a sequence number that may exist already.

    If it does not exist, the message is added out of order.
    """
    _, now_ms, _, seq, sent_ms, encoding, body, properties, options = record
    entry = _entry(seq, sent_ms, location, encoding, body, properties, options)
    engine.next_seq = max(engine.next_seq, seq + 1)
    known = queue.find(seq)
    if known is None:
        engine.add_entry(queue, entry, now_ms, in_order=False)
        return
    if entry.seq not in queue.leases:
        queue.waiting_bytes += entry.size - known.size
    engine.replace_entry(queue, entry)


def _reschedule(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    entry = queue.find(record[3])
    if entry is not None:
        engine.reschedule_entry(queue, entry, record[4], record[1])


def _unqueue(engine: Engine, queue: QueueState, record: Record, location: int) -> None:
    engine.drop_queue(queue)


def _queue(engine: Engine, record: Record, location: int) -> None:
    _, now_ms, number, _, name, settings, created_ms = record
    known = engine.numbered.get(number)
    if known is not None and number not in engine.orphans:
        engine.apply_settings(known, QueueSettings.from_json(settings), now_ms)
    elif known is not None:
        _adopt(engine, known, name, settings, created_ms, now_ms)
    else:
        engine.add_queue(QueueState(name, number, QueueSettings.from_json(settings), created_ms))


def _exchange(engine: Engine, record: Record, location: int) -> None:
    try:
        apply_exchange(engine, record[4])
    except OpenQError:
        # It refers to an exchange whose own record was lost to damage. Losing messages would be worse, so it
        # is skipped.
        return


def _mark(engine: Engine, record: Record, location: int) -> None:
    _, now_ms, _, _, job, owner, batch, rows, is_last, rejected = record
    progress.set_progress(engine, job, progress.BatchProgress(owner, batch, rows, is_last, rejected, now_ms))


def _put_values(engine: Engine, record: Record, location: int) -> None:
    engine.key_values.apply_puts(record[4], record[5], location, record[1])


def _delete_values(engine: Engine, record: Record, location: int) -> None:
    engine.key_values.apply_deletes(record[4], record[5])


def _schedule(engine: Engine, record: Record, location: int) -> None:
    schedules.apply(engine, *record[4:])


def checkpoint(engine: Engine, now_ms: int) -> Record:
    """Queues, exchanges and counters: everything a journal needs to begin at this record."""
    state: dict[str, Any] = {
        "prefix": engine.id_prefix,
        "seq": engine.next_seq,
        "number": engine.next_number,
        "queue": engine.next_queue,
        "queues": [[q.number, q.name, q.settings.to_json(), q.created_ms] for q in engine.queues.values()],
        "router": engine.router.dump(),
        "marks": progress.dump(engine),
    }
    if engine.schedules:
        state["schedules"] = schedules.dump(engine)
    if engine.key_values.next_version > 1:
        state["kv"] = engine.key_values.next_version
    return (CHECKPOINT, now_ms, 0, 0, state)


def _checkpoint(engine: Engine, record: Record, location: int) -> None:
    """Needed at the beginning of a journal and after damage; otherwise it repeats known state."""
    state: dict[str, Any] = record[4]
    engine.id_prefix = state["prefix"]
    engine.next_seq = max(engine.next_seq, state["seq"])
    engine.next_number = max(engine.next_number, state["number"])
    engine.next_queue = max(engine.next_queue, state["queue"])
    progress.load(engine, state.get("marks", ()))
    engine.key_values.next_version = max(engine.key_values.next_version, state.get("kv", 1))
    if "schedules" in state:
        schedules.load(engine, state["schedules"])
    if not engine.queues or engine.orphans:
        engine.router.load(state["router"])
    for number, name, settings, created_ms in state["queues"]:
        known = engine.numbered.get(number)
        if known is None:
            engine.add_queue(QueueState(name, number, QueueSettings.from_json(settings), created_ms))
        elif number in engine.orphans:
            _adopt(engine, known, name, settings, created_ms, record[1])


def _nothing(engine: Engine, record: Record, location: int) -> None:
    """An event changes no state."""


def _adopt(
    engine: Engine, queue: QueueState, name: str, settings: dict[str, Any], created_ms: int, now_ms: int
) -> None:
    """Restore the true name and settings of a queue whose definition was lost to damage."""
    engine.orphans.discard(queue.number)
    del engine.queues[queue.name]
    queue.name = name
    queue.created_ms = created_ms
    engine.add_queue(queue)
    # The layout of its messages depends on `fifo`; everything else can be set.
    settings = {**settings, "fifo": queue.fifo}
    engine.apply_settings(queue, QueueSettings.from_json(settings), now_ms)


def _entry(
    seq: int,
    sent_ms: int,
    location: int,
    encoding: int,
    body: bytes,
    properties: Properties | None,
    options: DeliveryOptions | None,
) -> Entry:
    """A body that is on disk is not kept in memory too."""
    if location:
        return Entry(seq, sent_ms, location, len(body), encoding, None, None, options)
    return Entry(seq, sent_ms, location, len(body), encoding, body, properties, options)


_WITHOUT_QUEUE: dict[int, Callable[[Engine, Record, int], None]] = {
    ROUTE: _route,
    QUEUE: _queue,
    EXCHANGE: _exchange,
    CHECKPOINT: _checkpoint,
    MARK: _mark,
    KV_PUT: _put_values,
    KV_DELETE: _delete_values,
    SCHEDULE: _schedule,
    EVENT: _nothing,
}
_APPLY: dict[int, Callable[[Engine, QueueState, Record, int], None]] = {
    PUBLISH: _publish,
    RUN: _run,
    DELIVER: _deliver,
    ACK: _ack,
    RETURN: _requeue,
    EXTEND: _extend,
    MOVE: _move,
    REMOVE: _remove,
    PURGE: _purge,
    EDIT: _rewrite,
    RESCHEDULE: _reschedule,
    COPY: _rewrite,
    UNQUEUE: _unqueue,
}
