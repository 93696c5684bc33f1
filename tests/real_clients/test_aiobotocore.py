"""aiobotocore, which most asyncio programs use."""

from __future__ import annotations

from pathlib import Path

from tests.real_clients.environments import aws_environment, python_with, run_program
from tests.serving import Served

PROGRAMS = Path(__file__).parent / "programs"


def test_aiobotocore_works_with_many_polls_at_once(server: Served) -> None:
    python = python_with("aiobotocore", "aiobotocore>=2.15")

    said = run_program([python, PROGRAMS / "aio.py"], aws_environment(server.url))

    assert said.split() == ["queues", "messages", "dead_letters", "many_polls", "given_up"]
