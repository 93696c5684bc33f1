"""Removing things of a server by their names."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from .api import connect
from .output import print_result
from .terminal import OK


def remove_each(options: Namespace, what: str, path_of: Callable[[str], str]) -> int:
    server = connect(options)
    for name in options.names:
        print_result(options, server.delete(path_of(name)), f"{what} {name} removed")
    return OK
