"""The judge: what was promised, what was seen, and every difference between the two.

Whoever drives a broker writes down each call when it begins and what was answered when it ends, and
nothing else: a call without an answer may have happened or not. An *item* is one message in one
*space*: queues between which a message can move (a queue and its dead letters) are one space, so a move
that loses or doubles a message shows. Events are numbered, so that "after" needs no clock; leases and
delays are judged by the broker's own times.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from zlib import crc32

Item = tuple[str, str]  # space, key


def body_of(key: str, version: int = 0, size: int = 0) -> bytes:
    """A body that says which message it is and shows any changed byte."""
    text = f"{key} {version} ".encode().ljust(size, b".")
    return text + b" %08x" % crc32(text)


def read_body(body: bytes) -> tuple[str, int] | None:
    """Key and version; None for a body that nobody wrote like this."""
    text, crc = body[:-9], body[-9:]
    if crc != b" %08x" % crc32(text):
        return None
    try:
        key, version = text.decode().split(" ")[:2]
        return key, int(version)
    except ValueError:
        return None


@dataclass(slots=True)
class Lease:
    """The last delivery of an item, as far as it still binds the broker."""

    since: int  # when its receive began
    tick: int  # when that was answered
    until_ms: int  # 0: for as long as the process lives


@dataclass(slots=True)
class Fate:
    """All that is known of one item."""

    offered: int = 0  # tick of the first publish that began
    accepted: int = 0  # tick of the first publish that was confirmed
    refused: bool = False  # every publish so far was refused for sure
    due_ms: int = 0  # not to be seen before
    versions: set[int] = field(default_factory=lambda: {0})  # bodies that may be seen
    group: str | None = None
    order: int = 0  # place in its group
    lease: Lease | None = None
    seen: int = 0
    endings: int = 0  # acks, cancels and purges of it that began and were not refused
    last_ending: int = 0  # tick at which the last of them began
    ended: int = 0  # tick at which one was confirmed
    may_vanish: bool = False  # a time to live may end it


@dataclass(slots=True)
class Verdict:
    lost: list[Item] = field(default_factory=list)
    resurrected: list[Item] = field(default_factory=list)
    duplicated: list[Item] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    phantom: list[Item] = field(default_factory=list)
    early: list[Item] = field(default_factory=list)
    disordered: list[Item] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not any(getattr(self, name) for name in Verdict.__slots__)

    def __str__(self) -> str:
        parts = []
        for name in Verdict.__slots__:
            found = getattr(self, name)
            if found:
                parts.append(f"{name}: {len(found)}, e.g. {found[:5]}")
        return "; ".join(parts) or "clean"


class Ledger:
    """Thread-safe; one per run, over all restarts of the broker."""

    def __init__(self, spaces: dict[str, str] | None = None) -> None:
        self._spaces = spaces or {}
        self._mutex = threading.RLock()
        self._tick = 0
        self._synced = 0  # everything answered before this tick is on disk
        self.fates: dict[Item, Fate] = {}
        self._groups: dict[tuple[str, str], list[tuple[int, Item]]] = {}
        self.verdict = Verdict()
        self.confirmed = 0
        self.delivered = 0

    def copy(self) -> Ledger:
        """For several trials of the same past, each on its own copy of the disk."""
        twin = Ledger(self._spaces)
        with self._mutex:
            twin._tick, twin._synced = self._tick, self._synced
            for item, fate in self.fates.items():
                values = {name: getattr(fate, name) for name in Fate.__slots__}
                values["versions"] = set(fate.versions)
                lease = fate.lease
                values["lease"] = None if lease is None else Lease(lease.since, lease.tick, lease.until_ms)
                twin.fates[item] = Fate(**values)
            twin._groups = {group: list(members) for group, members in self._groups.items()}
            for name in Verdict.__slots__:
                setattr(twin.verdict, name, list(getattr(self.verdict, name)))
            twin.confirmed, twin.delivered = self.confirmed, self.delivered
        return twin

    def space(self, queue: str) -> str:
        return self._spaces.get(queue, queue)

    def item(self, queue: str, key: str) -> Item:
        return self.space(queue), key

    def begin(self) -> int:
        """Every call to the broker begins with one of these."""
        with self._mutex:
            self._tick += 1
            return self._tick

    def synced(self, since: int) -> None:
        """A call that began at `since` was confirmed: with it, everything answered before."""
        with self._mutex:
            self._synced = max(self._synced, since)
            self.confirmed += 1

    def restarted(self) -> None:
        """The broker died and came back: it may have forgotten leases that no later answer covers."""
        with self._mutex:
            self._tick += 1
            for fate in self.fates.values():
                lease = fate.lease
                if lease is not None and (lease.tick >= self._synced or not lease.until_ms):
                    fate.lease = None

    # -- in

    def offering(
        self,
        queue: str,
        key: str,
        *,
        not_before_ms: int = 0,
        group: str | None = None,
        order: int = 0,
        may_vanish: bool = False,
    ) -> None:
        """A publish begins. The same key again (with a deduplication id) is the same item."""
        with self._mutex:
            self._tick += 1
            item = self.item(queue, key)
            fate = self.fates.get(item)
            if fate is None:
                fate = self.fates[item] = Fate(offered=self._tick, due_ms=not_before_ms)
                if group is not None:
                    fate.group, fate.order = group, order
                    self._groups.setdefault((item[0], group), []).append((order, item))
            fate.refused = False
            fate.due_ms = min(fate.due_ms, not_before_ms)
            fate.may_vanish = fate.may_vanish or may_vanish

    def accepted(self, queue: str, key: str) -> None:
        with self._mutex:
            self._tick += 1
            fate = self.fates[self.item(queue, key)]
            fate.accepted = fate.accepted or self._tick

    def refused(self, queue: str, key: str) -> None:
        """A definite no: this message must never be seen."""
        with self._mutex:
            fate = self.fates[self.item(queue, key)]
            fate.refused = not fate.accepted and not fate.seen

    # -- out

    def delivered_at(self, since: int, queue: str, body: bytes, delivered_ms: int, until_ms: int) -> str:
        """A delivery was answered to a receive that began at `since`. Returns the key."""
        with self._mutex:
            self._tick += 1
            self.delivered += 1
            known = read_body(body)
            if known is None:
                self.verdict.unexpected.append(f"{queue}: damaged body {body[:60]!r}")
                return ""
            key, version = known
            item = self.item(queue, key)
            fate = self.fates.get(item)
            if fate is None:
                self.verdict.unexpected.append(f"{queue}: {key} was never sent there")
                return key
            if version not in fate.versions:
                self.verdict.unexpected.append(f"{queue}: {key} with body {version}, not {fate.versions}")
            if fate.refused:
                self.verdict.phantom.append(item)
            if delivered_ms < fate.due_ms:
                self.verdict.early.append(item)
            if fate.ended and since > fate.ended:
                self.verdict.resurrected.append(item)
            lease = fate.lease
            if lease is not None and (not lease.until_ms or delivered_ms < lease.until_ms):
                self.verdict.duplicated.append(item)
            if fate.group is not None and self._overtakes(item, fate, since):
                self.verdict.disordered.append(item)
            fate.seen += 1
            fate.lease = Lease(since, self._tick, until_ms)
            return key

    def _overtakes(self, item: Item, fate: Fate, since: int) -> bool:
        """Whether something before it in its group is surely still waiting, or with somebody else."""
        assert fate.group is not None
        for order, other in self._groups[item[0], fate.group]:
            earlier = self.fates[other]
            together = earlier.lease is not None and earlier.lease.since == since
            sure = earlier.accepted or earlier.seen
            if order < fate.order and sure and not earlier.endings and not together:
                return True
        return False

    def extended(self, queue: str, key: str, until_ms: int) -> None:
        with self._mutex:
            lease = self.fates[self.item(queue, key)].lease
            if lease is not None:
                lease.until_ms = until_ms

    def returning(self, queue: str, key: str) -> None:
        """A nack, release or reject begins: from now on it may be delivered again."""
        with self._mutex:
            self.fates[self.item(queue, key)].lease = None

    # -- the end of a message

    def ending(self, queue: str, key: str) -> None:
        with self._mutex:
            self._tick += 1
            fate = self.fates[self.item(queue, key)]
            fate.endings += 1
            fate.last_ending = self._tick

    def ended(self, queue: str, key: str) -> None:
        with self._mutex:
            self._tick += 1
            fate = self.fates[self.item(queue, key)]
            fate.ended = fate.ended or self._tick
            fate.lease = None

    def not_ended(self, queue: str, key: str) -> None:
        """It was refused for sure: unless another one did it, the message must still be there."""
        with self._mutex:
            self.fates[self.item(queue, key)].endings -= 1

    def in_space(self, queue: str) -> list[str]:
        with self._mutex:
            space = self.space(queue)
            return [key for (where, key) in self.fates if where == space]

    # -- changes

    def editing(self, queue: str, key: str, version: int) -> None:
        with self._mutex:
            self.fates[self.item(queue, key)].versions.add(version)

    def edited(self, queue: str, key: str, version: int) -> None:
        with self._mutex:
            self.fates[self.item(queue, key)].versions = {version}

    def rescheduling(self, queue: str, key: str, due_ms: int) -> None:
        with self._mutex:
            fate = self.fates[self.item(queue, key)]
            fate.due_ms = min(fate.due_ms, due_ms)

    def rescheduled(self, queue: str, key: str, due_ms: int) -> None:
        with self._mutex:
            self.fates[self.item(queue, key)].due_ms = due_ms

    # -- replay: everything ever published to one queue comes again in another

    def replaying(self, source: str, target: str) -> int:
        with self._mutex:
            self._tick += 1
            for key in self.in_space(source):
                item = self.item(target, key)
                fate = self.fates.setdefault(item, Fate(offered=self._tick))
                fate.ended = 0  # it may come back
            return self._tick

    def replayed(self, source: str, target: str, since: int) -> None:
        with self._mutex:
            self._tick += 1
            for key in self.in_space(source):
                origin = self.fates[self.item(source, key)]
                if origin.accepted and origin.accepted < since:
                    copy = self.fates[self.item(target, key)]
                    copy.accepted = self._tick
                    if copy.last_ending < since:
                        copy.endings = 0

    # -- judgement

    def complain(self, text: str) -> None:
        with self._mutex:
            self.verdict.other.append(text)

    def judge(self) -> Verdict:
        """After everything that is left was received and acked."""
        with self._mutex:
            for item, fate in self.fates.items():
                if fate.accepted and not fate.endings and not fate.may_vanish:
                    self.verdict.lost.append(item)
            return self.verdict
