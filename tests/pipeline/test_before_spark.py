"""What is wrong with a command is found out before Spark starts.

Every command here names a master that nobody serves: if Spark were started first, that would be the error.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import OpenQ
from openq.cli.terminal import FAILED, NOT_FOUND, USAGE
from openq.pipeline.session import SparkFailed, _addresses, check_master
from tests.cli.helpers import CommandResult, run_in_process
from tests.serving import Served, free_port, served


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("before") / "data") as running:
        with OpenQ("orders", url=running.url) as orders:
            orders.publish("x")
        yield running


@pytest.fixture(scope="module")
def nobody() -> str:
    return f"spark://127.0.0.1:{free_port()}"


def run(server: Served, nobody: str, *words: str | Path) -> CommandResult:
    return run_in_process("pipeline", *words, "--url", server.url, "--master", nobody)


def test_an_unreachable_master_is_one_line(server: Served, nobody: str) -> None:
    done = run(server, nobody, "export", "orders", "--to", "out", "--dry-run")

    assert (done.code, done.out) == (FAILED, "")
    assert done.err.startswith(f"openq: the master {nobody} is unreachable (127.0.0.1 port")
    assert "--master" in done.err
    assert done.err.count("\n") == 1


def test_one_node_of_a_master_is_enough(server: Served) -> None:
    check_master(f"spark://127.0.0.1:{free_port()},127.0.0.1:{server.port}")
    with pytest.raises(SparkFailed, match="is unreachable"):
        check_master(f"sc://127.0.0.1:{free_port()}/;token=abc")
    check_master(f"sc://127.0.0.1:{server.port}/;token=abc")


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("local[2]", []),
        ("yarn", []),
        ("spark://a:1,b", [("a", 1), ("b", 7077)]),
        ("spark://[::1]:7078", [("::1", 7078)]),
        ("sc://host", [("host", 15002)]),
        ("sc://host:9/;user_id=x", [("host", 9)]),
        ("k8s://https://api:6443", [("api", 6443)]),
        ("k8s://api", [("api", 443)]),
    ],
)
def test_where_a_master_listens(master: str, addresses: list[tuple[str, int]]) -> None:
    assert _addresses(master) == addresses


@pytest.mark.parametrize(
    "words",
    [
        ("export", "ordres", "--to", "out"),
        ("export", "ordres", "--to", "out", "--drain"),
        ("sql", "SELECT * FROM queue(ordres)"),
        ("sql", "INSERT INTO queue(ordres) SELECT body FROM queue(orders)"),
        ("sql", "INSERT INTO queue(orders) SELECT body FROM consume(queue(ordres))"),
        ("replay", "--from", "ordres", "--to", "orders", "--yes"),
        ("replay", "--from", "orders", "--to", "ordres", "--yes"),
        ("redrive", "ordres", "--yes"),
        ("triage", "--queue", "ordres"),
        ("analytics", "--queue", "ordres", "--out", "figures"),
    ],
)
def test_a_missing_queue_is_named(server: Served, nobody: str, words: tuple[str, ...]) -> None:
    done = run(server, nobody, *words)

    assert (done.code, "queue 'ordres' does not exist" in done.err) == (NOT_FOUND, True), done


def test_a_load_names_the_option_that_creates_its_queue(server: Served, nobody: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"a": 1}))
    words = ("load", tmp_path / "rows.jsonl", "--to")

    missing = run(server, nobody, *words, "ordres")
    no_dlq = run(server, nobody, *words, "orders", "--dlq", "ordres")

    for done in (missing, no_dlq):
        assert (done.code, "queue 'ordres' does not exist; create it" in done.err) == (NOT_FOUND, True)
        assert "--create" in done.err
    assert run(server, nobody, "load", tmp_path / "nothing.csv", "--to", "orders").code == NOT_FOUND


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("export", "orders", "--to", "out", "--columns", "bodi"), "bodi"),
        (("export", "orders", "--to", "out", "--format", "text", "--columns", "body"), "leave columns out"),
        (("export", "orders", "--to", "out", "--since", "yesterday"), "since must be"),
        (("export", "orders", "--to", "out", "--max", "5"), "max_messages is for drain"),
        (("sql", "SELECT * FROM queue(orders)", "--continuous"), "continuous is for streams"),
        (("replay", "--from", "orders", "--to", "orders", "--rate", "5", "--speed", "2"), "contradict"),
    ],
)
def test_an_invalid_option_is_a_usage_error(
    server: Served, nobody: str, words: tuple[str, ...], says: str
) -> None:
    done = run(server, nobody, *words)

    assert (done.code, says in done.err) == (USAGE, True), done


def test_a_non_empty_directory_is_a_usage_error(server: Served, nobody: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = run(server, nobody, "export", "orders", "--to", tmp_path)

    assert (done.code, "name a directory that is new or empty" in done.err) == (USAGE, True)
