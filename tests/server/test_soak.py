"""The short form of `make soak`: after load by each protocol, nothing of it is left in the server.

Counts objects rather than bytes: what a connection leaves behind is found by its type, whatever the allocator
does.
"""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from openq.config import Config
from openq.local.broker import LocalBroker
from tests.server.in_process import InProcessServer, in_process_server
from tests.serving import free_port
from tests.soak import CLIENTS_OF, Client, drain
from tests.waiting import until

ROUNDS = 4
CONNECTIONS = 6
# The journal's own: a segment more or less is no leak.
ALLOWED = {"SegmentFile", "SpareSegment", "_OpenSegment", "CachedSpan", "SegmentInfo"}
# Of an index that is being made of a full segment, in the background.
ALLOWED |= {"WorkRests", "SegmentScan", "BlockHead", "Block"}
# Of the history of counts and of the alerts, for each queue, made when they are first evaluated. Alerts are
# stored in a bucket.
ALLOWED |= {"QueueCounts", "QueueTimes", "_Buckets", "_Queue", "Track", "Alert", "Bucket", "StoredValue"}


def work(kind: type[Client], ports: tuple[int, int]) -> None:
    for number in range(CONNECTIONS):
        client = kind(ports, number)
        client.open()
        for _ in range(ROUNDS):
            client.round()
        if number % 2:
            client.leave_half()
        client.close()
    drain(kind, ports, CONNECTIONS)


def counted() -> Counter[str]:
    """Objects of ours by their type. Without a collection: nothing may need one to go away."""
    kinds = (type(each) for each in gc.get_objects())
    names = (f"{kind.__module__}.{kind.__name__}" for kind in kinds)
    return Counter(name for name in names if name.startswith("openq."))


def is_quiet(running: InProcessServer) -> bool:
    server = running.server
    return not (
        server.listener.connections
        or server.amqp.open_connections
        or server.amqp.closing_connections
        or server.context.long_polls
        or server.context.buffers.held
    )


@pytest.mark.parametrize("protocol", ["sqs", "rest", "amqp"])
def test_nothing_is_left_of_clients_that_are_gone(protocol: str, tmp_path: Path) -> None:
    amqp_port = free_port()
    config = Config(memory=True, drain_timeout_s=1, amqp_port=amqp_port)
    with in_process_server(LocalBroker(str(tmp_path / "d")), config) as running:
        ports = running.port, amqp_port
        kind = CLIENTS_OF[protocol]
        work(kind, ports)
        until(lambda: is_quiet(running))
        gc.collect()
        gc.disable()
        try:
            before = counted()
            work(kind, ports)
            until(lambda: is_quiet(running))

            def left() -> dict[str, int]:
                more = counted() - before
                return {name: n for name, n in more.items() if name.rpartition(".")[2] not in ALLOWED}

            with suppress(AssertionError):  # the next line says what is left
                until(lambda: sum(left().values()) <= 3)  # an answer may be on its way out
            assert sum(left().values()) <= 3, left()
        finally:
            gc.enable()
