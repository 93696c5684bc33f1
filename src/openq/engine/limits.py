"""The limits of one queue: what is in flight, and the token buckets, for the queue and for each key.

A key is a message group; messages without a group have no key, so only the limits of the queue count for
them. A key that has all its messages in flight, or no token, is *blocked*. The orders in `limited_order.py`
leave blocked keys out of the turns, so a receive never walks over them. A key is unblocked when one of its
deliveries ends, or when its next token is due: `due` is a heap of these times, and `Leases` arms one timer
for the first of them.

Buckets are functions of the times of the deliveries, so a replay of the records gives the same buckets. A
snapshot holds them. After a crash the last deliveries may be unrecorded: then buckets start empty (`drain`).
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from ..limits import Rate, parse_rate
from ..model import QueueSettings
from .why import Why

_MIN_SWEEP = 16_384  # keys that are kept whether idle or not: about 2 MB
NO_LIMIT = 1 << 60


class KeyUse:
    """What a limited key, or a queue, has in flight, and its bucket.

    The numbers of the rate are here too: this is read for every delivery. A missing limit is a number that is
    never reached.
    """

    __slots__ = ("concurrency", "in_flight", "rate", "room", "step", "units", "used_until")

    def __init__(self, concurrency: int | None, rate: Rate | None) -> None:
        self.concurrency = NO_LIMIT if concurrency is None else concurrency
        self.rate = rate
        self.units, self.step, self.room = (0, 0, 0) if rate is None else (rate.units, rate.step, rate.room)
        self.used_until = 0
        self.in_flight = 0

    def blocked_until(self, now_ms: int) -> int | None:
        """None: not blocked. 0: until a delivery ends. Else the time of the next token."""
        if self.in_flight >= self.concurrency:
            return 0
        if self.rate is not None and self.used_until - now_ms * self.units > self.room:
            return self.rate.next_ms(self.used_until)
        return None

    def take_token(self, now_ms: int) -> None:
        now = now_ms * self.units
        self.used_until = (self.used_until if self.used_until > now else now) + self.step

    def allowance(self, now_ms: int) -> int:
        """How many more deliveries are allowed now."""
        slots = max(0, self.concurrency - self.in_flight)
        if self.rate is None:
            return slots
        ahead = max(0, self.used_until - now_ms * self.units)
        return min(slots, max(0, (self.room - ahead) // self.step + 1))

    def why(self, what: str, now_ms: int) -> Why | None:
        if self.in_flight >= self.concurrency:
            return limited_concurrency(what, self.in_flight, self.concurrency)
        until_ms = self.blocked_until(now_ms)
        if until_ms is None or self.rate is None:
            return None
        return limited_rate(what, self.rate.text, until_ms - now_ms)


class QueueLimits:
    __slots__ = (
        "_default",
        "_has_keys",
        "_own",
        "_queue",
        "_sweep_at",
        "armed_ms",
        "blocked",
        "due",
        "is_queue_limited",
        "keys",
    )

    def __init__(self, settings: QueueSettings) -> None:
        self.keys: dict[str, KeyUse] = {}  # limited keys that were used; idle ones are swept now and then
        self.blocked: dict[str, int] = {}  # key -> as `KeyUse.blocked_until`
        self.due: list[tuple[int, str]] = []  # heap: (time of the next token, key); outdated ones are skipped
        self.armed_ms = 0  # when the last timer for a token fires
        self._sweep_at = _MIN_SWEEP
        self._set_rules(settings)

    def _set_rules(self, settings: QueueSettings) -> None:
        rate = _rate(settings.rate)
        self._queue = KeyUse(settings.concurrency, rate)
        self.is_queue_limited = settings.concurrency is not None or rate is not None
        self._default = (settings.key_concurrency, _rate(settings.key_rate))
        self._own = {
            key: (
                own.get("concurrency", settings.key_concurrency),
                _rate(own.get("rate", settings.key_rate)),
            )
            for key, own in settings.key_limits.items()
        }
        self._has_keys = bool(self._own) or self._default != (None, None)

    def change(self, settings: QueueSettings, groups: Iterable[str | None], now_ms: int) -> None:
        """New limits, at once. `groups`: those of the messages in flight. Buckets keep what was used."""
        before, before_keys = self._queue, self.keys
        self._set_rules(settings)
        _convert(before, self._queue, now_ms)
        self.keys = {}
        for key, use in before_keys.items():
            if use.rate is not None:
                new = self._use(key)
                if new is not None:
                    _convert(use, new, now_ms)
        self.recount(groups, now_ms)
        self.armed_ms = 0

    def recount(self, groups: Iterable[str | None], now_ms: int) -> None:
        """Count what is in flight again, and find the keys that are blocked."""
        self._queue.in_flight = 0
        self.blocked.clear()
        self.due.clear()
        for use in self.keys.values():
            use.in_flight = 0
        for group in groups:
            self._queue.in_flight += 1
            counted = None if group is None else self._use(group)
            if counted is not None:
                counted.in_flight += 1
        for key, use in self.keys.items():
            until_ms = use.blocked_until(now_ms)
            if until_ms is not None:
                self.blocked[key] = until_ms
                if until_ms:
                    self.due.append((until_ms, key))
        heapify(self.due)

    def _use(self, key: str) -> KeyUse | None:
        """None: the key has no limit."""
        use = self.keys.get(key)
        if use is None:
            use = self._new_use(key)
            if use is not None:
                self.keys[key] = use
        return use

    def _new_use(self, key: str) -> KeyUse | None:
        concurrency, rate = self._own.get(key, self._default)
        return None if concurrency is None and rate is None else KeyUse(concurrency, rate)

    def _sweep(self, now_ms: int) -> None:
        """Forget keys with nothing in flight and a full bucket, unless `unblock_due` has to come yet."""
        blocked = self.blocked
        self.keys = {
            key: use
            for key, use in self.keys.items()
            if use.in_flight or use.used_until > now_ms * use.units or key in blocked
        }
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self.keys))

    # -- deliveries -------------------------------------------------------------------------------

    def is_open(self, now_ms: int) -> bool:
        """Whether the limits of the queue allow a delivery."""
        use = self._queue
        return use.in_flight < use.concurrency and (
            use.rate is None or use.used_until - now_ms * use.units <= use.room
        )

    def start(self, key: str | None, now_ms: int) -> bool:
        """A delivery starts. True: its key is blocked from now on."""
        use: KeyUse | None = self._queue
        assert use is not None
        use.in_flight += 1
        if use.rate is not None:
            use.take_token(now_ms)
        if key is None or not self._has_keys:
            return False
        use = self.keys.get(key)
        if use is None:
            if len(self.keys) >= self._sweep_at:
                self._sweep(now_ms)
            use = self._use(key)
            if use is None:
                return False
        use.in_flight = in_flight = use.in_flight + 1
        if use.rate is not None:
            now = now_ms * use.units
            use.used_until = used_until = (use.used_until if use.used_until > now else now) + use.step
            if used_until - now > use.room:
                return self._block(key, use, now_ms)
        if in_flight >= use.concurrency:
            self.blocked[key] = 0
            return True
        return False

    def mark(self, key: str | None) -> bool:
        """A message is in flight already: it takes a slot, but no token. True: its key is blocked."""
        self._queue.in_flight += 1
        use = None if key is None else self._use(key)
        if key is None or use is None:
            return False
        use.in_flight += 1
        if use.in_flight >= use.concurrency:
            self.blocked[key] = 0
        return key in self.blocked

    def _block(self, key: str, use: KeyUse, now_ms: int) -> bool:
        until_ms = use.blocked_until(now_ms)
        if until_ms is None:
            return False
        if self.blocked.get(key) != until_ms:
            self.blocked[key] = until_ms
            if until_ms:
                heappush(self.due, (until_ms, key))
        return True

    def end(self, key: str | None, now_ms: int) -> bool:
        """A delivery ended. True: its key is unblocked by this."""
        self._queue.in_flight -= 1
        use = None if key is None else self.keys.get(key)
        if key is None or use is None:
            return False
        use.in_flight -= 1
        if key not in self.blocked:
            return False
        if use.rate is None and use.in_flight < use.concurrency:
            del self.blocked[key]
            return True
        return self._unblock(key, use, now_ms)

    def refund(self, key: str | None, now_ms: int) -> bool:
        """Return the token of a delivery that no consumer saw. True: its key is unblocked by this."""
        self._queue.used_until -= self._queue.step
        use = None if key is None else self.keys.get(key)
        if key is None or use is None:
            return False
        use.used_until -= use.step
        return key in self.blocked and self._unblock(key, use, now_ms)

    def _unblock(self, key: str, use: KeyUse, now_ms: int) -> bool:
        if self._block(key, use, now_ms):
            return False
        del self.blocked[key]
        return True

    def unblock_due(self, now_ms: int) -> list[str]:
        """The keys that are unblocked because their next token is due, in order of its time."""
        due = self.due
        keys: list[str] = []
        while due and due[0][0] <= now_ms:
            until_ms, key = heappop(due)
            if self.blocked.get(key) == until_ms and self._unblock(key, self.keys[key], now_ms):
                keys.append(key)
        return keys

    def has_slot(self, key: str | None) -> bool:
        """Whether one more message may be in flight, tokens aside."""
        use = None if key is None else self.keys.get(key)
        return self._queue.in_flight < self._queue.concurrency and (
            use is None or use.in_flight < use.concurrency
        )

    def next_ms(self, now_ms: int) -> int:
        """When a token will allow a delivery that is not allowed now; 0: no token is waited for."""
        until_ms = self._queue.blocked_until(now_ms)
        if until_ms is not None:
            return until_ms
        due = self.due
        while due and self.blocked.get(due[0][1]) != due[0][0]:
            heappop(due)
        return due[0][0] if due else 0

    # -- a receive that selects -------------------------------------------------------------------

    def allowance(self, now_ms: int) -> int:
        """How many more deliveries the limits of the queue allow now."""
        return self._queue.allowance(now_ms)

    def key_allowance(self, key: str | None, now_ms: int) -> int:
        """How many more deliveries the limits of the key allow now."""
        use = None if key is None else self.keys.get(key) or self._new_use(key)
        return NO_LIMIT if use is None else use.allowance(now_ms)

    # -- over a restart ---------------------------------------------------------------------------

    def drain(self, keys: Iterable[str | None], now_ms: int) -> None:
        """Empty the bucket of the queue and those of `keys`; the order must be brought in line then."""
        for each in keys:
            if each is not None:
                self._use(each)
        _drain(self._queue, now_ms)
        for key, use in self.keys.items():
            _drain(use, now_ms)
            self._block(key, use, now_ms)

    def dump(self) -> tuple[int, list[tuple[str, int, bool]]] | None:
        """The buckets for a snapshot; None: there are none."""
        keys = [
            (key, use.used_until, key in self.blocked)
            for key, use in self.keys.items()
            if use.rate is not None
        ]
        return (self._queue.used_until, keys) if keys or self._queue.used_until else None

    def load(self, used_until: int, keys: Iterable[tuple[str, int, bool]]) -> None:
        """`mark` follows for the messages in flight."""
        self._queue.used_until = used_until
        for key, value, is_blocked in keys:
            use = self._use(key)
            if use is not None:
                use.used_until = value
                if is_blocked:
                    self._block(key, use, 0)

    # -- explaining -------------------------------------------------------------------------------

    def why(self, key: str | None, now_ms: int) -> Why | None:
        """Which limit holds a ready message of this key; None: no limit does."""
        use = None if key is None else self.keys.get(key)
        own = None if use is None else use.why(f"key {key!r}", now_ms)
        return own or self._queue.why("the queue", now_ms)


def _rate(text: str | None) -> Rate | None:
    return None if text is None else parse_rate(text)


def _convert(old: KeyUse, new: KeyUse, now_ms: int) -> None:
    """The state of a bucket under another rate: as long until it is full, and at most empty."""
    if old.rate is not None and new.rate is not None:
        ahead = max(0, old.used_until - now_ms * old.units) * new.units // old.units
        new.used_until = now_ms * new.units + min(ahead, new.room + new.step)


def _drain(use: KeyUse, now_ms: int) -> None:
    if use.rate is not None:
        use.used_until = max(use.used_until, use.rate.drained(now_ms))


def limited_concurrency(what: str, in_flight: int, concurrency: int) -> Why:
    return Why("limited_concurrency", f"{what} has {in_flight} of {concurrency} messages in flight")


def limited_rate(what: str, rate: str, left_ms: int) -> Why:
    return Why("limited_rate", f"{what} is at its rate of {rate}; next in {left_ms / 1000:.3f} s")
