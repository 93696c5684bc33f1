"""Every example runs from an empty folder, ends by itself and complains of nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.redis.servers import binary

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 6


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    # The one on Redis starts whatever server it finds: where none is installed, that of the wheel.
    path = os.pathsep.join([os.environ["PATH"], os.path.dirname(binary())])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout != ""
    assert "Traceback" not in done.stderr
    assert done.stderr == ""
    assert list(tmp_path.iterdir()) == []
