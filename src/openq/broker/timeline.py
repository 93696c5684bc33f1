"""The lines of a timeline. The words are the same for every store."""

from __future__ import annotations

from datetime import UTC, datetime

from ..engine.records import MOVE_NAMES, REMOVE_NAMES, RETURN_NAMES
from ..model import Properties, split_failure
from ..trace_context import trace_id_of
from .interface import TimelineStep


def published(time_ms: int, queue: str, detail: str, properties: Properties | None) -> TimelineStep:
    trace_id = None if properties is None else trace_id_of(properties.attributes)
    return TimelineStep(time_ms, "published", queue, detail, trace_id=trace_id or "")


def delivered(time_ms: int, queue: str, consumer: str | None, until_ms: int) -> TimelineStep:
    holder = f"to {consumer}, " if consumer else ""
    until = f"leased until {_clock_time(until_ms)}" if until_ms else "leased while it is connected"
    return TimelineStep(time_ms, "delivered", queue, holder + until)


def returned(time_ms: int, queue: str, kind: int, reason: str | None, due_ms: int) -> TimelineStep:
    reason, trace = split_failure(reason)
    details = [reason] if reason else []
    if due_ms:
        details.append(f"again at {_clock_time(due_ms)}")
    return TimelineStep(time_ms, RETURN_NAMES[kind], queue, "; ".join(details), trace or "")


def extended(time_ms: int, queue: str, until_ms: int) -> TimelineStep:
    return TimelineStep(time_ms, "extended", queue, f"until {_clock_time(until_ms)}" if until_ms else "")


def moved(time_ms: int, queue: str, kind: int, reason: str | None, where: str) -> TimelineStep:
    why = MOVE_NAMES[kind]
    what = why if why in ("redriven", "moved") else "dead-lettered"
    if what == why:
        return TimelineStep(time_ms, what, queue, f"to {where}")
    reason, trace = split_failure(reason)
    suffix = f": {reason}" if reason else ""
    return TimelineStep(time_ms, what, queue, f"to {where} ({why}{suffix})", trace or "")


def removed(time_ms: int, queue: str, kind: int) -> TimelineStep:
    return TimelineStep(time_ms, "removed", queue, REMOVE_NAMES[kind])


def rescheduled(time_ms: int, queue: str, due_ms: int) -> TimelineStep:
    return TimelineStep(time_ms, "rescheduled", queue, f"to {_clock_time(due_ms)}")


def _clock_time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
