"""`openq version` and `openq sample`."""

from __future__ import annotations

import sys

from .parser import CommandGroup, add_json
from .terminal import OK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace


def add(name: str, verbs: CommandGroup, help: str) -> None:
    if name == "version":
        parser = verbs.add(
            name,
            _version,
            help,
            [("openq version", "openq 1.2.3"), ("openq version --json", "with that of Python")],
        )
        add_json(parser)
    else:
        verbs.add(
            name,
            _sample,
            help,
            [("openq sample", "the same as `python -m openq.sample`")],
            "A producer, a consumer that sometimes fails, redelivery, dead letters.\n"
            "It works in memory, needs no server, leaves nothing behind and ends by itself.",
        )


def _version(options: Namespace) -> int:
    from .._version import __version__

    if options.json:
        import json

        python = ".".join(map(str, sys.version_info[:3]))
        print(json.dumps({"version": __version__, "python": python, "platform": sys.platform}))
    else:
        print(f"openq {__version__}")
    return OK


def _sample(options: Namespace) -> int:
    from ..sample import main as run

    return run() or OK
