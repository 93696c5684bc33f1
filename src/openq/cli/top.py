"""`openq top`: queues, rates, ages, consumers, alerts, workers and running jobs, live in a terminal.

Plain escape codes, no curses: a frame is one write, from the top left, each line cleared to its end, so
nothing flickers. The size of the terminal is read for every frame.
"""

from __future__ import annotations

import os
import select
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ..errors import OpenQError
from .api import connect
from .output import print_json, shorten
from .terminal import OK, is_terminal, styled, terminal_width
from .top_frame import ORDERS, Frame, TopFrameReader
from .top_lines import lines_of

_NO_LIMIT = 10_000
ONCE_S = 0.5  # between the two looks of --once
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
# Letter -> order; the other orders are chosen by their first letter, too.
KEYS = {name[0]: name for name in reversed(ORDERS)}


def top(options: Namespace) -> int:
    reader = TopFrameReader(connect(options))
    if options.once or not (is_terminal(sys.stdout) and sys.stdin.isatty()):
        return _print(reader, options)
    try:
        return _live(reader, options.interval, options.sort)
    except KeyboardInterrupt:
        return OK  # Ctrl-C quits like q


def _print(reader: TopFrameReader, options: Namespace) -> int:
    """Frames one after the other, for programs and pipes."""
    frame = reader.read(None)  # the rates of the next one are the differences to this one
    while True:
        time.sleep(min(options.interval, ONCE_S) if options.once else options.interval)
        frame = reader.read(frame)
        if options.json:
            print_json(frame.to_json())
        else:
            width = terminal_width() if is_terminal(sys.stdout) else _NO_LIMIT
            print("\n".join(lines_of(frame, width, None, options.sort)))
        sys.stdout.flush()
        if options.once:
            return OK


def _live(reader: TopFrameReader, interval_s: float, order: str) -> int:
    frame: Frame | None = None
    with _screen():
        while True:
            error = ""
            try:
                frame = reader.read(frame)
            except OpenQError as problem:
                error = str(problem)  # the server restarts, perhaps
            deadline = time.monotonic() + interval_s
            key = "first"
            while key:
                key = _key_until(deadline, partial(_draw, frame, error, order))
                if key in ("q", "Q"):
                    return OK
                order = KEYS.get(key.lower(), order)


# -- the terminal -------------------------------------------------------------------------------


def _terminal_size() -> os.terminal_size:
    """Some terminals do not know theirs."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size if size.columns > 0 and size.lines > 0 else os.terminal_size((80, 24))


def _draw(frame: Frame | None, error: str, order: str, size: os.terminal_size) -> None:
    lines = ["waiting for the server"]
    if frame is not None:
        lines = lines_of(frame, size.columns, size.lines - 2, order)
    lines = [styled(line, "bold") if i == 0 else line for i, line in enumerate(lines)]
    names = ", ".join(f"{key} {name}" for key, name in sorted(KEYS.items(), key=lambda each: each[1]))
    help = f"q quits; sorted by {order}: {names}"
    footer = styled(shorten(error or help, size.columns), "red" if error else "dim")
    text = "".join(f"{line}{_CLEAR_LINE}\r\n" for line in lines)
    sys.stdout.write(f"{_HOME}{text}{_CLEAR_BELOW}\x1b[{size.lines};1H{footer}{_CLEAR_LINE}")
    sys.stdout.flush()


@contextmanager
def _screen() -> Iterator[None]:
    """The other screen of the terminal, keys without Enter; all restored at the end."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(keyboard)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()


def _key_until(deadline: float, draw: Callable[[os.terminal_size], None]) -> str:
    """Draw and return a key, or "" after the time. A terminal that changes its size is drawn again at once:
    its size is compared with that of the last drawing, which a change may overtake."""
    size = _terminal_size()
    draw(size)
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], min(left, 0.2))[0]:
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or "q"
        now = _terminal_size()
        if now != size:
            size = now
            draw(size)
    return ""
