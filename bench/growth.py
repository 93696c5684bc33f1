"""`python -m bench.growth [PART...]`: how cost grows with queues, connections, backlog and bodies.

Every point is a line of JSON in `growth.jsonl`, written as soon as it is measured: a run that was interrupted
continues where it was, and the page (`growth.html`) is made from the lines. Each part has a limit of time;
points for which there is no time left are named and left out.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from openq import __version__

from .growth_page import page_of
from .growth_run import GrowthRun, Notebook
from .harness import refuse_memory_disk

PARTS = {"queues": 150, "connections": 130, "backlog": 150, "bodies": 110}  # seconds
QUICK_SHARE = 0.2
BIG_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"which ones: {', '.join(PARTS)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="fewer points and shorter laps: under two minutes"
    )
    parser.add_argument("--big", action="store_true", help="also ten million waiting messages")
    parser.add_argument("--again", action="store_true", help="measure everything again")
    parser.add_argument("--out", metavar="DIR", help="where the results are (default: build/bench/growth)")
    options = parser.parse_args(arguments)
    for name in options.part:
        if name not in PARTS:
            parser.error(f"unknown part {name!r}; known: {', '.join(PARTS)}")

    out = Path(options.out or Path(__file__).parent.parent / "build" / "bench" / "growth").absolute()
    refuse_memory_disk(str(out))
    out.mkdir(parents=True, exist_ok=True)
    lines = out / "growth.jsonl"
    if options.again:
        lines.unlink(missing_ok=True)
    notebook = Notebook(lines, "quick" if options.quick else "full")
    notebook.read()
    directory = out / f"run-{os.getpid()}"
    directory.mkdir()
    began_s = time.monotonic()
    try:
        for name in options.part or PARTS:
            allowed_s = PARTS[name] * (QUICK_SHARE if options.quick else 1)
            allowed_s += BIG_S if options.big and name == "backlog" else 0
            run = GrowthRun(
                *(name, notebook, str(directory), options.quick, options.big, time.monotonic() + allowed_s)
            )
            importlib.import_module(f"bench.growth_{name}").measure(run)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        machine = f"{platform.python_implementation()} {platform.python_version()}, {os.cpu_count()} cores"
        kind = " (quick)" if options.quick else ""
        page = out / "growth.html"
        title = f"OpenQ {__version__}{kind}, {machine}"
        page.write_text(page_of({name: notebook.of(name) for name in PARTS}, title), encoding="utf-8")
    print(f"{page} ({time.monotonic() - began_s:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
