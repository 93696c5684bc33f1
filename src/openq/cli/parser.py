"""What the parsers of all groups of commands share. Loaded before the first word of help: nothing heavy."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter

from .terminal import USAGE, say, styled, terminal_width

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than all of this
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn

EXIT_CODES = (
    "Exit codes: 0 done, 1 failed or damage found, 2 wrong usage, 3 not found, 4 denied, "
    "5 nothing there or too late, 130 interrupted."
)


_REQUIRED_NAMES = ("queue", "dlq", "to")


class HelpFormatter(RawDescriptionHelpFormatter):
    """argparse would load `shutil`, and with it three compressors, to ask for the width of the terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_width())


class Parser(ArgumentParser):
    """Help that begins with examples, and errors in one line."""

    def __init__(
        self, *, examples: Sequence[tuple[str, str]] = (), overview: str | None = None, **options: Any
    ) -> None:
        if sys.version_info >= (3, 14):
            options.setdefault("color", False)  # `paint` decides, for examples and the rest alike
        # An abbreviation that works today is broken by the next option with the same beginning.
        super().__init__(allow_abbrev=False, epilog=EXIT_CODES, formatter_class=HelpFormatter, **options)
        self.examples = examples
        self.commands: dict[str, Parser] = {}
        self._overview = overview
        self._all_actions = self._actions

    def parse_known_args(  # type: ignore[override]
        self, words: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Options may stand anywhere among the other words of a command.

        argparse by itself gives an optional argument (`send QUEUE [BODY]`) up at the first option behind the
        queue. So the options are read first, and then what they left.
        """
        words = list(sys.argv[1:] if words is None else words)
        if self._subparsers is not None:
            return super().parse_known_args(words, namespace)
        end = words.index("--") if "--" in words else len(words)
        plain = words[end + 1 :]
        self._all_actions = self._actions
        optional = [action for action in self._actions if action.option_strings]
        required = [action for action in optional if action.required]
        try:
            self._actions = optional
            found, left = super().parse_known_args(words[:end], namespace)
            self._actions = self._all_actions
            unknown = [word for word in left if self._parse_optional(word) is not None]
            plain = [word for word in left if word not in unknown] + plain
            for action in required:
                action.required = False  # it was there: it would have been missed above
            found, left = super().parse_known_args(["--", *plain] if plain else [], found)
        finally:
            self._actions = self._all_actions
            for action in required:
                action.required = True
        self._reject_empty(found)
        return found, unknown + (left[1:] if left[:1] == ["--"] else left)

    def _reject_empty(self, namespace: Namespace) -> None:
        """`openq queue rm "$QUEUE"` where nobody set it."""
        for action in self._actions:
            if action.dest in _REQUIRED_NAMES and getattr(namespace, action.dest, None) == "":
                flag = "/".join(action.option_strings) or action.metavar
                self.error(f"argument {flag}: a name is wanted, and this is empty")

    def format_help(self) -> str:
        self._actions = self._all_actions
        width = max((len(command) for command, _ in self.examples), default=0)
        lines = [f"  {command:<{width}}  {styled('# ' + why, 'dim')}" for command, why in self.examples]
        rest = super().format_help()
        if self._overview is not None:
            rest = rest.replace("\noptions:\n", f"\n{self._overview}\n\noptions:\n", 1)
        return "\n".join([styled("Examples:", "bold"), *lines, "", rest])

    def error(self, message: str) -> NoReturn:
        say(f"{message}; see `{self.prog} --help`")
        sys.exit(USAGE)

    def reject_unknown(self, words: Sequence[str]) -> int:
        """Say what is wrong with words that nothing here takes."""
        from difflib import get_close_matches

        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        close = get_close_matches(flags[0], self._option_string_actions, 1) if flags else []
        hint = f"did you mean {close[0]}? " if close else ""
        say(f"unrecognized arguments: {' '.join(words)}; {hint}see `{self.prog} --help`")
        return USAGE

    def group(self) -> CommandGroup:
        """Commands below this one; without one of them its help is shown."""
        self.set_defaults(help_of=self)
        return CommandGroup(self)


class CommandGroup:
    """The commands below another one."""

    def __init__(self, parent: Parser, **options: Any) -> None:
        self._parent = parent
        options = {"title": "commands", **options}
        self._actions = parent.add_subparsers(metavar="COMMAND", parser_class=Parser, **options)

    def add(
        self,
        name: str,
        run: Callable[[Any], int] | None,
        help: str,
        examples: Sequence[tuple[str, str]],
        more: str = "",
        **options: Any,
    ) -> Parser:
        """One command. Its description is `help` as a sentence, and `more`."""
        sentence = help[0].upper() + help[1:] + "."
        parser: Parser = self._actions.add_parser(
            name, help=help, description=f"{sentence}\n{more}".strip(), examples=examples, **options
        )
        parser.set_defaults(parser_of=parser)
        if run is not None:
            parser.set_defaults(run=run)
        self._parent.commands[name] = parser
        return parser


# -- options that many commands have ------------------------------------------------------------


def add_json(parser: ArgumentParser, help: str = "JSON on stdout, for programs") -> None:
    parser.add_argument("--json", action="store_true", help=help)


def add_server(parser: Parser) -> None:
    """Where the server is, and who asks: the same for all commands that talk to one."""
    where = parser.add_argument_group("server")
    where.add_argument("--url", help="the server (OPENQ_URL; default http://127.0.0.1:9324)")
    where.add_argument("--token", help="bearer token (better: OPENQ_TOKEN or OPENQ_TOKEN_FILE)")
    where.add_argument("--token-file", metavar="FILE", help="a file with the bearer token")
    where.add_argument(
        "--user",
        metavar="NAME",
        help="sign in by name (OPENQ_USER); the password is OPENQ_PASSWORD, or asked",
    )
    where.add_argument("--account", metavar="ID", help="another account than one's own")
    where.add_argument("--ca", metavar="FILE", help="certificate to trust (OPENQ_CA), for HTTPS of one's own")
    where.add_argument(
        "--timeout", metavar="S", type=seconds, help="for an answer of the server (default 30)"
    )


def add_confirmation(parser: Parser) -> None:
    """For everything that destroys or sends again."""
    parser.add_argument("--dry-run", action="store_true", help="only tell how many it would be")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def add_filter(parser: Parser, text: bool = True) -> None:
    """Which messages; everything that is given must hold."""
    which = parser.add_argument_group("which messages (all that is given must hold)")
    if text:
        which.add_argument("--text", help="somewhere in the body")
    which.add_argument("--type", metavar="TYPE", help="the message type")
    which.add_argument("--reason", metavar="TEXT", help="somewhere in the reason of the last failure")
    which.add_argument(
        "--id", action="append", metavar="ID", dest="ids", help="this message; may be repeated"
    )
    which.add_argument(
        "--attribute", action="append", metavar="NAME=VALUE", type=pair, help="an attribute; may be repeated"
    )
    which.add_argument(
        "--where",
        action="append",
        metavar="PATH=VALUE",
        type=pair,
        help="a value in a JSON body: order.total=12",
    )


# -- kinds of values ----------------------------------------------------------------------------


def location(text: str) -> int:
    """`int` alone would refuse 0x...; its own error would not say what is wanted."""
    return _number(text, "a location is the `at` of a record, a whole number")


def count(text: str) -> int:
    return _number(text, "a count is a whole number, 0 or more")


def positive(text: str) -> int:
    return _number(text, "a whole number, 1 or more, is wanted", 1)


def priority(text: str) -> int:
    return _number(text, "a whole number from 0 to 255 is wanted", 0, 255)


def _number(text: str, wanted: str, least: int = 0, most: int = 1 << 60) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not least <= value <= most:
        raise ArgumentTypeError(f"{wanted}, not {text!r}")
    return value


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"a name, an equals sign and a value are wanted, not {text!r}")
    return name, value


def rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ArgumentTypeError(f"a rate is a number of messages per second, more than 0, not {text!r}")
    return value


def seconds(text: str) -> float:
    from ..parsing import read_seconds

    try:
        return read_seconds(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{error} is wanted, not {text!r}") from None


def seconds_or_forever(text: str) -> float | str:
    from ..parsing import FOREVER

    return FOREVER if text.strip().lower() == FOREVER else seconds(text)


def size(text: str) -> int:
    from ..parsing import read_size

    try:
        return read_size(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{error} is wanted, not {text!r}") from None
