"""Lines that the dashboard offers to copy, run in a shell as somebody pastes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Locator


def copied(part: Locator) -> tuple[str, str]:
    """The lines of a dialog or a form: for `openq` and for curl."""
    part.get_by_text("Copy as a command").click()
    cli, curl = part.locator(".code.line pre").all_inner_texts()
    return cli, curl


def run(line: str, **environment: str) -> str:
    """With the commands of this environment first on the path; every line must succeed."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", line],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout
