"""The state of the engine beside that of the model, and an engine that shows more of what it does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from openq.engine import admin
from openq.engine.engine import Engine
from openq.engine.limited_order import LimitedLevel
from openq.engine.queue import QueueState
from openq.engine.ready import PriorityLevel, StandardOrder
from openq.engine.records import Record
from openq.model import Entry

from .model import Item, Model, ModelQueue
from .support import PREFIX, extra_dump


class Watched(Engine):
    """Also shows when a delay ends: that leaves no record, but has its place among those that do."""

    def __init__(self, events: list[Any], log: Callable[[Record], int]) -> None:
        super().__init__(PREFIX, log=log)
        come_due = self.expiry.come_due

        def watched(queue: QueueState, entry: Entry, now_ms: int) -> None:
            events.append((queue.name, entry.seq))
            come_due(queue, entry, now_ms)

        self.expiry.come_due = watched  # type: ignore[method-assign]


def assert_agree(engine: Engine, model: Model, now_ms: int) -> None:
    assert engine.next_seq == model.seq
    assert engine.next_number == model.number
    assert list(engine.queues) == list(model.queues)
    for name, queue in model.queues.items():
        real = engine.queue(name)
        ready = list(admin.browse(engine, real, "ready"))
        assert [e.seq for e in ready] == [i.seq for i in queue.in_order() if i.seq not in queue.delayed]
        assert set(real.delayed) == queue.delayed
        assert sorted(real.leases) == [item.seq for item in queue.leased()]
        assert real.count == len(queue.items)
        assert real.ready_count == len(queue.ready())
        for item in queue.items:
            _compare(engine, real, item)
        if isinstance(real.ready, StandardOrder):
            turns = {p: list(_turns(level)) for p, level in real.ready._levels.items()}
            assert {p: groups for p, groups in turns.items() if groups} == queue.turns
        else:
            assert [group.name for group in real.ready._in_turn() if group.ticket] == queue.groups_in_turn()
        _compare_limits(real, queue, now_ms)
        for rear in (False, True):
            for limit in (1, 2):
                seqs = [entry.seq for entry in ready][:: -1 if rear else 1][:limit]
                assert [e.seq for e in admin.peek(engine, real, limit, rear)] == seqs


def _compare_limits(real: QueueState, queue: ModelQueue, now_ms: int) -> None:
    """Every way in which a delivery ends gave its slot back, once."""
    limits = real.limits
    if limits is None:
        return
    assert limits._queue.in_flight == len(real.leases)
    for key, use in limits.keys.items():
        assert use.in_flight == sum(item.group == key for item in queue.leased())
        allowed = use.allowance(now_ms)
        assert min(allowed, 1 << 40) == min(queue.key_allowance(key), 1 << 40)
    assert set(limits.blocked) == set(queue.limits.blocked)


def _compare(engine: Engine, real: QueueState, item: Item) -> None:
    entry = real.find(item.seq)
    assert entry is not None
    lease = real.leases.get(item.seq)
    options = entry.options
    assert engine.id_of(entry) == item.id
    assert (entry.size, entry.sent_ms) == (len(item.body), item.sent_ms)
    assert (entry.priority, entry.group) == (item.priority, item.group)
    if lease is not None:
        assert (lease.number, lease.until_ms) == item.lease
        assert lease.count == item.count
    if options is None:
        assert (item.type, item.reason, item.deaths, item.route) == (None, None, [], None)
        assert item.count == (0 if lease is None else 1)
    else:
        assert lease is not None or options.count == item.count
        assert (options.type, options.expires_ms, options.reason) == (
            item.type,
            item.expires_ms,
            item.reason,
        )
        assert (list(options.deaths), options.route) == (item.deaths, item.route)
        assert max(options.due_ms, entry.sent_ms) == max(item.due_ms, item.sent_ms), extra_dump(options)


def _turns(level: PriorityLevel) -> Iterable[str | None]:
    return level.open_groups if isinstance(level, LimitedLevel) else level.turns


def without_twins(state: dict[str, Any]) -> dict[str, Any]:
    """Of two messages with one id only one can be named by it; which one may change over a restart."""
    for queue in state["queues"].values():
        entries = [e for ready_list in queue["waiting"].values() for e in ready_list]
        entries += [each[0] for each in queue["leases"].values()]
        entries += [] if queue["settings"].fifo else queue["delayed"].values()
        own = [dict(entry[-1])["id"] for entry in entries if entry[-1] is not None]
        queue["ids"] = {key: seq for key, seq in queue["ids"].items() if own.count(key) == 1}
        queue["twins"] = sorted(key for key in own if key is not None and own.count(key) > 1)
        for key in own:
            # The older of two had lost its name, and keeps being without when the newer goes.
            if key is not None and own.count(key) == 1 and key not in queue["ids"]:
                queue["ids"][key] = next(e[0] for e in entries if e[-1] and dict(e[-1])["id"] == key)
    return state
