"""Why a message is not being delivered. The words are the same for every store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ..model import Delivery, Entry

MAX_AHEAD = 10_000  # counting stops here
NO_CONSUMER = "; no consumer is waiting for it"  # a server knows more of them, see `server/why_consumers.py`


@dataclass(frozen=True, slots=True)
class Why:
    """Why a message is not being delivered, for programs (`code`) and for people (`text`)."""

    code: str
    text: str
    lacks_consumer: bool = field(default=False, repr=False)  # the text ends with `NO_CONSUMER`


class QueuePosition(NamedTuple):
    """The position of a message that is neither in flight nor delayed."""

    group_held: bool
    group_delayed: bool
    ahead: int  # at most `MAX_AHEAD`


def why_unavailable(entry: Entry, lease: Delivery | None, is_delayed: bool, now_ms: int) -> Why | None:
    """For a message that is in flight or not due yet; None: it is ready."""
    if lease is not None:
        holder = lease.consumer or "a consumer"
        if not lease.until_ms:
            return Why("in_flight", f"delivery {lease.count} is with {holder}, for as long as it lives")
        left = (lease.until_ms - now_ms) / 1000
        return Why("in_flight", f"delivery {lease.count} is with {holder} for another {left:.3f} s")
    options = entry.options
    if is_delayed and options is not None:
        left = (options.due_ms - now_ms) / 1000
        if options.count:
            reason = f" ({options.reason})" if options.reason else ""
            often = "once" if options.count == 1 else f"{options.count} times"
            return Why("retry", f"failed {often}{reason}; tried again in {left:.3f} s")
        return Why("delayed", f"due in {left:.3f} s")
    return None


def why_paused(queue: str) -> Why:
    return Why("paused", f"queue {queue!r} is paused; resume it to hand out messages")


def why_waiting(entry: Entry, position: QueuePosition, consumers: int) -> Why:
    if position.group_held:
        return Why("group_held", f"an earlier message of group {entry.group!r} is with a consumer")
    if position.group_delayed:
        return Why("group_delayed", f"an earlier message of group {entry.group!r} is not due yet")
    many = "at least " if position.ahead >= MAX_AHEAD else ""
    if not position.ahead:
        waiting = "it is next"
    elif position.ahead == 1:
        waiting = "1 message is ahead of it"
    else:
        waiting = f"{many}{position.ahead} messages are ahead of it"
    return Why("ready", f"ready: {waiting}{'' if consumers else NO_CONSUMER}", lacks_consumer=not consumers)
