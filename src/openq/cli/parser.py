"""The parser of one command, made from its description."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

from .help import EXIT_CODES, examples_text, wrapped
from .terminal import USAGE, say, terminal_width

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than everything here
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from .spec import Command

_REQUIRED_NAMES = ("queue", "dlq", "to")


class HelpFormatter(RawDescriptionHelpFormatter):
    """Knows the terminal's width: argparse would load `shutil`, and with it three compressors, to find it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=terminal_width())


class Parser(ArgumentParser):
    """Help that begins with examples, and errors in one line."""

    def __init__(self, words: Sequence[str], command: Command) -> None:
        settings: dict[str, Any] = {}
        if sys.version_info >= (3, 14):
            settings["color"] = False  # `styled` decides, for examples and the rest alike
        super().__init__(
            prog=" ".join(("openq", *words)),
            description=wrapped(command.description),
            epilog=EXIT_CODES,
            formatter_class=HelpFormatter,
            # An abbreviation that works today is broken by the next option with the same beginning.
            allow_abbrev=False,
            **settings,
        )
        self._examples = command.examples
        groups: dict[str, Any] = {"": self}
        exclusive: dict[str, Any] = {}
        for option in command.options:
            if option.group not in groups:
                groups[option.group] = self.add_argument_group(option.group)
            target = groups[option.group]
            if option.one_of:
                if option.one_of not in exclusive:
                    exclusive[option.one_of] = target.add_mutually_exclusive_group()
                target = exclusive[option.one_of]
            target.add_argument(*option.names, **option.arguments)
        self._all_actions = self._actions

    def parse_known_args(  # type: ignore[override]
        self, words: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        """Options may stand anywhere among the positional arguments.

        argparse assigns an optional positional argument (`send QUEUE [BODY]`) no value if an option follows
        the queue. So the options are parsed first, then the words that they left.
        """
        words = list(sys.argv[1:] if words is None else words)
        end = words.index("--") if "--" in words else len(words)
        positional = words[end + 1 :]
        optional = [action for action in self._actions if action.option_strings]
        required = [action for action in optional if action.required]
        try:
            self._actions = optional
            found, left = super().parse_known_args(words[:end], namespace)
            self._actions = self._all_actions
            unknown = [word for word in left if self._parse_optional(word) is not None]
            positional = [word for word in left if word not in unknown] + positional
            for action in required:
                action.required = False  # it was given: the first pass would have failed without it
            found, left = super().parse_known_args(["--", *positional] if positional else [], found)
        finally:
            self._actions = self._all_actions
            for action in required:
                action.required = True
        self._reject_empty(found)
        return found, unknown + (left[1:] if left[:1] == ["--"] else left)

    def _reject_empty(self, namespace: Namespace) -> None:
        """`openq queue rm "$QUEUE"` with the variable not set."""
        for action in self._actions:
            if action.dest in _REQUIRED_NAMES and getattr(namespace, action.dest, None) == "":
                flag = "/".join(action.option_strings) or action.metavar
                self.error(f"argument {flag}: the name must not be empty")

    def format_help(self) -> str:
        self._actions = self._all_actions
        return f"{examples_text(self._examples)}\n\n{super().format_help()}"

    @staticmethod
    def report(text: str) -> None:
        """Replaced where mistakes are log lines."""
        say(text)

    def error(self, message: str) -> NoReturn:
        self.report(f"{message}; see `{self.prog} --help`")
        sys.exit(USAGE)

    def reject_unknown(self, words: Sequence[str]) -> int:
        """Report words that no option or argument takes."""
        from difflib import get_close_matches

        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        close = get_close_matches(flags[0], self._option_string_actions, 1) if flags else []
        hint = f"did you mean {close[0]}? " if close else ""
        self.report(f"unrecognized arguments: {' '.join(words)}; {hint}see `{self.prog} --help`")
        return USAGE
