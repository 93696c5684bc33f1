"""Rules and constants that the parts of the engine share: ids, dead-letter routes, deduplication keys."""

from __future__ import annotations

from ..model import (
    MAX_DEAD_LETTER_EVENTS,
    DeadLetterEvent,
    DeliveryOptions,
    Entry,
    QueueSettings,
    settings_difference,
    split_failure,
)
from ..names import qualified_name, split_name
from .queue import QueueState
from .records import (
    DEAD_LETTER_NAMES,
    DEAD_REJECTED,
)

REJECTING_OVERFLOWS = ("reject", "reject-dead-letter")  # overflow policies that reject new messages

MAX_TIME_MS = 1 << 61


def own_seq(id_prefix: str, message_id: str) -> int:
    """The sequence that an id was made from, whatever queue the message is in now; 0: not made here."""
    if message_id.startswith(id_prefix) and len(message_id) == len(id_prefix) + 12:
        try:
            return int(message_id[-12:], 16)
        except ValueError:
            return 0
    return 0


def with_options(entry: Entry, options: DeliveryOptions) -> Entry:
    """The same message with other delivery options. A body that is on disk is not kept in memory too."""
    if entry.location:
        return Entry(
            entry.seq, entry.sent_ms, entry.location, entry.size, entry.encoding, None, None, options
        )
    return entry.with_options(options)


def _own_route(queue: QueueState) -> tuple[str, str]:
    """The route of a message published directly to a queue: default exchange and the queue's name."""
    account, name = split_name(queue.name)
    return qualified_name(account, ""), name


def dead_letter_route(queue: QueueState, options: DeliveryOptions | None) -> tuple[str, str] | None:
    """Exchange and key for dead letters of this queue; None: directly to the queue."""
    settings = queue.settings
    if settings.dead_letter_exchange is None:
        return None
    key = settings.dead_letter_key
    if key is None:
        route = None if options is None else options.route
        key = (route or _own_route(queue))[1]
    return settings.dead_letter_exchange, key


def route_before(queue: QueueState, death: DeadLetterEvent) -> tuple[str, str] | None:
    """The route by which a message came to this queue before it was dead-lettered there."""
    route = (death.exchange, death.key)
    return None if route in (("", ""), _own_route(queue)) else route


def add_dead_letter_event(
    queue: QueueState, options: DeliveryOptions, why: int, reason: str | None, now_ms: int
) -> tuple[DeadLetterEvent, ...]:
    """The dead-letter events with one more. An earlier one of this queue and kind is merged into it."""
    kind = DEAD_LETTER_NAMES[why]
    times, first_ms = 1, now_ms
    others = []
    for death in options.deaths:
        if death.queue == queue.name and death.kind == kind:
            times = death.times + 1
            first_ms = death.first_ms or death.time_ms
        else:
            others.append(death)
    exchange, key = options.route or _own_route(queue)
    new = DeadLetterEvent(
        queue.name,
        split_failure(reason)[0] or kind,
        now_ms,
        options.count,
        kind,
        exchange,
        key,
        times,
        first_ms,
    )
    return (new, *others)[:MAX_DEAD_LETTER_EVENTS]


def would_loop(queue: QueueState, options: DeliveryOptions | None, target: QueueState, why: int) -> bool:
    """Whether a message would return to a queue that dead-lettered it, without a rejection in between.

    Such a loop runs by itself for ever. A loop with a rejection in it is how a consumer retries later.
    """
    if why == DEAD_REJECTED:
        return False
    if target is queue:
        return True
    kind = DEAD_LETTER_NAMES[why]
    for death in () if options is None else options.deaths:
        if death.queue == queue.name and death.kind == kind:
            continue  # is merged into the event that is happening now
        if death.kind in ("", DEAD_LETTER_NAMES[DEAD_REJECTED]):
            return False  # an unknown kind may have been a rejection: a loop is better than a loss
        if death.queue == target.name:
            return True
    return False


def dedup_key(queue: QueueState, options: DeliveryOptions) -> str:
    if queue.settings.dedup_per_group:
        return f"{options.group or ''}\x00{options.dedup}"
    return options.dedup or ""


def settings_differences(old: QueueSettings, new: QueueSettings) -> str:
    return ", ".join(
        settings_difference(name, getattr(old, name), getattr(new, name))
        for name in QueueSettings.__slots__
        if getattr(old, name) != getattr(new, name)
    )


def is_expired(entry: Entry, horizon_ms: int, now_ms: int) -> bool:
    """Past its own TTL or the queue's retention, which counts from when it was due."""
    options = entry.options
    if options is None:
        return entry.sent_ms <= horizon_ms
    if 0 < options.expires_ms <= now_ms:
        return True
    return max(entry.sent_ms, options.due_ms) <= horizon_ms


def is_zero_ttl(entry: Entry, horizon_ms: int, now_ms: int) -> bool:
    """Whether it expires now, at the moment it becomes available: a waiting consumer may still get it."""
    options = entry.options
    if options is None or options.count or options.expires_ms != now_ms:
        return False
    return max(entry.sent_ms, options.due_ms) == now_ms > horizon_ms
