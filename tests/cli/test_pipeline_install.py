"""Pipeline commands without the extra: one line that says what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# As if the packages were not there, for a command in a process of its own.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyarrow", "pyspark", "numpy", "pandas"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from openq.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["triage", "--data", "."],
        ["archive", "versions", "--archive", "."],
        ["replay", "--from", "a", "--to", "b"],
        ["sql", "SELECT 1 FROM queue(a)"],
    ],
    ids=lambda words: words[0],
)
def test_a_base_install_reports_what_to_install(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT, "pipeline", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'openq[spark]'" in done.stderr


def test_a_replay_with_the_same_arguments_has_the_same_plan() -> None:
    from openq.cli.main import find_command
    from openq.cli.parser import Parser
    from openq.cli.pipeline_resend import default_plan_path

    parser = Parser(*find_command(["pipeline", "replay"]))

    def plan(*words: str, ids: list[str] | None = None) -> Path:
        options, _ = parser.parse_known_args(words)
        return default_plan_path(options, "http://127.0.0.1:1", ids)

    asked = ("--from", "a", "--to", "b", "--since", "2h")

    assert plan(*asked) == plan(*asked)
    assert plan(*asked) != plan(*asked, "--where", "seq > 1")
    assert plan(*asked, ids=["x"]) != plan(*asked, ids=["y"])
