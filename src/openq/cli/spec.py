"""What a command is: its help, examples, options, and the function that carries it out. Data only.

The descriptions are in `openq.cli.commands`. Parsers, help, completion and docs/CLI.md are made from them.
"""

from __future__ import annotations

TYPE_CHECKING = False  # not from `typing`, which takes longer to load than everything here
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any


class Option:
    """One option or positional argument, in the words of `argparse.add_argument`.

    `group` is the heading it has in the help. Of options with the same `one_of` only one may be given.
    """

    __slots__ = ("arguments", "group", "names", "one_of")

    def __init__(self, *names: str, group: str = "", one_of: str = "", **arguments: Any) -> None:
        self.names = names
        self.group = group
        self.one_of = one_of
        self.arguments = arguments

    @property
    def dest(self) -> str:
        """The name of its value in the parsed options."""
        longest = next((name for name in self.names if name.startswith("--")), self.names[0])
        return str(self.arguments.get("dest") or longest.lstrip("-").replace("-", "_"))

    @property
    def flags(self) -> tuple[str, ...]:
        """Everything that can be typed for it; empty for a positional argument."""
        if not self.names[0].startswith("-"):
            return ()
        if callable(self.arguments.get("action")):  # argparse.BooleanOptionalAction
            return (*self.names, f"--no-{self.names[0][2:]}")
        return self.names


class Command:
    """A command that runs `run` (`module:function` below openq.cli), or a group of commands.

    `details` follows the help, as a sentence, in the description. `default` is the command of a group that is
    meant if the next word names none.
    """

    __slots__ = ("_options", "commands", "default", "details", "examples", "help", "run")

    def __init__(
        self,
        *,
        help: str = "",
        run: str = "",
        examples: Sequence[tuple[str, str]],
        details: str = "",
        options: Sequence[Option] | Callable[[], Sequence[Option]] = (),
        commands: Mapping[str, Command] | None = None,
        default: str = "",
    ) -> None:
        self.help = help
        self.run = run
        self.examples = examples
        self.details = details
        self._options = options
        self.default = default
        self.commands = commands or {}

    @property
    def options(self) -> Sequence[Option]:
        if callable(self._options):  # expensive to make, and not needed for the help of a group
            self._options = self._options()
        return self._options

    @property
    def description(self) -> str:
        return f"{self.help[0].upper()}{self.help[1:]}.\n{self.details}".strip()

    def walk(self, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Command]]:
        """This command and all below it, each with its words."""
        yield words, self
        for name, command in self.commands.items():
            yield from command.walk((*words, name))
