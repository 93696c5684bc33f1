"""A queue engine that is slow and obviously right: lists, dicts and sorting, no cleverness.

It decides the same as the engine from the same calls. Time comes in steps of a millisecond, so that two
deadlines never have to be put in order unless they are truly at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from openq.model import MAX_PRIORITY, NO_DEADLINE, DeadLetterEvent, QueueSettings

from .model_limits import ModelLimits


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
    deaths: list[DeadLetterEvent] = field(default_factory=list)
    route: tuple[str, str] | None = None
    lease: tuple[int, int] | None = None  # delivery number, deadline (0 = none)
    number: int = 0  # of the last delivery that came back

    def is_over(self, retention_ms: int, now_ms: int) -> bool:
        if self.expires_ms and self.expires_ms <= now_ms:
            return True
        return max(self.sent_ms, self.due_ms) + retention_ms <= now_ms

    def is_brief(self, now_ms: int) -> bool:
        """TTL 0: only consumers of the millisecond in which it is first ready get it."""
        return not self.count and self.expires_ms == now_ms == max(self.sent_ms, self.due_ms)


def limits_of(settings: QueueSettings) -> tuple[object, ...]:
    keys = (settings.key_concurrency, settings.key_rate, settings.key_limits)
    return (settings.concurrency, settings.rate, *keys)


class ModelQueue:
    def __init__(self, name: str, settings: QueueSettings, model: Model) -> None:
        self.name = name
        self.settings = settings
        self.model = model
        self.limits = ModelLimits()
        self.items: list[Item] = []
        self.delayed: set[int] = set()
        self.turns: dict[int, list[str | None]] = {}  # standard queues: whose turn, per priority
        self.tickets: dict[str | None, int] = {}  # FIFO queues: groups that can be served, by their ticket
        self.last_ticket = 0
        self.dedup: dict[str, tuple[str, int]] = {}

    def waiting(self) -> list[Item]:
        return sorted((i for i in self.items if i.lease is None), key=lambda i: i.seq)

    def ready(self) -> list[Item]:
        return [i for i in self.waiting() if i.seq not in self.delayed]

    def leased(self) -> list[Item]:
        return sorted((i for i in self.items if i.lease is not None), key=lambda i: i.seq)

    def group(self, name: str | None) -> list[Item]:
        return [i for i in self.waiting() if i.group == name]

    def is_held(self, item: Item) -> bool:
        """An earlier message of its FIFO group is out."""
        return self.settings.fifo and any(i.group == item.group and i.seq < item.seq for i in self.leased())

    def top(self) -> int:
        return MAX_PRIORITY if self.settings.max_priority is None else self.settings.max_priority

    def rank(self, item: Item) -> int:
        return min(item.priority, self.top())

    def change(self, settings: QueueSettings, now_ms: int) -> None:
        before, delay_ms, old, self.settings = self.top(), self.settings.delay_ms, self.settings, settings
        if limits_of(old) != limits_of(settings):
            self.limits.change(old, settings, [item.group for item in self.leased()], now_ms)
            self.refresh_turns()
        if self.top() != before:
            self.turns.clear()
            self.refresh_turns()
        if settings.fifo and settings.delay_ms != delay_ms:
            for item in [i for i in self.waiting() if i.seq in self.delayed]:
                if not item.count and not item.expires_ms and item.due_ms == item.sent_ms + delay_ms:
                    due_ms = item.sent_ms + settings.delay_ms
                    item.due_ms = due_ms if due_ms > now_ms else 0
                    if not item.due_ms:
                        self.delayed.remove(item.seq)
                    self.refresh_turns()

    def refresh_turns(self) -> None:
        """A group that has something waiting again goes to the end; one that has nothing goes away."""
        self.limits.recount(self.settings, [item.group for item in self.leased()], self.model.now_ms)
        if self.settings.fifo:
            self.refresh_tickets()
            return
        ready = [item for item in self.ready() if item.group not in self.limits.blocked]
        there = {(self.rank(i), i.group) for i in ready}
        for priority in list(self.turns):
            self.turns[priority] = [g for g in self.turns[priority] if (priority, g) in there]
            if not self.turns[priority]:
                del self.turns[priority]
        for item in ready:
            turns = self.turns.setdefault(self.rank(item), [])
            if item.group not in turns:
                turns.append(item.group)

    def refresh_tickets(self) -> None:
        """A group that can be served again goes to the end; one that cannot loses its place."""
        names = list(dict.fromkeys(i.group for i in self.waiting()))
        free = [name for name in names if self.is_free(self.group(name)[0])]
        self.tickets = {name: self.tickets[name] for name in self.tickets if name in free}
        for name in free:
            if name not in self.tickets:
                self.last_ticket += 1
                self.tickets[name] = self.last_ticket

    def is_free(self, item: Item) -> bool:
        if item.group in self.limits.blocked:
            return False
        return item.seq not in self.delayed and not self.is_held(item)

    # -- limits

    def allowance(self) -> int:
        return self.limits.allowance(self.settings, None, len(self.leased()), self.model.now_ms)

    def key_allowance(self, key: str | None) -> int:
        if key is None:
            return 1 << 60
        out = sum(item.group == key for item in self.leased())
        return self.limits.allowance(self.settings, key, out, self.model.now_ms)

    def has_slot(self, key: str | None) -> bool:
        def fits(limit: int | None, out: int) -> bool:
            return limit is None or out < limit

        own = sum(item.group == key for item in self.leased())
        of_key = self.limits.rules(self.settings, key)[0] if key is not None else None
        return fits(self.settings.concurrency, len(self.leased())) and fits(of_key, own)

    def take_tokens(self, key: str | None, tokens: int = 1) -> None:
        for each in {None, key}:
            self.limits.take(self.settings, each, self.model.now_ms, tokens)

    def unblock_due(self) -> None:
        """One after the other, so that they get their turns in this order."""
        blocked = self.limits.blocked
        due = self.limits.unblock_due(self.settings, self.model.now_ms)
        blocked.update(dict.fromkeys(due, True))
        for key in due:
            del blocked[key]
            self.refresh_turns()

    def lose_turns(self, key: str | None) -> None:
        """It would be blocked by a message that dies instead of being handed out."""
        if self.key_allowance(key) == 1 and not self.settings.fifo:
            for turns in self.turns.values():
                if key in turns:
                    turns.remove(key)
                    turns.append(key)

    def blocked_groups(self, priority: int) -> list[str]:
        ready = [i for i in self.ready() if i.group in self.limits.blocked and self.rank(i) == priority]
        return [group for group in dict.fromkeys(i.group for i in ready) if group is not None]

    def groups_in_turn(self) -> list[str | None]:
        return sorted(self.tickets, key=lambda g: (-self.rank(self.group(g)[0]), self.tickets[g]))

    def purge(self, waiting_only: bool) -> int:
        """How many go. A deduplication id stays only with a message that is still here."""
        gone = self.waiting() if waiting_only else list(self.items)
        self.items = [item for item in self.items if item not in gone]
        self.delayed.clear()
        self.turns.clear()
        self.tickets.clear()
        self.refresh_turns()
        for key in list(self.limits.blocked):  # a token may have come back since nobody asked
            self.limits.check(self.settings, key, self.model.now_ms)
        ids = {item.id for item in self.items}
        self.dedup = {key: kept for key, kept in self.dedup.items() if kept[0] in ids}
        return len(gone)

    def ready_list(self, priority: int, group: str | None) -> list[Item]:
        return [i for i in self.ready() if self.rank(i) == priority and i.group == group]

    def next(self) -> Item | None:
        """Of a standard queue."""
        if not self.turns:
            return None
        top = max(self.turns)
        return self.ready_list(top, self.turns[top][0])[0]

    def handed_out(self, item: Item) -> None:
        """After a hand-out in turn, the group goes to the end of its line."""
        turns = self.turns[self.rank(item)]
        turns.append(turns.pop(0))

    def in_order(self) -> list[Item]:
        """Everything ready, as it would be handed out by receives that never held a group back."""
        if not self.settings.fifo:
            out: list[Item] = []
            for priority in sorted({self.rank(i) for i in self.ready()}, reverse=True):
                names_of = [*self.turns.get(priority, ()), *self.blocked_groups(priority)]
                ready_lists = [self.ready_list(priority, group) for group in names_of]
                while ready_lists:
                    ready_list = ready_lists.pop(0)
                    out.append(ready_list.pop(0))
                    if ready_list:
                        ready_lists.append(ready_list)
            return out
        names = self.groups_in_turn()
        names += dict.fromkeys(i.group for i in self.waiting() if i.group not in self.tickets)
        return [item for name in names for item in self.group(name)]

    def overflowing(self) -> bool:
        s, waiting = self.settings, self.waiting()
        if s.overflow.startswith("reject"):
            return False
        return (s.max_length is not None and len(waiting) > s.max_length) or (
            s.max_bytes is not None and sum(len(i.body) for i in waiting) > s.max_bytes
        )

    def is_full(self, size: int) -> bool:
        s, waiting = self.settings, self.waiting()
        if not s.overflow.startswith("reject"):
            return False
        return (s.max_length is not None and len(waiting) >= s.max_length) or (
            s.max_bytes is not None and sum(len(i.body) for i in waiting) + size > s.max_bytes
        )

    def first_to_go(self) -> Item:
        if self.settings.fifo:
            return self.waiting()[0]
        if self.ready():
            low = min(self.rank(i) for i in self.ready())
            return self.ready_list(low, [*self.turns.get(low, ()), *self.blocked_groups(low)][0])[0]
        return max(self.waiting(), key=lambda i: i.seq)


class Model:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.queues: dict[str, ModelQueue] = {}
        self.bound: list[str] = []  # to the one exchange that leads to all that are bound
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
            targets = None
            if q.settings.overflow == "dead-letter" and depth < 8:
                targets = self.dead_letters(q, item, "overflow")
            if targets:
                self.die(q, item, targets, "overflow", None, depth + 1)
            else:
                self.take(q, item)

    def refuse(self, q: ModelQueue, item: Item) -> None:
        """A full queue that keeps what it refuses as dead letters; `item` has never been in it."""
        targets = (
            self.dead_letters(q, item, "overflow") if q.settings.overflow == "reject-dead-letter" else None
        )
        for target in targets or []:
            new = self.dead(q, item, "overflow", None)
            self.enter(target, new, delay_ms=0)
        for target in targets or []:
            self.overflow(target)

    # -- out ----------------------------------------------------------------------------------

    def receive(
        self, q: ModelQueue, limit: int, lease_ms: int | None, types: frozenset[str] | None
    ) -> list[Item]:
        if q.settings.paused:
            return []
        if types is None and (q.waiting() if q.settings.fifo else q.ready()) and q.allowance():
            q.unblock_due()
        if q.settings.fifo and types is None:
            return self.receive_groups(q, limit, lease_ms)
        out: list[Item] = []
        if types is not None:
            chosen = self.of_types(q, types, min(limit, q.allowance()))
            if chosen:
                q.unblock_due()
        while len(out) < limit:
            if types is None:
                item = q.next() if q.allowance() else None
            else:
                item = chosen.pop(0) if chosen else None
            if item is None:
                break
            if not q.settings.fifo and q.next() is item:
                q.handed_out(item)
            if not self.die_if_exhausted(q, item):
                self.lend(q, item, lease_ms)
                out.append(item)
        return out

    def receive_groups(self, q: ModelQueue, limit: int, lease_ms: int | None) -> list[Item]:
        """As many as there are of the group whose turn it is, then of the next."""
        out: list[Item] = []
        while len(out) < limit and q.allowance() and (names := q.groups_in_turn()):
            name = names[0]
            before = {item.seq for item in out}
            held = [i.seq for i in q.leased() if i.group == name and i.seq not in before]
            while len(out) < limit and q.allowance() and (waiting := q.group(name)):
                item = waiting[0]
                if name in q.limits.blocked:
                    break
                if item.seq in q.delayed or any(seq < item.seq for seq in held):
                    break
                if not self.die_if_exhausted(q, item):
                    self.lend(q, item, lease_ms)
                    out.append(item)
        return out

    def lend(self, q: ModelQueue, item: Item, lease_ms: int | None) -> None:
        until = 0 if lease_ms == NO_DEADLINE else self.now_ms
        if until:
            until += q.settings.visibility_ms if lease_ms is None else lease_ms
        item.lease = (self.number, until)
        item.count += 1
        self.number += 1
        q.take_tokens(item.group)
        q.refresh_turns()

    def die_if_exhausted(self, q: ModelQueue, item: Item) -> bool:
        if q.settings.max_receives is None or item.count < q.settings.max_receives:
            return False
        targets = self.exhausted(q, item)
        if targets is None:
            return False
        q.lose_turns(item.group)
        q.refresh_turns()
        self.die(q, item, targets, "max_receives", item.reason)
        return True

    @staticmethod
    def of_types(q: ModelQueue, types: frozenset[str], limit: int) -> list[Item]:
        held: set[str | None] = set()
        found: list[Item] = []
        left: dict[str | None, int] = {}
        for item in q.in_order():
            if len(found) == limit:
                break
            is_held = not left.setdefault(item.group, q.key_allowance(item.group))
            if q.settings.fifo:
                busy = item.seq in q.delayed or q.is_held(item) or item.type not in types
                is_held = is_held or item.group in held or busy
            if is_held:
                held.add(item.group)
            elif item.type in types:
                found.append(item)
                left[item.group] -= 1
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
        if why != "released" and limit is not None and item.count >= limit:
            targets = self.exhausted(q, item)
            if targets is not None:
                self.die(q, item, targets, "max_receives", reason)
                return "dead-lettered" if targets else "removed"
        if delay_ms is None:
            delay_ms = q.settings.retry.delay_ms(item.count, 0.0)
        if why == "released":
            # A delivery that went on after its lease had ended was counted when that ended.
            item.count -= item.lease is None or item.lease[0] != item.number
        elif item.lease is not None:
            item.number = item.lease[0]
        item.lease = None
        item.due_ms = self.now_ms + delay_ms if delay_ms > 0 else 0
        if item.due_ms:
            q.delayed.add(item.seq)
        q.refresh_turns()
        if why == "released":
            q.take_tokens(item.group, -1)
            q.limits.check(q.settings, item.group, self.now_ms)
            q.refresh_turns()
        return "returned"

    def extend_late(self, q: ModelQueue, seq: int, number: int, lease_ms: int) -> int | None:
        item = self.live(q, seq, number)
        if item is None:
            item = self.find(q.name, seq)
            if item is None or item.lease is not None or item.number != number:
                return None
            if lease_ms and not q.has_slot(item.group):
                return None
        until_ms = self.now_ms + lease_ms
        if lease_ms or item.lease is not None:
            if item.lease is None:
                self.pick(q, item)
            item.lease = (number, until_ms)
            q.delayed.discard(seq)
            q.refresh_turns()
        return until_ms

    def pick(self, q: ModelQueue, item: Item) -> None:
        """It is delivered out of turn. If it was the next one, its group goes to the end all the same."""
        if q.settings.fifo:
            q.unblock_due()
        elif item.seq not in q.delayed:
            q.unblock_due()
            if q.next() is item:
                q.handed_out(item)

    def take(self, q: ModelQueue, item: Item) -> None:
        q.items.remove(item)
        q.delayed.discard(item.seq)
        q.refresh_turns()

    def dead_letters(self, q: ModelQueue, item: Item, kind: str) -> list[ModelQueue] | None:
        """None: there is no place for them. A circle that turns by itself leads nowhere either."""
        name = q.settings.dead_letter
        if q.settings.dead_letter_exchange is not None:
            names = self.bound
        elif name in self.queues:
            names = [name]
        else:
            return None
        return [self.queues[each] for each in names if not self.is_circle(q, item, each, kind)]

    @staticmethod
    def is_circle(q: ModelQueue, item: Item, target: str, kind: str) -> bool:
        way = [
            (q.name, kind),
            *((d.queue, d.kind) for d in item.deaths if (d.queue, d.kind) != (q.name, kind)),
        ]
        dead_lettered_in = [queue for queue, _ in way]
        if kind == "rejected" or target not in dead_lettered_in:
            return False
        return "rejected" not in [kind for _, kind in way[: dead_lettered_in.index(target) + 1]]

    def exhausted(self, q: ModelQueue, item: Item) -> list[ModelQueue] | None:
        targets = self.dead_letters(q, item, "max_receives")
        return [] if targets is None and q.settings.exhausted == "drop" else targets

    def dead(self, q: ModelQueue, item: Item, kind: str, reason: str | None) -> Item:
        """The message as it goes on from a queue it died in."""
        before = [d for d in item.deaths if (d.queue, d.kind) == (q.name, kind)]
        others = [d for d in item.deaths if (d.queue, d.kind) != (q.name, kind)]
        times = before[0].times + 1 if before else 1
        first_ms = before[0].first_ms if before else self.now_ms
        route = item.route or ("", q.name)
        death = DeadLetterEvent(
            q.name, reason or kind, self.now_ms, item.count, kind, *route, times, first_ms
        )
        new = self.fresh(item)
        new.deaths = [death, *others]
        new.route = None
        if q.settings.dead_letter_exchange is not None:
            key = q.settings.dead_letter_key
            new.route = (q.settings.dead_letter_exchange, route[1] if key is None else key)
        return new

    def fresh(self, item: Item) -> Item:
        """The same message as it comes into another queue."""
        self.seq += 1
        new = Item(item.id, self.seq - 1, item.body, self.now_ms, item.priority, item.group, item.type)
        new.reason, new.deaths, new.route = item.reason, item.deaths, item.route
        return new

    def arrive(self, target: ModelQueue, item: Item) -> None:
        if target.settings.ttl_ms is not None:
            item.expires_ms = self.now_ms + target.settings.ttl_ms
        target.items.append(item)
        target.refresh_turns()

    def die(
        self,
        q: ModelQueue,
        item: Item,
        targets: list[ModelQueue],
        kind: str,
        reason: str | None,
        depth: int = 0,
    ) -> None:
        """Out of its queue and on to all of these; to none: it is gone."""
        self.take(q, item)
        for target in targets:
            self.arrive(target, self.dead(q, item, kind, reason))
        for target in targets:
            self.overflow(target, depth)

    def move(self, q: ModelQueue, item: Item, target: ModelQueue, *, redriven: bool = False) -> None:
        self.take(q, item)
        new = self.fresh(item)
        if redriven and item.deaths[0].queue == target.name:
            route = (item.deaths[0].exchange, item.deaths[0].key)
            new.route = None if route == ("", target.name) else route
        self.arrive(target, new)
        self.overflow(target)

    def reject(self, q: ModelQueue, item: Item, reason: str | None) -> str:
        item.reason = reason or item.reason
        targets = self.dead_letters(q, item, "rejected") or []
        self.die(q, item, targets, "rejected", reason)
        return "dead-lettered" if targets else "removed"

    def expire(self, q: ModelQueue, item: Item, reason: str | None = None) -> str:
        targets = (self.dead_letters(q, item, "expired") or []) if q.settings.dead_letter_expired else []
        self.die(q, item, targets, "expired", reason)
        return "dead-lettered" if targets else "expired"
