"""A server that the tests of commands share, and a queue for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cli.helpers import Cli
from tests.serving import Served, served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def cli(server: Served, request: pytest.FixtureRequest) -> Cli:
    return Cli(server.url, f"{request.node.name}-{os.urandom(3).hex()}")


@pytest.fixture
def q(cli: Cli) -> str:
    cli("queue", "create", cli.name)
    return cli.name
