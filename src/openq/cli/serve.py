"""`openq serve`."""

from __future__ import annotations

import os
import signal
from argparse import Namespace

from ..config import KEYS, Config, find_file, load
from .doctor import listening_process
from .terminal import FAILED, OK, say


def read_settings(options: Namespace) -> Config:
    flags = {key: getattr(options, key, None) for key in KEYS}
    return load(flags, os.environ, find_file(os.environ, options.config))


def serve(options: Namespace) -> int:
    # Until the server's loop handles SIGHUP, it must not end the process: so before the server is imported.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.json and options.log_format is None:
        options.log_format = "json"
    config = read_settings(options)
    from ..server.app import PortTaken, run

    try:
        return run(config, as_json=options.json, reload=lambda: read_settings(options)) or OK
    except PortTaken as taken:
        holder = listening_process(taken.port)
        by = f" by {holder}" if holder else ""
        say(f"port {taken.port} is taken{by}; stop that program, or {taken.advice}")
        return FAILED
