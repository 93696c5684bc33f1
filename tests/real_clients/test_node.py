"""The AWS SDK for JavaScript, which checks every MD5 that it is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.real_clients.environments import aws_environment, node_with, run_program
from tests.serving import Served

PROGRAMS = Path(__file__).parent / "programs"


def test_every_operation_works_with_the_sdk_for_javascript(server: Served) -> None:
    node = node_with("javascript", "@aws-sdk/client-sqs@3")
    # Node looks for packages beside the program.
    program = shutil.copy(PROGRAMS / "node.mjs", node.place)

    said = run_program([node.node, program], aws_environment(server.url), where=node.place)

    parts = ["queues", "messages", "batches", "fifo", "deadLetters", "longPoll"]
    assert said.split() == [*parts, "23"]
