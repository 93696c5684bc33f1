"""Limits, slow and obviously right: what is in flight is counted anew each time, buckets hold fractions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from openq.limits import parse_rate
from openq.model import QueueSettings

Key = str | None  # None: the queue itself


class Bucket(NamedTuple):
    burst: int
    every_ms: Fraction  # a token comes back


class ModelLimits:
    def __init__(self) -> None:
        self.left: dict[Key, tuple[Fraction, int]] = {}  # tokens at a time; missing: full
        self.blocked: dict[str, bool] = {}  # keys without a turn; True: for want of a token
        self.counted: Counter[str] = Counter()

    @staticmethod
    def rules(settings: QueueSettings, key: Key) -> tuple[int | None, Bucket | None]:
        concurrency, rate = settings.concurrency, settings.rate
        if key is not None:
            own = settings.key_limits.get(key, {})
            concurrency = own.get("concurrency", settings.key_concurrency)
            rate = own.get("rate", settings.key_rate)
        if rate is None:
            return concurrency, None
        parsed = parse_rate(rate)
        return concurrency, Bucket(parsed.burst, Fraction(parsed.step, parsed.units))

    def tokens(self, bucket: Bucket, key: Key, now_ms: int) -> Fraction:
        left, at_ms = self.left.get(key, (Fraction(bucket.burst), now_ms))
        return min(Fraction(bucket.burst), left + Fraction(now_ms - at_ms) / bucket.every_ms)

    def allowance(self, settings: QueueSettings, key: Key, in_flight: int, now_ms: int) -> int:
        concurrency, bucket = self.rules(settings, key)
        slots = 1 << 60 if concurrency is None else max(0, concurrency - in_flight)
        return slots if bucket is None else min(slots, int(self.tokens(bucket, key, now_ms)))

    def take(self, settings: QueueSettings, key: Key, now_ms: int, tokens: int) -> None:
        bucket = self.rules(settings, key)[1]
        if bucket is not None:
            left = self.tokens(bucket, key, now_ms) - tokens
            self.left[key] = (min(Fraction(bucket.burst), left), now_ms)

    def next_ms(self, settings: QueueSettings, key: str, now_ms: int) -> int:
        bucket = self.rules(settings, key)[1]
        assert bucket is not None
        return ceil(now_ms + (1 - self.tokens(bucket, key, now_ms)) * bucket.every_ms)

    def change(
        self, old: QueueSettings, new: QueueSettings, groups: Iterable[str | None], now_ms: int
    ) -> None:
        """A bucket is full as soon as before; one that was there is not forgotten."""
        for key in list(self.left):
            before, after = self.rules(old, key)[1], self.rules(new, key)[1]
            if before is None or after is None:
                del self.left[key]
                continue
            ahead_ms = (before.burst - self.tokens(before, key, now_ms)) * before.every_ms
            self.left[key] = (max(Fraction(0), after.burst - ahead_ms / after.every_ms), now_ms)
        self.blocked.clear()
        self.counted = Counter(group for group in groups if group is not None)
        for key in {*self.counted, *(key for key in self.left if key is not None)}:
            if not self.allowance(new, key, self.counted[key], now_ms):
                self._block(new, key)

    def _block(self, settings: QueueSettings, key: str) -> None:
        concurrency = self.rules(settings, key)[0]
        self.blocked[key] = concurrency is None or self.counted[key] < concurrency

    def recount(self, settings: QueueSettings, groups: Iterable[str | None], now_ms: int) -> None:
        """What began or ended since blocks and unblocks its key."""
        counted = Counter(group for group in groups if group is not None)
        for key in {*counted, *self.counted}:
            before, after = self.counted[key], counted[key]
            self.counted[key] = after
            is_open = self.allowance(settings, key, after, now_ms) > 0
            if not is_open and (key in self.blocked or after > before):
                self._block(settings, key)
            elif is_open and after < before:
                self.blocked.pop(key, None)
        self.counted = counted

    def check(self, settings: QueueSettings, key: str | None, now_ms: int) -> None:
        if key in self.blocked and self.allowance(settings, key, self.counted[key], now_ms):
            del self.blocked[key]

    def unblock_due(self, settings: QueueSettings, now_ms: int) -> list[str]:
        waiting = [key for key, has_slot in self.blocked.items() if has_slot]
        due = sorted((self.next_ms(settings, key, now_ms), key) for key in waiting)
        open_again = [key for at_ms, key in due if at_ms <= now_ms]
        for key in open_again:
            del self.blocked[key]
        return open_again
