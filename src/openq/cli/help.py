"""The help of `openq` and of groups of commands. Commands without commands below them have `parser.py`."""

from __future__ import annotations

from .commands import GROUPS, ROOT
from .terminal import styled, terminal_width

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from .spec import Command

EXIT_CODES = (
    "Exit codes: 0 success, 1 failure or damage found, 2 wrong usage, 3 not found, 4 access denied, "
    "5 nothing found or timed out, 130 interrupted."
)


def examples_text(examples: Sequence[tuple[str, str]]) -> str:
    lines = example_lines(examples, terminal_width() - 2, lambda comment: styled(comment, "dim"))
    return "\n".join([styled("Examples:", "bold"), *(f"  {line}" for line in lines)])


def example_lines(
    examples: Sequence[tuple[str, str]], width: int, style: Callable[[str], str] = str
) -> Iterator[str]:
    """Each command with its comment beside it; above it, if both do not fit into the width."""
    beside = [command for command, comment in examples if len(f"{command}  # {comment}") <= width]
    column = max(map(len, beside), default=0)
    for command, comment in examples:
        if command not in beside:
            yield style(f"# {comment}")
            yield command
        else:
            padded = min(column, width - len(f"  # {comment}"))
            yield f"{command:<{padded}}  {style(f'# {comment}')}"


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
