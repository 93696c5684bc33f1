"""The library works on the other Pythons that are here too, and says where it is not supported."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from tests.isolation import ROOT
from tests.pythons import SUPPORTED, others, run_short

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_library_works_on_every_python_that_is_here(version: str) -> None:
    python = next((each for each in others() if each.version == version), None)
    if python is None:
        pytest.skip(f"no other Python {version} here")

    done = run_short(python)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_supported_versions_are_said_once() -> None:
    versions = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)]

    assert tuple(versions) == SUPPORTED
    assert PROJECT["requires-python"] == f">={SUPPORTED[0]}"


def test_a_free_threaded_python_is_warned_of_once() -> None:
    program = (
        "import sys, warnings\n"
        "sys._is_gil_enabled = lambda: False\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    import openq\n"
        "    from openq import OpenQ, aio\n"
        "print([(each.category.__name__, str(each.message)) for each in caught])\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    text = "OpenQ is not supported on free-threaded Python: run it with PYTHON_GIL=1"
    assert done.stdout.strip() == str([("RuntimeWarning", text)])


def test_an_ordinary_python_is_not_warned() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "import openq"], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")
