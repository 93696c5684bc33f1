"""`openq events` and `openq tail -f`, against a real server and a data directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cli.helpers import OPENQ, Cli, fill, run_in_process
from tests.serving import start


@contextmanager
def running(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*OPENQ, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENQ_URL": url},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_past_events_are_shown_and_filtered(cli: Cli, q: str) -> None:
    cli("send", q, "a", "--type", "new")
    cli("send", q, "b")
    cli("recv", q, "--ack")

    names = [row["event"] for row in cli.lines("events", q)]
    assert names == ["queue_created", "published", "published", "delivered", "acked"]
    assert [row["event"] for row in cli.lines("events", q, "-n", "2")] == ["delivered", "acked"]
    assert len(cli.lines("events", q, "--event", "published", "--event", "acked")) == 3
    [new] = cli.lines("events", q, "--type", "new", "--bodies")
    assert new["message"]["payload"] == "a"
    rows = cli.lines("events", q)
    assert cli.lines("events", q, "--after", rows[2]["id"]) == rows[3:]
    text = cli("events", q, "--bodies").out
    assert "published" in text
    assert "[new]  a" in text


def test_mistakes_have_their_exit_codes(cli: Cli, q: str) -> None:
    assert "no event was found" in cli("events", "no-such-queue", code=5).err
    assert "'x' is no event" in cli("events", q, "--event", "x", code=2).err
    assert "not the id of an event" in cli("events", q, "--after", "x", code=2).err


def test_a_data_directory_has_events_too(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    done = run_in_process("events", "orders", "--data", tmp_path / "data", "--json", "--event", "published")
    assert done.code == 0, done
    rows = [json.loads(each) for each in done.out.splitlines()]
    assert rows
    assert {row["event"] for row in rows} == {"published"}


def test_events_are_followed_until_ctrl_c(cli: Cli, q: str) -> None:
    cli("send", q, "before")
    [first] = cli.lines("events", q, "--event", "published")
    with running(cli.url, "events", "-f", q, "--after", first["id"], "--json") as process:
        cli("send", q, "after")
        assert json.loads(line(process))["event"] == "published"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err) == ("", "")


def test_tail_and_events_survive_a_restart_of_the_server_and_say_so_once(tmp_path: Path) -> None:
    server = start(tmp_path / "data").wait()
    cli = Cli(server.url, "q")
    cli("queue", "create", "q")
    for number in range(3):
        cli("send", "q", f"old {number}")
    with running(server.url, "tail", "-f", "q", "-n", "2", "--json") as process:
        assert [json.loads(line(process))["payload"] for _ in range(2)] == ["old 1", "old 2"]
        cli("send", "q", "first")
        assert json.loads(line(process))["payload"] == "first"
        server.kill()
        server = start(tmp_path / "data", port=server.port).wait()
        cli("send", "q", "second")
        assert json.loads(line(process))["payload"] == "second"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert err.count("trying again") == 1
    assert "Traceback" not in err
    assert cli.counts("q") == (5, 0, 0)
    server.stop()
