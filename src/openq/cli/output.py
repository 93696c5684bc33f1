"""How answers look on a terminal: tables, messages, times; and the question before something is destroyed."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from .terminal import USAGE, is_terminal, say, styled


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def escape_control(text: str) -> str:
    """Text of others on one line: what would move the cursor or colour the screen is shown as escapes."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Columns as wide as they need to be; those named in `right` hold numbers."""
    lines = [["-" if cell is None else escape_control(str(cell)) for cell in row] for row in rows]
    widths = [max(len(line[column]) for line in [list(heads), *lines]) for column in range(len(heads))]

    def joined(cells: Sequence[str]) -> str:
        return "  ".join(
            f"{cell:>{width}}" if head in right else f"{cell:<{width}}"
            for cell, width, head in zip(cells, widths, heads, strict=True)
        ).rstrip()

    print(styled(joined(heads), "bold"))
    for line in lines:
        print(joined(line))


def print_fields(pairs: Sequence[tuple[str, object]]) -> None:
    """One thing, a line per property."""
    width = max((len(name) for name, _ in pairs), default=0)
    for name, value in pairs:
        print(f"{styled(f'{name:<{width}}', 'dim')}  {cell_text(value)}")


def cell_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def duration_text(seconds: float | None) -> str:
    """A time as people say it: 45 s, 3 min, 2.5 h."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"


def count_text(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def body_text(message: dict[str, Any]) -> str:
    """What a message says, as one printable line."""
    payload = message.get("payload", message.get("body"))
    if isinstance(payload, str):
        return escape_control(payload)
    return json.dumps(payload, ensure_ascii=False)


def confirm(options: Namespace, what: str) -> bool:
    """Whether to go on: `--yes`, or the answer of the person at the terminal. Nobody there: no."""
    if options.yes:
        return True
    if not sys.stdin.isatty() or not is_terminal(sys.stderr):
        say(f"this would {what}; nothing was changed: give --yes to do it, --dry-run to see")
        return False
    sys.stderr.write(f"{what[0].upper()}{what[1:]}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was changed")
    return False


NOT_CONFIRMED = USAGE  # the exit code where nobody agreed
