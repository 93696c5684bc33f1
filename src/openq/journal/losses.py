"""Estimate how many messages a damaged or missing part of a journal held, from the data that is left.

A snapshot has the location of each message that was not settled when it was made. The sidecar of a segment
lists the messages published in it. Without a sidecar, the sequence numbers before and after the gap are used.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from openq.journal import index, scan
from openq.journal.content import PUBLISHING, assigned_seqs, live_locations, oldest_needed_segment
from openq.journal.disk import DiskIo
from openq.journal.format import frames, make_location
from openq.journal.inspect import (
    BLOCKS,
    DUPLICATE,
    HEADER,
    LOST_END,
    MISNAMED,
    SALT,
    TAIL,
    UNREADABLE,
    FoundBlock,
    JournalDamage,
    JournalInspection,
    TornTail,
)
from openq.journal.scan import segment_path
from openq.journal.snapshots import stream_newest

log = logging.getLogger("openq.journal")

_HARMLESS = (MISNAMED, DUPLICATE, HEADER, SALT, UNREADABLE)
_SEGMENT_SPAN = 1 << 32


def is_loss(damage: JournalDamage) -> bool:
    """Whether records are lost with it, not only a name or a header."""
    if damage.kind in _HARMLESS:
        return False
    return damage.last_block >= damage.first_block or bool(damage.messages or damage.waiting)


def counted(
    io: DiskIo, path: str, damages: Sequence[JournalDamage], events: Iterable[object]
) -> list[JournalDamage]:
    """The same damages with their message counts. `events` is another walk through the journal."""
    if not any(damage.kind not in _HARMLESS for damage in damages):
        return list(damages)
    by_gap = _by_gap(events)
    return [
        damage
        if damage.kind in _HARMLESS
        else replace(
            damage,
            messages=_by_sidecar(io, os.path.join(path, "journal"), damage, by_gap.get(_key(damage))),
            waiting=waiting_in(io, path, *_extent(damage)),
        )
        for damage in damages
    ]


def missing_text(io: DiskIo, path: str, first: int, last: int) -> str:
    """One sentence for missing segments; quick, for the start of a server."""
    what = scan.missing_text(first, last)
    waiting = waiting_in(io, path, first << 32, last + 1 << 32)
    known = [
        _published(io, os.path.join(path, "journal"), n, 0, _SEGMENT_SPAN)
        for n in range(first, last + 1)[:1000]
    ]
    messages = sum(each or 0 for each in known) if any(each is not None for each in known) else None
    about = messages_text(messages, waiting)
    return f"{what}, {about}" if about else what


def messages_text(messages: int | None, waiting: int | None) -> str:
    """The counts as text for users; empty where nothing is known."""
    facts = (
        []
        if messages is None
        else [f"at most {messages} message{'' if messages == 1 else 's'} published there"]
    )
    if waiting is not None:
        facts.append(f"{waiting} not settled at the last snapshot")
    return f"with {', '.join(facts)}" if facts else ""


def waiting_in(io: DiskIo, path: str, start_location: int, end_location: int) -> int | None:
    """The number of messages between two locations that were not settled in the newest intact snapshot."""
    newest = stream_newest(os.path.join(path, "snapshots"), io)
    if newest is None or newest[0] <= start_location:
        return None
    try:
        return sum(start_location <= location < end_location for location in live_locations(newest[1]))
    except Exception as error:  # of another version or owner: then nothing is known
        log.debug("a snapshot does not show which messages are lost: %r", error)
        return None


def oldest_live(io: DiskIo, path: str, inspection: JournalInspection) -> int | None:
    """The oldest missing segment with a message that is not settled; None if there is no such segment.

    For a journal without bounds, where a removed segment looks like a freed one: a segment that the newest
    snapshot and the records after it still need was not freed. Opening uses the same method.
    """
    if inspection.bounds is not None or not inspection.numbers or inspection.salt is None:
        return None
    newest = stream_newest(os.path.join(path, "snapshots"), io)
    first = inspection.numbers[0]
    if newest is None or newest[0] >> 32 < first:
        return None
    try:
        chunks = list(newest[1])
        if min(live_locations(chunks), default=first << 32) >> 32 >= first:
            return None
        # A message may have been copied to the end, or settled, after the snapshot.
        oldest = oldest_needed_segment(chunks, _records_from(newest[0], inspection))
    except Exception as error:  # of another version or owner: then nothing is known
        log.debug("a snapshot does not show which messages are lost: %r", error)
        return None
    return oldest if 0 < oldest < first else None


def _records_from(start_location: int, inspection: JournalInspection) -> Iterator[tuple[int, bytes]]:
    for event in inspection.walk():
        if isinstance(event, FoundBlock) and event.block.count:
            block = event.block
            base = make_location(event.segment, block.base)
            for location, record in frames(block.data, block.pos, block.end, base):
                if location >= start_location:
                    yield location, record


def _extent(damage: JournalDamage) -> tuple[int, int]:
    """The locations of the lost records. A file that was cut may have held more than is left of it."""
    start = damage.segment << 32
    if damage.kind in (TAIL, LOST_END):
        return start + damage.offset, start + _SEGMENT_SPAN
    if damage.kind == BLOCKS:
        return start + damage.offset, start + damage.offset + damage.size
    return start, start + _SEGMENT_SPAN


def _by_sidecar(io: DiskIo, directory: str, damage: JournalDamage, otherwise: int | None) -> int | None:
    start_location, end_location = _extent(damage)
    low = start_location & _SEGMENT_SPAN - 1
    found = _published(io, directory, damage.segment, low, low + end_location - start_location)
    return otherwise if found is None else found


def _published(io: DiskIo, directory: str, number: int, start: int, end: int) -> int | None:
    try:
        rows = index.load(index.index_path(segment_path(directory, number)), io)
    except (OSError, ValueError):
        return None
    kinds, offsets = rows.kinds.tolist(), rows.offsets.tolist()
    return sum(
        kind in PUBLISHING and start <= offset < end for kind, offset in zip(kinds, offsets, strict=True)
    )


def _key(damage: JournalDamage) -> tuple[str, int, int]:
    return damage.kind, damage.segment, damage.offset


def _by_gap(events: Iterable[object]) -> dict[tuple[str, int, int], int]:
    """Counts from the sequence numbers on both sides. Damages in a row share one gap, counted for the first
    of them."""
    found: dict[tuple[str, int, int], int] = {}
    following: int | None = 1  # the next sequence; None: unknown
    open_gap: list[JournalDamage] = []
    first = True
    for event in events:
        if isinstance(event, JournalDamage):
            if event.kind not in _HARMLESS:
                if first and event.segment > 1:
                    following = None
                open_gap.append(event)
            continue
        if isinstance(event, TornTail) or not isinstance(event, FoundBlock) or not event.block.count:
            continue
        if first and event.segment > 1 and not open_gap:
            following = None
        first = False
        block = event.block
        for _, record in frames(block.data, block.pos, block.end, block.base):
            try:
                made = assigned_seqs(record)
            except Exception:
                continue
            if made is None:
                continue
            if open_gap and following is not None:
                found[_key(open_gap[0])] = max(0, made[0] - following)
                found.update({_key(damage): 0 for damage in open_gap[1:]})
            open_gap = []
            following = max(following or 0, made[1])
    return found
