"""The damage register: stored messages and records that cannot be read any more.

A broker has one, `broker.inspect.damage`. Code that meets damage reports it with one call and continues:

    broker.inspect.damage.report(SET_ASIDE, "block 7 does not match its checksum", now_ms,
                         queue="jobs", message_id="...", file="/data/journal/3.seg", offset=4096)

    SET_ASIDE   a message left its queue because its body cannot be read; it is delivered no more
    LOST        messages that existed and are gone, for example with a missing segment (`count` says how many)
    FOUND       damaged bytes that no queue needs, for example in the history

A report is logged once, however often the same place is met. It raises the metric
`openq_damaged_records_total`, and the server's health is "degraded" (it still serves: HTTP 200) until an
operator has seen the list and calls `clear`. The list is kept over restarts in `damage.json` beside the
journal; without a directory it is in memory only. Never called with the broker's lock held, unless with
`save=False`: then the next report or `save` writes the file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..errors import InvalidSetting, OpenQError
from ..metrics import Family
from .state_file import StateFile, read_field, read_number

log = logging.getLogger("openq")

Kind = Literal["set_aside", "lost", "found"]
SET_ASIDE: Kind = "set_aside"
LOST: Kind = "lost"
FOUND: Kind = "found"
KINDS: tuple[Kind, ...] = get_args(Kind)

Unit = Literal["record", "block"]
RECORD: Unit = "record"
BLOCK: Unit = "block"  # of one record or more: the number is unknown

MAX_LISTED = 10_000  # reports that are kept one by one; later ones are only counted
_SHORT = 100  # up to this many reports are written at every new one
_MAX_NUMBER = 1 << 62


@dataclass(frozen=True, slots=True)
class DamageReport:
    """One report."""

    kind: Kind
    detail: str
    time_ms: int
    queue: str = ""  # the queue key; empty: not known
    message_id: str = ""
    file: str = ""
    offset: int = 0
    count: int = 1  # messages or records that the report is about
    unit: Unit = RECORD

    def __str__(self) -> str:
        what = f"message {self.message_id}" if self.message_id else _counted(self.count, self.unit)
        queue = f" of queue {self.queue!r}" if self.queue else ""
        place = f" ({self.file} at offset {self.offset})" if self.file else ""
        return f"{what}{queue} {_VERBS[self.kind]}: {self.detail}{place}"


class DamageRegister:
    """Thread-safe."""

    def __init__(self, file: StateFile | None = None) -> None:
        self._file = file or StateFile(None, "damage.json")
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._listed: dict[tuple[object, ...], DamageReport] = {}
        self._totals: dict[Kind, int] = dict.fromkeys(
            KINDS, 0
        )  # since the directory was created; never cleared
        self._open: dict[Kind, int] = dict.fromkeys(
            KINDS, 0
        )  # since the last `clear`, including reports that are not listed
        self._changed = False
        self._saved = 0.0
        self._load()

    def report(
        self,
        kind: Kind,
        detail: str,
        now_ms: int,
        *,
        queue: str = "",
        message_id: str = "",
        file: str = "",
        offset: int = 0,
        count: int = 1,
        unit: Unit = RECORD,
        save: bool = True,
    ) -> bool:
        """Record and log damage. False: the same damage was reported before."""
        damage = DamageReport(kind, detail, now_ms, queue, message_id, file, offset, count, unit)
        key = _key(damage)
        with self._lock:
            if key in self._listed:
                return False
            self._totals[kind] += count
            self._open[kind] += count
            if len(self._listed) < MAX_LISTED:
                self._listed[key] = damage
            self._changed = True
        log.error("%s", damage)
        if save:
            self.save()
        return True

    def listed(self) -> list[DamageReport]:
        """In the order they were found."""
        with self._lock:
            return list(self._listed.values())

    def set_aside(self) -> Mapping[str, int]:
        """Queue -> messages that are set aside."""
        counts: dict[str, int] = {}
        for damage in self.listed():
            if damage.kind == SET_ASIDE:
                counts[damage.queue] = counts.get(damage.queue, 0) + damage.count
        return counts

    def reasons(self) -> tuple[str, ...]:
        """Why the health is degraded, in words that every client may read: no paths, no names of queues."""
        with self._lock:
            blocks: dict[Kind, int] = dict.fromkeys(KINDS, 0)
            for damage in self._listed.values():
                if damage.unit == BLOCK:
                    blocks[damage.kind] += damage.count
            return tuple(
                f"{_counted(n, unit)} {_VERBS[kind]}"
                for kind, total in self._open.items()
                for n, unit in ((total - blocks[kind], RECORD), (blocks[kind], BLOCK))
                if n > 0
            )

    def clear(self) -> int:
        """Clear the list after an operator has seen it: the health is good again.

        Totals stay. Returns the number of reports.
        """
        with self._lock:
            count = len(self._listed)
            self._listed.clear()
            self._open = dict.fromkeys(KINDS, 0)
            self._changed = True
        self.save(at_once=True)
        return count

    def save(self, at_once: bool = False) -> None:
        """Write the file. Never raises.

        A failed write is no error: the log has the reports, and what a queue needs is in its own records. A
        long list is written at most once a second, and by `close`: damage may come by the thousand.
        """
        with self._saving:
            with self._lock:
                if not self._changed:
                    return
                now = time.monotonic()
                if not at_once and len(self._listed) > _SHORT and now < self._saved + 1:
                    return
                self._changed = False
                self._saved = now
                state = {
                    "listed": [asdict(each) for each in self._listed.values()],
                    "totals": dict(self._totals),
                    "open": dict(self._open),
                }
            try:
                self._file.write(state)
            except OpenQError as error:
                log.warning("the list of damaged records is not saved: %s", error)
                self._changed = True

    def families(self) -> list[Family]:
        """Metrics without names of queues; see `set_aside` for those."""
        with self._lock:
            samples = [({"kind": kind}, count) for kind, count in self._totals.items()]
            degraded = any(self._open.values())
        return [
            Family(
                "openq_damaged_records_total",
                "counter",
                "Stored messages and records found damaged: set aside (no longer delivered), lost, "
                "or found where no queue needs them.",
                samples,
            ),
            Family(
                "openq_degraded",
                "gauge",
                "1: damage was found that no operator has cleared yet; the server still serves.",
                [({}, int(degraded))],
            ),
        ]

    def _load(self) -> None:
        state = self._file.read()
        if not state:
            return
        try:
            for fields in read_field(state, "listed", list):
                damage = _damage(fields)
                self._listed[_key(damage)] = damage
            for name, counts in (("totals", self._totals), ("open", self._open)):
                saved = read_field(state, name, dict)
                for kind in KINDS:
                    counts[kind] = read_number(saved, kind, _MAX_NUMBER, default=0)
        except InvalidSetting as error:
            self._file.mark_unreadable(str(error))


def _damage(fields: Any) -> DamageReport:
    kind = read_field(fields, "kind", str)
    if kind not in KINDS:
        raise InvalidSetting(f"kind is {kind[:100]!r}")
    return DamageReport(
        kind,
        read_field(fields, "detail", str),
        read_number(fields, "time_ms", _MAX_NUMBER),
        read_field(fields, "queue", str, ""),
        read_field(fields, "message_id", str, ""),
        read_field(fields, "file", str, ""),
        read_number(fields, "offset", _MAX_NUMBER, default=0),
        read_number(fields, "count", _MAX_NUMBER, default=1),
        BLOCK if read_field(fields, "unit", str, RECORD) == BLOCK else RECORD,
    )


def _key(damage: DamageReport) -> tuple[object, ...]:
    """The key by which two reports are the same.

    A message that is set aside is one report, whatever its location.
    """
    if damage.message_id:
        return damage.kind, damage.queue, damage.message_id
    return damage.kind, damage.queue, damage.file, damage.offset


def _counted(count: int, unit: Unit) -> str:
    return f"1 {unit}" if count == 1 else f"{count} {unit}s"


_VERBS: dict[Kind, str] = {SET_ASIDE: "set aside", LOST: "lost", FOUND: "found damaged"}
