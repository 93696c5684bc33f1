"""`openq serve`: the configuration, then the server."""

from __future__ import annotations

from .parser import CommandGroup, Parser, add_json
from .terminal import FAILED, OK, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..config import Config


def add(name: str, verbs: CommandGroup, help: str) -> None:
    serve = verbs.add(
        name,
        _serve,
        help,
        [
            ("openq serve", "durable, in ./openq-data, on http://127.0.0.1:9324"),
            ("openq serve --memory --port 0", "nothing on disk, on a free port"),
            ("openq serve --data /var/lib/openq --host 0.0.0.0", "for other machines; needs users"),
            ("openq serve --config openq.toml", "see `openq config init`"),
            ("openq serve --port 0 --json", "for programs: one JSON line with the ports when ready"),
        ],
        "It prints its addresses when it is ready, and stops on Ctrl-C or SIGTERM. SIGHUP reloads users,\n"
        "certificates and the log level. Every option is also an environment variable (OPENQ_PORT) and a\n"
        "key of the file (port).",
    )
    add_settings(serve)
    add_json(serve, "one JSON line with addresses and ports when ready; the log as JSON lines")


def add_settings(parser: Parser) -> None:
    """A flag per key. Values stay text: the configuration checks them, wherever they come from."""
    from argparse import BooleanOptionalAction

    from ..config import KEYS, Config, flag_of

    parser.add_argument(
        "--config", metavar="FILE", help="TOML file (OPENQ_CONFIG; default ./openq.toml if there)"
    )
    default = Config()
    for key, row in KEYS.items():
        value = getattr(default, key)
        help = row.help.replace("%", "%%")
        if row.metavar is None:
            parser.add_argument(flag_of(key), action=BooleanOptionalAction, default=None, help=help)
            continue
        if value not in (None, ()):
            help += f" (default {value})"
        parser.add_argument(flag_of(key), metavar=row.metavar, help=help)


def read_settings(options: Namespace) -> Config:
    import os

    from ..config import KEYS, find_file, load

    flags = {key: getattr(options, key, None) for key in KEYS}
    return load(flags, os.environ, find_file(os.environ, options.config))


def _serve(options: Namespace) -> int:
    import signal

    # Before the imports that take long: until the server's loop handles SIGHUP, it must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if options.json and options.log_format is None:
        options.log_format = "json"
    config = read_settings(options)
    from ..server.app import PortTaken, run

    try:
        return run(config, as_json=options.json, reload=lambda: read_settings(options)) or OK
    except PortTaken as taken:
        from .doctor import listening_process

        holder = listening_process(taken.port)
        by = f" by {holder}" if holder else ""
        say(f"port {taken.port} is taken{by}; stop that program, or {taken.advice}")
        return FAILED
