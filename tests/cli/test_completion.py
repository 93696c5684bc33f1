"""The completion scripts: every command and option is in them, and installed shells accept them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from openq.cli.commands import load_all
from openq.cli.completion import flags
from tests.cli.helpers import run_in_process

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_and_option_is_in_the_script(shell: str) -> None:
    script = run_in_process("completion", shell).out

    for words, command in load_all().walk():
        assert all(name in script for name in (*words, *command.commands))
        assert all(flag.removeprefix("--") in script for flag in flags(words, command))


def test_the_same_as_json() -> None:
    listed = json.loads(run_in_process("completion", "bash", "--json").out)

    assert {"ls", "create", "rm"} <= set(listed["queue"])
    assert {"--dry-run", "--yes", "--url"} <= set(listed["queue purge"])


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["openq", "que"], "queue"),
        (["openq", "queue", "pu"], "purge"),
        (["openq", "queue", "purge", "--dr"], "--dry-run"),
        (["openq", "queue", "purge", "orders", "--ye"], "--yes"),
        (["openq", "send", "queue", "--pri"], "--priority"),
    ],
    ids=" ".join,
)
def test_bash_completes(typed: list[str], offered: str, tmp_path: Path) -> None:
    script = tmp_path / "openq.bash"
    script.write_text(run_in_process("completion", "bash").out)
    program = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _openq; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", program, "bash", str(script), *typed], capture_output=True, text=True, timeout=30
    )

    assert done.stderr == ""
    assert done.stdout.split() == [offered]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_accepts_its_script(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    script = tmp_path / "script"
    script.write_text(run_in_process("completion", shell).out)
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True, timeout=30)

    assert (done.returncode, done.stderr) == (0, "")
