"""`openq top`: queues, rates, ages, workers and running jobs, live in a terminal.

Plain escape codes, no curses: the frame is drawn from the top left, each line cleared to its end. The size of
the terminal is read for every frame.
"""

from __future__ import annotations

import os
import select
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..errors import OpenQError
from .api import ApiClient, connect
from .output import count_text, duration_text, escape_control, print_json, shorten
from .terminal import OK, is_terminal, size_text, styled, terminal_width
from .workers import queues_text, seconds_since

RATES = (("in/s", "published"), ("out/s", "delivered"), ("done/s", "acked"), ("failed/s", "nacked"))
_NO_LIMIT = 10_000
ONCE_S = 0.5  # between the two looks of --once
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@dataclass
class Frame:
    """What is shown at one moment."""

    time: float
    server: dict[str, Any]
    queues: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    rates: dict[str, dict[str, float]] = field(default_factory=dict)  # queue -> name -> per second

    def to_json(self) -> dict[str, Any]:
        return {
            "time": self.time,
            "server": self.server,
            "queues": [{**queue, "rates": self.rates.get(queue["name"])} for queue in self.queues],
            "workers": self.workers,
        }


def top(options: Namespace) -> int:
    server = connect(options)
    if options.once or not (is_terminal(sys.stdout) and sys.stdin.isatty()):
        return _print(server, options)
    try:
        return _live(server, options.interval)
    except KeyboardInterrupt:
        return OK  # Ctrl-C quits like q


def _print(server: ApiClient, options: Namespace) -> int:
    """Frames one after the other, for programs and pipes."""
    frame = read_frame(server, None)  # the rates of the next one are the differences to this one
    while True:
        time.sleep(min(options.interval, ONCE_S) if options.once else options.interval)
        frame = read_frame(server, frame)
        if options.json:
            print_json(frame.to_json())
        else:
            width = terminal_width() if is_terminal(sys.stdout) else _NO_LIMIT
            print("\n".join(lines_of(frame, width, None)))
        sys.stdout.flush()
        if options.once:
            return OK


def _live(server: ApiClient, interval_s: float) -> int:
    frame: Frame | None = None
    error = ""
    with _screen():
        while True:
            try:
                frame, error = read_frame(server, frame), ""
            except OpenQError as problem:
                error = str(problem)  # the server restarts, perhaps
            _draw(frame, error)
            if _key_within(interval_s, lambda frame=frame, error=error: _draw(frame, error)) in ("q", "Q"):
                return OK


def read_frame(server: ApiClient, previous: Frame | None) -> Frame:
    queues = list(server.pages("/queues", "queues", "next"))
    frame = Frame(time.time(), server.get("/server"), queues, server.get("/workers")["workers"])
    if previous is not None:
        frame.rates = rates_between(previous, frame)
    return frame


def rates_between(before: Frame, now: Frame) -> dict[str, dict[str, float]]:
    """By the counters of the queues. A queue that was created again starts anew."""
    seconds = max(now.time - before.time, 0.001)
    old = {queue["name"]: queue["stats"]["counters"] for queue in before.queues}
    found = {}
    for queue in now.queues:
        counters = queue["stats"]["counters"]
        known = old.get(queue["name"], {})
        found[queue["name"]] = {
            name: max(0.0, (counters.get(name, 0) - known.get(name, counters.get(name, 0))) / seconds)
            for _, name in RATES
        }
    return found


# -- drawing ------------------------------------------------------------------------------------


