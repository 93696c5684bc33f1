"""`openq send`, `recv`, `ack` and `nack`, against a real server."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.helpers import OPENQ, Cli, run_on_terminal
from tests.waiting import until


def test_a_message_is_received_as_it_was_sent(cli: Cli, q: str) -> None:
    sent = cli("send", q, "häl\tlo").out.strip()
    [got] = cli.lines("recv", q)

    assert (got["id"], got["payload"], got["receive_count"]) == (sent, "häl\tlo", 1)


def test_only_ack_removes_a_message(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")

    kept = cli("recv", q)
    assert kept.out == "a\n"
    assert "not acknowledged" in kept.err
    taken = cli("recv", q, "--ack")
    assert (taken.out, taken.err) == ("b\n", "")
    assert cli.counts(q) == (0, 0, 1)


def test_a_message_that_could_not_be_written_is_not_acknowledged(cli: Cli, q: str) -> None:
    cli("send", q, "precious")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*OPENQ, "recv", q, "--ack"],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env={**os.environ, "OPENQ_URL": cli.url},
        )
    finally:
        os.close(writing)

    assert "Traceback" not in done.stderr
    assert cli.counts(q) == (0, 0, 1)


def test_nothing_to_receive_is_exit_code_5(cli: Cli, q: str) -> None:
    assert "no message in" in cli("recv", q, code=5).err
    assert "within 0.05 s" in cli("recv", q, "--wait", "50ms", code=5).err
    cli("peek", q, code=5)


def test_an_empty_receive_reports_messages_in_other_states(cli: Cli, q: str) -> None:
    cli("send", q, "a", "--delay", "1h")
    assert cli("recv", q, code=5).err == f"openq: no ready message in {q}: 1 delayed\n"
    cli("send", q, "b")
    cli("recv", q)
    assert (
        cli("recv", q, "--wait", "50ms", code=5).err
        == f"openq: no ready message in {q} within 0.05 s: 1 in flight and 1 delayed\n"
    )
    cli("search", q, "x", code=5)


def test_a_wait_ends_when_a_message_arrives(cli: Cli, q: str) -> None:
    waiting = subprocess.Popen(
        [*OPENQ, "recv", q, "--wait", "60s", "--ack"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENQ_URL": cli.url},
    )
    until(lambda: cli.json("queue", "show", q)["stats"]["waiters"] == 1)
    cli("send", q, "at last")
    out, _ = waiting.communicate(timeout=60)

    assert (waiting.returncode, out) == (0, "at last\n")


def test_many_lines_are_many_messages(cli: Cli, q: str) -> None:
    lines = "".join(f"line {number}\r\n" for number in range(2500)) + "\nlast"

    assert cli("send", q, "--lines", answer=lines).out == "2501 messages sent\n"
    got = cli("recv", q, "-n", "3000", "--ack").out.splitlines()
    assert got == [*(f"line {number}" for number in range(2500)), "last"]
    assert cli.counts(q) == (0, 0, 0)


def test_every_option_of_send_reaches_the_message(cli: Cli, q: str) -> None:
    words = ["--as", "json", "--type", "order", "--priority", "7", "--group", "g", "--ttl", "1h"]
    words += ["--attribute", "shop=eu", "--attribute", "n:=5"]
    cli("send", q, '{"total": 12}', *words)
    [got] = cli.lines("recv", q)

    assert got["payload"] == {"total": 12}
    assert (got["message_type"], got["priority"], got["group"]) == ("order", 7, "g")
    assert got["attributes"] == {"shop": "eu", "n": 5}


def test_a_delayed_message_waits(cli: Cli, q: str) -> None:
    identity = cli("send", q, "later", "--delay", "1h").out.strip()

    assert cli.counts(q) == (0, 1, 0)
    assert cli("why", q, identity).out.startswith("due in ")
    assert "later" in cli("peek", q, "--state", "delayed").out


def test_the_same_deduplication_id_is_one_message(cli: Cli, q: str) -> None:
    first = cli("send", q, "x", "--dedup-id", "one")
    again = cli("send", q, "x", "--dedup-id", "one")

    assert first.out == again.out
    assert "not published" in again.err
    assert cli.counts(q) == (1, 0, 0)


def test_a_body_comes_from_stdin_or_from_a_file(cli: Cli, q: str, tmp_path: Path) -> None:
    file = tmp_path / "photo"
    file.write_bytes(b"\x89PNG\xff\x00")
    cli("send", q, answer="from stdin\n")
    cli("send", q, "-", answer="dash")
    cli("send", q, "--file", file)
    cli("send", q, "AQID/w==", "--as", "base64")
    got = [row["payload"] for row in cli.lines("recv", q, "-n", "9")]

    assert got == ["from stdin\n", "dash", base64.b64encode(b"\x89PNG\xff\x00").decode(), "AQID/w=="]


def test_bytes_come_out_as_bytes(cli: Cli, q: str, tmp_path: Path) -> None:
    file = tmp_path / "photo"
    file.write_bytes(b"\x89PNG\xff\x00")
    cli("send", q, "--file", file)
    done = subprocess.run(
        [*OPENQ, "recv", q], capture_output=True, timeout=60, env={**os.environ, "OPENQ_URL": cli.url}
    )

    assert done.stdout == b"\x89PNG\xff\x00\n"


def test_on_a_terminal_control_characters_of_a_body_are_escaped(cli: Cli, q: str) -> None:
    cli("send", q, "\x1b[2Jgone\x07")
    _, seen = run_on_terminal("recv", q, OPENQ_URL=cli.url)

    assert "\\x1b[2Jgone\\x07" in seen


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{", "--as", "json"], "the message is not JSON"),
        (["5", "--as", "message"], "a message is a JSON object with a payload"),
        (["x", "--lines"], "give either a body"),
        (["x", "--file", "y"], "give either a body"),
        (["x", "--attribute", "n:=five"], "attribute n is not JSON"),
    ],
)
def test_an_invalid_message_is_wrong_usage(cli: Cli, q: str, words: list[str], message: str) -> None:
    assert message in cli("send", q, *words, code=2).err
    assert cli.counts(q) == (0, 0, 0)


def test_a_rejected_message_does_not_stop_the_others(cli: Cli) -> None:
    cli("queue", "create", cli.name, "--max-body", "5")
    done = cli("send", cli.name, "--lines", answer="short\nmuch too long\nok\n", code=1)

    assert done.out == "2 messages sent, 1 rejected\n"
    assert done.err.count("rejected: ") == 1


def test_receipts_are_acknowledged_and_returned(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")
    first, second = (row["receipt_id"] for row in cli.lines("recv", q, "-n", "2"))

    assert cli("ack", q, first).out == "1 message acknowledged\n"
    assert cli("nack", q, second, "--reason", "not today", "--delay", "1h").out == "1 message returned\n"
    assert cli.counts(q) == (0, 1, 0)
    assert "is not in queue" in cli("ack", q, first, code=3).err
    assert "is not in queue" in cli("nack", q, first, "nonsense", code=3).err


def test_options_may_stand_anywhere(cli: Cli, q: str) -> None:
    assert cli("send", q, "--priority", "5", "keep me").out.strip()
    assert json.loads(cli("send", q, "--json", "other").out)["id"]
    cli("send", "--type", "x", q, "--", "--json")

    [found] = [json.loads(line) for line in cli("search", q, "--json", "keep").out.splitlines()]
    assert (found["payload"], found["priority"]) == ("keep me", 5)
    bodies = [row["payload"] for row in cli.lines("recv", "-n", "9", q)]
    assert bodies == ["keep me", "other", "--json"]


def test_an_empty_argument_is_a_message_and_an_empty_input_is_not(cli: Cli, q: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()

    assert "the input is empty" in cli("send", q, code=2).err
    assert "the input is empty" in cli("send", q, "--file", empty, code=2).err
    assert cli.counts(q) == (0, 0, 0)
    cli("send", q, "")
    assert [row["payload"] for row in cli.lines("peek", q)] == [""]


def test_a_rejected_message_is_a_dead_letter(cli: Cli) -> None:
    cli("queue", "create", cli.name, "--dlq", f"{cli.name}-dead")
    cli("send", cli.name, "x")
    [got] = cli.lines("recv", cli.name)

    assert (
        cli("nack", cli.name, got["receipt_id"], "--reject", "--reason", "bad").out == "1 message rejected\n"
    )
    [letter] = cli.lines("dlq", "ls", f"{cli.name}-dead")
    assert (letter["id"], letter["source"], letter["reason"]) == (got["id"], cli.name, "bad")
