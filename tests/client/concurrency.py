"""Several threads and processes at one queue: what holds wherever the queue is."""

import os
import subprocess
import sys
import threading
from collections import Counter

from openq import Closed, Consumer, Message, OpenQ, Producer
from tests.client.helpers import ended, in_thread, until_waiting
from tests.waiting import until


def check_each_is_done_once(queue: OpenQ, each: int = 100) -> None:
    """Four producers of so many messages, and four consumers."""
    done: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(message: Message) -> None:
        with lock:
            done[message.body] += 1

    producers = [Producer(queue, source=[f"{p}-{i}" for i in range(each)]) for p in range(4)]
    consumers = [Consumer(queue, handle, idle_timeout=None, batch=1 + c) for c in range(4)]
    for thread in (*producers, *consumers):
        thread.start()

    assert ended(*producers)
    until(lambda: sum(consumer.processed for consumer in consumers) >= 4 * each, "all are processed")
    for consumer in consumers:
        consumer.stop()
    assert ended(*consumers)
    assert done == {f"{p}-{i}": 1 for p in range(4) for i in range(each)}
    assert queue.messages == []
    assert sum(consumer.processed for consumer in consumers) == 4 * each


def received_while_closing(mine: OpenQ, other: OpenQ) -> bool:
    """Closes a queue that somebody waits at, in the moment in which another publishes to it."""
    results: list[Message | None] = []

    def wait() -> None:
        try:
            results.append(mine.receive(timeout=None))
        except Closed:
            results.append(None)

    waiting = in_thread(wait)
    until_waiting(other, 1)
    publishing = in_thread(lambda: other.publish("x"))
    mine.close()
    assert ended(waiting, publishing)
    return results != [None]


def environment(**variables: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")}
    return {**clean, **variables}


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(**variables),
    )
