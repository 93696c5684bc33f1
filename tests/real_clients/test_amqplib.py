"""amqplib, the AMQP client for Node.js."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.real_clients.environments import node_with, run_program

PROGRAMS = Path(__file__).parent / "programs"


def test_a_tour_of_amqp_works_with_amqplib(amqp_port: int) -> None:
    node = node_with("amqplib", "amqplib@2")
    # Node looks for packages beside the program.
    program = shutil.copy(PROGRAMS / "amqplib.mjs", node.place)
    environment = {**os.environ, "AMQP_URL": f"amqp://guest:guest@127.0.0.1:{amqp_port}"}

    said = run_program([node.node, program], environment, where=node.place)

    parts = ["messages", "topology", "confirms", "consuming", "cancelled", "deadLetters", "replies"]
    assert said.split() == [*parts, "refusals", "secret", "closing"]
