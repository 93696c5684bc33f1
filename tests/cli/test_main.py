"""The command line itself: help, usage errors, exit codes, colours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace

import pytest

from openq import JournalFailed, QueueNotFound
from openq._version import __version__
from openq.cli.commands import GROUPS, load_all
from openq.cli.main import exit_code_of, find_command, load_function, run_command
from openq.cli.terminal import ByteProgress, size_text
from openq.client.http import Refused, TimedOut, Unreachable
from openq.config import ConfigError
from tests.cli.helpers import OPENQ, FakeTerminal, run_in_process, run_on_terminal, run_openq

TREE = dict(load_all().walk())
COMMANDS = list(TREE)
LEAVES = [words for words, command in TREE.items() if command.run]
GROUPS_OF_COMMANDS = [words for words, command in TREE.items() if command.commands]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_begins_with_examples_and_goes_to_stdout(command: tuple[str, ...]) -> None:
    done = run_in_process(*command, "--help")

    assert done.code == 0
    heading, *lines = done.out.splitlines()
    # What a long example does stands above it.
    first = next(line for line in lines if not line.startswith("  #"))
    assert heading == "Examples:"
    assert first.startswith(f"  openq {' '.join(command)}".rstrip())
    assert "usage: openq" in done.out
    assert done.err == ""


def test_the_usage_requires_a_command() -> None:
    assert "usage: openq [-h] [--version] COMMAND ..." in run_in_process("--help").out


def test_the_sample_needs_no_server() -> None:
    done = run_openq("sample", OPENQ_URL="http://127.0.0.1:1")

    assert (done.code, "Published 10, acked 10" in done.out) == (0, True)


def test_the_version_as_text_and_as_json() -> None:
    assert run_openq("version").out == f"openq {__version__}\n"
    assert run_openq("--version").out == f"openq {__version__}\n"
    assert json.loads(run_openq("version", "--json").out)["version"] == __version__


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["jurnal"], "unknown command: jurnal (did you mean journal?)"),
        (["journal", "chek", "x"], "unknown command: journal chek (did you mean journal check?)"),
        (["zzz"], "unknown command: zzz; commands: serve, demo, "),
        (["queue", "lss"], "unknown command: queue lss (did you mean queue ls?)"),
        (
            ["serve", "--prot", "1"],
            "unrecognized arguments: --prot 1; did you mean --port? see `openq serve --help`",
        ),
        (["serve", "--port", "x"], "flag --port must be a whole number, not 'x'"),
        (["queue", "create", "q", "--delay", "soon"], "a number of seconds, or a time such as 500ms"),
        (["queue", "create", "q", "--max-bytes", "big"], "a number of bytes, such as"),
        (
            ["dlq", "redrive", "q", "--rate", "0"],
            "--rate: must be a number of messages per second, more than 0",
        ),
        (["send", "q", "x", "--attribute", "a"], "--attribute: must be NAME=VALUE, not 'a'"),
        (["perm", "grant", "u", "fly"], "actions are send, receive, peek, manage, admin"),
        (["journal", "check"], "the following arguments are required: DIR; see `openq journal check --help`"),
        (["journal", "dump", "x", "--limit", "-1"], "--limit: must be a whole number, 0 or more, not '-1'"),
        (
            ["send", "q", "x", "--priority", "256"],
            "--priority: must be a whole number from 0 to 255, not '256'",
        ),
        (
            ["queue", "create", "q", "--overflow", "spill"],
            "--overflow: invalid choice: 'spill' (choose from ",
        ),
        (["queue", "edit", "q", "--retry", "never"], "--retry: invalid choice: 'never' (choose from "),
        (
            ["queue", "create", "q", "--max-receives", "0"],
            "--max-receives: must be a whole number, 1 or more",
        ),
        (["recv", "q", "-n", "0"], "-n/--max: must be a whole number, 1 or more, not '0'"),
        (["peek", "q", "-n", "0"], "-n/--max: must be a whole number, 1 or more, not '0'"),
        (["send", "", "x"], "argument QUEUE: the name must not be empty"),
        (["queue", "create", "q", "--dlq", ""], "argument --dlq: the name must not be empty"),
        (["user", "add", "u", "--account", "12"], "--account: a numeric account id has 12 digits"),
        (["--url", "U", "queue", "ls"], "--url comes after the command: openq queue ls --url U"),
        (["--url", "U"], "--url needs a command before it; see `openq --help`"),
        (["--json", "queue", "ls"], "--json comes after the command: openq queue ls --json"),
        (["queue", "--json", "ls"], "--json comes after the command: openq queue ls --json"),
        (["queue", "--json"], "--json needs a command before it; see `openq queue --help`"),
        (["--token", "oq_1", "queue", "ls"], "--token comes after the command: openq queue ls --token TOKEN"),
        (["send", "q", "--jsn", "x"], "unrecognized arguments: --jsn; did you mean --json?"),
        (["send", "q", "x", "--json", "y"], "unrecognized arguments: y; see `openq send --help`"),
        (["journal", "dump", "x", "--from", "now"], "a location is the `at` of a record"),
        (
            ["version", "--jso"],
            "unrecognized arguments: --jso; did you mean --json? see `openq version --help`",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_line_on_stderr_and_code_2(words: list[str], message: str) -> None:
    done = run_in_process(*words)

    assert done.code == 2
    assert done.out == ""
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("words", GROUPS_OF_COMMANDS, ids=" ".join)
def test_no_command_shows_the_help_on_stderr_and_fails(words: tuple[str, ...]) -> None:
    done = run_in_process(*words)

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Examples:")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_is_found_by_its_words(command: tuple[str, ...]) -> None:
    path, found = find_command([*command, "--help"])

    assert (tuple(path), found.help) == (command, TREE[command].help)


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_every_command_names_a_function_that_exists(command: tuple[str, ...]) -> None:
    if command[0] == "pipeline":
        pytest.importorskip("pyspark")

    assert callable(load_function(TREE[command].run))


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_every_command_has_a_json_option(command: tuple[str, ...]) -> None:
    assert "--json" in run_in_process(*command, "--help").out or command == ("sample",)


def test_every_command_is_in_the_help() -> None:
    help_text = run_in_process("--help").out

    assert all(f"    {name} " in help_text for _, commands in GROUPS for name, _, _ in commands)


def loaded_by(*words: str) -> set[str]:
    """Every module that is in memory after a command ran in a process of its own."""
    program = "import sys\nfrom openq.cli.main import main\nmain(sys.argv[1:])\nprint('loaded', *sys.modules)"
    alone = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=60, check=True
    )
    last = alone.stdout.splitlines()[-1].split()
    assert last[0] == "loaded"
    return set(last)


PLAIN_HELP = "import argparse, sys; argparse.ArgumentParser().format_help(); print(*sys.modules)"


@pytest.mark.parametrize(
    "words",
    [("--help",), ("queue", "--help"), ("send", "--help"), ("dlq", "redrive", "--help"), ("user", "--help")],
    ids=" ".join,
)
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    loaded = loaded_by(*words)

    assert "openq.cli.main" in loaded
    heavy = {
        "asyncio",
        "json",
        "difflib",
        "dataclasses",
        "socket",
        "msgspec",
        "uvloop",
        "httptools",
    }
    # Python 3.14's argparse itself loads some of them, to colour its help.
    done = subprocess.run([sys.executable, "-c", PLAIN_HELP], capture_output=True, text=True, timeout=60)
    assert (loaded - set(done.stdout.split())).isdisjoint(heavy)
    ours = {name for name in loaded if name.startswith("openq.") and not name.startswith("openq.cli")}
    assert ours <= {"openq._version"}


def test_the_help_of_openq_loads_no_group_of_commands() -> None:
    ours = {name for name in loaded_by("--help") if name.startswith("openq.")}

    assert ours == {
        "openq._version",
        "openq.cli",
        "openq.cli.commands",
        "openq.cli.help",
        "openq.cli.main",
        "openq.cli.spec",
        "openq.cli.terminal",
    }


def test_the_sample_prints_a_summary_and_ends() -> None:
    done = run_openq("sample")

    assert done.code == 0
    # Message 1 is never acked, message 3 fails once, message 7 three times.
    assert "Published 10, acked 10, failed deliveries 5, ready 0, dead letters 0." in done.out


def test_colours_are_for_terminals_only_and_not_with_no_color() -> None:
    assert "\x1b[" not in run_openq("--help").out
    assert "\x1b[1mExamples:\x1b[0m" in run_on_terminal("--help")[1]
    assert "\x1b[" not in run_on_terminal("--help", NO_COLOR="1")[1]
    assert "\x1b[" not in run_on_terminal("--help", TERM="dumb")[1]
    assert "\x1b[1mopenq:\x1b[0m unknown command: jurnal" in run_on_terminal("jurnal")[1]


def test_a_closed_pipe_is_not_an_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*OPENQ, "version"], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    finally:
        os.close(writing)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536 << 10, "1.5 MiB"),
        (3 << 30, "3.0 GiB"),
        (5 << 50, "5120.0 TiB"),
    ],
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert size_text(count) == text


class EagerByteProgress(ByteProgress):
    _INTERVAL_S = 0.0


@pytest.mark.parametrize("watched", [True, False])
def test_progress_is_shown_on_a_terminal_only(watched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal(watched)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    progress = EagerByteProgress("checking", 4096)
    progress.add(1024)
    progress.add(8192)
    progress.end()
    progress.end()

    shown = "\rchecking: 25 % of 4.0 KiB\x1b[K\rchecking: 99 % of 4.0 KiB\x1b[K\r\x1b[K"
    assert screen.getvalue() == (shown if watched else "")


def test_short_work_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = FakeTerminal(watched=True)
    monkeypatch.setattr(sys, "stderr", screen)
    progress = ByteProgress("checking", 4096)
    progress.add(4096)
    progress.end()

    assert screen.getvalue() == ""


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (QueueNotFound("orders"), 3, "queue 'orders' does not exist"),
        (JournalFailed("EIO"), 1, "the journal failed"),
        (PermissionError(13, "Permission denied", "/data"), 1, "/data: Permission denied"),
        (FileNotFoundError(2, "No such file or directory", "/data"), 3, "/data: No such file"),
        (OSError("odd"), 1, "odd"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_one_line(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: Namespace) -> int:
        raise error

    assert run_command(fail, Namespace()) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"openq: {message}")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (Refused(404, "queue_not_found", "x"), 3),
        (Refused(404, "no_such_route", "x"), 3),
        (Refused(401, "unauthorized", "x"), 4),
        (Refused(403, "forbidden", "x"), 4),
        (Refused(409, "queue_exists", "x"), 1),
        (Refused(507, "disk_full", "x"), 1),
        (TimedOut("http://x", 3), 5),
        (Unreachable("http://x", "gone"), 1),
    ],
    ids=str,
)
def test_the_exit_code_of_an_error(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


@pytest.mark.parametrize(("columns", "longest"), [("60", 60), ("wide", 78)])
def test_help_fits_the_width_it_is_given(columns: str, longest: int) -> None:
    help_text = run_openq("journal", "dump", "--help", COLUMNS=columns).out
    options = help_text[help_text.index("options:") : help_text.index("Exit codes")]

    assert max(map(len, options.splitlines())) <= longest
