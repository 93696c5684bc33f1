"""`openq peek`, `tail`, `search`, `why` and `timeline`, against a real server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from openq import OpenQ
from openq.client.http import HttpClient
from tests.cli.helpers import OPENQ, Cli, run_in_process


def test_peeking_changes_nothing(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="".join(f"{number}\n" for number in range(20)))

    assert [row["payload"] for row in cli.lines("peek", q, "-n", "3")] == ["0", "1", "2"]
    assert [row["payload"] for row in cli.lines("peek", q, "-n", "1", "--rear")] == ["19"]
    assert len(cli.lines("peek", q)) == 10
    assert cli("peek", q, "-n", "1").out.endswith("  0\n")
    assert cli.counts(q) == (20, 0, 0)
    assert cli.lines("recv", q)[0]["receive_count"] == 1


def test_peek_shows_the_consumer_of_a_message(cli: Cli, q: str) -> None:
    cli("send", q, "busy")
    with HttpClient(cli.url) as connection:
        taken = connection.request("POST", f"/api/v1/queues/{q}/receive", b'{"consumer": "mill"}')
    assert taken.status == 200
    assert "in flight with mill, received 1x" in cli("peek", q, "--state", "in_flight").out


def test_an_empty_peek_reports_messages_in_other_states(cli: Cli, q: str) -> None:
    assert cli("peek", q, code=5).err == f"openq: no message found in {q}\n"
    cli("send", q, "later", "--delay", "1h")
    cli("send", q, "busy")
    cli("recv", q)

    shown = cli("peek", q, code=5).err
    others = "1 in flight (--state in_flight) and 1 delayed (--state delayed)"
    assert shown == f"openq: no ready message in {q}: {others}\n"
    assert cli("peek", q, "--state", "in_flight").out.endswith("busy\n")


def test_a_dead_letter_shows_its_source_and_reason(cli: Cli) -> None:
    dead = f"{cli.name}-dead"
    cli("queue", "create", cli.name, "--dlq", dead, "--max-receives", "1")
    with OpenQ(cli.name, url=cli.url) as queue:
        sent = queue.publish("bolts")
        with pytest.raises(LookupError), queue.processing():
            raise LookupError("no bolts")

    assert f"it is in queue {dead!r} since" in cli("why", cli.name, sent).out
    [letter] = cli.lines("dlq", "ls", dead)
    assert letter["reason"] == "LookupError: no bolts"
    assert "traceback" not in letter
    assert cli.lines("dlq", "ls", dead, "--traceback")[0]["traceback"].endswith("LookupError: no bolts")
    assert '  raise LookupError("no bolts")' in cli("dlq", "ls", dead, "--traceback").out
    assert '  raise LookupError("no bolts")' in cli("timeline", cli.name, sent).out
    assert cli.lines("peek", dead)[0]["traceback"].startswith("Traceback (most recent call last)")


def test_unlimited_retention_is_shown_as_forever(cli: Cli) -> None:
    with HttpClient(cli.url) as connection:
        made = connection.request("PUT", f"/api/queues/%2F/{cli.name}", b'{"durable": true}')
    assert made.status == 201
    shown = dict(line.split("  ", 1) for line in cli("queue", "show", cli.name).out.splitlines())
    assert shown["retention"].strip() == "forever"
    assert cli.json("queue", "show", cli.name)["settings"]["retention"] is None


def test_forever_on_the_command_line_is_null_in_json(cli: Cli) -> None:
    cli("queue", "create", cli.name, "--retention", "forever", "--dlq", "forever")

    settings = cli.json("queue", "show", cli.name)["settings"]

    assert (settings["retention"], settings["dlq"]) == (None, "forever")
    assert "retention" in cli("queue", "edit", cli.name, "--retention", "0", code=2).err


def test_more_messages_than_one_page_are_all_peeked(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="".join(f"{number}\n" for number in range(2100)))

    assert [row["payload"] for row in cli.lines("peek", q, "-n", "5000")] == [str(n) for n in range(2100)]


def test_messages_are_found_by_text_type_and_attributes(cli: Cli, q: str) -> None:
    cli("send", q, '{"order": {"total": 12}}', "--as", "json", "--type", "order", "--attribute", "shop=eu")
    cli("send", q, '{"order": {"total": 13}}', "--as", "json", "--type", "order", "--attribute", "shop=us")
    cli("send", q, "alice@example")

    def totals(*words: str) -> list[int]:
        return [row["payload"]["order"]["total"] for row in cli.lines("search", q, *words)]

    assert totals("--where", "order.total=12") == [12]
    assert totals("--attribute", "shop=us") == [13]
    assert totals("--type", "order", "-n", "9") == [12, 13]
    assert "alice@example" in cli("search", q, "alice@").out
    assert "incomplete" in cli("search", q, "--type", "order", "-n", "1").err


def test_why_and_timeline_of_a_message(cli: Cli, q: str) -> None:
    identity = cli("send", q, "x").out.strip()
    cli("recv", q, "--ack")

    assert [step["what"] for step in cli.json("timeline", q, identity)["steps"]] == [
        "published",
        "delivered",
        "acked",
    ]
    assert "published" in cli("timeline", q, identity).out
    assert cli("why", q, identity, code=3).out.startswith("message ")


def test_tail_shows_consumed_messages_too(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\nc\n")
    cli("recv", q, "-n", "3", "--ack")

    assert [row["payload"] for row in cli.lines("tail", q)] == ["a", "b", "c"]
    assert [row["payload"] for row in cli.lines("tail", q, "-n", "2", "--since", "1h")] == ["b", "c"]
    assert cli("tail", q, "-n", "1").out.endswith("  c\n")
    cli("tail", f"{q}-nowhere", code=3)


def test_tail_of_a_queue_without_messages_says_so(cli: Cli, q: str) -> None:
    done = cli("tail", q, code=5)

    assert done.out == ""
    assert done.err.startswith(f"openq: no message was published to {q} since 20")
    assert "no message was published" in cli("tail", q, "-n", "5", "--json", code=5).err


def test_the_timeline_of_an_unknown_message_is_exit_code_3(cli: Cli, q: str) -> None:
    assert f"message nope is not in {q}" in cli("timeline", q, "nope", code=3).err
    assert json.loads(cli("timeline", q, "nope", "--json", code=3).out)["steps"] == []


@pytest.mark.parametrize("words", [("queue", "ls"), ("healthcheck",), ("pipeline", "analytics")])
def test_an_invalid_address_is_wrong_usage(words: tuple[str, ...]) -> None:
    flag = run_in_process(*words, "--url", "nonsense://x", OPENQ_URL="http://127.0.0.1:1")
    environment = run_in_process(*words, OPENQ_URL="nonsense://x")
    port = run_in_process(*words, "--url", "http://ann:secret@127.0.0.1:99999")

    assert [done.code for done in (flag, environment, port)] == [2, 2, 2]
    assert "openq: --url nonsense://x: an address looks like" in flag.err
    assert "openq: OPENQ_URL nonsense://x: an address looks like" in environment.err
    assert "openq: --url http://ann:...@127.0.0.1:99999: the port must be" in port.err


@pytest.mark.parametrize(
    "words",
    [
        ("import", "rabbitmq-definitions", "nowhere"),
        ("pipeline", "run", "nowhere"),
        ("pipeline", "analytics", "--data", "nowhere"),
        ("pipeline", "triage", "--data", "nowhere"),
        ("pipeline", "redrive", "orders", "--dry-run", "--data", "nowhere"),
    ],
)
def test_a_file_or_directory_that_is_missing_is_exit_code_3(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_in_process(*words)

    assert (done.code, done.out, done.err.count("\n")) == (3, "", 1)
    assert done.err.startswith("openq: nowhere: no such ")
    assert ("--data" in words) == ("correct --data, or give --url" in done.err)


def test_the_help_names_every_exit_code() -> None:
    from openq.cli import terminal

    line = run_in_process("--help").out.splitlines()[-1]
    for code in ("OK", "FAILED", "USAGE", "NOT_FOUND", "DENIED", "EMPTY", "INTERRUPTED"):
        assert f" {getattr(terminal, code)} " in line


def test_tail_follows_until_it_is_interrupted(cli: Cli, q: str) -> None:
    cli("send", q, "before")
    following = subprocess.Popen(
        [*OPENQ, "tail", "-f", q, "--json", "--since", "1h"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENQ_URL": cli.url},
    )
    assert following.stdout is not None
    assert json.loads(following.stdout.readline())["payload"] == "before"
    cli("send", q, "after")
    assert json.loads(following.stdout.readline())["payload"] == "after"
    following.send_signal(signal.SIGINT)
    _, err = following.communicate(timeout=60)

    assert following.returncode == 130
    assert "Traceback" not in err
    assert cli.counts(q) == (2, 0, 0)
