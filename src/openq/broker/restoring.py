"""Stored messages as drafts that put them back: with their counts, failures and times."""

from __future__ import annotations

from ..model import DeliveryOptions, Draft, Entry

_NONE = DeliveryOptions()


def draft_of(entry: Entry, message_id: str | None) -> Draft:
    """A draft that restores an entry whose body is loaded. `message_id` None: the store gives a new id."""
    options = entry.options or _NONE
    due_ms = options.due_ms if options.due_ms > entry.sent_ms else 0
    return Draft(
        entry.body or b"",
        entry.encoding,
        delay_ms=None if due_ms else 0,
        due_ms=due_ms,
        priority=options.priority,
        group=options.group,
        type=options.type,
        dedup=options.dedup,
        unique=options.unique,
        ttl_ms=max(options.expires_ms - max(due_ms, entry.sent_ms), 0) if options.expires_ms else None,
        id=message_id,
        route=options.route,
        past=DeliveryOptions(
            count=options.count,
            born_ms=options.born_ms,
            reason=options.reason,
            trace=options.trace,
            deaths=options.deaths,
        ),
        properties=entry.properties,
    )
