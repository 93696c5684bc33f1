"""The audit log: who changed what, from where, and with which outcome; also every refused login.

A record is one line of JSON. It holds the hash of the record before it, and its own hash covers that: a
record that was changed, removed or inserted breaks the chain, and `verify` says where. Somebody who can write
the files could recompute all hashes; a copy of the last hash elsewhere shows that too, and the log of the
server has one for every start and stop.

No call of the product changes a record. Stores drop the oldest ones by size and age.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

from ..errors import OpenQError

OK = "ok"
REFUSED = "refused"  # no permission, or a login that failed
FAILED = "failed"  # invalid, or the store could not do it
UNKNOWN = "unknown"  # the client left before the answer: the change may have been made

FIRST_HASH = "0" * 64
MAX_DETAIL_BYTES = 2_000
DEFAULT_BYTES = 64 << 20
DEFAULT_AGE_MS = 400 * 86_400_000


class AuditUnavailable(OpenQError):
    """The records cannot be read or written now."""

    code = "audit_unavailable"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One event, before it has a place in the chain."""

    time_ms: int
    user: str
    peer: str  # the address of the client; empty: this machine
    protocol: str
    action: str
    target: str
    outcome: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    number: int
    entry: AuditEntry
    previous: str
    hash: str


@dataclass(frozen=True, slots=True)
class AuditLimits:
    max_bytes: int = DEFAULT_BYTES
    max_age_ms: int = DEFAULT_AGE_MS


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """A condition that is not set holds for all."""

    user: str | None = None
    action: str | None = None
    target: str | None = None
    protocol: str | None = None
    outcome: str | None = None
    since_ms: int = 0

    def accepts(self, record: AuditRecord) -> bool:
        entry = record.entry
        wanted = (
            (self.user, entry.user),
            (self.action, entry.action),
            (self.target, entry.target),
            (self.protocol, entry.protocol),
            (self.outcome, entry.outcome),
        )
        return entry.time_ms >= self.since_ms and all(one is None or one == other for one, other in wanted)


class AuditStore(Protocol):
    """The part `broker.audit`. Its calls block: call them in a thread. They raise AuditUnavailable."""

    limits: AuditLimits

    def append(self, entries: Sequence[AuditEntry]) -> None:
        """Add records; when it returns, they are durable."""

    def lines(self, after: int = 0) -> Iterator[bytes]:
        """The stored lines in order, from the first that may have a greater number than `after`."""

    def newest(self) -> AuditRecord | None: ...


def seal(number: int, previous: str, entry: AuditEntry) -> bytes:
    """The line of a record, without its end."""
    text = _covered(number, previous, entry)
    digest = sha256(text.encode()).hexdigest()
    return f'{text[:-1]},"hash":"{digest}"}}'.encode()


def _covered(number: int, previous: str, entry: AuditEntry) -> str:
    """The text that a hash covers: one spelling for every record."""
    return json.dumps(
        {
            "number": number,
            "time_ms": entry.time_ms,
            "user": entry.user,
            "peer": entry.peer,
            "protocol": entry.protocol,
            "action": entry.action,
            "target": entry.target,
            "outcome": entry.outcome,
            "detail": bounded_detail(entry.detail),
            "previous": previous,
        },
        separators=(",", ":"),
    )


def bounded_detail(detail: Mapping[str, Any]) -> Mapping[str, Any]:
    if len(json.dumps(detail, separators=(",", ":"))) <= MAX_DETAIL_BYTES:
        return detail
    return {"shortened": True, "fields": sorted(map(str, detail))[:50]}


_TEXTS = ("user", "peer", "protocol", "action", "target", "outcome", "previous", "hash")
_NAMES = frozenset((*_TEXTS, "number", "time_ms", "detail"))


def parse(line: bytes) -> AuditRecord:
    """Raises ValueError. The hash is not checked here."""
    source = json.loads(line)
    if not isinstance(source, dict) or source.keys() != _NAMES:
        raise ValueError("not the fields of a record")
    numbers = (source["number"], source["time_ms"])
    if not all(isinstance(source[name], str) for name in _TEXTS) or not isinstance(source["detail"], dict):
        raise ValueError("a field has the wrong type")
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in numbers):
        raise ValueError("a field has the wrong type")
    entry = AuditEntry(
        source["time_ms"],
        source["user"],
        source["peer"],
        source["protocol"],
        source["action"],
        source["target"],
        source["outcome"],
        source["detail"],
    )
    return AuditRecord(source["number"], entry, source["previous"], source["hash"])


def records(lines: Iterable[bytes]) -> Iterator[AuditRecord]:
    """The records that can be read."""
    for line in lines:
        try:
            yield parse(line)
        except ValueError:
            continue


@dataclass(slots=True)
class Verification:
    count: int = 0
    first: int = 0
    last: int = 0
    hash: str = FIRST_HASH  # of the last record
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems


_MAX_PROBLEMS = 100


def verify(lines: Iterable[bytes]) -> Verification:
    """Check the chain. It may begin anywhere: the oldest records are dropped by size and age."""
    found = Verification()
    previous: str | None = None
    for position, line in enumerate(lines, 1):
        if len(found.problems) >= _MAX_PROBLEMS:
            break
        try:
            record = parse(line)
        except (ValueError, RecursionError):
            found.problems.append(f"line {position} cannot be read")
            previous = None if previous is None else ""
            continue
        if sha256(_covered(record.number, record.previous, record.entry).encode()).hexdigest() != record.hash:
            found.problems.append(f"record {record.number} was changed: its hash does not match")
        if found.count and record.number != found.last + 1:
            found.problems.append(
                f"record {record.number} follows {found.last}: records are missing or inserted"
            )
        elif previous is not None and record.previous != previous:
            found.problems.append(f"record {record.number} does not follow the record before it")
        elif record.number == 1 and record.previous != FIRST_HASH:
            found.problems.append("record 1 does not begin the chain")
        found.count += 1
        found.first = found.first or record.number
        found.last, found.hash = record.number, record.hash
        previous = record.hash
    return found


class MemoryAudit:
    """The records of a server in memory: they end with it."""

    _MAX_RECORDS = 10_000

    def __init__(self) -> None:
        self.limits = AuditLimits()
        self._lines: list[bytes] = []
        self._last: AuditRecord | None = None

    def append(self, entries: Sequence[AuditEntry]) -> None:
        for entry in entries:
            last = self._last
            number, previous = (1, FIRST_HASH) if last is None else (last.number + 1, last.hash)
            line = seal(number, previous, entry)
            self._last = parse(line)
            self._lines.append(line)
        if len(self._lines) > self._MAX_RECORDS:
            self._lines = self._lines[-self._MAX_RECORDS :]

    def lines(self, after: int = 0) -> Iterator[bytes]:
        return iter(list(self._lines))

    def newest(self) -> AuditRecord | None:
        return self._last