def lines_of(frame: Frame, width: int, height: int | None) -> list[str]:
    """The lines of a frame, none wider than `width`, at most `height` of them."""
    queues = sorted(frame.queues, key=lambda queue: (-_load(frame, queue), queue["name"]))
    running = [(entry, job) for entry in frame.workers for job in entry["running"]]
    running.sort(key=lambda pair: pair[1]["since"])
    sections = [
        _table(
            ("queue", "ready", "delayed", "in flight", "oldest", *(head for head, _ in RATES)),
            [_queue_row(frame, queue) for queue in queues],
        ),
        _table(
            ("worker", "state", "busy", "memory", "queues", "runs"),
            [
                (
                    entry["name"],
                    entry["state"],
                    f"{entry['busy']}/{entry['slots']}",
                    size_text(entry["memory"]),
                    queues_text(entry),
                    entry["runs"],
                )
                for entry in frame.workers
            ],
        ),
        _table(
            ("running", "queue", "attempt", "for", "worker", "id"),
            [
                (
                    job["task"],
                    job["queue"],
                    job["attempt"],
                    duration_text(seconds_since(job["since"])),
                    entry["name"],
                    job["id"],
                )
                for entry, job in running
            ],
        ),
    ]
    return [
        shorten(line, width) for line in _fitted(_head(frame), [each for each in sections if each], height)
    ]


def _head(frame: Frame) -> str:
    server = frame.server
    busy = sum(entry["busy"] for entry in frame.workers)
    slots = sum(entry["slots"] for entry in frame.workers)
    health = "" if server["healthy"] else "  NOT HEALTHY"
    clock = time.strftime("%H:%M:%S", time.localtime(frame.time))
    queues, processes = (
        count_text(len(frame.queues), "queue"),
        count_text(len(frame.workers), "worker process"),
    )
    return (
        f"OpenQ {server['version']}  {clock}  up {duration_text(server['uptime'])}  {queues}  "
        f"{processes}, {busy} of {slots} slots busy{health}"
    )


def _fitted(head: str, sections: list[list[str]], height: int | None) -> Iterator[str]:
    """Every section keeps its first lines; the rest of the height goes to them in turn."""
    yield head
    left = None if height is None else height - 1
    for i, section in enumerate(sections):
        shown = len(section)
        if left is not None:
            shown = min(shown, max(left // (len(sections) - i) - 1, 0))
            left -= shown + 1
        if shown < 2:
            continue
        yield ""
        yield from section[:shown]


def _queue_row(frame: Frame, queue: dict[str, Any]) -> tuple[object, ...]:
    stats = queue["stats"]
    rates = frame.rates.get(queue["name"], {})
    shown = [f"{rates[name]:.1f}" if name in rates else "-" for _, name in RATES]
    counts = (stats["ready"], stats["delayed"], stats["in_flight"])
    return (queue["name"], *counts, duration_text(stats["oldest_age"]), *shown)


def _load(frame: Frame, queue: dict[str, Any]) -> float:
    stats = queue["stats"]
    rates = frame.rates.get(queue["name"], {})
    return float(sum(rates.values()) + stats["ready"] + stats["in_flight"])


def _table(heads: tuple[str, ...], rows: list[tuple[object, ...]]) -> list[str]:
    """Without rows: nothing. Numbers are right-aligned."""
    if not rows:
        return []
    cells = [heads, *([escape_control(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    is_right = [all(_is_number(row[column]) for row in cells[1:]) for column in range(len(heads))]
    return [
        "  ".join(
            f"{cell:>{width}}" if right else f"{cell:<{width}}"
            for cell, width, right in zip(row, widths, is_right, strict=True)
        ).rstrip()
        for row in cells
    ]


def _is_number(text: str) -> bool:
    return text == "-" or text[:1].isdigit()


# -- the terminal -------------------------------------------------------------------------------


def _terminal_size() -> os.terminal_size:
    """Some terminals do not know theirs."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size if size.columns > 0 and size.lines > 0 else os.terminal_size((80, 24))


def _draw(frame: Frame | None, error: str) -> None:
    size = _terminal_size()
    lines = ["waiting for the server"] if frame is None else lines_of(frame, size.columns, size.lines - 2)
    lines = [styled(line, "bold") if i == 0 else line for i, line in enumerate(lines)]
    footer = styled(shorten(error, size.columns), "red") if error else styled("q quits", "dim")
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


def _key_within(seconds: float, redraw: Any) -> str:
    """A key, or "" after the time. A terminal that changes its size is drawn again at once."""
    deadline = time.monotonic() + seconds
    size = _terminal_size()
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], min(left, 0.2))[0]:
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or "q"
        if _terminal_size() != size:
            size = _terminal_size()
            redraw()
    return ""
