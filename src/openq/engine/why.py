"""Why a message is not being delivered. The words are the same whatever store keeps the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..model import Delivery, Entry

MOST_AHEAD = 10_000  # so many are counted


@dataclass(frozen=True, slots=True)
class Why:
    """Why a message is not being delivered, for programs (`code`) and for people (`text`)."""

    code: str
    text: str


class Place(NamedTuple):
    """Where a message stands that is neither lent nor delayed itself."""

    group_held: bool
    group_delayed: bool
    ahead: int  # not more than `MOST_AHEAD`


def why_away(entry: Entry, lease: Delivery | None, is_delayed: bool, now_ms: int) -> Why | None:
    """Of a message that is lent or not due yet; None: it waits."""
    if lease is not None:
        holder = lease.consumer or "a consumer"
        if not lease.until_ms:
            return Why("in_flight", f"delivery {lease.count} is with {holder}, for as long as it lives")
        left = (lease.until_ms - now_ms) / 1000
        return Why("in_flight", f"delivery {lease.count} is with {holder} for another {left:.3f} s")
    extra = entry.extra
    if is_delayed and extra is not None:
        left = (extra.due_ms - now_ms) / 1000
        if extra.count:
            reason = f" ({extra.reason})" if extra.reason else ""
            often = "once" if extra.count == 1 else f"{extra.count} times"
            return Why("retry", f"failed {often}{reason}; tried again in {left:.3f} s")
        return Why("delayed", f"due in {left:.3f} s")
    return None


def why_paused(queue: str) -> Why:
    return Why("paused", f"queue {queue!r} is paused; resume it to hand out messages")


def why_waiting(entry: Entry, place: Place, consumers: int) -> Why:
    if place.group_held:
        return Why("group_held", f"an earlier message of group {entry.group!r} is with a consumer")
    if place.group_delayed:
        return Why("group_delayed", f"an earlier message of group {entry.group!r} is not due yet")
    many = "at least " if place.ahead >= MOST_AHEAD else ""
    waiting = f"{many}{place.ahead} messages are ahead of it" if place.ahead else "it is next"
    nobody = "" if consumers else "; no consumer is waiting"
    return Why("ready", f"ready: {waiting}{nobody}")
