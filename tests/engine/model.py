"""A queue engine that is slow and obviously right: lists, dicts and sorting, no cleverness.

It decides the same as the engine from the same calls. Time comes in steps of a millisecond, so that two
deadlines never have to be put in order unless they are truly at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from openq.model import NO_DEADLINE, QueueSettings


@dataclass
class Item:
    """One message in one queue."""

    id: str
    seq: int
    body: bytes
    sent_ms: int
    priority: int = 0
    group: str | None = None
    type: str | None = None
    due_ms: int = 0
    expires_ms: int = 0
    unique: str | None = None
    count: int = 0
    reason: str | None = None
    deaths: list[tuple[str, str]] = field(default_factory=list)
    lease: tuple[int, int] | None = None  # delivery number, deadline (0 = none)

    def is_over(self, retention_ms: int, now_ms: int) -> bool:
        if self.expires_ms and self.expires_ms <= now_ms:
            return True
        return max(self.sent_ms, self.due_ms) + retention_ms <= now_ms


class ModelQueue:
    def __init__(self, name: str, settings: QueueSettings) -> None:
        self.name = name
        self.settings = settings
        self.items: list[Item] = []
        self.delayed: set[int] = set()
        self.turns: dict[int, list[str | None]] = {}  # standard queues: whose turn, per priority
        self.dedup: dict[str, tuple[str, int]] = {}

    def waiting(self) -> list[Item]:
        return sorted((i for i in self.items if i.lease is None), key=lambda i: i.seq)

    def ready(self) -> list[Item]:
        return [i for i in self.waiting() if i.seq not in self.delayed]

    def lent(self) -> list[Item]:
        return sorted((i for i in self.items if i.lease is not None), key=lambda i: i.seq)

    def held(self) -> set[str | None]:
        return {i.group for i in self.lent()} if self.settings.fifo else set()

    def refresh_turns(self) -> None:
        """A group that has something waiting again goes to the end; one that has nothing goes away."""
        if self.settings.fifo:
            return
        there = {(i.priority, i.group) for i in self.ready()}
        for priority in list(self.turns):
            self.turns[priority] = [g for g in self.turns[priority] if (priority, g) in there]
            if not self.turns[priority]:
                del self.turns[priority]
        for item in self.ready():
            turns = self.turns.setdefault(item.priority, [])
            if item.group not in turns:
                turns.append(item.group)

    def lane(self, priority: int, group: str | None) -> list[Item]:
        return [i for i in self.ready() if i.priority == priority and i.group == group]

    def next(self, batch: set[str | None]) -> Item | None:
        if not self.settings.fifo:
            if not self.turns:
                return None
            top = max(self.turns)
            return self.lane(top, self.turns[top][0])[0]
        firsts: dict[str | None, Item] = {}
        for item in self.waiting():
            firsts.setdefault(item.group, item)
        free = [
            i for g, i in firsts.items() if i.seq not in self.delayed and (g in batch or g not in self.held())
        ]
        return min(free, key=lambda i: (-i.priority, i.seq), default=None)

    def handed_out(self, item: Item) -> None:
        """After a hand-out in turn, the group goes to the end of its line."""
        if not self.settings.fifo:
            turns = self.turns[item.priority]
            turns.append(turns.pop(0))

    def in_order(self) -> list[Item]:
        """Everything ready, as it would be handed out by receives that never held a group back."""
        if not self.settings.fifo:
            out: list[Item] = []
            for priority in sorted(self.turns, reverse=True):
                lanes = [self.lane(priority, group) for group in self.turns[priority]]
                while lanes:
                    lane = lanes.pop(0)
                    out.append(lane.pop(0))
                    if lane:
                        lanes.append(lane)
            return out
        groups: dict[str | None, list[Item]] = {}
        for item in self.waiting():
            groups.setdefault(item.group, []).append(item)
        out = []
        while groups:
            group = min(groups, key=lambda g: (-groups[g][0].priority, groups[g][0].seq))
            out.append(groups[group].pop(0))
            if not groups[group]:
                del groups[group]
        return out

    def overflowing(self) -> bool:
        s, waiting = self.settings, self.waiting()
        if s.overflow == "reject":
            return False
        return (s.max_length is not None and len(waiting) > s.max_length) or (
            s.max_bytes is not None and sum(len(i.body) for i in waiting) > s.max_bytes
        )

    def is_full(self, size: int) -> bool:
        s, waiting = self.settings, self.waiting()
        if s.overflow != "reject":
            return False
        return (s.max_length is not None and len(waiting) >= s.max_length) or (
            s.max_bytes is not None and sum(len(i.body) for i in waiting) + size > s.max_bytes
        )

    def first_to_go(self) -> Item:
        if self.settings.fifo:
            return self.waiting()[0]
        if self.turns:
            low = min(self.turns)
            return self.lane(low, self.turns[low][0])[0]
        return max(self.waiting(), key=lambda i: i.seq)


class Model:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.queues: dict[str, ModelQueue] = {}
        self.seq = 1
        self.number = 1
        self.now_ms = 0

    def find(self, queue: str, seq: int) -> Item | None:
        return next((i for i in self.queues[queue].items if i.seq == seq), None)

    # -- in -----------------------------------------------------------------------------------

    def duplicate(
        self,
        q: ModelQueue,
        body: bytes,
        dedup: str | None,
        unique: str | None,
        id: str | None,
        group: str | None,
    ) -> str | None:
        key = self.dedup_key(q, body, dedup, group)
        if key is not None and key in q.dedup and q.dedup[key][1] > self.now_ms:
            return q.dedup[key][0]
        for item in q.items:
            if unique is not None and item.unique == unique:
                return item.id
        return id if id is not None and any(i.id == id for i in q.items) else None

    @staticmethod
    def dedup_key(q: ModelQueue, body: bytes, dedup: str | None, group: str | None) -> str | None:
        if dedup is None and q.settings.dedup_by_content:
            dedup = sha256(body).hexdigest()
        if dedup is None:
            return None
        return f"{group or ''}\x00{dedup}" if q.settings.dedup_per_group else dedup

    def enter(
        self,
        q: ModelQueue,
        item: Item,
        *,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        dedup: str | None = None,
    ) -> None:
        delay = q.settings.delay_ms if delay_ms is None else delay_ms
        item.due_ms = self.now_ms + delay if delay else 0
        start = max(item.due_ms, self.now_ms)
        ends = [start + ttl for ttl in (ttl_ms, q.settings.ttl_ms) if ttl is not None]
        item.expires_ms = min(ends, default=0)
        key = self.dedup_key(q, item.body, dedup, item.group)
        if key is not None and q.settings.dedup_window_ms:
            q.dedup[key] = (item.id, self.now_ms + q.settings.dedup_window_ms)
        q.items.append(item)
        if item.due_ms > self.now_ms:
            q.delayed.add(item.seq)
        q.refresh_turns()

    def overflow(self, q: ModelQueue, depth: int = 0) -> None:
        while q.overflowing():
            item = q.first_to_go()
            target = self.dead_letters(q) if q.settings.overflow == "dead-letter" and depth < 8 else None
            if target is not None and target is not q:
                self.move(q, item, target, "overflow", depth + 1)
            else:
                self.take(q, item)

    # -- out ----------------------------------------------------------------------------------

    def receive(
        self, q: ModelQueue, limit: int, lease_ms: int | None, types: frozenset[str] | None
    ) -> list[Item]:
        if q.settings.paused:
            return []
        out: list[Item] = []
        batch: set[str | None] = set()
        if types is not None:
            chosen = self.of_types(q, types, limit)
        while len(out) < limit:
            if types is None:
                item = q.next(batch)
            else:
                item = chosen.pop(0) if chosen else None
            if item is None:
                break
            in_turn = q.next(batch) is item
            batch.add(item.group)
            until = 0 if lease_ms == NO_DEADLINE else self.now_ms
            if until:
                until += q.settings.visibility_ms if lease_ms is None else lease_ms
            target = self.dead_letters(q)
            if q.settings.max_receives is not None and item.count >= q.settings.max_receives and target:
                if in_turn:
                    q.handed_out(item)
                q.refresh_turns()
                self.move(q, item, target, "max_receives")
                continue
            if in_turn:
                q.handed_out(item)
            item.lease = (self.number, until)
            item.count += 1
            self.number += 1
            q.refresh_turns()
            out.append(item)
        return out

    @staticmethod
    def of_types(q: ModelQueue, types: frozenset[str], limit: int) -> list[Item]:
        held = q.held()
        found: list[Item] = []
        for item in q.in_order():
            if len(found) == limit:
                break
            if q.settings.fifo and (item.group in held or item.seq in q.delayed or item.type not in types):
                held.add(item.group)
            elif item.type in types:
                found.append(item)
        return found

    def live(self, q: ModelQueue, seq: int, number: int) -> Item | None:
        item = self.find(q.name, seq)
        if item is None or item.lease is None or item.lease[0] != number:
            return None
        return item if item.lease[1] == 0 or item.lease[1] > self.now_ms else None

    def give_back(self, q: ModelQueue, item: Item, why: str, delay_ms: int | None, reason: str | None) -> str:
        item.reason = reason or item.reason
        if item.is_over(q.settings.retention_ms, self.now_ms):
            return self.expire(q, item, reason)
        limit = q.settings.max_receives
        target = self.dead_letters(q)
        if why != "released" and limit is not None and item.count >= limit and target is not None:
            self.move(q, item, target, reason or "max_receives")
            return "dead-lettered"
        if delay_ms is None:
            delay_ms = q.settings.retry.delay_ms(item.count, 0.0)
        if why == "released":
            item.count -= 1
        item.lease = None
        item.due_ms = self.now_ms + delay_ms if delay_ms > 0 else 0
        if item.due_ms:
            q.delayed.add(item.seq)
        q.refresh_turns()
        return "returned"

    def take(self, q: ModelQueue, item: Item) -> None:
        q.items.remove(item)
        q.delayed.discard(item.seq)
        q.refresh_turns()

    def dead_letters(self, q: ModelQueue) -> ModelQueue | None:
        name = q.settings.dead_letter
        return None if name is None else self.queues.get(name)

    def move(self, q: ModelQueue, item: Item, target: ModelQueue, death: str | None, depth: int = 0) -> None:
        self.take(q, item)
        deaths = ([(q.name, death)] if death else []) + item.deaths
        new = Item(
            item.id,
            self.seq,
            item.body,
            self.now_ms,
            item.priority,
            item.group,
            item.type,
            reason=item.reason,
            deaths=deaths[:16],
        )
        self.seq += 1
        if target.settings.ttl_ms is not None:
            new.expires_ms = self.now_ms + target.settings.ttl_ms
        target.items.append(new)
        target.refresh_turns()
        self.overflow(target, depth)

    def expire(self, q: ModelQueue, item: Item, reason: str | None = None) -> str:
        target = self.dead_letters(q) if q.settings.dead_letter_expired else None
        if target is None:
            self.take(q, item)
            return "expired"
        self.move(q, item, target, reason or "expired")
        return "dead-lettered"
