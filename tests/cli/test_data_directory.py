"""Reading commands on a data directory that no process uses, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from openq.auth.store import UserStore
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.cli.helpers import CommandResult, fill, run_in_process


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    fill(path)
    return path


def read(data: Path, *words: str) -> CommandResult:
    done = run_in_process(*words, "--data", data)
    assert done.code == 0, done
    return done


def read_json(data: Path, *words: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in read(data, *words, "--json").out.splitlines()]


def test_queues_are_listed_and_shown(data: Path) -> None:
    counts = {row["name"]: row["stats"] for row in read_json(data, "queue", "ls")}

    assert set(counts) == {"orders", "orders.dead"}
    assert "dlq                   orders.dead" in read(data, "queue", "show", "orders").out
    assert read_json(data, "queue", "show", "orders")[0]["stats"]["ready"] == 3  # type: ignore[index]


def test_messages_are_peeked_searched_and_tailed(data: Path) -> None:
    waiting = [row["payload"] for row in read_json(data, "peek", "orders", "--state", "all")]

    assert waiting == ["order 2", "order 3", "order 4"]
    assert [row["payload"] for row in read_json(data, "search", "orders", "order 3")] == ["order 3"]
    published = [row["payload"] for row in read_json(data, "tail", "orders", "--since", "1h")]
    assert published == [f"order {number}" for number in range(5)]


def test_an_answer_of_any_size_is_read(data: Path) -> None:
    """A server writes it in pieces, each in a turn of its loop."""
    names = [f"queue-{number:03}" for number in range(400)]
    broker = LocalBroker(data)
    for name in names:
        broker.declare(name, QueueSettings())
    broker.sync()
    broker.close()

    listed = read(data, "queue", "ls", "--json").out

    assert len(listed) > 256 << 10
    assert [row["name"] for row in map(json.loads, listed.splitlines())] == ["orders", "orders.dead", *names]


def test_a_message_is_explained(data: Path) -> None:
    [message] = read_json(data, "peek", "orders", "-n", "1")
    id = str(message["id"])

    assert read_json(data, "why", "orders", id)[0]["code"] == "ready"
    [timeline] = read_json(data, "timeline", "orders", id)
    assert [step["what"] for step in timeline["steps"]] == ["published"]  # type: ignore[attr-defined]


def test_dead_letters_are_listed_grouped_and_exported(data: Path, tmp_path: Path) -> None:
    assert [row["queue"] for row in read_json(data, "dlq", "ls")] == ["orders.dead"]
    assert [row["reason"] for row in read_json(data, "dlq", "ls", "orders.dead")] == ["no such customer"]
    [groups] = read_json(data, "dlq", "groups", "orders.dead")
    assert [row["count"] for row in groups["groups"]] == [1]  # type: ignore[attr-defined]
    read(data, "dlq", "export", "orders.dead", "--out", str(tmp_path / "dead.jsonl"))
    assert json.loads((tmp_path / "dead.jsonl").read_text())["payload"] == "order 1"


def test_no_damage_is_exit_code_5(data: Path) -> None:
    done = run_in_process("damage", "ls", "--data", data)

    assert (done.code, done.out, done.err) == (5, "", "openq: no damage listed\n")


def test_users_do_not_matter_to_the_owner_of_the_files(data: Path) -> None:
    UserStore(data / "users.json").add_user("admin", role="admin", password="a password")

    assert len(read_json(data, "queue", "ls")) == 2


def test_reading_changes_no_message(data: Path) -> None:
    before = read_json(data, "peek", "orders", "--state", "all")
    for words in (("queue", "ls"), ("tail", "orders"), ("dlq", "ls")):
        read(data, *words)

    assert read_json(data, "peek", "orders", "--state", "all") == before


def test_a_directory_in_use_is_refused_with_the_process_and_what_to_do(data: Path) -> None:
    broker = LocalBroker(data)
    try:
        unserved = run_in_process("queue", "ls", "--data", data)
        broker.announce_url("http://127.0.0.1:9324")
        served = run_in_process("queue", "ls", "--data", data)
    finally:
        broker.close()

    assert (unserved.code, served.code) == (2, 2)
    assert "is in use by process " in unserved.err
    assert "; stop it first\n" in unserved.err
    assert "; use --url http://127.0.0.1:9324 instead of --data\n" in served.err
    assert unserved.err.count("\n") == served.err.count("\n") == 1


def test_a_directory_without_a_journal_is_exit_code_3(tmp_path: Path) -> None:
    done = run_in_process("queue", "ls", "--data", tmp_path)

    assert done.code == 3
    assert "not a data directory of OpenQ" in done.err


def test_a_directory_and_a_server_cannot_be_combined(data: Path) -> None:
    done = run_in_process("peek", "orders", "--data", data, "--url", "http://127.0.0.1:1")

    assert (done.code, done.err) == (2, "openq: --data and --url cannot be combined\n")
