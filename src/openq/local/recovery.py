"""Recovery: the engine's state from the newest snapshot and the journal records after it."""

from __future__ import annotations

import logging
import os
import time
from itertools import groupby
from typing import NamedTuple

from ..broker.damage import FOUND, LOST, DamageRegister
from ..engine.engine import Engine
from ..engine.records import decode
from ..engine.replay import apply
from ..engine.snapshot import decode as load_snapshot
from ..engine.snapshot import live_locations, oldest_segment
from ..errors import JournalDamaged, OutOfRoom
from ..journal.file_journal import Journal
from ..journal.snapshots import list_all as list_snapshots
from ..journal.snapshots import load_newest

log = logging.getLogger("openq")

_RETRY_MS = 200


class RecoveredState(NamedTuple):
    engine: Engine
    latest_ms: int  # the time of the newest record
    is_empty: bool  # neither a snapshot nor a record was found
    skipped: list[str]  # snapshots that cannot be read
    lost: int  # messages that a snapshot names in a segment that is gone
    unreadable: list[tuple[str, str, JournalDamaged]]  # bucket and key of values that cannot be read
    is_partial: bool  # deliveries before the oldest segment are unknown


def recover(journal: Journal, engine: Engine) -> RecoveredState:
    """Fill an empty engine. If the snapshot does not fit the journal, all records are read instead."""
    directory = os.path.join(journal.path, "snapshots")
    newest = load_newest(directory, journal.io)
    known_location = 0 if newest is None else newest[0]
    skipped = [path for at, path in list_snapshots(directory, journal.io) if at > known_location]
    first = journal.segments()[0].number
    if newest is not None and newest[0] >> 32 < first:
        # The newest snapshot is damaged and this one is older. The remaining journal is enough.
        log.warning("the snapshot is older than the journal; all records are read again")
        newest = None
    lost = 0
    latest_ms, count = _replay(journal, engine, newest)
    if newest is not None and oldest_segment(engine) < first:
        # The copies of messages whose old segment was freed were in a damaged end of the journal.
        log.warning("the snapshot names messages that are gone; all records are read again")
        lost = sum(location >> 32 < first for location in live_locations(newest[1]))
        engine = Engine(engine.id_prefix, engine.seed)
        newest = None
        latest_ms, count = _replay(journal, engine, None)
    unreadable = _load_values(journal, engine)
    engine.woken.clear()
    engine.zero_ttl.clear()
    for number in engine.orphans:
        name = engine.numbered[number].name
        log.warning("the name of queue %d is lost to damage; its messages are in %r", number, name)
    is_empty, is_partial = not count and newest is None, newest is None and first > 1
    return RecoveredState(engine, latest_ms, is_empty, skipped, lost, unreadable, is_partial)


def _load_values(journal: Journal, engine: Engine) -> list[tuple[str, str, JournalDamaged]]:
    """Read the values that only the snapshot names. Returns those that are damaged; they are dropped."""
    damaged: list[tuple[str, str, JournalDamaged]] = []
    missing = sorted(engine.key_values.unloaded(), key=lambda each: each[2].location)
    for location, same_record in groupby(missing, key=lambda each: each[2].location):
        values: dict[str, bytes] = {}
        failure: JournalDamaged | None = None
        try:
            record = decode(journal.read(location))
            values = {row[0]: row[4] for row in record[5]}
        except JournalDamaged as error:
            failure = error
        for bucket, key, stored in same_record:
            stored.value = values.get(key)
            if stored.value is None:
                failure = failure or JournalDamaged(journal.path, location, f"no value of key {key!r}")
                damaged.append((bucket, key, failure))
                engine.key_values.drop_unreadable(bucket, key)
    return damaged


def _replay(journal: Journal, engine: Engine, newest: tuple[int, list[bytes]] | None) -> tuple[int, int]:
    """Returns the latest time, and the number of records read."""
    start_location = latest_ms = count = 0
    if newest is not None:
        start_location, chunks = newest
        latest_ms = load_snapshot(chunks, engine)
    started = time.monotonic()
    for location, data in journal.replay(start_location):
        record = decode(data)
        apply(engine, record, location)
        latest_ms = max(latest_ms, record[1])
        count += 1
        if count % 1_000_000 == 0:
            log.info("recovered %d records in %.1f s", count, time.monotonic() - started)
    return latest_ms, count


def report_findings(register: DamageRegister, journal: Journal, found: RecoveredState, now_ms: int) -> None:
    """Enter the losses that recovery found in the damage register."""
    for path in found.skipped:
        detail = "this snapshot cannot be read; the records were read instead"
        register.report(FOUND, detail, now_ms, file=path)
    if found.lost:
        detail = "a snapshot names messages in a segment that is not there any more"
        register.report(LOST, detail, now_ms, file=journal.segments()[0].path, count=found.lost)
    for bucket, key, error in found.unreadable:
        detail = f"the value of key {key!r} in bucket {bucket!r} cannot be read: {error.detail}"
        register.report(LOST, detail, now_ms, file=error.file, offset=error.offset, count=1)
    for number in found.engine.orphans:
        name = found.engine.numbered[number].name
        detail = f"the name of queue {number} is lost to damage; its messages are in {name!r}"
        register.report(FOUND, detail, now_ms, queue=name)


def drain_limits(engine: Engine, now_ms: int) -> None:
    """Start with empty buckets: the last deliveries before a crash may be unrecorded."""
    for queue in engine.queues.values():
        limited = queue.limited_order
        if limited is not None:
            limited.limits.drain(limited.waiting_groups(), now_ms)
            limited.offer_all()


def release_bound_leases(engine: Engine, now_ms: int) -> None:
    """End the leases without a deadline: they were bound to connections of the process that died."""
    for queue in engine.queues.values():
        for delivery in list(queue.leases.values()):
            if not delivery.until_ms:
                # Counted: a message that kills its consumer must be dead-lettered eventually.
                seq = delivery.entry.seq
                try:
                    engine.nack(queue, seq, delivery.number, now_ms, 0, "its holder went away")
                except OutOfRoom:
                    # Opening must not fail because of it: the lease gets a deadline instead.
                    engine.set_deadline(queue, delivery, now_ms + _RETRY_MS, now_ms)
