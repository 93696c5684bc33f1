"""Operations on queued messages by operators, and inspection.

These are functions over an `Engine`. The same rules hold: time is an argument, and records are logged before
the state changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import chain, islice, takewhile
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, MessageNotFoundError, OpenQError, QueueInUse
from ..model import DeliveryOptions, Draft, Entry
from .publishing import make_properties
from .queue import QueueState
from .ready import FifoOrder, StandardOrder
from .ready_list import PackedPage
from .records import EDIT, EXCHANGE, MOVED, PURGE, REDRIVEN, REMOVE, REMOVED_CANCELLED, RESCHEDULE
from .routing import Binding, Exchange, Removed, is_events_exchange
from .rules import MAX_TIME_MS
from .why import MAX_AHEAD, QueuePosition, Why, why_paused, why_unavailable, why_waiting

if TYPE_CHECKING:
    from .engine import Engine

# -- one message ------------------------------------------------------------------------------


def _waiting(engine: Engine, queue: QueueState, message_id: str, verb: str) -> Entry:
    entry = engine.locate(queue, message_id)
    if entry.seq in queue.leases:
        raise in_use(queue.name, message_id, verb)
    return entry


def in_use(queue: str, message_id: str, verb: str) -> QueueInUse:
    return QueueInUse(queue, f"message {message_id} is with a consumer; {verb} it when it is back")


def cancel(engine: Engine, queue: QueueState, message_id: str, now_ms: int) -> None:
    """Remove one ready or delayed message for good."""
    entry = _waiting(engine, queue, message_id, "cancel")
    engine.log_record((REMOVE, now_ms, queue.number, 0, REMOVED_CANCELLED, [entry.seq]))
    engine.remove_waiting(queue, entry)
    engine.dead_letters.removed(queue, entry, REMOVED_CANCELLED, now_ms)


def edit(engine: Engine, queue: QueueState, message_id: str, now_ms: int, draft: Draft) -> None:
    """Replace body, type and attributes. Place, counts, priority, group and id stay."""
    entry = _waiting(engine, queue, message_id, "edit")
    options = entry.options.copy() if entry.options is not None else DeliveryOptions()
    options.born_ms = options.born_ms or entry.sent_ms
    options.type = draft.type
    properties = make_properties(draft)
    body = draft.body
    location = engine.log_record(
        (EDIT, now_ms, queue.number, entry.seq, entry.sent_ms, draft.encoding, body, properties, options)
    )
    queue.waiting_bytes += len(body) - entry.size
    engine.replace_entry(
        queue, Entry(entry.seq, entry.sent_ms, location, len(body), draft.encoding, body, properties, options)
    )


def move(
    engine: Engine, queue: QueueState, message_ids: Sequence[str], target: QueueState, now_ms: int
) -> list[OpenQError | None]:
    """Move chosen messages to the end of another queue; ids stay.

    Returns the error of each that cannot move.
    """
    return [_move_one(engine, queue, each, target, MOVED, now_ms) for each in message_ids]


def _move_one(
    engine: Engine, queue: QueueState, message_id: str, target: QueueState, why: int, now_ms: int
) -> OpenQError | None:
    try:
        entry = _waiting(engine, queue, message_id, "move")
        if target is queue:
            raise InvalidSetting(f"message {message_id} is in queue {queue.name!r} already")
        _move_entry(engine, queue, entry, target, why, now_ms)
    except (MessageNotFoundError, QueueInUse, InvalidSetting) as error:
        return error
    return None


def _move_entry(
    engine: Engine, queue: QueueState, entry: Entry, target: QueueState, why: int, now_ms: int
) -> None:
    engine.dead_letters.log_move(queue, entry, [target], why, None, now_ms)
    engine.remove_waiting(queue, entry)
    engine.dead_letters.finish_move(queue, entry, [target], why, None, now_ms)


def reschedule(engine: Engine, queue: QueueState, message_id: str, due_ms: int, now_ms: int) -> None:
    """Set another due time for a delayed message, or delay a ready one. `now_ms` or less: at once."""
    entry = _waiting(engine, queue, message_id, "reschedule")
    if due_ms > MAX_TIME_MS:
        raise InvalidSetting("a delay of more than 70 million years")
    due_ms = max(due_ms, 0)
    engine.log_record((RESCHEDULE, now_ms, queue.number, entry.seq, due_ms))
    engine.reschedule_entry(queue, entry, due_ms, now_ms)


# -- many messages ----------------------------------------------------------------------------


def purge(engine: Engine, queue: QueueState, now_ms: int, waiting_only: bool = False) -> int:
    """Remove all messages, also those in flight: their receipts are unknown from now on.

    `waiting_only` keeps messages in flight; delayed ones are removed. Deduplication ids of messages that are
    no longer in the queue are forgotten, so the same messages may be sent again.
    """
    count = queue.waiting_count if waiting_only else queue.count
    engine.log_record((PURGE, now_ms, queue.number, int(waiting_only)))
    purge_state(engine, queue, waiting_only, now_ms)
    if engine.observer is not None:
        engine.observer("purged", queue.name, None, now_ms, str(count))
    return count


def purge_state(engine: Engine, queue: QueueState, waiting_only: bool, now_ms: int) -> None:
    if waiting_only:
        queue.counters.removed += queue.waiting_count
        queue.clear_waiting(now_ms)
        queue.keep_dedup({engine.id_of(delivery.entry) for delivery in queue.leases.values()})
    else:
        queue.counters.removed += queue.count
        queue.clear(now_ms)


def redrive_target(engine: Engine, queue: QueueState, entry: Entry, to: str | None) -> QueueState | None:
    """The target of one dead letter: `to` if given, else the queue that dead-lettered it."""
    if to is not None:
        return engine.queue(to)
    deaths = () if entry.options is None else entry.options.deaths
    return engine.queues.get(deaths[0][0]) if deaths else None


def redrive(engine: Engine, queue: QueueState, entries: Sequence[Entry], to: str | None, now_ms: int) -> int:
    """Return dead letters to their source, or to `to`.

    Messages without a known source stay. Returns how many moved.
    """
    moved = 0
    for chosen in entries:
        # Look it up again: it may have been edited, copied or taken since it was chosen.
        entry = queue.find(chosen.seq)
        if entry is None or entry.seq in queue.leases:
            continue
        target = redrive_target(engine, queue, entry, to)
        if target is not None and target is not queue:
            _move_entry(engine, queue, entry, target, REDRIVEN, now_ms)
            moved += 1
    return moved


# -- looking ----------------------------------------------------------------------------------


STATES = ("ready", "delayed", "in_flight", "all")


def check_state(state: str) -> None:
    if state not in STATES:
        raise InvalidSetting(f"state must be one of {', '.join(STATES)}, not {state!r}")


def browse(engine: Engine, queue: QueueState, state: str = "all") -> Iterator[Entry]:
    """Entries in delivery order. Changes nothing. States: ready, delayed, in_flight, all."""
    check_state(state)
    if state in ("ready", "all"):
        ready = iter(queue.ready)
        yield from (each for each in ready if each.seq not in queue.delayed) if queue.fifo else ready
    if state in ("delayed", "all"):
        yield from queue.delayed.in_due_order()
    if state in ("in_flight", "all"):
        yield from sorted((d.entry for d in queue.leases.values()), key=_seq)


def scan(queue: QueueState, state: str = "all") -> Iterator[Entry]:
    """Like `browse`, by priority and sequence, for long scans.

    References are taken at the call and followed later. So the caller may release the lock meanwhile, and ten
    million messages are never in memory at once.
    """
    check_state(state)
    ready_lists = queue.ready.freeze() if state in ("ready", "all") else []
    delayed = queue.delayed.in_due_order() if state in ("delayed", "all") else ()
    in_flight = (
        sorted((d.entry for d in queue.leases.values()), key=_seq) if state in ("in_flight", "all") else []
    )
    not_due = set(queue.delayed) if queue.fifo else frozenset()
    ranks = queue.ready.rank

    def rank(entry: Entry) -> tuple[int, int]:
        return (-ranks(entry), entry.seq)

    # Merged: reading one list after the other would return a whole group before the next one.
    walks = [_walk(ready_list) for ready_list in ready_lists]
    waiting = walks[0] if len(walks) == 1 else merge(*walks, key=_seq if queue.fifo else rank)
    ready = (entry for entry in waiting if entry.seq not in not_due)
    return chain(ready, delayed, in_flight)


def _walk(ready_list: tuple[list[Entry], list[PackedPage]]) -> Iterator[Entry]:
    loose, pages = ready_list
    packed = (entry for page in pages for entry in page.entries())
    return merge(sorted(loose, key=_seq), packed, key=_seq)


def _seq(entry: Entry) -> int:
    return entry.seq


def peek(engine: Engine, queue: QueueState, limit: int, rear: bool) -> list[Entry]:
    """The next messages to be delivered, or the last ones, last first. Counts and changes nothing."""
    if not rear:
        return list(islice(browse(engine, queue, "ready"), limit))
    if limit == 1 and isinstance(queue.ready, StandardOrder):
        # With FIFO groups, only a scan of the whole queue shows which message is last.
        last = queue.ready.last()
        return [] if last is None else [last]
    return list(deque(browse(engine, queue, "ready"), maxlen=limit))[::-1]


def status(queue: QueueState, seq: int) -> str | None:
    if seq in queue.leases:
        return "in_flight"
    if seq in queue.delayed:
        return "delayed"
    return "ready" if queue.ready.find(seq) is not None else None


def why(engine: Engine, queue: QueueState, message_id: str, now_ms: int, consumers: int = 0) -> Why:
    try:
        entry = engine.locate(queue, message_id)
    except MessageNotFoundError as missing:
        return Why("not_found", str(missing))
    unavailable = why_unavailable(entry, queue.leases.get(entry.seq), entry.seq in queue.delayed, now_ms)
    if unavailable is not None:
        return unavailable
    if queue.settings.paused:
        return why_paused(queue.name)
    position = _position(queue, entry)
    limited = None if queue.limits is None else queue.limits.why(entry.group, now_ms)
    if limited is not None and not position.group_held and not position.group_delayed:
        return limited
    return why_waiting(entry, position, consumers)


def _position(queue: QueueState, entry: Entry) -> QueuePosition:
    seq = entry.seq
    if isinstance(queue.ready, FifoOrder):
        if queue.ready.is_held(entry):
            return QueuePosition(True, False, 0)
        if any(each.seq in queue.delayed for each in islice(queue.ready.before(entry), MAX_AHEAD)):
            return QueuePosition(False, True, 0)
    ahead = takewhile(lambda other: other.seq != seq, islice(queue.ready, MAX_AHEAD))
    return QueuePosition(False, False, sum(1 for _ in ahead))


# -- exchanges --------------------------------------------------------------------------------


def declare_exchange(engine: Engine, exchange: Exchange, now_ms: int) -> bool:
    if exchange.name in engine.router:
        return engine.router.declare(exchange)  # returns False for an equal exchange, or raises
    new = engine.router.declare(exchange)  # first, because a refused declaration must not be logged
    try:
        _log_exchange(engine, "declare", exchange, now_ms)
    except OpenQError:
        engine.router.delete(exchange.name)
        raise
    return new


def change_exchange(engine: Engine, exchange: Exchange, now_ms: int) -> None:
    before = engine.router.change(exchange)
    try:
        _log_exchange(engine, "change", exchange, now_ms)
    except OpenQError:
        engine.router.change(before)
        raise


def delete_exchange(engine: Engine, name: str, now_ms: int, if_unused: bool = False) -> Removed:
    """Returns what was removed with it: its bindings, and auto-delete exchanges that have none left."""
    engine.router.get(name)
    before = engine.router.dump()
    removed = engine.router.delete(name, if_unused)
    try:
        engine.log_record((EXCHANGE, now_ms, 0, 0, {"op": "delete", "name": name}))
    except OpenQError:
        engine.router.load(before)
        raise
    return removed


def bind(engine: Engine, binding: Binding, now_ms: int) -> bool:
    """The destination must exist. An equal binding changes nothing."""
    if not binding.to_exchange:
        engine.queue(binding.destination)
    new = engine.router.bind(binding)
    if new:
        try:
            _log_exchange(engine, "bind", binding, now_ms)
        except OpenQError:
            source = engine.router.get(binding.source)
            engine.router.unbind(binding)
            if source.name not in engine.router:  # auto-delete: it was removed with its last binding
                engine.router.declare(source)
            raise
    return new


def unbind(engine: Engine, binding: Binding, now_ms: int) -> Removed:
    """Returns what was removed: the binding, if it existed, and auto-delete exchanges that have none left."""
    if binding not in engine.router.bindings(binding.source, binding.destination):
        return Removed()
    _log_exchange(engine, "unbind", binding, now_ms)
    return engine.router.unbind(binding)


def _log_exchange(engine: Engine, op: str, value: Exchange | Binding, now_ms: int) -> None:
    fields = {name: getattr(value, name) for name in _FIELDS[op]}
    fields["arguments"] = dict(fields["arguments"])
    engine.log_record((EXCHANGE, now_ms, 0, 0, {"op": op, **fields}))


_BINDING = ("source", "destination", "to_exchange", "key", "arguments")
_EXCHANGE = ("name", "kind", "durable", "auto_delete", "internal", "alternate", "arguments")
_FIELDS = {
    "declare": _EXCHANGE,
    "change": _EXCHANGE,
    "bind": _BINDING,
    "unbind": _BINDING,
}


def apply_exchange(engine: Engine, change: Mapping[str, Any]) -> None:
    router = engine.router
    op = change["op"]
    if is_events_exchange(change.get("name", "")):
        return  # an earlier version did not reserve this name
    if op == "delete":
        if change["name"] in router:
            router.delete(change["name"])
        return
    fields = {name: change[name] for name in _FIELDS[op]}
    if op == "declare":
        if fields["name"] not in router:
            router.declare(Exchange(**fields))
    elif op == "change":
        if fields["name"] in router:
            router.change(Exchange(**fields))
    elif op == "bind":
        if fields["source"] in router:
            router.bind(Binding(**fields))
    else:
        router.unbind(Binding(**fields))
