"""Receiving with a filter: the first ready messages that match, within the limits and the order of groups.

A consumer that waits for rare messages beside a long backlog is served again after every publish. So a filter
remembers how far it has looked in vain, and looks at what was appended since. This holds where all messages
are in one list; with priorities, groups or limits every receive looks at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..model import Entry, MessageFilter
from .queue import QueueState
from .ready import StandardOrder

if TYPE_CHECKING:
    from .engine import Engine


def select(engine: Engine, queue: QueueState, wanted: MessageFilter, limit: int, now_ms: int) -> list[Entry]:
    """Take the first messages that match, in the order of the queue; others are skipped. Returned in reverse.

    The groups of a standard queue are gone through in the order of their turns, but a match that is not the
    next message of the queue is taken without ending a turn: the next receive begins with the same group.
    """
    found: list[Entry] = []
    held: set[str | None] = set()
    limits = queue.limits
    left: dict[str | None, int] = {}  # how many more the limits of a key allow
    if limits is not None:
        limit = min(limit, limits.allowance(now_ms))
    ready = queue.ready
    only_list = ready.only_list() if limits is None and isinstance(ready, StandardOrder) else None
    candidates: Iterable[Entry] = ready
    looked = 0  # the messages of a list up to this sequence: it is in this order
    if only_list is not None:
        version, until = wanted.looked.get(queue.number, (0, 0))
        if version == only_list.version:
            candidates, looked = only_list.appended_after(until), until
    for entry in candidates:
        if len(found) == limit:
            break
        looked = entry.seq
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
        elif wanted.has_type(entry.options) and _has_attributes(engine, entry, wanted):
            found.append(entry)
            if limits is not None:
                left[group] -= 1
        else:
            held.add(group)  # later messages of a FIFO group must not overtake this one
    if only_list is not None:
        wanted.looked[queue.number] = only_list.version, looked
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
