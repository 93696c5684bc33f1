"""What a data directory holds, read without opening it: its journal is replayed in memory."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from ..engine.engine import Engine
from ..engine.records import decode
from ..engine.replay import apply
from ..engine.snapshot import decode as load_snapshot
from ..journal import repair
from ..journal.disk import DiskIo
from ..journal.snapshots import load_newest
from ..local.audit_file import FileAudit


@dataclass(frozen=True, slots=True)
class Summary:
    queues: int
    messages: int
    users: int
    keys: int  # of key-values
    audit_records: int  # the number of the newest


def summarize(path: str) -> Summary:
    """Raises JournalDamaged if the journal cannot be replayed."""
    engine = Engine("")
    start_location = 0
    newest = load_newest(os.path.join(path, "snapshots"), DiskIo())
    if newest is not None:
        start_location = newest[0]
        load_snapshot(newest[1], engine)
    for location, record in repair.dump(path, start_location):
        apply(engine, decode(record), location)
    queues = engine.queues.values()
    newest_record = FileAudit(path).newest()
    return Summary(
        len(queues),
        sum(each.ready_count + len(each.delayed) + len(each.leases) for each in queues),
        _users(path),
        engine.key_values.count,
        0 if newest_record is None else newest_record.number,
    )


def _users(path: str) -> int:
    try:
        with open(os.path.join(path, "users.json"), "rb") as file:
            return len(json.load(file).get("users", ()))
    except (OSError, ValueError, AttributeError):
        return 0
