"""Data directories that are large, made by the library before a server opens them."""

from __future__ import annotations

from pathlib import Path

from openq import OpenQ

QUEUES = 10_000
MESSAGES = 1_000_000
NEEDLE = 765_432  # the message that a search looks for
_BATCH = 10_000


def many_queues(data: Path, count: int = QUEUES) -> None:
    """`team-0-queue-00000` to `team-9-queue-09999`, with a message in each thousandth."""
    with OpenQ("team-0-queue-00000", path=data, relaxed=True) as first:
        first.publish("hello")
        for number in range(1, count):
            queue = OpenQ(f"team-{number % 10}-queue-{number:05}", path=data, relaxed=True)
            if number % 1000 == 0:
                queue.publish("hello")
            queue.close()


def many_messages(data: Path, count: int = MESSAGES) -> None:
    """In the queue `orders`; the body of one has the word needle."""
    with OpenQ("orders", path=data, relaxed=True) as orders:
        for begin in range(0, count, _BATCH):
            orders.publish_many(
                {
                    "order": number,
                    "customer": f"c{number % 1000}",
                    "note": "needle" if number == NEEDLE else "",
                }
                for number in range(begin, min(begin + _BATCH, count))
            )
