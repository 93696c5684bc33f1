"""The limits of one queue: what is in flight, and the token buckets, for the queue and for each key.

A key is a message group; messages without a group have no key, so only the limits of the queue count for
them. A key that has all its messages in flight, or no token, is *blocked*. The orders in `limited_order.py`
leave blocked keys out of the turns, so a receive never walks over them. A key is unblocked when one of its
deliveries ends, or when its next token is due: `_due` is a heap of these times, and `Leases` arms one timer
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

_MIN_SWEEP = 1024


class KeyUse:
    """What a limited key has in flight, and its bucket."""

    __slots__ = ("concurrency", "in_flight", "rate", "used_until")

    def __init__(self, concurrency: int | None, rate: Rate | None) -> None:
        self.concurrency = concurrency
        self.rate = rate
        self.used_until = 0
        self.in_flight = 0

    def blocked_until(self, now_ms: int) -> int | None:
        """None: not blocked. 0: until a delivery ends. Else the time of the next token."""
        if self.concurrency is not None and self.in_flight >= self.concurrency:
            return 0
        rate = self.rate
        if rate is not None and self.used_until - now_ms * rate.units > rate.room:
            return rate.next_ms(self.used_until)
        return None


class QueueLimits:
    __slots__ = (
        "_concurrency",
        "_default",
        "_due",
        "_has_keys",
        "_own",
        "_rate",
        "_sweep_at",
        "_used_until",
        "armed_ms",
        "blocked",
        "in_flight",
        "keys",
    )

    def __init__(self, settings: QueueSettings) -> None:
        self.in_flight = 0
        self.keys: dict[str, KeyUse] = {}  # limited keys that were used; idle ones are swept now and then
        self.blocked: dict[str, int] = {}  # key -> as `KeyUse.blocked_until`
        self.armed_ms = 0  # when the last timer for a token fires
        self._due: list[tuple[int, str]] = []  # (time of the next token, key); outdated ones are skipped
        self._used_until = 0
        self._sweep_at = _MIN_SWEEP
        self._set_rules(settings)

    def _set_rules(self, settings: QueueSettings) -> None:
        self._concurrency = settings.concurrency
        self._rate = _rate(settings.rate)
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
        rate, before = self._rate, self.keys
        self._set_rules(settings)
        self._used_until = _converted(self._used_until, rate, self._rate, now_ms)
        self.keys = {}
        for key, use in before.items():
            if use.rate is not None:
                new = self._use(key)
                if new is not None and new.rate is not None:
                    new.used_until = _converted(use.used_until, use.rate, new.rate, now_ms)
        self.recount(groups)
        self.armed_ms = 0

    def recount(self, groups: Iterable[str | None]) -> None:
        """Count what is in flight again. Keys without a token stay blocked until `unblock_due`."""
        self.in_flight = 0
        self.blocked.clear()
        self._due.clear()
        for use in self.keys.values():
            use.in_flight = 0
        for group in groups:
            self.in_flight += 1
            use_of = None if group is None else self._use(group)
            if use_of is not None:
                use_of.in_flight += 1
        for key, use in self.keys.items():
            until_ms = use.blocked_until(0)
            if until_ms is not None:
                self.blocked[key] = until_ms
                if until_ms:
                    self._due.append((until_ms, key))
        heapify(self._due)

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
        """Forget keys with nothing in flight and a full bucket."""
        self.keys = {
            key: use
            for key, use in self.keys.items()
            if use.in_flight or (use.rate is not None and use.used_until > now_ms * use.rate.units)
        }
        self._sweep_at = max(_MIN_SWEEP, 2 * len(self.keys))

    # -- deliveries -------------------------------------------------------------------------------

    def is_open(self, now_ms: int) -> bool:
        """Whether the limits of the queue allow a delivery."""
        if self._concurrency is not None and self.in_flight >= self._concurrency:
            return False
        rate = self._rate
        return rate is None or self._used_until - now_ms * rate.units <= rate.room

    def start(self, key: str | None, now_ms: int) -> bool:
        """A delivery starts. True: its key is blocked from now on."""
        self.in_flight += 1
        rate = self._rate
        if rate is not None:
            now = now_ms * rate.units
            self._used_until = (self._used_until if self._used_until > now else now) + rate.step
        if key is None or not self._has_keys:
            return False
        use = self.keys.get(key)
        if use is None:
            if len(self.keys) >= self._sweep_at:
                self._sweep(now_ms)
            use = self._use(key)
            if use is None:
                return False
        use.in_flight += 1
        rate = use.rate
        if rate is not None:
            now = now_ms * rate.units
            use.used_until = (use.used_until if use.used_until > now else now) + rate.step
        elif use.in_flight < use.concurrency:  # type: ignore[operator]  # a key without both has no KeyUse
            return False
        return self._block(key, use, now_ms)

    def mark(self, key: str | None) -> bool:
        """A message is in flight without a new delivery: it takes a slot, but no token."""
        self.in_flight += 1
        use = None if key is None else self._use(key)
        if key is None or use is None:
            return False
        use.in_flight += 1
        return self._block(key, use, 0)

    def _block(self, key: str, use: KeyUse, now_ms: int) -> bool:
        until_ms = use.blocked_until(now_ms)
        if until_ms is None:
            return False
        if self.blocked.get(key) != until_ms:
            self.blocked[key] = until_ms
            if until_ms:
                heappush(self._due, (until_ms, key))
        return True

    def end(self, key: str | None, now_ms: int) -> bool:
        """A delivery ended. True: its key is unblocked by this."""
        self.in_flight -= 1
        use = None if key is None else self.keys.get(key)
        if key is None or use is None:
            return False
        use.in_flight -= 1
        return key in self.blocked and self._unblock(key, use, now_ms)

    def refund(self, key: str | None, now_ms: int) -> bool:
        """Return the token of a delivery that no consumer saw. True: its key is unblocked by this."""
        if self._rate is not None:
            self._used_until -= self._rate.step
        use = None if key is None else self.keys.get(key)
        if key is None or use is None or use.rate is None:
            return False
        use.used_until -= use.rate.step
        return key in self.blocked and self._unblock(key, use, now_ms)

    def _unblock(self, key: str, use: KeyUse, now_ms: int) -> bool:
        if self._block(key, use, now_ms):
            return False
        del self.blocked[key]
        return True

    def unblock_due(self, now_ms: int) -> list[str]:
        """The keys that are unblocked because their next token is due, in order of its time."""
        due = self._due
        keys: list[str] = []
        while due and due[0][0] <= now_ms:
            until_ms, key = heappop(due)
            if self.blocked.get(key) == until_ms and self._unblock(key, self.keys[key], now_ms):
                keys.append(key)
        return keys

    def has_due(self, now_ms: int) -> bool:
        return bool(self._due) and self._due[0][0] <= now_ms

    def has_slot(self, key: str | None) -> bool:
        """Whether one more message may be in flight, tokens aside."""
        if self._concurrency is not None and self.in_flight >= self._concurrency:
            return False
        use = None if key is None else self.keys.get(key)
        return use is None or use.concurrency is None or use.in_flight < use.concurrency

    def next_ms(self, now_ms: int) -> int:
        """When a token will allow a delivery that is not allowed now; 0: no token is waited for."""
        if self._concurrency is not None and self.in_flight >= self._concurrency:
            return 0
        rate = self._rate
        if rate is not None and self._used_until - now_ms * rate.units > rate.room:
            return rate.next_ms(self._used_until)
        due = self._due
        while due and self.blocked.get(due[0][1]) != due[0][0]:
            heappop(due)
        return due[0][0] if due else 0

    # -- a receive that selects ---------------------------------------------------------------------

    def allowance(self, now_ms: int) -> int:
        """How many more deliveries the limits of the queue allow now."""
        return _allowance(self._concurrency, self.in_flight, self._rate, self._used_until, now_ms)

    def key_allowance(self, key: str | None, now_ms: int) -> int:
        """How many more deliveries the limits of the key allow now."""
        use = None if key is None else self.keys.get(key) or self._new_use(key)
        if use is None:
            return 1 << 60
        return _allowance(use.concurrency, use.in_flight, use.rate, use.used_until, now_ms)

    # -- over a restart -----------------------------------------------------------------------------

    def drain(self, keys: Iterable[str | None], now_ms: int) -> None:
        """Empty the bucket of the queue and those of `keys`; the order must be brought in line then."""
        for each in keys:
            if each is not None:
                self._use(each)
        if self._rate is not None:
            self._used_until = max(self._used_until, self._rate.drained(now_ms))
        for key, use in self.keys.items():
            if use.rate is not None:
                use.used_until = max(use.used_until, use.rate.drained(now_ms))
                self._block(key, use, now_ms)

    def dump(self) -> tuple[int, list[tuple[str, int]]] | None:
        """The buckets for a snapshot; None: there are none."""
        keys = [(key, use.used_until) for key, use in self.keys.items() if use.rate is not None]
        return (self._used_until, keys) if keys or self._used_until else None

    def load(self, used_until: int, keys: Iterable[tuple[str, int]]) -> None:
        self._used_until = used_until
        for key, value in keys:
            use = self._use(key)
            if use is not None and use.rate is not None:
                use.used_until = value
                self._block(key, use, 0)

    # -- explaining -----------------------------------------------------------------------------------

    def why(self, key: str | None, now_ms: int) -> Why | None:
        """Which limit holds a ready message of this key; None: no limit does."""
        use = None if key is None else self.keys.get(key)
        if use is not None:
            own = _why(f"key {key!r}", use.concurrency, use.in_flight, use.rate, use.used_until, now_ms)
            if own is not None:
                return own
        return _why("the queue", self._concurrency, self.in_flight, self._rate, self._used_until, now_ms)


def _rate(text: str | None) -> Rate | None:
    return None if text is None else parse_rate(text)


def _converted(used_until: int, old: Rate | None, new: Rate | None, now_ms: int) -> int:
    """The state of a bucket under another rate: as long until it is full, and at most empty."""
    if new is None or old is None:
        return 0
    ahead = max(0, used_until - now_ms * old.units) * new.units // old.units
    return now_ms * new.units + min(ahead, new.burst * new.step)


def _allowance(
    concurrency: int | None, in_flight: int, rate: Rate | None, used_until: int, now_ms: int
) -> int:
    slots = 1 << 60 if concurrency is None else max(0, concurrency - in_flight)
    if rate is None:
        return slots
    ahead = max(0, used_until - now_ms * rate.units)
    return min(slots, max(0, (rate.room - ahead) // rate.step + 1))


def _why(
    what: str, concurrency: int | None, in_flight: int, rate: Rate | None, used_until: int, now_ms: int
) -> Why | None:
    if concurrency is not None and in_flight >= concurrency:
        return limited_concurrency(what, in_flight, concurrency)
    if rate is not None and used_until - now_ms * rate.units > rate.room:
        return limited_rate(what, rate.text, rate.next_ms(used_until) - now_ms)
    return None


def limited_concurrency(what: str, in_flight: int, concurrency: int) -> Why:
    return Why("limited_concurrency", f"{what} has {in_flight} of {concurrency} messages in flight")


def limited_rate(what: str, rate: str, left_ms: int) -> Why:
    return Why("limited_rate", f"{what} is at its rate of {rate}; next in {left_ms / 1000:.3f} s")
