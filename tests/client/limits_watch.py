"""Handlers that check for themselves that no limit is exceeded, whatever store and however many brokers."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from openq import Consumer, Message
from tests.waiting import until

KEYS = ("a", "b", "c", "big")
LIMITS: dict[str, Any] = {
    "concurrency": 5,
    "key_concurrency": 2,
    "key_limits": {"big": {"concurrency": 3}},
}
MAX_IN_FLIGHT = {"big": 3}


def check_limits_hold(queues: Sequence[Any], each: int) -> None:
    """Consumers of all these queues (one queue, several brokers) never hold more than the limits allow."""
    lock = threading.Lock()
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: list[str] = []
    wrong: list[str] = []

    def handle(message: Message) -> None:
        key = message.body["key"]
        with lock:
            now[key] += 1
            most[key] = max(most[key], now[key])
            if now[key] > MAX_IN_FLIGHT.get(key, 2) or now.total() > LIMITS["concurrency"]:
                wrong.append(f"{dict(now)}")
        with lock:
            now[key] -= 1
            done.append(message.id)

    for number in range(each):
        for key in KEYS:
            queues[number % len(queues)].publish({"key": key}, group=key)
    consumers = [Consumer(queue, handle, idle_timeout=None) for queue in queues for _ in range(6)]
    for consumer in consumers:
        consumer.start()
    until(lambda: len(done) >= each * len(KEYS), "all are handled")
    for consumer in consumers:
        consumer.stop()
    for consumer in consumers:
        consumer.join()
    assert not wrong
    assert len(set(done)) == len(done) == each * len(KEYS)
