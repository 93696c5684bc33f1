"""A ledger for many processes: each logs its calls of a Ledger; in the end one Ledger replays them all.

Every line has the time of the machine's monotonic clock, which is the same in all processes, from before a
call begins or from after its answer came. Replayed in that order, the ledger judges as if it had been there.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.ledger import Item, Ledger, read_body

Line = tuple[int, str, str, list[Any], dict[str, Any]]  # time, whose, what, arguments


class Everything:
    """Whatever was delivered is known to somebody; the judge looks closer."""

    def __contains__(self, item: Item) -> bool:
        return bool(item[1])


class Notes:
    """What a Client needs of a Ledger. Thread-safe: a line is one write at the end of a file."""

    def __init__(self, path: Path, spaces: dict[str, str]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._spaces = spaces
        self._calls = itertools.count(1)
        self.fates = Everything()

    def note(self, what: str, *arguments: Any, **named: Any) -> None:
        line = json.dumps([time.monotonic_ns(), what, arguments, named])
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)

    def __getattr__(self, what: str) -> Callable[..., None]:
        """Whatever a ledger has and does not answer: offering, accepted, ending, ended, complain, ..."""
        if what.startswith("_") or not callable(getattr(Ledger, what, None)):
            raise AttributeError(what)
        return lambda *arguments, **named: self.note(what, *arguments, **named)

    def space(self, queue: str) -> str:
        return self._spaces.get(queue, queue)

    def begin(self) -> int:
        number = next(self._calls)
        self.note("begin", number)
        return number

    def delivered_at(self, since: int, queue: str, body: bytes, delivered_ms: int, until_ms: int) -> str:
        self.note("delivered_at", since, queue, body.decode("utf-8", "replace"), delivered_ms, until_ms)
        known = read_body(body)
        return "" if known is None else known[0]

    # -- what only notes have

    def acked(self, queue: str, seq: int, number: int) -> None:
        """An ack of this delivery of this very message was confirmed."""
        self.note("acked", self.space(queue), seq, number)

    def late(self, count: int) -> None:
        """So many acks were refused because their leases were over."""
        self.note("late", count)

    def alive(self, actor: str) -> None:
        """The calls of this actor are answered."""
        self.note("alive", actor)

    def away(self, actor: str, why: str) -> None:
        """The store was unreachable, or did not answer."""
        self.note("away", actor, why)

    def leases_count(self, yes: bool) -> None:
        """Not during a failover: nobody waits for the copy of a lease, and two masters may lend the same."""
        self.note("leases_count", yes)


def lines_of(path: Path, last: int | None = None) -> list[Line]:
    """In the order in which they were written, without one that was cut off; or those of the `last` bytes."""
    whole = path.read_bytes() if last is None else _end_of(path, last)
    found = []
    for raw in whole.split(b"\n")[:-1]:
        time_ns, what, arguments, named = json.loads(raw)
        found.append((time_ns, path.name, what, arguments, named))
    return found


def _end_of(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - size)
        file.seek(start)
        found = file.read()
    return found.partition(b"\n")[2] if start else found


class Reading:
    """All logs of one folder, replayed into a ledger."""

    def __init__(self, folder: Path, spaces: dict[str, str]) -> None:
        self.ledger = Ledger(spaces)
        self.late: dict[str, int] = {}  # refused acks by whose they were
        self._ticks: dict[tuple[str, int], int] = {}
        self._delivered_ms: dict[Item, int] = {}
        self._do_leases_count = True
        self._confirmed: dict[tuple[str, int], str] = {}
        lines = [line for path in sorted(folder.iterdir()) for line in lines_of(path)]
        for _, whose, what, arguments, named in sorted(lines, key=lambda line: line[0]):
            tell = getattr(self, "_" + what, None)
            if tell is not None:
                tell(whose, *arguments, **named)
            else:
                getattr(self.ledger, what)(*arguments, **named)

    def _begin(self, whose: str, number: int) -> None:
        self._ticks[whose, number] = self.ledger.begin()

    def _synced(self, whose: str, since: int) -> None:
        self.ledger.synced(self._ticks[whose, since])

    def _delivered_at(
        self, whose: str, since: int, queue: str, body: str, delivered_ms: int, until_ms: int
    ) -> None:
        raw = body.encode()
        known = read_body(raw)
        item = self.ledger.item(queue, known[0] if known else "")
        fate = self.ledger.fates.get(item)
        newer = None
        if fate is not None and not self._do_leases_count:
            fate.lease = None
        if fate is not None and delivered_ms < self._delivered_ms.get(item, 0):
            # A frozen client logs late what it received early: the newer lease counts.
            newer, fate.lease = fate.lease, None
        self.ledger.delivered_at(self._ticks[whose, since], queue, raw, delivered_ms, until_ms)
        self._delivered_ms[item] = max(delivered_ms, self._delivered_ms.get(item, 0))
        if newer is not None and fate is not None:
            fate.lease = newer

    def _acked(self, whose: str, space: str, seq: int, number: int) -> None:
        this = f"delivery {number} to {whose}"
        first = self._confirmed.setdefault((space, seq), this)
        if first is not this:
            self.ledger.complain(f"two acks of message {seq} in {space} were confirmed: {first}, then {this}")

    def _late(self, whose: str, count: int) -> None:
        self.late[whose] = self.late.get(whose, 0) + count

    def _alive(self, whose: str, actor: str) -> None:
        pass

    def _away(self, whose: str, actor: str, why: str) -> None:
        pass

    def _leases_count(self, whose: str, yes: bool) -> None:
        self._do_leases_count = yes
        for fate in self.ledger.fates.values():
            fate.lease = None
