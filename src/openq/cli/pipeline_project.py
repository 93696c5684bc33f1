"""`openq pipeline init` and `openq pipeline run`."""

from __future__ import annotations

import os
from argparse import Namespace

from ..pipeline import project
from .api import NotFound, url_of
from .output import print_json
from .pipeline import server_options, spark_master
from .terminal import OK, say, styled


def init(options: Namespace) -> int:
    url = url_of(options)
    made = project.init(
        options.directory,
        options.template,
        name=options.name,
        source=options.source,
        target=options.target,
        url=url,
    )
    if options.json:
        print_json({"directory": options.directory, "files": [str(path) for path in made]})
        return OK
    for path in made:
        print(path)
    print(f"{styled('next', 'dim')}  openq pipeline run {options.directory}")
    return OK


def run_project(options: Namespace) -> int:
    if not os.path.exists(options.directory):
        raise NotFound(f"{options.directory}: no such directory; `openq pipeline init` creates a project")
    refreshed = options.full_refresh or []
    ran = project.run(
        options.directory,
        **server_options(options),
        master=spark_master(options),
        conf=dict(options.conf or ()),
        dry_run=options.dry_run,
        refresh=options.refresh or (),
        full_refresh=True if "" in refreshed else refreshed,
        progress=_print_event,
    )
    if options.json:
        print_json(ran.to_json())
    elif options.dry_run:
        print(f"{options.directory} is valid")
    else:
        done = sum(1 for state in ran.flows.values() if state == "COMPLETED")
        print(f"{done} of {len(ran.flows)} flows completed")
    return OK


def _print_event(line: str) -> None:
    """Show the states of flows and runs, and errors; not how Spark finds and loads the files."""
    if line.startswith(("Flow ", "Run ")) and "QUEUED" not in line:
        say(line)
    elif line.startswith("Error: "):  # of a flow that is retried
        say(line[:200])
    elif line.startswith("openq.") and ": " in line:
        say(line.partition(": ")[2])
