"""`openq serve`."""

from __future__ import annotations

import os
import signal
from argparse import Namespace

from ..config import KEYS, Config, find_file, load
from ..errors import OpenQError
from .doctor import listening_process
from .main import exit_code_of
from .terminal import FAILED, OK, say


def read_settings(options: Namespace) -> Config:
    flags = {key: getattr(options, key, None) for key in KEYS}
    return load(flags, os.environ, find_file(os.environ, options.config))


def serve(options: Namespace) -> int:
    # Until the server's loop handles SIGHUP, it must not end the process: so before the server is imported.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.json and options.log_format is None:
        options.log_format = "json"
    wanted = options.log_format or os.environ.get("OPENQ_LOG_FORMAT", "")
    is_log_only = wanted == "json" and not options.json
    try:
        config = read_settings(options)
        is_log_only |= config.log_format == "json" and not options.json
        return _serve(config, options)
    except (OpenQError, OSError) as error:
        if not is_log_only:
            raise
        return _log_failure(error)


def _serve(config: Config, options: Namespace) -> int:
    from ..server.app import run
    from ..server.ports import PortTaken

    try:
        return run(config, as_json=options.json, reload=lambda: read_settings(options)) or OK
    except PortTaken as taken:
        holder = listening_process(taken.port)
        by = f" by {holder}" if holder else ""
        text = f"port {taken.port} is taken{by}; stop that program, or {taken.advice}"
        if config.log_format == "json" and not options.json:
            raise OpenQError(text) from None
        say(text)
        return FAILED


def _log_failure(error: Exception) -> int:
    from .log_line import log_not_started

    text = (
        f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    )
    log_not_started(text)
    return exit_code_of(error)
