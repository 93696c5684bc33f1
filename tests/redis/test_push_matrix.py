"""Every protocol by every way of push, on Redis: the matrices of tests/push, tests/events and tests/webhooks.

Messages are published at one server and pushed by another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.events import test_matrix as events
from tests.http_endpoint import Endpoint, serve_endpoint
from tests.protocol_clients import Protocols, connected
from tests.push import test_matrix as stream
from tests.push.streams import Stream, opened
from tests.redis.servers import single
from tests.redis.shared_tests import collect_tests
from tests.serving import Served, free_port
from tests.webhooks import test_protocols as webhooks

globals().update(collect_tests(stream, "protocols"))
globals().update(
    collect_tests(events, "protocols", without=("test_node_reads_and_resumes", "test_curl_follows"))
)
globals().update(collect_tests(webhooks, "protocols"))


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Served, Served, int]]:
    """Two servers, and the AMQP port of the first."""
    with single() as redis, ExitStack() as stack:
        flags = ["--store", redis.url, "--profile", "fast", "--webhook-allow", "127.0.0.1"]
        amqp_port = free_port()
        first = Served([*flags, "--amqp-port", str(amqp_port)], free_port())
        second = Served(flags, free_port())
        for server in (first, second):
            stack.callback(server.stop)
            server.wait()
        yield first, second, amqp_port


@pytest.fixture(scope="module")
def protocols(servers: tuple[Served, Served, int]) -> Iterator[Protocols]:
    """The clients use the first server; events are read at the second."""
    first, second, amqp_port = servers
    with connected(first, amqp_port) as found:
        yield replace(found, server=second)


@pytest.fixture(scope="module")
def socket(servers: tuple[Served, Served, int]) -> Iterator[Stream]:
    with opened(servers[1].url) as found:
        yield found


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve_endpoint() as found:
        yield found
