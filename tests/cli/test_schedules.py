"""`openq schedule`, against a real server."""

from __future__ import annotations

from pathlib import Path

from openq.broker.schedules import Schedule
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.cli.helpers import Cli, run_in_process


def test_a_schedule_is_added_listed_shown_and_removed(cli: Cli, q: str) -> None:
    name = f"{q}-report"
    words = ["--cron", "0 7 * * mon-fri", "--timezone", "Europe/Berlin", "--as", "json", "--type", "report"]
    words += [
        "--misfire",
        "skip",
        "--jitter",
        "10s",
        "--attribute",
        "n:=1",
        "--unique-key",
        "u",
        "--ttl",
        "5m",
    ]
    added = cli("schedule", "add", name, q, '{"a": 1}', *words).out
    assert added.startswith(f"schedule {name} added; next run ")
    assert " 07:00:00 CE" in added
    assert cli("schedule", "add", name, q, '{"a": 1}', *words).out.startswith(f"schedule {name} declared")

    listed = cli("schedule", "ls", q).out
    assert f"{name}  {q}" in listed
    assert "0 7 * * mon-fri (Europe/Berlin)" in listed
    shown = cli("schedule", "show", name, "--next", "3").out
    assert shown.count("07:00:00") == 3
    assert 'payload       {"a": 1}' in shown
    found = cli.json("schedule", "show", name)
    assert (found["misfire"], found["jitter"], found["attributes"], found["ttl"]) == (
        "skip",
        10,
        {"n": 1},
        300,
    )

    assert cli("schedule", "rm", name).out == f"schedule {name} removed\n"
    missing = cli("schedule", "show", name, code=3)
    assert f"schedule '{name}' does not exist" in missing.err
    assert "openq schedule ls" in missing.err
    assert "no schedules of queue" in cli("schedule", "ls", q).err


def test_a_schedule_runs_now_pauses_and_resumes(cli: Cli, q: str) -> None:
    name = f"{q}-later"
    cli("schedule", "add", name, q, "hello", "--every", "1h")
    assert "is paused" in cli("schedule", "pause", name).out
    assert "paused" in cli("schedule", "ls", q).out
    message_id = cli("schedule", "run", name).out.strip()
    [message] = cli.lines("recv", q, "--ack")
    assert (message["id"], message["payload"]) == (message_id, "hello")
    assert "is resumed; next run" in cli("schedule", "resume", name).out
    cli("schedule", "rm", name)


def test_a_wrong_schedule_is_one_line_and_a_hint(cli: Cli, q: str) -> None:
    assert "give --cron" in cli("schedule", "add", "x", q, code=2).err
    for words, text in (
        (("--cron", "61 * * * *"), "minute must be 0 to 59, not '61'"),
        (("--cron", "@daily", "--timezone", "Mars"), "unknown time zone 'Mars'"),
        (("--every", "1ms"), "every must be at least 0.1 seconds"),
        (("--every", "1m", "--cron", "@daily"), "not allowed with argument"),
        (("--every", "often"), "must be a number of seconds"),
    ):
        refused = cli("schedule", "add", "x", q, *words, code=2)
        assert text in refused.err
    assert "at most 100" in cli("schedule", "show", "x", "--next", "101", code=2).err


def test_the_schedules_of_a_directory_are_shown_and_not_run(tmp_path: Path) -> None:
    broker = LocalBroker(tmp_path / "data", runs_schedules=False)
    broker.declare("q", QueueSettings())
    broker.schedules.put(Schedule("tidy", "q", b"x", every_ms=100))
    broker.sync()
    broker.close()
    for _ in range(2):
        listed = run_in_process("schedule", "ls", "--json", "--data", tmp_path / "data")
        assert '"name": "tidy"' in listed.out
        assert '"runs": 0' in listed.out
