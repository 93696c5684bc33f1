"""How results are printed: tables, fields, durations, JSON; and the confirmation of destructive commands."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .terminal import USAGE, is_terminal, say, styled


def print_json(value: object) -> None:
    print(json.dumps(value, ensure_ascii=False))


def escape_control(text: str) -> str:
    """Untrusted text on one line: control characters, which could move the cursor, are escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str] = ()) -> None:
    """Columns as wide as their contents; those named in `right` are right-aligned."""
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


def print_result(options: Namespace, value: object, text: str) -> None:
    """One result: the value with `--json`, otherwise the text."""
    if options.json:
        print_json(value)
    else:
        print(text)


def print_list(
    options: Namespace,
    items: Sequence[Any],
    columns: Mapping[str, str | Callable[[Any], object]],
    *,
    empty: str,
    right: Sequence[str] = (),
    to_json: Callable[[Any], object] | None = None,
) -> None:
    """Items as a table, or one JSON object per line with `--json`; `empty` goes to stderr if there are none.

    The value of a column is the key of an item, or a function of it.
    """
    if options.json:
        for item in items:
            print_json(item if to_json is None else to_json(item))
    elif items:
        rows = [
            [item[get] if isinstance(get, str) else get(item) for get in columns.values()] for item in items
        ]
        print_table(tuple(columns), rows, right)
    else:
        say(empty)


def print_fields(pairs: Sequence[tuple[str, object]]) -> None:
    """One object, a line per field."""
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
    """A duration such as 45 s, 3 min, 2.5 h."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"


def count_text(number: int, noun: str) -> str:
    """`1 message`, `2 messages`, `2 policies`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural(noun)}"


def plural(noun: str) -> str:
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"


def not_ready_text(stats: dict[str, Any], note: str = "") -> str:
    """How many messages are in flight or delayed; empty if none."""
    states = (("in_flight", "in flight"), ("delayed", "delayed"))
    return " and ".join(
        f"{stats[state]} {word}{note.format(state)}" for state, word in states if stats.get(state)
    )


def shorten(text: str, limit: int = 70) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def body_text(message: dict[str, Any]) -> str:
    """The body of a message, as one printable line."""
    payload = message.get("payload", message.get("body"))
    if isinstance(payload, str):
        return escape_control(payload)
    return json.dumps(payload, ensure_ascii=False)


def confirm(options: Namespace, what: str) -> bool:
    """True with `--yes`, or if the user agrees on the terminal. Without a terminal: False."""
    if options.yes:
        return True
    if not sys.stdin.isatty() or not is_terminal(sys.stderr):
        say(f"this would {what}; nothing was changed: add --yes to do it, --dry-run to see the effect")
        return False
    sys.stderr.write(f"{what[0].upper()}{what[1:]}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing was changed")
    return False


NOT_CONFIRMED = USAGE  # the exit code without a confirmation
