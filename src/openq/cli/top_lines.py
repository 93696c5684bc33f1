"""The lines of a frame of `openq top`: sections that share the height, tables that fit the width. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from .output import count_text, duration_text, escape_control, shorten
from .terminal import size_text
from .top_frame import RATES, Frame, ordered
from .workers import queues_text, seconds_since

BARS = "▁▂▃▄▅▆▇█"
MIN_FIRST = 8  # characters of the first column, which gives way first
WANTED_NAME = 24  # characters of the name of a queue
TREND_CELLS = 12

Rows = list[tuple[object, ...]]


def lines_of(frame: Frame, width: int, height: int | None, order: str = "load") -> list[str]:
    """The lines of a frame, none wider than `width`, at most `height` of them."""
    running = [(entry, job) for entry in frame.workers for job in entry["running"]]
    running.sort(key=lambda pair: pair[1]["since"])
    head = [_head(frame), *_trend(frame)]
    sections = [
        _alerts(frame.alerts or [], width),
        _queues(frame, order, width),
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
            width,
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
            width,
        ),
    ]
    found = _fitted(head, [each for each in sections if each], height)
    return [shorten(line, width) for line in found]


def _head(frame: Frame) -> str:
    server = frame.server
    busy = sum(entry["busy"] for entry in frame.workers)
    slots = sum(entry["slots"] for entry in frame.workers)
    health = "" if server["healthy"] else "  NOT HEALTHY"
    clock = time.strftime("%H:%M:%S", time.localtime(frame.time))
    parts = [f"OpenQ {server['version']}", clock, f"up {duration_text(server['uptime'])}"]
    parts.append(count_text(len(frame.queues), "queue"))
    if frame.workers:
        parts.append(f"{count_text(len(frame.workers), 'worker process')}, {busy} of {slots} slots busy")
    return "  ".join(parts) + health


def _trend(frame: Frame) -> list[str]:
    """The rates of all queues together, and how they went."""
    if frame.trend is None:
        return []
    found = []
    for label, name in RATES.items():
        values = frame.trend["per_second"][name][-TREND_CELLS - 1 : -1]  # the last step is not over yet
        now = next((each for each in reversed(values) if each is not None), None)
        found.append(f"{label} {'-' if now is None else rate_text(now)}/s {sparkline(values)}".rstrip())
    return ["  ".join(found)]


def sparkline(values: Sequence[float | None]) -> str:
    highest = max((each for each in values if each is not None), default=0.0)
    if not highest:
        return ""
    return "".join(" " if each is None else BARS[round(each / highest * (len(BARS) - 1))] for each in values)


def _alerts(alerts: list[dict[str, Any]], width: int) -> list[str]:
    severities = ("critical", "warning", "info")
    alerts = sorted(alerts, key=lambda each: (each["state"] != "firing", severities.index(each["severity"])))
    rows: Rows = [
        (
            each["alert"],
            "silenced" if each["silenced"] else each["state"],
            each["severity"],
            each["subject"] or each["server"] or "",
            duration_text(seconds_since(each["since"])),
            each["summary"],
        )
        for each in alerts
    ]
    return _table(("alert", "state", "severity", "subject", "since", "summary"), rows, width, gives_way=5)


def _queues(frame: Frame, order: str, width: int) -> list[str]:
    """In a narrow terminal some columns are left out, so that the names stay distinct."""
    heads = ("queue", "ready", "flight", "delayed", "oldest", "cons", *(f"{name}/s" for name in RATES))
    rows = [_queue_row(frame, queue) for queue in ordered(frame, order)]
    wanted = min(WANTED_NAME, max((len(str(row[0])) for row in rows), default=0))
    for left_out in ((), ("out/s",), ("out/s", "delayed")):
        kept = [at for at, head in enumerate(heads) if head not in left_out]
        table = [tuple(row[at] for at in kept) for row in (heads, *rows)]
        others = [max(len(str(row[at])) for row in table) for at in range(1, len(kept))]
        if sum(others) + 2 * len(others) + wanted <= width:
            break
    return _table(tuple(map(str, table[0])), table[1:], width)


def _queue_row(frame: Frame, queue: dict[str, Any]) -> tuple[object, ...]:
    stats = queue["stats"]
    rates = frame.rates.get(queue["name"], {})
    shown = [rate_text(rates[name]) if name in rates else "-" for name in RATES.values()]
    counts = (stats["ready"], stats["in_flight"], stats["delayed"])
    age = stats["oldest_age"]
    return (
        queue["name"],
        *map(number_text, counts),
        "-" if age is None else duration_text(age).replace(" ", ""),
        number_text(frame.consumers[queue["name"]]),
        *shown,
    )


def number_text(number: int) -> str:
    """At most six characters."""
    if number < 100_000:
        return str(number)
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if number < 1000 * size or unit == "G":
            return f"{number / size:.4g}{unit}" if number < 100 * size else f"{number / size:.0f}{unit}"
    raise AssertionError


def rate_text(rate: float) -> str:
    return f"{rate:.1f}" if rate < 1000 else number_text(round(rate))


# -- layout -------------------------------------------------------------------------------------


def _fitted(head: list[str], sections: list[list[str]], height: int | None) -> Iterator[str]:
    """Every section keeps its first lines; the rest of the height goes to them in turn."""
    yield from head
    left = None if height is None else height - len(head)
    for i, section in enumerate(sections):
        shown = len(section)
        if left is not None:
            shown = min(shown, max(left // (len(sections) - i) - 1, 0))
            left -= shown + 1
        if shown < 2:
            continue
        yield ""
        if shown == len(section):
            yield from section
        else:
            yield from section[: shown - 1]
            yield f"... {len(section) - shown + 1} more"


def _table(heads: tuple[str, ...], rows: Rows, width: int, gives_way: int = 0) -> list[str]:
    """Without rows: nothing. Numbers are right-aligned. The column `gives_way` is cut where there is no room,
    then the columns on the right."""
    if not rows:
        return []
    cells = [heads, *([escape_control(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    too_wide = sum(widths) + 2 * (len(widths) - 1) - width
    if too_wide > 0:
        widths[gives_way] = max(widths[gives_way] - too_wide, min(widths[gives_way], MIN_FIRST))
    is_right = [all(_is_number(row[column]) for row in cells[1:]) for column in range(len(heads))]
    return [
        "  ".join(
            f"{shorten(cell, width):>{width}}" if right else f"{shorten(cell, width):<{width}}"
            for cell, width, right in zip(row, widths, is_right, strict=True)
        ).rstrip()
        for row in cells
    ]


def _is_number(text: str) -> bool:
    return text == "-" or text[:1].isdigit()
