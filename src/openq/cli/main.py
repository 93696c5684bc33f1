"""The command `openq`: reads the command line and calls the one function that it names.

Nothing of OpenQ is imported before that function runs: `openq --help` must appear at once.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter

from .terminal import FAILED, INTERRUPTED, NOT_FOUND, OK, USAGE, columns, paint, say

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than all of this
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    Tree = dict[str, "Tree"]

CODES = "Exit codes: 0 done, 1 failed or damage found, 2 wrong usage, 3 not found."


class Formatter(RawDescriptionHelpFormatter):
    """argparse would load `shutil`, and with it three compressors, to ask for the width of the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=columns())


class Parser(ArgumentParser):
    """Help that begins with examples, and errors in one line."""

    def __init__(self, *, examples: Sequence[tuple[str, str]] = (), **options: Any) -> None:
        # An abbreviation that works today is broken by the next option with the same beginning.
        super().__init__(allow_abbrev=False, epilog=CODES, formatter_class=Formatter, **options)
        self.examples = examples

    def format_help(self) -> str:
        width = max((len(command) for command, _ in self.examples), default=0)
        lines = [f"  {command:<{width}}  {paint('# ' + why, 'dim')}" for command, why in self.examples]
        return "\n".join([paint("Examples:", "bold"), *lines, "", super().format_help()])

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see `{self.prog} --help`")
        sys.exit(USAGE)


def build() -> tuple[Parser, Tree]:
    """The parser, and the names of its commands for `unknown_command`."""
    parser = Parser(
        prog="openq",
        description="OpenQ, the message queue you pip install.",
        examples=[
            ("openq sample", "see a queue at work, for some seconds"),
            ("openq journal check ./data", "is everything in this data directory readable?"),
            ("openq COMMAND --help", "examples and options of a command"),
        ],
    )
    parser.add_argument("--version", action="store_true", help="the same as `openq version`")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    version = commands.add_parser(
        "version",
        help="print the version",
        description="Print the version of OpenQ.",
        examples=[("openq version", "openq 1.2.3"), ("openq version --json", "with that of Python")],
    )
    _add_json(version)
    version.set_defaults(run=_version)

    sample = commands.add_parser(
        "sample",
        help="run a small producer and consumer, and tell what happens",
        description="Run the sample: a producer, a consumer that sometimes fails, redelivery, dead letters.\n"
        "It works in memory, leaves nothing behind and ends by itself.",
        examples=[("openq sample", "the same as `python -m openq.sample`")],
    )
    sample.set_defaults(run=_sample)

    journal = commands.add_parser(
        "journal",
        help="check, repair or dump the journal in a data directory",
        description="Look into the journal of a data directory, the `path` of a durable queue.",
        examples=[
            ("openq journal check ./data", "find damage; changes nothing"),
            ("openq journal repair ./data", "save every intact record"),
            ("openq journal dump ./data", "one line of JSON per record"),
        ],
    )
    verbs = journal.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    journal.set_defaults(help_of=journal)
    _add_check(verbs)
    _add_repair(verbs)
    _add_dump(verbs)
    tree: Tree = {"version": {}, "sample": {}, "journal": {"check": {}, "repair": {}, "dump": {}}}
    return parser, tree


def _add_json(parser: ArgumentParser, help: str = "one JSON object on stdout") -> None:
    parser.add_argument("--json", action="store_true", help=help)


def _add_check(verbs: Any) -> None:
    check = verbs.add_parser(
        "check",
        help="verify every block; changes nothing",
        description="Verify every checksum in the journal. Changes nothing, and needs no lock: it works\n"
        "beside a running process. Exit code 1 if anything is damaged.",
        examples=[
            ("openq journal check ./data", "a summary, and each damaged place"),
            ("openq journal check ./data --json", "the same for programs"),
        ],
    )
    check.add_argument("directory", metavar="DIR", help="the data directory")
    _add_json(check)
    check.set_defaults(run=_check)


def _add_repair(verbs: Any) -> None:
    repair = verbs.add_parser(
        "repair",
        help="make a damaged journal open again, with every intact record",
        description="Make a damaged journal open again. Every intact record is kept; the damaged bytes\n"
        "are copied to DIR/quarantine first. The directory must not be in use.",
        examples=[
            ("openq journal repair ./data --dry-run", "what would be done; changes nothing"),
            ("openq journal repair ./data", "asks before it changes anything"),
            ("openq journal repair ./data --yes", "for scripts"),
        ],
    )
    repair.add_argument("directory", metavar="DIR", help="the data directory")
    repair.add_argument("--dry-run", action="store_true", help="only tell; exit code 1 if there is damage")
    repair.add_argument("--yes", action="store_true", help="do not ask")
    _add_json(repair)
    repair.set_defaults(run=_repair)


