"""Leases that are bound to a connection end with the process that held it, whichever process notices."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from openq.broker.waiters import Waiter
from openq.model import NO_DEADLINE, Delivery, Draft, QueueSettings
from openq.redis.broker import RedisBroker
from tests.redis.servers import Server

HOLDER = """
import sys, time
from openq.model import NO_DEADLINE
from openq.redis.broker import RedisBroker

broker = RedisBroker(sys.argv[1], profile="fast")
[delivery] = broker.receive("work", 1, NO_DEADLINE, "holder")
print(delivery.entry.seq, delivery.number, flush=True)
for line in sys.stdin:
    [error] = broker.ack("work", [(delivery.entry.seq, delivery.number)])
    print(type(error).__name__, flush=True)
"""


@contextmanager
def _holder(url: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def _next(broker: RedisBroker, queue: str, seconds: float) -> list[Delivery]:
    """As a consumer waits: in line, until something comes."""
    served: list[Delivery] = []
    came = threading.Event()

    def deliver(deliveries: list[Delivery]) -> None:
        served.extend(deliveries)
        came.set()

    found = broker.add_waiter(queue, Waiter(1, 60_000, "next", None, deliver))
    if found is not None:
        return found
    came.wait(seconds)
    return served


def test_what_a_killed_process_held_comes_to_who_waits(redis_server: Server) -> None:
    url = f"{redis_server.url}?heartbeat=1"
    broker = RedisBroker(url, profile="fast")
    broker.declare("work", QueueSettings())
    broker.publish("work", Draft(b"task"))
    with _holder(url) as holder:
        assert broker.receive("work") == []
        time.sleep(2.5)  # longer than a heartbeat lasts: it renews what it holds
        assert broker.receive("work") == []

        holder.kill()
        holder.wait()
        [delivery] = _next(broker, "work", 20)

    assert delivery.entry.body == b"task"
    assert delivery.count == 2  # counted: the message may have killed its holder
    broker.close()


def test_a_frozen_process_cannot_ack_what_it_no_longer_holds(redis_server: Server) -> None:
    url = f"{redis_server.url}?heartbeat=1"
    broker = RedisBroker(url, profile="fast")
    broker.declare("work", QueueSettings())
    broker.publish("work", Draft(b"task"))
    with _holder(url) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.send_signal(signal.SIGSTOP)
        [delivery] = _next(broker, "work", 20)

        holder.send_signal(signal.SIGCONT)
        holder.stdin.write("ack\n")
        holder.stdin.flush()

        assert holder.stdout.readline().strip() == "VisibilityTimeoutExpired"
    assert broker.ack("work", [(delivery.entry.seq, delivery.number)]) == [None]
    broker.close()


def test_bound_leases_of_many_messages_return_together(redis_server: Server) -> None:
    url = f"{redis_server.url}?heartbeat=1"
    first, second = RedisBroker(url, profile="fast"), RedisBroker(url, profile="fast")
    first.declare("work", QueueSettings())
    first.publish_bodies("work", [b"%d" % n for n in range(10)], 0)
    held = first.receive("work", 10, NO_DEADLINE, "me")
    assert first.ack("work", [(held[0].entry.seq, held[0].number)]) == [None]

    first.close()
    [delivery] = _next(second, "work", 20)

    assert delivery.entry.body == b"1"
    assert sorted(each.entry.body or b"" for each in second.receive("work", 10)) == [
        b"%d" % n for n in range(2, 10)
    ]
    second.close()
