"""Which message is next: priorities, fair delivery across groups, FIFO groups.

Two classes have the same methods. `StandardOrder` serves standard queues: higher priority first; inside a
priority the groups take turns; inside a group by sequence. `FifoOrder` serves FIFO queues: groups take turns
there too, and messages behind one that is in flight, or not due yet, wait. `limited_order.py` has a subclass
of each, for queues with limits.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Container, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile

from ..model import MAX_PRIORITY, DeliveryOptions, Entry
from .fifo_group import FifoGroup, first_seq, ticket_of, turn_of
from .ready_list import PAGE, GroupKey, PackedPage, ReadyList


class PriorityLevel:
    """One priority of a standard queue: a `ReadyList` for each group. The groups take turns."""

    __slots__ = ("priority", "ready_lists", "turns")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.ready_lists: dict[GroupKey, ReadyList] = {None: ReadyList()}
        self.turns: deque[GroupKey] = deque()  # groups with ready messages

    def ready_list(self, group: GroupKey) -> ReadyList:
        ready_list = self.ready_lists.get(group)
        if ready_list is None:
            ready_list = self.ready_lists[group] = ReadyList()
        if not ready_list.count:
            self.turns.append(group)
        return ready_list

    def pop(self) -> Entry | None:
        turns = self.turns
        if not turns:
            return None
        group = turns[0]
        ready_list = self.ready_lists[group]
        entry = ready_list.pop()
        if not ready_list.count:
            turns.popleft()
            if group is not None:
                del self.ready_lists[group]
        elif len(turns) > 1:
            turns.rotate(-1)
        return entry

    def drop_if_empty(self, group: GroupKey) -> None:
        ready_list = self.ready_lists.get(group)
        if ready_list is not None and not ready_list.count:
            self.turns.remove(group)
            if group is not None:
                del self.ready_lists[group]

    def groups(self) -> Iterable[GroupKey]:
        """The groups with ready messages, in the order they are served."""
        return self.turns

    def adopt(self, other: PriorityLevel) -> None:
        self.ready_lists = other.ready_lists
        self.turns.extend(other.groups())


class StandardOrder:
    """The ready messages of a standard queue."""

    __slots__ = ("_levels", "_mixed", "_order", "_plain", "_plain_turns", "_top", "count", "max_priority")

    def __init__(self) -> None:
        self.max_priority = MAX_PRIORITY  # higher priorities are ordered as this one
        self._reset()

    def _new_level(self, priority: int) -> PriorityLevel:
        return PriorityLevel(priority)

    def _reset(self) -> None:
        self._top = self._new_level(0)
        self._levels: dict[int, PriorityLevel] = {0: self._top}
        self._order: list[int] = [0]  # priorities, highest last
        # The list of messages with neither priority nor group. Nearly all messages are there, so it needs no
        # lookup.
        self._plain = self._top.ready_lists[None]
        self._plain_turns = self._top.turns
        self._mixed = False  # whether any other list is in use
        self.count = 0

    def _ready_list(self, entry: Entry) -> ReadyList:
        options = entry.options
        if options is None or options.is_plain:
            return self._levels[0].ready_list(None)
        priority = options.priority
        if priority > self.max_priority:
            priority = self.max_priority
        if priority or options.group is not None:
            self._mixed = True
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = self._new_level(priority)
            insort(self._order, priority)
        if priority > self._top.priority:
            self._top = level
        return level.ready_list(options.group)

    def adopt(self, other: StandardOrder) -> None:
        """Take over all messages of another order, which must not be used any more."""
        self.max_priority, self.count = other.max_priority, other.count
        self._order = other._order
        self._levels = {priority: self._new_level(priority) for priority in self._order}
        for priority, level in self._levels.items():
            level.adopt(other._levels[priority])
        self._top = self._levels[self._order[-1]]
        self._plain = self._levels[0].ready_lists[None]
        self._plain_turns = self._levels[0].turns
        self._mixed = len(self._order) > 1 or len(self._levels[0].ready_lists) > 1

    def set_max_priority(self, max_priority: int) -> None:
        """Set the limit and sort the ready messages again. The order is then the same as after a restart."""
        waiting = sorted(self, key=lambda entry: entry.seq)
        self.max_priority = max_priority
        self._reset()
        for entry in waiting:
            self.append(entry)

    def rank(self, entry: Entry) -> int:
        """The priority by which a message is ordered."""
        return min(entry.priority, self.max_priority)

    def append(self, entry: Entry) -> None:
        self.count += 1
        if entry.options is None or entry.options.is_plain:
            ready_list = self._plain
            if not ready_list.count:
                self._plain_turns.append(None)
            ready_list.append(entry)
        else:
            self._ready_list(entry).append(entry)

    def append_plain(self, entry: Entry) -> None:
        """`append` for a message with neither priority nor group, with fewer calls."""
        self.count += 1
        ready_list = self._plain
        head = ready_list.head
        if not ready_list.count:
            self._plain_turns.append(None)
            ready_list.count = 1
            head.append(entry)
        elif ready_list.is_single_deque and len(head) < PAGE:
            ready_list.count += 1
            head.append(entry)
        else:
            ready_list.append(entry)

    def append_all_plain(self, entries: list[Entry]) -> None:
        """`append_plain` for consecutive messages."""
        self.count += len(entries)
        ready_list = self._plain
        if not ready_list.count:
            self._plain_turns.append(None)
        ready_list.append_all(entries)

    def append_page(self, page: PackedPage) -> None:
        self.count += len(page)
        self._levels[0].ready_list(None).append_page(page)

    def put_back(self, entry: Entry) -> None:
        self.count += 1
        self._ready_list(entry).put_back(entry)

    def pop(self, now_ms: int) -> Entry | None:
        if not self.count:
            return None
        self.count -= 1
        if not self._mixed:
            ready_list = self._plain
            head = ready_list.head
            if head and not ready_list.returned:  # as `ReadyList.pop` does, without the call
                ready_list.count -= 1
                entry: Entry | None = head.popleft()
            else:
                entry = ready_list.pop()
            if not ready_list.count:
                self._plain_turns.clear()
            return entry
        entry = self._top.pop()
        while entry is None:
            self._drop_top_level()
            entry = self._top.pop()
        if not self.count:
            while self._top.priority:
                self._drop_top_level()
            self._mixed = False
        return entry

    def pop_plain(self, limit: int, horizon_ms: int) -> list[Entry]:
        """Fast path: the next `limit` messages, or all if there are fewer.

        Returns an empty list where it does not apply, for example if one of them is not plain or is past
        retention.
        """
        ready_list = self._plain
        head = ready_list.head
        count = min(limit, self.count)
        if self._mixed or ready_list.returned:
            return []
        while len(head) < count:
            if not ready_list.fill():
                return []
        entries = list(islice(head, count))
        known_options: DeliveryOptions | None = None
        for entry in entries:
            if entry.options is not known_options:  # neighbours mostly share one object
                known_options = entry.options
                if known_options is not None and not known_options.is_plain:
                    return []
            if entry.sent_ms <= horizon_ms:
                return []
        for _ in entries:
            head.popleft()
        self.count -= count
        ready_list.count -= count
        if not ready_list.count:
            self._plain_turns.clear()
        return entries

    def take(self, seq: int, now_ms: int) -> Entry | None:
        """Take one message by sequence. Fast if it is the next one."""
        first = self.first(now_ms)
        if first is not None and first.seq == seq:
            return self.pop(now_ms)
        return self.remove(seq)

    def _drop_top_level(self) -> None:
        """Make the next lower priority the top. Level 0 is never dropped."""
        del self._levels[self._order.pop()]
        self._top = self._levels[self._order[-1]]

    def lowest(self) -> Entry | None:
        """The oldest message of the lowest priority: the first that an overflowing queue drops."""
        for priority in self._order:
            level = self._levels[priority]
            for group in level.groups():
                return level.ready_lists[group].first()
        return None

    def find(self, seq: int) -> Entry | None:
        for ready_list in self.ready_lists():
            entry = ready_list.find(seq)
            if entry is not None:
                return entry
        return None

    def remove(self, seq: int, hint: Entry | None = None) -> Entry | None:
        """Remove a message from any position. `hint`, if known, is its entry and identifies its list."""
        if hint is not None:
            level = self._levels[self.rank(hint)]
            return self._remove_from(level, hint.group, level.ready_lists[hint.group], seq)
        for level in self._levels.values():
            for group, ready_list in list(level.ready_lists.items()):
                entry = self._remove_from(level, group, ready_list, seq) if ready_list.count else None
                if entry is not None:
                    return entry
        return None

    def _remove_from(
        self, level: PriorityLevel, group: GroupKey, ready_list: ReadyList, seq: int
    ) -> Entry | None:
        entry = ready_list.remove(seq)
        if entry is not None:
            self.count -= 1
            level.drop_if_empty(group)
        return entry

    def replace(self, entry: Entry) -> bool:
        return any(ready_list.replace(entry) for ready_list in self.ready_lists())

    def ready_lists(self) -> Iterator[ReadyList]:
        for priority in reversed(self._order):
            yield from list(self._levels[priority].ready_lists.values())

    def first(self, now_ms: int) -> Entry | None:
        for priority in reversed(self._order):
            level = self._levels[priority]
            for group in level.groups():
                return level.ready_lists[group].first()
        return None

    def last(self) -> Entry | None:
        """The message that is delivered last.

        Groups take turns, so the longest group is served last. Of two equally long groups it is the later
        one.
        """
        for priority in self._order:
            level = self._levels[priority]
            ready_lists = [level.ready_lists[group] for group in level.groups()]
            if ready_lists:
                return max(enumerate(ready_lists), key=lambda each: (each[1].count, each[0]))[1].last()
        return None

    def oldest_ms(self) -> int | None:
        if self._mixed:
            return _oldest_ms(self.ready_lists())
        first = self._plain.first()
        return None if first is None else first.sent_ms

    def kept_since_ms(self, not_due: Container[int]) -> int | None:
        return _kept_since_ms(self.ready_lists(), not_due)

    def __iter__(self) -> Iterator[Entry]:
        """In delivery order. The groups of a level take turns, as in `pop`."""
        for priority in reversed(self._order):
            level = self._levels[priority]
            yield from take_turns(iter(level.ready_lists[group]) for group in list(level.groups()))

    def only_list(self) -> ReadyList | None:
        """The list that has all messages; None while there are priorities or groups."""
        return None if self._mixed else self._plain

    # A standard queue never holds a group back. These methods give both classes the same interface.

    def available(self, now_ms: int) -> Iterator[Entry]:
        return iter(self)

    def delivery_ended(self, entry: Entry, now_ms: int) -> None:
        pass

    def due(self, entry: Entry) -> None:
        self.put_back(entry)

    def mark_in_flight(self, entry: Entry) -> None:
        pass

    def delivery_started(self, entry: Entry, now_ms: int) -> None:
        pass

    def offer_all(self) -> None:
        pass

    def end_batch(self) -> None:
        pass

    def freeze(self) -> list[tuple[list[Entry], list[PackedPage]]]:
        """By priority, groups in the order of their turns, so that the turns are the same after a restore."""
        levels = [self._levels[priority] for priority in reversed(self._order)]
        return [level.ready_lists[group].freeze() for level in levels for group in level.groups()]


def take_turns(lines: Iterable[Iterator[Entry]]) -> Iterator[Entry]:
    waiting = deque(lines)
    while waiting:
        line = waiting.popleft()
        entry = next(line, None)
        if entry is not None:
            yield entry
            waiting.append(line)


class FifoOrder:
    """Ready messages of a FIFO queue: groups take turns, and a turn delivers as many of one group as fit.

    A group has a ticket while its first message can be delivered: the message is due, and no earlier one is
    in flight. Tickets are served by the priority of that first message, then by number. A group that lost its
    ticket gets a new one later. So a group with a message in flight goes behind the groups that waited
    meanwhile.
    """

    __slots__ = (
        "_batch",
        "_bound",
        "_current",
        "_groups",
        "_heap",
        "_last",
        "_not_due",
        "_tickets",
        "count",
        "max_priority",
    )

    def __init__(self, not_due: Container[int]) -> None:
        self.max_priority = MAX_PRIORITY
        self._not_due = not_due  # sequences of delayed messages; their groups hold these messages too
        self._groups: dict[GroupKey, FifoGroup] = {}
        # (-priority, ticket, group). A heap entry that no longer describes its group is dropped when it is
        # popped. The heap is never searched for it.
        self._heap: list[tuple[int, int, FifoGroup]] = []
        self._tickets = 0
        self._batch: list[FifoGroup] = []  # groups that the current receive has taken from
        self._current: FifoGroup | None = None  # the group it takes from now, up to sequence `_bound`
        self._bound = 0
        self._last: FifoGroup | None = (
            None  # the group that the last message was taken from: mostly the next one is in the same group
        )
        self.count = 0

    def _refresh(self, group: FifoGroup) -> None:
        """Bring the ticket of a group in line with its ready messages and its messages in flight."""
        if group.in_batch:
            return  # `end_batch` refreshes it: a message that a receive puts back has not lost its turn
        first = group.ready_list.first()
        if first is None or first.seq > group.first_in_flight() or self._is_held_back(first):
            group.ticket = 0
            if first is None and not group.in_flight and self._groups.get(group.name) is group:
                del self._groups[group.name]
            return
        rank = self.rank(first)
        if group.ticket and group.rank == rank:
            return
        if not group.ticket:
            self._tickets += 1
            group.ticket = self._tickets
        group.rank = rank
        heap = self._heap
        heappush(heap, (-rank, group.ticket, group))
        if len(heap) > 2 * len(self._groups) + 64:
            self._heap = [each for each in heap if self._is_valid(*each)]
            heapify(self._heap)

    def _is_held_back(self, entry: Entry) -> bool:
        """Whether it is not due yet. Most messages have no due time and need no lookup."""
        options = entry.options
        return options is not None and options.due_ms > 0 and entry.seq in self._not_due

    @staticmethod
    def _is_valid(minus_rank: int, ticket: int, group: FifoGroup) -> bool:
        return group.ticket == ticket and group.rank == -minus_rank and not group.in_batch

    def set_max_priority(self, max_priority: int) -> None:
        self.max_priority = max_priority
        self.offer_all()

    def rank(self, entry: Entry) -> int:
        """The priority of the group while this message is its first."""
        return min(entry.priority, self.max_priority)

    def _group(self, name: GroupKey) -> FifoGroup:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = FifoGroup(name)
        return group

    def adopt(self, other: FifoOrder) -> None:
        """Take over all messages of another order, which must not be used any more."""
        self.max_priority, self.count = other.max_priority, other.count
        self._groups, self._tickets = other._groups, other._tickets
        for group in sorted(self._groups.values(), key=first_seq):
            group.rank = -1
            self._refresh(group)

    def append(self, entry: Entry) -> None:
        self.count += 1
        group = self._group(entry.group)
        group.ready_list.append(entry)
        if group.ready_list.count == 1:
            self._refresh(group)

    def append_page(self, page: PackedPage) -> None:
        self.append_all_plain(page.entries())

    def append_all_plain(self, entries: list[Entry]) -> None:
        for entry in entries:
            self.append(entry)

    append_plain = append

    def put_back(self, entry: Entry) -> None:
        """Put a message back in its place in its group.

        If a delivery of it ended, `delivery_ended` follows.
        """
        self.count += 1
        group = self._group(entry.group)
        group.ready_list.put_back(entry)
        self._refresh(group)

    def pop(self, now_ms: int) -> Entry | None:
        """The next message of the group whose turn it is, then of the group after it.

        `end_batch` ends a receive.
        """
        while True:
            group = self._current
            if group is None:
                group = self._next()
                if group is None:
                    return None
                self._current, self._bound = group, group.first_in_flight()
                self._enter_batch(group)
            first = group.ready_list.first()
            if first is None or first.seq > self._bound or self._is_held_back(first):
                self._current = None
                continue
            group.ready_list.pop()
            self.count -= 1
            group.mark_in_flight(first.seq)
            return first

    def _next(self) -> FifoGroup | None:
        heap = self._heap
        while heap:
            each = heappop(heap)
            if self._is_valid(*each):
                return each[2]
        return None

    def _enter_batch(self, group: FifoGroup) -> None:
        if not group.in_batch:
            group.in_batch = True
            self._batch.append(group)

    def mark_in_flight(self, entry: Entry) -> None:
        """Mark a message as in flight while a state is restored; `offer_all` follows."""
        self._group(entry.group).mark_in_flight(entry.seq)

    def delivery_started(self, entry: Entry, now_ms: int) -> None:
        """A delayed message was put in flight without being taken; on FIFO queues `take` does it."""

    def offer_all(self) -> None:
        """Refresh every group: a restored state comes in any order. Tickets that are still valid are kept."""
        self._heap.clear()
        for group in list(self._groups.values()):
            group.rank = -1
            self._refresh(group)

    def end_batch(self) -> None:
        self._current = None
        if self._batch:
            batch, self._batch = self._batch, []
            for group in batch:
                group.in_batch = False
                group.rank = -1  # its heap entry may have been dropped
                self._refresh(group)

    def delivery_ended(self, entry: Entry, now_ms: int) -> None:
        """A delivery of this group ended: its message is gone, or was put back already."""
        group = self._groups.get(entry.group)
        if group is not None:
            group.clear_in_flight(entry.seq)
            self._refresh(group)

    def due(self, entry: Entry) -> None:
        group = self._groups.get(entry.group)
        if group is not None:
            self._refresh(group)

    def take(self, seq: int, now_ms: int) -> Entry | None:
        """Take one message by sequence and mark it as in flight. Fast if it is the next one."""
        entry = self._take_first(self._last, seq)
        if entry is None and self._heap:
            entry = self._take_first(self._heap[0][2], seq)
        if entry is None:
            entry = self.remove(seq)
        if entry is not None:
            group = self._last = self._group(entry.group)
            group.mark_in_flight(seq)
            self._enter_batch(group)
        return entry

    def _take_first(self, group: FifoGroup | None, seq: int) -> Entry | None:
        if group is None or self._groups.get(group.name) is not group:
            return None
        first = group.ready_list.first()
        if first is None or first.seq != seq:
            return None
        group.ready_list.pop()
        self.count -= 1
        return first

    def lowest(self) -> Entry | None:
        """The oldest message of the queue. It is the first of its group, so removing it breaks no order."""
        firsts = [ready_list.first() for ready_list in self.ready_lists() if ready_list.count]
        return min((e for e in firsts if e is not None), key=lambda entry: entry.seq, default=None)

    def find(self, seq: int) -> Entry | None:
        for group in self._groups.values():
            entry = group.ready_list.find(seq)
            if entry is not None:
                return entry
        return None

    def remove(self, seq: int, hint: Entry | None = None) -> Entry | None:
        """Remove a message from any position. `hint`, if known, is its entry and identifies its group."""
        groups = list(self._groups.values()) if hint is None else [self._groups[hint.group]]
        for group in groups:
            entry = group.ready_list.remove(seq) if group.ready_list.count else None
            if entry is not None:
                self.count -= 1
                self._refresh(group)
                return entry
        return None

    def replace(self, entry: Entry) -> bool:
        return any(group.ready_list.replace(entry) for group in self._groups.values())

    def ready_lists(self) -> Iterator[ReadyList]:
        for group in list(self._groups.values()):
            yield group.ready_list

    def is_held(self, entry: Entry) -> bool:
        """Whether an earlier message of its group is in flight."""
        group = self._groups.get(entry.group)
        return group is not None and group.first_in_flight() < entry.seq

    def before(self, entry: Entry) -> Iterator[Entry]:
        """The ready messages before it in its group."""
        group = self._groups.get(entry.group)
        return iter(()) if group is None else takewhile(lambda each: each.seq < entry.seq, group.ready_list)

    def first(self, now_ms: int) -> Entry | None:
        return next(iter(self), None)

    def oldest_ms(self) -> int | None:
        return _oldest_ms(self.ready_lists())

    def kept_since_ms(self, not_due: Container[int]) -> int | None:
        return _kept_since_ms(self.ready_lists(), not_due)

    def _in_turn(self) -> list[FifoGroup]:
        """Groups with a ticket in the order they are served, then the others by their first message."""
        waiting = [group for group in self._groups.values() if group.ready_list.count]
        return sorted(waiting, key=turn_of)

    def __iter__(self) -> Iterator[Entry]:
        """In delivery order: group after group, groups without a ticket last."""
        for group in self._in_turn():
            yield from group.ready_list

    def available(self, now_ms: int) -> Iterator[Entry]:
        """The messages that receives would get now, in order."""
        for group in self._in_turn():
            if not group.ticket:
                return
            bound = group.first_in_flight()
            for entry in self._allowed(group, now_ms):
                if entry.seq > bound or self._is_held_back(entry):
                    break
                yield entry

    def _allowed(self, group: FifoGroup, now_ms: int) -> Iterable[Entry]:
        return group.ready_list

    def freeze(self) -> list[tuple[list[Entry], list[PackedPage]]]:
        """Groups by ticket, so that the turns are the same after a restore."""
        waiting = [group for group in self._groups.values() if group.ready_list.count]
        return [group.ready_list.freeze() for group in sorted(waiting, key=ticket_of)]


def _oldest_ms(ready_lists: Iterable[ReadyList]) -> int | None:
    firsts = [ready_list.first() for ready_list in ready_lists if ready_list.count]
    return min((entry.sent_ms for entry in firsts if entry is not None), default=None)


def _kept_since_ms(ready_lists: Iterable[ReadyList], not_due: Container[int]) -> int | None:
    since = (ready_list.kept_since_ms(not_due) for ready_list in ready_lists if ready_list.count)
    return min((ms for ms in since if ms is not None), default=None)