def _add_dump(verbs: Any) -> None:
    dump = verbs.add_parser(
        "dump",
        help="print every intact record as a line of JSON",
        description="Print every intact record as one line of JSON, oldest first. Damaged places are named\n"
        "on stderr and passed over; then the exit code is 1. Works beside a running process.",
        examples=[
            ("openq journal dump ./data | head", "the oldest records"),
            ("openq journal dump ./data --bodies --limit 1", "with what the messages say"),
            ("openq journal dump ./data --from 4294967456", "go on from the `at` of a record"),
        ],
    )
    dump.add_argument("directory", metavar="DIR", help="the data directory")
    dump.add_argument("--bodies", action="store_true", help="print message bodies too")
    dump.add_argument(
        "--from", dest="start_at", metavar="AT", type=_location, default=0, help="begin at this location"
    )
    dump.add_argument("--limit", metavar="N", type=_count, help="stop after N records")
    _add_json(dump, "accepted for uniformity: the output is JSON anyway")
    dump.set_defaults(run=_dump)


def _location(text: str) -> int:
    """`int` alone would refuse 0x...; its own error would not say what is wanted."""
    return _number(text, "a location is the `at` of a record, a whole number")


def _count(text: str) -> int:
    return _number(text, "a count is a whole number, 0 or more")


def _number(text: str, wanted: str) -> int:
    from argparse import ArgumentTypeError

    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if value < 0:
        raise ArgumentTypeError(f"{wanted}, not {text!r}")
    return value


# -- the commands -------------------------------------------------------------------------------


def _version(options: Namespace) -> int:
    from .._version import __version__

    if getattr(options, "json", False):
        import json

        python = ".".join(map(str, sys.version_info[:3]))
        print(json.dumps({"version": __version__, "python": python, "platform": sys.platform}))
    else:
        print(f"openq {__version__}")
    return OK


def _sample(options: Namespace) -> int:
    from ..sample import main as run

    return run() or OK


def _check(options: Namespace) -> int:
    from . import journal

    return journal.check(options.directory, as_json=options.json)


def _repair(options: Namespace) -> int:
    from . import journal

    return journal.repair(options.directory, options.dry_run, options.yes, as_json=options.json)


def _dump(options: Namespace) -> int:
    from . import journal

    return journal.dump(options.directory, options.start_at, options.limit, options.bodies)


# -- from the command line to the exit code -----------------------------------------------------


def unknown_command(words: Sequence[str], tree: Tree) -> str | None:
    """The sentence about the first word that should be a command and is none."""
    prog = "openq"
    for word in words:
        if not tree or word.startswith("-"):
            return None
        if word not in tree:
            from difflib import get_close_matches

            close = get_close_matches(word, tree, 1)
            hint = f"did you mean `{prog} {close[0]}`?" if close else f"there is {', '.join(tree)}"
            return f"`{prog} {word}` is no command; {hint}"
        tree = tree[word]
        prog += f" {word}"
    return None


def main(words: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    parser, tree = build()
    wrong = unknown_command(words, tree)
    if wrong is not None:
        say(wrong)
        return USAGE
    try:
        options = parser.parse_args(words)
    except SystemExit as stop:  # argparse leaves this way after --help and after an error
        return int(stop.code or OK)
    if getattr(options, "version", False):
        return _version(options)
    run = getattr(options, "run", None)
    if run is None:
        getattr(options, "help_of", parser).print_help(sys.stderr)
        return USAGE
    return guarded(run, options)


def guarded(run: Any, options: Namespace) -> int:
    """Whatever goes wrong with the user's data or machine is one line, never a traceback."""
    from ..errors import OpenQError, QueueNotFound

    try:
        code: int = run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has enough. Python would complain once more when it flushes at exit.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except QueueNotFound as error:
        say(str(error))
        return NOT_FOUND
    except OpenQError as error:
        say(str(error))
        return FAILED
    except OSError as error:
        say(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        return NOT_FOUND if isinstance(error, FileNotFoundError | NotADirectoryError) else FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
