"""Which message is next: priorities, fair hand-out across groups, FIFO groups.

Two shapes with the same methods. `Shared` serves standard queues: higher priority first, inside
a priority the groups take turns, inside a group by sequence. `Grouped` serves FIFO queues:
a group with a message out, or with a first message that is not due yet, waits as a whole.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Container, Iterator
from heapq import heappop, heappush
from itertools import islice

from ..model import MAX_PRIORITY, Entry, Extra
from .lane import PAGE, Lane, Page

GroupKey = str | None


class Level:
    """One priority of a standard queue: a lane for each group, taking turns."""

    __slots__ = ("lanes", "priority", "turns")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.lanes: dict[GroupKey, Lane] = {None: Lane()}
        self.turns: deque[GroupKey] = deque()  # groups with something waiting

    def lane(self, group: GroupKey) -> Lane:
        lane = self.lanes.get(group)
        if lane is None:
            lane = self.lanes[group] = Lane()
        if not lane.count:
            self.turns.append(group)
        return lane

    def pop(self) -> Entry | None:
        turns = self.turns
        if not turns:
            return None
        group = turns[0]
        lane = self.lanes[group]
        entry = lane.pop()
        if not lane.count:
            turns.popleft()
            if group is not None:
                del self.lanes[group]
        elif len(turns) > 1:
            turns.rotate(-1)
        return entry

    def drop_if_empty(self, group: GroupKey) -> None:
        lane = self.lanes.get(group)
        if lane is not None and not lane.count:
            self.turns.remove(group)
            if group is not None:
                del self.lanes[group]


class Shared:
    """The waiting messages of a standard queue."""

    __slots__ = ("_levels", "_mixed", "_order", "_plain", "_plain_turns", "_top", "count", "max_priority")

    def __init__(self) -> None:
        self.max_priority = MAX_PRIORITY  # higher ones stand in line as this one
        self._reset()

    def _reset(self) -> None:
        self._top = Level(0)
        self._levels: dict[int, Level] = {0: self._top}
        self._order: list[int] = [0]  # priorities, highest last
        # The lane of messages with neither priority nor group: nearly all of them, so no look-up.
        self._plain = self._top.lanes[None]
        self._plain_turns = self._top.turns
        self._mixed = False  # whether any other lane is in use
        self.count = 0

    def _lane(self, entry: Entry) -> Lane:
        extra = entry.extra
        if extra is None or extra.light:
            return self._levels[0].lane(None)
        priority = extra.priority
        if priority > self.max_priority:
            priority = self.max_priority
        if priority or extra.group is not None:
            self._mixed = True
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Level(priority)
            insort(self._order, priority)
        if priority > self._top.priority:
            self._top = level
        return level.lane(extra.group)

    def set_max_priority(self, max_priority: int) -> None:
        """What waits is sorted anew, so that the order is what it would be after a restart."""
        waiting = sorted(self, key=lambda entry: entry.seq)
        self.max_priority = max_priority
        self._reset()
        for entry in waiting:
            self.append(entry)

    def rank(self, entry: Entry) -> int:
        """The priority with which it stands in line."""
        return min(entry.priority, self.max_priority)

    def append(self, entry: Entry) -> None:
        self.count += 1
        if entry.extra is None or entry.extra.light:
            lane = self._plain
            if not lane.count:
                self._plain_turns.append(None)
            lane.append(entry)
        else:
            self._lane(entry).append(entry)

    def append_plain(self, entry: Entry) -> None:
        """`append` for a message with neither priority nor group, without the calls in between."""
        self.count += 1
        lane = self._plain
        head = lane._head
        if not lane.count:
            self._plain_turns.append(None)
            lane.count = 1
            head.append(entry)
        elif lane.is_short and len(head) < PAGE:
            lane.count += 1
            head.append(entry)
        else:
            lane.append(entry)

    def append_page(self, page: Page) -> None:
        self.count += len(page)
        self._levels[0].lane(None).append_page(page)

    def put_back(self, entry: Entry) -> None:
        self.count += 1
        self._lane(entry).put_back(entry)

    def pop(self, now_ms: int) -> Entry | None:
        if not self.count:
            return None
        self.count -= 1
        if not self._mixed:
            lane = self._plain
            head = lane._head
            if head and not lane._back:  # as `lane.pop` does it, without the call
                lane.count -= 1
                entry: Entry | None = head.popleft()
            else:
                entry = lane.pop()
            if not lane.count:
                self._plain_turns.clear()
            return entry
        entry = self._top.pop()
        while entry is None:
            self._lower()
            entry = self._top.pop()
        if not self.count:
            while self._top.priority:
                self._lower()
            self._mixed = False
        return entry

    def pop_plain(self, limit: int, horizon_ms: int) -> list[Entry]:
        """The next `limit` messages, or all there are, if nothing has to be known of them; or none."""
        lane = self._plain
        head = lane._head
        count = min(limit, self.count)
        if self._mixed or lane._back:
            return []
        while len(head) < count:
            if not lane._fill():
                return []
        entries = list(islice(head, count))
        light: Extra | None = None
        for entry in entries:
            if entry.extra is not light:  # neighbours mostly share theirs
                light = entry.extra
                if light is not None and not light.light:
                    return []
            if entry.sent_ms <= horizon_ms:
                return []
        for _ in entries:
            head.popleft()
        self.count -= count
        lane.count -= count
        if not lane.count:
            self._plain_turns.clear()
        return entries

    def take(self, seq: int, now_ms: int) -> Entry | None:
        """This very message; at once if it is the next one anyway."""
        first = self.first(now_ms)
        if first is not None and first.seq == seq:
            return self.pop(now_ms)
        return self.remove(seq)

    def _lower(self) -> None:
        """The next lower priority becomes the top; level 0 is never dropped."""
        del self._levels[self._order.pop()]
        self._top = self._levels[self._order[-1]]

    def lowest(self) -> Entry | None:
        """The oldest of the lowest priority: what an overflowing queue lets go first."""
        for priority in self._order:
            level = self._levels[priority]
            if level.turns:
                return level.lanes[level.turns[0]].first()
        return None

    def find(self, seq: int) -> Entry | None:
        for lane in self.lanes():
            entry = lane.find(seq)
            if entry is not None:
                return entry
        return None

    def remove(self, seq: int, hint: Entry | None = None) -> Entry | None:
        """Take one out of anywhere; `hint`, if known, is the entry and tells its lane."""
        if hint is not None:
            level = self._levels[self.rank(hint)]
            return self._remove_from(level, hint.group, level.lanes[hint.group], seq)
        for level in self._levels.values():
            for group, lane in list(level.lanes.items()):
                entry = self._remove_from(level, group, lane, seq) if lane.count else None
                if entry is not None:
                    return entry
        return None

    def _remove_from(self, level: Level, group: GroupKey, lane: Lane, seq: int) -> Entry | None:
        entry = lane.remove(seq)
        if entry is not None:
            self.count -= 1
            level.drop_if_empty(group)
        return entry

    def replace(self, entry: Entry) -> bool:
        return any(lane.replace(entry) for lane in self.lanes())

    def lanes(self) -> Iterator[Lane]:
        for priority in reversed(self._order):
            yield from list(self._levels[priority].lanes.values())

    def first(self, now_ms: int) -> Entry | None:
        for priority in reversed(self._order):
            level = self._levels[priority]
            if level.turns:
                return level.lanes[level.turns[0]].first()
        return None

    def last(self) -> Entry | None:
        """Of groups that take turns the longest is served last; of two as long, the later one."""
        for priority in self._order:
            level = self._levels[priority]
            if level.turns:
                lanes = [level.lanes[group] for group in level.turns]
                return max(enumerate(lanes), key=lambda each: (each[1].count, each[0]))[1].last()
        return None

    def oldest_ms(self) -> int | None:
        firsts = [lane.first() for lane in self.lanes() if lane.count]
        return min((entry.sent_ms for entry in firsts if entry is not None), default=None)

    def kept_since_ms(self, not_due: Container[int]) -> int | None:
        since = (lane.kept_since_ms(not_due) for lane in self.lanes() if lane.count)
        return min((ms for ms in since if ms is not None), default=None)

    def __iter__(self) -> Iterator[Entry]:
        """In hand-out order: the groups of a level take turns, as `pop` lets them."""
        for priority in reversed(self._order):
            level = self._levels[priority]
            lines = deque(iter(level.lanes[group]) for group in list(level.turns))
            while lines:
                line = lines.popleft()
                entry = next(line, None)
                if entry is not None:
                    yield entry
                    lines.append(line)

    # A standard queue never holds a group back; these keep one shape for both.

    def settled(self, entry: Entry, now_ms: int) -> None:
        pass

    def due(self, entry: Entry) -> None:
        self.put_back(entry)

    def lent(self, entry: Entry) -> None:
        pass

    def offer_all(self) -> None:
        pass

    def end_batch(self) -> None:
        pass

    def freeze(self) -> list[tuple[list[Entry], list[Page]]]:
        """By priority, groups as they take turns: so the turns are the same when it is restored."""
        levels = [self._levels[priority] for priority in reversed(self._order)]
        return [level.lanes[group].freeze() for level in levels for group in level.turns]


class Group:
    __slots__ = ("lane", "out")

    def __init__(self) -> None:
        self.lane = Lane()
        self.out = 0  # deliveries not yet settled


class Grouped:
    """Waiting messages of a FIFO queue. Priority ranks groups by their first message, never inside one."""

    __slots__ = ("_batch", "_groups", "_heap", "count", "max_priority")

    def __init__(self) -> None:
        self.max_priority = MAX_PRIORITY
        self._groups: dict[GroupKey, Group] = {}
        # (-priority, sequence of the group's first message, group). Checked when popped: an
        # entry that no longer describes its group is dropped there, never searched for.
        self._heap: list[tuple[int, int, str, GroupKey]] = []
        self._batch: set[GroupKey] = set()
        self.count = 0

    def _offer(self, name: GroupKey, group: Group) -> None:
        first = group.lane.first()
        if first is not None:
            heappush(self._heap, (-self.rank(first), first.seq, name or "", name))

    def set_max_priority(self, max_priority: int) -> None:
        self.max_priority = max_priority
        self.offer_all()

    def rank(self, entry: Entry) -> int:
        """The priority that ranks its group when it is the first there."""
        return min(entry.priority, self.max_priority)

    def _group(self, name: GroupKey) -> Group:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = Group()
        return group

    def append(self, entry: Entry) -> None:
        self.count += 1
        name = entry.group
        group = self._group(name)
        group.lane.append(entry)
        if group.lane.count == 1 and not group.out:
            self._offer(name, group)

    def append_page(self, page: Page) -> None:
        for entry in page.entries():
            self.append(entry)

    append_plain = append

    def put_back(self, entry: Entry) -> None:
        """Before everything else of its group; the delivery it came from is over."""
        self.count += 1
        name = entry.group
        group = self._group(name)
        group.lane.put_back(entry)
        if not group.out:
            self._offer(name, group)

    def pop(self, now_ms: int) -> Entry | None:
        heap = self._heap
        while heap:
            _, seq, _, name = heappop(heap)
            group = self._groups.get(name)
            if group is None or (group.out and name not in self._batch):
                continue
            first = group.lane.first()
            if first is None or first.seq != seq:
                continue
            if first.extra is not None and first.extra.due_ms > now_ms:
                continue  # `due` offers the group again
            group.lane.pop()
            self.count -= 1
            group.out += 1
            # One receive may take several of a group, in order; the group is held from then on.
            self._batch.add(name)
            self._offer(name, group)
            return first
        return None

    def lent(self, entry: Entry) -> None:
        """A message of this group is out on loan (a restored state says so)."""
        self._group(entry.group).out += 1

    def offer_all(self) -> None:
        """Every free group is offered anew (a restored state came in any order)."""
        self._heap.clear()
        for name, group in self._groups.items():
            if not group.out:
                self._offer(name, group)

    def end_batch(self) -> None:
        self._batch.clear()

    def settled(self, entry: Entry, now_ms: int) -> None:
        """One delivery of this group is over (its message is gone, or back already)."""
        name = entry.group
        group = self._groups.get(name)
        if group is None:
            return
        group.out = max(0, group.out - 1)
        if group.out:
            return
        if group.lane.count:
            self._offer(name, group)
        else:
            del self._groups[name]

    def due(self, entry: Entry) -> None:
        name = entry.group
        group = self._groups.get(name)
        if group is not None and not group.out:
            self._offer(name, group)

    def take(self, seq: int, now_ms: int) -> Entry | None:
        """This very message, out on loan; at once if it is the next one anyway."""
        heap = self._heap
        if heap and heap[0][1] == seq:
            entry = self.pop(now_ms)
            if entry is not None and entry.seq == seq:
                return entry
            if entry is not None:  # the heap's top was out of date: undo
                self.put_back(entry)
                self.settled(entry, now_ms)
        entry = self.remove(seq)
        if entry is not None:
            self._group(entry.group).out += 1
            self._batch.add(entry.group)
        return entry

    def lowest(self) -> Entry | None:
        """The oldest of all; the first of its group, so no order is broken."""
        firsts = [lane.first() for lane in self.lanes() if lane.count]
        return min((e for e in firsts if e is not None), key=lambda entry: entry.seq, default=None)

    def find(self, seq: int) -> Entry | None:
        for group in self._groups.values():
            entry = group.lane.find(seq)
            if entry is not None:
                return entry
        return None

    def remove(self, seq: int, hint: Entry | None = None) -> Entry | None:
        """Take one out of anywhere; `hint`, if known, is the entry and tells its group."""
        names = list(self._groups) if hint is None else [hint.group]
        for name in names:
            group = self._groups[name]
            entry = group.lane.remove(seq) if group.lane.count else None
            if entry is not None:
                self.count -= 1
                if group.lane.count and not group.out:
                    self._offer(name, group)
                elif not group.lane.count and not group.out:
                    del self._groups[name]
                return entry
        return None

    def replace(self, entry: Entry) -> bool:
        return any(group.lane.replace(entry) for group in self._groups.values())

    def lanes(self) -> Iterator[Lane]:
        for group in list(self._groups.values()):
            yield group.lane

    def is_held(self, name: GroupKey) -> bool:
        group = self._groups.get(name)
        return group is not None and group.out > 0

    def first_of(self, name: GroupKey) -> Entry | None:
        group = self._groups.get(name)
        return None if group is None else group.lane.first()

    def first(self, now_ms: int) -> Entry | None:
        return next(iter(self), None)

    def oldest_ms(self) -> int | None:
        firsts = [lane.first() for lane in self.lanes() if lane.count]
        return min((entry.sent_ms for entry in firsts if entry is not None), default=None)

    def kept_since_ms(self, not_due: Container[int]) -> int | None:
        since = (lane.kept_since_ms(not_due) for lane in self.lanes() if lane.count)
        return min((ms for ms in since if ms is not None), default=None)

    def __iter__(self) -> Iterator[Entry]:
        """By priority of each group's first message and sequence, as if every group were free."""
        heap: list[tuple[int, int, Entry, Iterator[Entry]]] = []
        for lane in self.lanes():
            line = iter(lane)
            entry = next(line, None)
            if entry is not None:
                heappush(heap, (-self.rank(entry), entry.seq, entry, line))
        while heap:
            _, _, entry, line = heappop(heap)
            yield entry
            following = next(line, None)
            if following is not None:
                heappush(heap, (-self.rank(following), following.seq, following, line))

    def freeze(self) -> list[tuple[list[Entry], list[Page]]]:
        return [lane.freeze() for lane in self.lanes() if lane.count]
