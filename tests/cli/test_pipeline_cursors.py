"""`openq pipeline cursors` and `subscriptions`, against a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from openq.cli.output import NOT_CONFIRMED
from openq.cli.terminal import NOT_FOUND
from tests.cli.helpers import CommandResult, run_in_process
from tests.rest.helpers import Client
from tests.serving import Served, served


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(None) as server:
        yield server


def pipeline(server: Served, *words: str) -> CommandResult:
    return run_in_process("pipeline", *words, OPENQ_URL=server.url)


def test_cursors_are_listed_and_removed(server: Served) -> None:
    assert "no cursors" in pipeline(server, "cursors", "ls").err
    Client(server.url).put("/pipeline/cursors/a%20b", {"position": 7})

    shown = pipeline(server, "cursors", "ls")
    assert "a b" in shown.out
    assert json.loads(pipeline(server, "cursors", "ls", "--json").out)["position"] == 7
    assert pipeline(server, "cursors", "rm", "a b").code == NOT_CONFIRMED
    assert "would remove" in pipeline(server, "cursors", "rm", "a b", "--dry-run").out
    assert pipeline(server, "cursors", "rm", "a b", "--yes").out == "cursor a b removed\n"

    for flag in ("--yes", "--dry-run"):
        assert pipeline(server, "cursors", "rm", "a b", flag).code == NOT_FOUND


def test_subscriptions_are_listed_and_ended(server: Served) -> None:
    assert "no subscriptions" in pipeline(server, "subscriptions", "ls").err
    client = Client(server.url)
    path = client.queue("q")
    client.post(f"{path}/messages/batch", ["a", "b"])
    client.post("/pipeline/subscriptions/s/batches", {"queue": "q", "owner": "me"})

    assert "me" in pipeline(server, "subscriptions", "ls").out
    assert json.loads(pipeline(server, "subscriptions", "ls", "--json").out)["messages"] == 2
    assert pipeline(server, "subscriptions", "rm", "s").code == NOT_CONFIRMED
    assert "would end" in pipeline(server, "subscriptions", "rm", "s", "--dry-run").out
    done = pipeline(server, "subscriptions", "rm", "s", "--yes")

    assert done.out == "ended; 2 messages returned to the queue\n"
    assert client.get("/queues/q/stats").value["ready"] == 2
    for flag in ("--yes", "--dry-run"):
        assert pipeline(server, "subscriptions", "rm", "s", flag).code == NOT_FOUND
