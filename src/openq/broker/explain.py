"""Where a message is that is no longer in the queue it was published to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

from ..engine.why import Why
from ..errors import MessageNotFoundError, OpenQError
from ..model import Entry, QueueSettings
from ..names import split_name
from .interface import TimelineStep

_MAX_QUEUES = 8  # length of a chain of dead-letter queues


class MessageSource(Protocol):
    """What this module needs from a store."""

    def settings(self, queue: str) -> QueueSettings: ...
    def find(self, queue: str, message_id: str) -> Entry: ...
    def timeline(self, queue: str, message_id: str) -> Sequence[TimelineStep]: ...


def why_elsewhere(source: MessageSource, queue: str, message_id: str) -> Why | None:
    """Why a message that is not in this queue is not delivered there; None: the message is unknown."""
    found = _dead_letter(source, queue, message_id)
    if found is not None:
        return found
    try:
        steps = source.timeline(queue, message_id)
    except OpenQError:
        return None  # history is not kept, or cannot be read now
    for step in reversed(steps):
        if step.what in ("dead-lettered", "moved"):
            code = "dead_lettered" if step.what == "dead-lettered" else "moved"
            return Why(code, f"{step.what} {step.detail} at {_time_text(step.time_ms)}")
        if step.what == "acked":
            return None
    return None


def _dead_letter(source: MessageSource, queue: str, message_id: str) -> Why | None:
    """Look in the queue's dead-letter queue, then in that queue's own, and so on."""
    name: str | None = queue
    seen = {queue}
    for _ in range(_MAX_QUEUES):
        try:
            name = source.settings(name).dead_letter if name is not None else None
            if name is None or name in seen:
                return None
            seen.add(name)
            entry = source.find(name, message_id)
        except MessageNotFoundError:
            continue
        except OpenQError:
            return None  # that queue was deleted
        return _describe(entry, name)
    return None


def _describe(entry: Entry, name: str) -> Why:
    text = f"dead-lettered: it is in queue {split_name(name)[1]!r}"
    options = entry.options
    if options is not None and options.deaths:
        death = options.deaths[0]
        times = "1 delivery" if death.count == 1 else f"{death.count} deliveries"
        text += f" since {_time_text(death.time_ms)}, after {times} ({options.reason or death.reason})"
    return Why("dead_lettered", f"{text}; redrive it to have it delivered again")


def _time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
