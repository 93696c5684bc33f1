"""Receiving with a filter: the first ready messages that match, within the limits and the order of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import Entry, MessageFilter
from .queue import QueueState

if TYPE_CHECKING:
    from .engine import Engine


def select(engine: Engine, queue: QueueState, wanted: MessageFilter, limit: int, now_ms: int) -> list[Entry]:
    """Take the first messages that match; the last one comes first. Others are skipped."""
    found: list[Entry] = []
    held: set[str | None] = set()
    limits = queue.limits
    left: dict[str | None, int] = {}  # how many more the limits of a key allow
    if limits is not None:
        limit = min(limit, limits.allowance(now_ms))
    for entry in queue.ready:
        if len(found) == limit:
            break
        group = entry.group
        if limits is not None:
            if group not in left:
                left[group] = limits.key_allowance(group, now_ms)
            if not left[group]:
                held.add(group)
                continue
        if queue.settings.fifo and (
            group in held or queue.ready.is_held(entry) or entry.seq in queue.delayed  # type: ignore[union-attr]
        ):
            held.add(group)
        elif wanted.has_type(entry.options) and (
            not wanted.attributes or _has_attributes(engine, entry, wanted)
        ):
            found.append(entry)
            if limits is not None:
                left[group] -= 1
        else:
            held.add(group)  # later messages of a FIFO group must not overtake this one
    taken = [queue.ready.take(entry.seq, now_ms) for entry in found]
    return [entry for entry in reversed(taken) if entry is not None]


def _has_attributes(engine: Engine, entry: Entry, wanted: MessageFilter) -> bool:
    if not wanted.attributes:
        return True
    load = engine.load_properties
    if entry.properties is not None or entry.body is not None or load is None:
        return wanted.has_attributes(entry.properties)
    verdict = wanted.verdicts.get(entry.location)
    if verdict is None:  # one that was not read ahead
        verdict = wanted.has_attributes(load(entry.location))
        wanted.keep_verdict(entry.location, verdict)
    return verdict
