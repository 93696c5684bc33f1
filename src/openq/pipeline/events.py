"""Groups of events of the table `events`, and what a purge means for the messages of its queue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

RETURNS = ("nack", "lease_expired", "release")  # a message in flight becomes ready again
REMOVALS = (
    "ack",
    "expire",
    "dead_letter",
    "redrive",
    "move",
    "cancel",
    "drop",
)  # one message leaves its queue
PURGES = ("purge", "delete")  # a whole queue is emptied
FAILURES = ("nack", "lease_expired", "dead_letter", "drop")


def purges_by_queue(purges: Iterable[Any], *columns: str) -> dict[str, list[tuple[Any, ...]]]:
    """For each queue: these columns of its purges, and whether the purge spared messages in flight.

    The column `item` of a purge says so: 1 means that only ready messages were removed.
    """
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in purges:
        spares = row["event"] == "purge" and row["item"] == 1
        found.setdefault(row["queue"], []).append((*(row[name] for name in columns), spares))
    return found
