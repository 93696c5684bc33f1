"""`openq serve` and `openq config`. Their flags are the keys of the configuration."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from ...config import KEYS, Config, flag_of
from ..spec import Command, Option
from .options import JSON, SERVER


def _flags() -> tuple[Option, ...]:
    """One flag per key. Values stay text: the configuration checks them, whatever their origin."""
    flags = [
        Option("--config", metavar="FILE", help="TOML file (OPENQ_CONFIG; default ./openq.toml if it exists)")
    ]
    default = Config()
    for key, row in KEYS.items():
        value = getattr(default, key)
        help = row.help.replace("%", "%%")
        if row.metavar is None:
            flags.append(Option(flag_of(key), action=BooleanOptionalAction, default=None, help=help))
            continue
        if value not in (None, ()):
            help += f" (default {value})"
        if key == "log_events":  # alone it means all queues
            flags.append(Option(flag_of(key), metavar=row.metavar, nargs="?", const="on", help=help))
            continue
        flags.append(Option(flag_of(key), metavar=row.metavar, help=help))
    return tuple(flags)


CONFIG_FLAGS = _flags()

COMMANDS = {
    "serve": Command(
        run="serve:serve",
        examples=(
            ("openq serve", "durable, in ./openq-data, on http://127.0.0.1:9324"),
            ("openq serve --memory --port 0", "in memory only, on a free port"),
            ("openq serve --data /var/lib/openq --host 0.0.0.0", "for other machines; requires users"),
            ("openq serve --config openq.toml", "see `openq config init`"),
            ("openq serve --port 0 --json", "for programs: one JSON line with the ports when ready"),
        ),
        details=(
            "Prints its addresses when ready, and stops on Ctrl-C or SIGTERM. SIGHUP reloads its "
            "configuration (see `openq config reload`). Every option is also an environment variable "
            "(OPENQ_PORT) and a key of the file (port)."
        ),
        options=(
            *CONFIG_FLAGS,
            Option(
                "--json",
                action="store_true",
                help="one JSON line with addresses and ports when ready; the log as JSON lines",
            ),
        ),
    ),
    "config": Command(
        examples=(
            ("openq config init", "write openq.toml, with every key explained"),
            ("openq config check", "validate openq.toml and the environment"),
            ("openq config show --origin", "every value in effect, and where it comes from"),
            ("openq config reload", "let a running server read it again"),
        ),
        details="Flags override environment variables (OPENQ_...), those the file, and that the defaults.",
        commands={
            "show": Command(
                help="print every value that `openq serve` would use",
                run="config:show",
                examples=(
                    ("openq config show --origin", "with the origin of each value"),
                    ("openq config show --port 9999 --origin", "with flags of `openq serve`"),
                    ("openq config show --json", "for programs"),
                ),
                options=(
                    Option("--origin", action="store_true", help="show the origin of each value"),
                    *CONFIG_FLAGS,
                    JSON,
                ),
            ),
            "init": Command(
                help="write a file with every key, explained and commented out",
                run="config:init",
                examples=(
                    ("openq config init", "writes openq.toml"),
                    ("openq config init /etc/openq.toml", "writes another file"),
                ),
                details="An existing file is never overwritten.",
                options=(
                    Option(
                        "file", nargs="?", metavar="FILE", default="openq.toml", help="default openq.toml"
                    ),
                    JSON,
                ),
            ),
            "reload": Command(
                help="let a running server read its configuration, users and certificates again",
                run="config:reload",
                examples=(
                    ("openq config reload", "like SIGHUP, and shows what has changed"),
                    ("openq config reload --url https://queue.example.com", "another server"),
                ),
                details=(
                    "Needs the role admin. An invalid configuration changes nothing. Reloaded are log "
                    "settings, limits, timeouts, certificates, users, and queues, schedules and webhooks of "
                    "the file; other changed settings are named, and need a restart."
                ),
                options=(JSON, *SERVER),
            ),
            "check": Command(
                help="validate a file and the environment",
                run="config:check",
                examples=(
                    ("openq config check", "./openq.toml"),
                    ("openq config check /etc/openq.toml", "another file"),
                ),
                details="Reports the first mistake, with exit code 2.",
                options=(
                    Option("file", nargs="?", metavar="FILE", help="default OPENQ_CONFIG, or ./openq.toml"),
                    JSON,
                ),
            ),
        },
    ),
}
