"""The orders of queues with limits: as in `ready.py`, without the keys that `QueueLimits` blocks.

A blocked key has no turn; its messages keep their places in its list. It gets a turn again, behind the other
keys, when it is unblocked. So the cost of a delivery does not depend on how many keys are blocked.

A message that a receive takes is counted at once, before its lease exists. `delivery_ended` follows for each
one, also for those that a receive removes or puts back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice

from ..model import Entry
from .fifo_group import FifoGroup
from .limits import QueueLimits
from .ready import FifoOrder, PriorityLevel, StandardOrder, take_turns
from .ready_list import GroupKey, ReadyList


class LimitedLevel(PriorityLevel):
    """One priority. `open_groups` has the turns: a key in the middle can be removed at once."""

    __slots__ = ("_blocked", "open_groups")

    def __init__(self, priority: int, blocked: Mapping[str, int]) -> None:
        super().__init__(priority)
        self._blocked = blocked
        self.open_groups: OrderedDict[GroupKey, None] = OrderedDict()

    def ready_list(self, group: GroupKey) -> ReadyList:
        ready_list = self.ready_lists.get(group)
        if ready_list is None:
            ready_list = self.ready_lists[group] = ReadyList()
        if not ready_list.count and group not in self._blocked:
            self.open_groups[group] = None
        return ready_list

    def drop_if_empty(self, group: GroupKey) -> None:
        ready_list = self.ready_lists.get(group)
        if ready_list is not None and not ready_list.count:
            self.open_groups.pop(group, None)
            if group is not None:
                del self.ready_lists[group]

    def groups(self) -> Iterator[GroupKey]:
        yield from self.open_groups
        if len(self.open_groups) + (not self.ready_lists[None].count) < len(self.ready_lists):
            blocked = [g for g, each in self.ready_lists.items() if each.count and g not in self.open_groups]
            yield from sorted(blocked, key=self._first_seq)

    def _first_seq(self, group: GroupKey) -> int:
        first = self.ready_lists[group].first()
        return 0 if first is None else first.seq

    def adopt(self, other: PriorityLevel) -> None:
        self.ready_lists = other.ready_lists
        self.open_groups = OrderedDict.fromkeys(g for g in other.groups() if g not in self._blocked)

    def is_empty(self) -> bool:
        return len(self.ready_lists) == 1 and not self.ready_lists[None].count


class LimitedOrder(StandardOrder):
    """The ready messages of a standard queue with limits."""

    __slots__ = ("limits",)

    def __init__(self, limits: QueueLimits) -> None:
        self.limits = limits
        super().__init__()

    def _new_level(self, priority: int) -> LimitedLevel:
        return LimitedLevel(priority, self.limits.blocked)

    def append(self, entry: Entry) -> None:
        self.count += 1
        self._ready_list(entry).append(entry)

    append_plain = append

    def append_all_plain(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    def pop(self, now_ms: int) -> Entry | None:
        if self.count and (not self.limits.is_queue_limited or self.limits.is_open(now_ms)):
            return self._pop(now_ms)
        return None

    def pop_plain(self, limit: int, horizon_ms: int) -> list[Entry]:
        return []

    def _next_level(self) -> LimitedLevel | None:
        """The highest priority with a key that is not blocked. Drops empty priorities."""
        empty = []
        found = None
        for priority in reversed(self._order):
            level: LimitedLevel = self._levels[priority]  # type: ignore[assignment]
            if level.open_groups:
                found = level
                break
            if priority and level.is_empty():
                empty.append(priority)
        for priority in empty:
            del self._levels[priority]
            self._order.remove(priority)
            self._top = self._levels[self._order[-1]]
        return found

    def _unblock_due(self, now_ms: int) -> None:
        due = self.limits.due
        if due and due[0][0] <= now_ms:
            self._give_turns(self.limits.unblock_due(now_ms))

    def _pop(self, now_ms: int) -> Entry | None:
        limits = self.limits
        due = limits.due
        if due and due[0][0] <= now_ms:
            self._give_turns(limits.unblock_due(now_ms))
        level: LimitedLevel | None = self._top  # type: ignore[assignment]
        if not level.open_groups:  # type: ignore[union-attr]
            level = self._next_level()
            if level is None:
                return None
        assert level is not None
        groups = level.open_groups
        group = next(iter(groups))
        ready_list = level.ready_lists[group]
        entry = ready_list.pop()
        self.count -= 1
        is_blocked = limits.start(group, now_ms)
        if not ready_list.count:
            del groups[group]
            if group is not None:
                del level.ready_lists[group]
        elif is_blocked:
            del groups[group]
        else:
            groups.move_to_end(group)
        if is_blocked and len(self._levels) > 1:
            self._end_turns(group)
        return entry

    def _end_turns(self, group: GroupKey) -> None:
        for level in self._levels.values():
            level.open_groups.pop(group, None)  # type: ignore[attr-defined]

    def _give_turns(self, groups: Iterable[GroupKey]) -> None:
        for group in groups:
            for level in self._levels.values():
                if group in level.ready_lists:
                    level.open_groups[group] = None  # type: ignore[attr-defined]

    def take(self, seq: int, now_ms: int) -> Entry | None:
        """Take one message by sequence, whatever the limits say. Fast if it is the next one."""
        self._unblock_due(now_ms)
        level = self._next_level()
        if level is not None:
            first = level.ready_lists[next(iter(level.open_groups))].first()
            if first is not None and first.seq == seq:
                return self._pop(now_ms)
        entry = self.remove(seq)
        if entry is not None:
            self.delivery_started(entry, now_ms)
        return entry

    def delivery_started(self, entry: Entry, now_ms: int) -> None:
        group = entry.group
        if self.limits.start(group, now_ms):
            self._end_turns(group)

    def delivery_ended(self, entry: Entry, now_ms: int) -> None:
        options = entry.options
        group = None if options is None else options.group
        if self.limits.end(group, now_ms):
            self._give_turns((group,))

    def refund(self, entry: Entry, now_ms: int) -> None:
        group = entry.group
        if self.limits.refund(group, now_ms):
            self._give_turns((group,))

    def mark_in_flight(self, entry: Entry) -> None:
        if self.limits.mark(entry.group):
            self._end_turns(entry.group)

    def offer_all(self) -> None:
        """Bring the turns in line with the limits. Keys that are unblocked go behind the others."""
        blocked = self.limits.blocked
        for level in self._levels.values():
            order = [group for group in level.groups() if group not in blocked]
            level.open_groups = OrderedDict.fromkeys(order)  # type: ignore[attr-defined]

    def available(self, now_ms: int) -> Iterator[Entry]:
        """The messages that receives would get now, in order."""
        self._unblock_due(now_ms)
        limits = self.limits

        def allowed() -> Iterator[Entry]:
            for priority in reversed(self._order):
                level: LimitedLevel = self._levels[priority]  # type: ignore[assignment]
                yield from take_turns(
                    islice(level.ready_lists[group], limits.key_allowance(group, now_ms))
                    for group in list(level.open_groups)
                )

        return islice(allowed(), limits.allowance(now_ms))

    def waiting_groups(self) -> set[GroupKey]:
        return {group for level in self._levels.values() for group in level.ready_lists}

    def limited_count(self, now_ms: int) -> int:
        """How many ready messages the limits hold now."""
        if not self.limits.is_open(now_ms):
            return self.count
        lists = [level.ready_lists for level in self._levels.values()]
        return sum(
            each[key].count
            for key, until_ms in self.limits.blocked.items()
            if not 0 < until_ms <= now_ms
            for each in lists
            if key in each
        )


class LimitedFifoOrder(FifoOrder):
    """The ready messages of a FIFO queue with limits: a blocked group has no ticket."""

    __slots__ = ("limits",)

    def __init__(self, not_due: Container[int], limits: QueueLimits) -> None:
        super().__init__(not_due)
        self.limits = limits

    def _is_held_back(self, entry: Entry) -> bool:
        return entry.group in self.limits.blocked or super()._is_held_back(entry)

    def pop(self, now_ms: int) -> Entry | None:
        limits = self.limits
        if not limits.is_open(now_ms):
            return None
        self._unblock_due(now_ms)
        entry = super().pop(now_ms)
        if entry is not None:
            limits.start(entry.group, now_ms)
        return entry

    def _unblock_due(self, now_ms: int) -> None:
        for key in self.limits.unblock_due(now_ms):
            self._refresh_key(key)

    def _refresh_key(self, key: GroupKey) -> None:
        group = self._groups.get(key)
        if group is not None:
            self._refresh(group)

    def take(self, seq: int, now_ms: int) -> Entry | None:
        self._unblock_due(now_ms)
        entry = super().take(seq, now_ms)
        if entry is not None:
            self.limits.start(entry.group, now_ms)
        return entry

    def delivery_ended(self, entry: Entry, now_ms: int) -> None:
        self.limits.end(entry.group, now_ms)
        super().delivery_ended(entry, now_ms)

    def refund(self, entry: Entry, now_ms: int) -> None:
        if self.limits.refund(entry.group, now_ms):
            self._refresh_key(entry.group)

    def mark_in_flight(self, entry: Entry) -> None:
        super().mark_in_flight(entry)
        self.limits.mark(entry.group)

    def available(self, now_ms: int) -> Iterator[Entry]:
        self._unblock_due(now_ms)
        return islice(super().available(now_ms), self.limits.allowance(now_ms))

    def _allowed(self, group: FifoGroup, now_ms: int) -> Iterable[Entry]:
        return islice(group.ready_list, self.limits.key_allowance(group.name, now_ms))

    def waiting_groups(self) -> set[GroupKey]:
        return set(self._groups)

    def limited_count(self, now_ms: int) -> int:
        """How many ready messages the limits hold now."""
        if not self.limits.is_open(now_ms):
            return self.count
        found: list[FifoGroup | None] = [
            self._groups.get(key)
            for key, until_ms in self.limits.blocked.items()
            if not 0 < until_ms <= now_ms
        ]
        return sum(group.ready_list.count for group in found if group is not None)
