"""`openq dlq`, `replay` and `task`, against a real server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import OPENQ, Cli, run_on_terminal


@pytest.fixture
def dead(cli: Cli) -> str:
    """A dead-letter queue with four letters: three timeouts, one that is bad."""
    cli("queue", "create", cli.name, "--dlq", f"{cli.name}-dead")
    cli("send", cli.name, "--lines", answer="a\nb\nc\nd\n")
    for number, row in enumerate(cli.lines("recv", cli.name, "-n", "4")):
        reason = f"timeout after {number} ms" if number < 3 else "bad"
        cli("nack", cli.name, row["receipt_id"], "--reject", "--reason", reason)
    return f"{cli.name}-dead"


def test_dead_letters_are_listed_and_grouped(cli: Cli, dead: str) -> None:
    [row] = [row for row in cli.lines("dlq", "ls") if row["queue"] == dead]
    assert (row["messages"], row["sources"]) == (4, [cli.name])
    assert dead in cli("dlq", "ls").out
    assert len(cli.lines("dlq", "ls", dead)) == 4
    assert len(cli.lines("dlq", "ls", dead, "-n", "2")) == 2
    groups = {group["count"]: group for group in cli.json("dlq", "groups", dead)["groups"]}
    assert groups.keys() == {3, 1}
    assert "timeout after" in cli("dlq", "groups", dead).out
    cli("dlq", "groups", cli.name, code=5)
    cli("dlq", "ls", cli.name, code=5)


def test_dead_letters_are_redriven_to_their_source(cli: Cli, dead: str) -> None:
    assert "send 3 messages of" in cli("dlq", "redrive", dead, "--reason", "timeout", "--dry-run").out
    assert "send 4 messages of" in cli("dlq", "redrive", dead, code=2).err
    assert cli.counts(dead) == (4, 0, 0)

    assert cli("dlq", "redrive", dead, "--reason", "timeout", "--yes").out == "redrive: 3 messages\n"
    assert (cli.counts(dead), cli.counts(cli.name)) == ((1, 0, 0), (3, 0, 0))
    assert cli.json("dlq", "redrive", dead, "--to", cli.name, "--yes")["done"] == 1
    assert cli.counts(cli.name) == (4, 0, 0)


def test_a_redrive_changes_bodies_and_shows_samples(cli: Cli) -> None:
    dead = f"{cli.name}-dead"
    cli("queue", "create", cli.name, "--dlq", dead)
    cli("send", cli.name, '{"total": 1, "old": 2}')
    [row] = cli.lines("recv", cli.name)
    cli("nack", cli.name, row["receipt_id"], "--reject")
    change = ("--set", "total=12", "--set", "note=by hand", "--remove", "old")

    tried = cli("dlq", "redrive", dead, *change, "--dry-run").out
    done = cli("dlq", "redrive", dead, *change, "--stop-after", "5", "--yes").out

    assert '+ {"total":12,"note":"by hand"}' in tried
    assert done == "redrive: 1 message\n"
    [row] = cli.lines("peek", cli.name)
    assert json.loads(row["payload"]) == {"total": 12, "note": "by hand"}


def test_on_a_terminal_a_redrive_asks_with_the_count(cli: Cli, dead: str) -> None:
    code, seen = run_on_terminal("dlq", "redrive", dead, typed="y\n", OPENQ_URL=cli.url)

    assert f"Send 4 messages of {dead} back to the queues they came from? [y/N]" in seen
    assert code == 0
    assert cli.counts(dead) == (0, 0, 0)
    assert "nothing to do" in cli("dlq", "redrive", dead).err


def test_dead_letters_are_discarded(cli: Cli, dead: str) -> None:
    assert cli("dlq", "discard", dead, "--text", "d", "--yes").out == "discard: 1 message\n"
    assert [row["payload"] for row in cli.lines("peek", dead)] == ["a", "b", "c"]


def test_only_dead_letters_are_redriven_or_discarded(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="a\nb\n")

    assert "delete 0 messages" in cli("dlq", "discard", q, "--dry-run").out
    assert cli("dlq", "discard", q, "--yes").out == "discard: 0 messages\n"
    assert cli("dlq", "redrive", q, "--yes").out == "redrive: 0 messages\n"
    assert cli.counts(q) == (2, 0, 0)


def test_an_export_can_be_sent_again(cli: Cli, dead: str, tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    exported = cli("dlq", "export", dead)
    rows = [json.loads(line) for line in exported.out.splitlines()]

    assert [row["payload"] for row in rows] == ["a", "b", "c", "d"]
    assert rows[0]["deaths"][0]["reason"] == "timeout after 0 ms"
    assert "4 messages exported; nothing was removed" in exported.err
    cli("dlq", "export", dead, "--out", file)
    assert file.read_text() == exported.out
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    cli("dlq", "export", dead, "--out", file, code=1)
    cli("dlq", "discard", dead, "--yes")
    cli("send", cli.name, "--lines", "--as", "message", "--file", file)
    assert {row["id"] for row in cli.lines("recv", cli.name, "-n", "9")} == {row["id"] for row in rows}


def test_an_export_of_several_pages_is_complete(cli: Cli, q: str) -> None:
    cli("send", q, "--lines", answer="".join(f"{number}\n" for number in range(2345)))

    rows = [json.loads(line)["payload"] for line in cli("dlq", "export", q).out.splitlines()]
    assert rows == [str(number) for number in range(2345)]


def test_consumed_messages_are_replayed(cli: Cli, q: str) -> None:
    first, second = (row for row in ("a", "b"))
    cli("send", q, first)
    since = cli("send", q, second).out.strip()
    cli("recv", q, "-n", "2", "--ack")

    assert "publish 2 messages again" in cli("replay", q, "--since", "1h", "--dry-run").out
    assert cli("replay", q, "--since-id", since, "--yes").out == "replay: 1 message\n"
    assert cli("queue", "purge", q, "--yes").code == 0
    assert cli("replay", q, "--since-id", since, "--yes").out == "replay: 0 messages\n"
    again = cli("replay", q, "--since-id", since, "--include-purged", "--yes")
    assert again.out == "replay: 1 message\n"
    assert (
        cli("replay", q, "--since", "1h", "--yes").out == "replay: 1 message\n"
    )  # the other is there already
    assert cli.counts(q) == (2, 0, 0)
    cli("queue", "create", f"{q}-2")
    assert cli.json("replay", q, "--text", "a", "--to", f"{q}-2", "--yes")["done"] == 1
    assert "give --since, --since-id or a condition" in cli("replay", q, code=2).err
    assert "cannot be combined" in cli("replay", q, "--since", "1h", "--since-id", "x", code=2).err


def test_a_watched_task_keeps_running_after_an_interrupt(cli: Cli, dead: str) -> None:
    screen, stderr = pty.openpty()  # a terminal: its progress bar shows that the command is watching
    watching = subprocess.Popen(
        [*OPENQ, "dlq", "redrive", dead, "--rate", "0.1", "--yes"],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "OPENQ_URL": cli.url, "TERM": "xterm", "NO_COLOR": "1"},
    )
    os.close(stderr)

    def task() -> Any:
        return next(row for row in cli.lines("task", "ls") if row["queue"] == dead)

    err = ""
    while f"redrive {dead}: " not in err:
        err += os.read(screen, 4096).decode()
    watching.send_signal(signal.SIGINT)
    out, _ = watching.communicate(timeout=60)
    with contextlib.suppress(OSError):  # how Linux reports that the other side is closed
        while True:
            err += os.read(screen, 4096).decode()
    os.close(screen)
    identity = task()["id"]

    assert (watching.returncode, out) == (130, "")
    assert f"openq task watch {identity}" in err
    assert f"openq task cancel {identity}" in err
    assert task()["state"] == "running"
    cli("task", "cancel", identity)
    ended = cli("task", "watch", identity, code=1)
    assert "redrive cancelled after" in ended.err
    assert (
        "the operation is not running: it was cancelled after" in cli("task", "cancel", identity, code=1).err
    )
    assert identity in cli("task", "ls").out


def test_a_task_can_be_started_without_waiting(cli: Cli, dead: str) -> None:
    identity = cli("dlq", "redrive", dead, "--yes", "--no-wait").out.strip()

    assert cli("task", "watch", identity).out == "redrive: 4 messages\n"
    assert cli.json("task", "watch", identity)["state"] == "done"
    cli("task", "watch", "nothing", code=3)
