"""`openq version`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from .._version import __version__
from .terminal import OK


def version(options: Namespace) -> int:
    if options.json:
        python = ".".join(map(str, sys.version_info[:3]))
        print(json.dumps({"version": __version__, "python": python, "platform": sys.platform}))
    else:
        print(f"openq {__version__}")
    return OK
