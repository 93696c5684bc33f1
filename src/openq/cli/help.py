"""The help of `openq` and of groups of commands. Commands without commands below them have `parser.py`."""

from __future__ import annotations

from .commands import GROUPS, ROOT
from .terminal import styled, terminal_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .spec import Command

EXIT_CODES = (
    "Exit codes: 0 success, 1 failure or damage found, 2 wrong usage, 3 not found, 4 access denied, "
    "5 nothing found or timed out, 130 interrupted."
)


def examples_text(examples: Sequence[tuple[str, str]]) -> str:
    width = max((len(command) for command, _ in examples), default=0)
    lines = [f"  {command:<{width}}  {styled('# ' + comment, 'dim')}" for command, comment in examples]
    return "\n".join([styled("Examples:", "bold"), *lines])


def wrapped(text: str) -> str:
    """Paragraphs, each within the width of the terminal."""
    width = terminal_width()
    lines = text.split("\n")
    if all(len(line) <= width for line in lines):
        return text
    from textwrap import fill

    return "\n".join(fill(line, width) for line in lines)


def group_help(words: Sequence[str], command: Command) -> str:
    flags = "[-h] [--version]" if command is ROOT else "[-h]"
    options = [("-h, --help", "show this help message and exit")]
    if command is ROOT:
        options.append(("--version", "the same as `openq version`"))
        lists = [_list(title, [(name, help) for name, _, help in rows]) for title, rows in GROUPS]
    else:
        lists = [_list("commands", [(name, each.help) for name, each in command.commands.items()])]
    return "\n\n".join(
        [
            examples_text(command.examples),
            f"usage: {' '.join(('openq', *words))} {flags} COMMAND ...",
            wrapped(command.description),
            *lists,
            _list("options", options),
            f"{EXIT_CODES}\n",
        ]
    )


def _list(title: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"{title}:", *(f"    {name:<14}{help}" for name, help in rows)])
