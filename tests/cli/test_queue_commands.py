"""`openq queue`, against a real server."""

from __future__ import annotations

import os

import pytest

from openq.client.http import HttpClient
from tests.cli.helpers import Cli, run_on_terminal
from tests.serving import Served


def test_a_queue_is_created_once(cli: Cli) -> None:
    assert cli("queue", "create", cli.name).out == f"queue {cli.name} created\n"
    assert cli("queue", "create", cli.name).out == f"queue {cli.name} exists already\n"
    refused = cli("queue", "create", cli.name, "--delay", "5s", code=1)
    assert "exists with other settings" in refused.err
    assert "openq queue edit" in refused.err
    assert "exists already" in cli("queue", "create", cli.name, "--delay", "5s", "--if-absent").out


def test_settings_are_given_with_units_and_shown_again(cli: Cli) -> None:
    words = ["--visibility-timeout", "2m", "--retention", "14d", "--max-bytes", "1MiB", "--fifo"]
    words += ["--retry", "fixed", "--overflow", "reject", "--no-relaxed"]
    made = cli.json("queue", "create", cli.name, *words)["settings"]

    assert (made["visibility_timeout"], made["retention"], made["max_bytes"]) == (120, 14 * 86400, 1 << 20)
    assert (made["fifo"], made["retry"]["kind"], made["overflow"]) == (True, "fixed", "reject")
    shown = cli("queue", "show", cli.name).out
    assert "visibility timeout    2 min" in shown
    assert "max bytes             1.0 MiB" in shown


def test_a_dead_letter_queue_is_created_with_its_queue(cli: Cli) -> None:
    done = cli("queue", "create", cli.name, "--dlq", f"{cli.name}-dead")

    assert f"dead-letter queue {cli.name}-dead created" in done.err
    assert cli.json("queue", "show", cli.name)["settings"]["max_receives"] == 3
    assert cli.counts(f"{cli.name}-dead") == (0, 0, 0)


def test_settings_are_changed_one_by_one(cli: Cli, q: str) -> None:
    cli("queue", "edit", q, "--delay", "3s")
    changed = cli.json("queue", "edit", q, "--dlq", f"{q}-dead", "--max-receives", "7")["settings"]
    without = cli.json("queue", "edit", q, "--no-dlq")["settings"]

    assert (changed["delay"], changed["dlq"], changed["max_receives"]) == (3, f"{q}-dead", 7)
    assert (without["delay"], without["dlq"], without["max_receives"]) == (3, None, None)
    assert "no setting given" in cli("queue", "edit", q, code=2).err
    assert "cannot be combined" in cli("queue", "edit", q, "--no-dlq", "--dlq", "x", code=2).err
    assert "does not exist" in cli("queue", "edit", "nowhere", "--dlq", "other", code=3).err
    assert not cli.lines("queue", "ls", "other")


def test_an_edit_prints_only_the_changed_settings(cli: Cli, q: str) -> None:
    changed = cli("queue", "edit", q, "--delay", "3s", "--dedup-by-content", "--visibility-timeout", "30")

    assert [line.split() for line in changed.out.splitlines()] == [
        ["delay", "3", "s", "(was", "0", "s)"],
        ["dedup", "by", "content", "yes", "(was", "no)"],
    ]
    again = cli("queue", "edit", q, "--delay", "3s")
    assert (again.out, "nothing changed" in again.err) == ("", True)


def test_a_queue_is_not_its_own_dead_letter_queue(cli: Cli) -> None:
    assert "its own dead-letter queue" in cli("queue", "create", cli.name, "--dlq", cli.name, code=2).err
    cli("queue", "show", cli.name, code=3)


def test_a_dry_run_reports_that_a_queue_is_not_empty(cli: Cli, q: str) -> None:
    assert "0 messages would be deleted" in cli("queue", "rm", q, "--if-empty", "--dry-run").out
    cli("send", q, "x")

    shown = cli("queue", "rm", q, "--if-empty", "--dry-run", code=1)
    assert "dry run: this would fail" in shown.err
    assert "it holds 1 messages" in shown.err


def test_queues_are_listed_by_prefix(cli: Cli, q: str) -> None:
    cli("send", q, "x")
    cli("queue", "create", f"{q}-2", "--fifo")

    assert [row["name"] for row in cli.lines("queue", "ls", q)] == [q, f"{q}-2"]
    heads, first, second = cli("queue", "ls", q).out.splitlines()
    assert heads.split()[:2] == ["queue", "ready"]
    assert first.split()[:4] == [q, "1", "0", "0"]
    assert second.endswith("fifo")
    assert "no queues that begin with" in cli("queue", "ls", f"{q}-none").err


def test_more_queues_than_one_page_are_all_listed(server: Served, cli: Cli) -> None:
    with HttpClient(server.url) as connection:
        for number in range(1005):
            connection.request("PUT", f"/api/v1/queues/page-{number:04}", b"{}").raise_for_status()

    assert len(cli.lines("queue", "ls", "page-")) == 1005


def test_a_paused_queue_delivers_nothing(cli: Cli, q: str) -> None:
    cli("send", q, "x")

    cli("queue", "pause", q)
    cli("recv", q, code=5)
    assert "paused" in cli("queue", "ls", q).out
    cli("queue", "resume", q)
    assert cli("recv", q).out == "x\n"


@pytest.mark.parametrize("verb", ["purge", "rm"])
def test_destructive_commands_do_nothing_without_a_terminal_or_yes(cli: Cli, q: str, verb: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")

    assert "2 messages would be deleted" in cli("queue", verb, q, "--dry-run").out
    assert cli.json("queue", verb, q, "--dry-run") == {"messages": 2, "dry_run": True}
    refused = cli("queue", verb, q, code=2)
    assert "2 messages" in refused.err
    assert "nothing was changed: add --yes" in refused.err
    assert cli.counts(q) == (2, 0, 0)
    assert cli.json("queue", verb, q, "--yes")["messages"] == 2
    assert cli("queue", "show", q, code=3 if verb == "rm" else 0)


@pytest.mark.parametrize(("typed", "left"), [("n\n", 1), ("\n", 1), ("y\n", 0)])
def test_on_a_terminal_the_question_contains_the_count(cli: Cli, q: str, typed: str, left: int) -> None:
    cli("send", q, "x")
    code, seen = run_on_terminal("queue", "purge", q, typed=typed, OPENQ_URL=cli.url)

    assert f"Delete 1 message from {q}? [y/N]" in seen
    assert code == (2 if left else 0)
    assert cli.counts(q)[0] == left


def test_if_empty_keeps_a_queue_with_messages(cli: Cli, q: str) -> None:
    cli("send", q, "x")

    cli("queue", "rm", q, "--if-empty", "--yes", code=1)
    assert cli.counts(q) == (1, 0, 0)


@pytest.mark.parametrize("name", ["a/b", "..", "x y?z=1&#", "ünï", "%2F", "semi;colon"])
def test_any_queue_name_works(cli: Cli, name: str) -> None:
    queue = f"{name}-{os.urandom(3).hex()}" if name != ".." else ".."
    cli("queue", "create", queue)
    cli("send", queue, "x")

    assert cli("recv", queue, "--ack").out == "x\n"
    cli("queue", "rm", queue, "--yes")
