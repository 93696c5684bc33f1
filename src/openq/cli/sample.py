"""`openq sample`."""

from __future__ import annotations

from argparse import Namespace

from ..sample import main
from .terminal import OK


def sample(options: Namespace) -> int:
    return main() or OK
