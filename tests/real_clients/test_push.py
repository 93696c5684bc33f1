"""Push with the clients that Node programs use: `ws` and `eventsource`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.real_clients.environments import node_with, run_program
from tests.rest.helpers import Client
from tests.serving import Served

PROGRAM = Path(__file__).parent / "programs" / "push.mjs"


def test_messages_by_ws_and_events_by_eventsource(server: Served) -> None:
    node = node_with("push", "ws@8", "eventsource@3")
    # Node looks for packages beside the program.
    program = shutil.copy(PROGRAM, node.place)
    client = Client(server.url)
    path = client.queue("node-push", retry="none")

    said = run_program([node.node, program, server.url, "node-push"], {}, where=node.place)

    greeting, published, pong, settled, in_order, code, events = said.splitlines()
    assert greeting == "hello openq.json true"
    assert (published, pong) == ("20", "are you there")
    assert (settled, in_order, code) == ("18", "true", "1000")
    assert events == "true true last"
    assert client.get(path).value["stats"]["ready"] == 1  # the last one
