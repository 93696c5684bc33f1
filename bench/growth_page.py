"""The page of the growth bench: plots over a logarithmic axis, and a table of what grows. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from openq.pipeline.report import NO_VALUE, count, escape, page, size, span, table

Points = Mapping[int, Mapping[str, float]]

FLAT = 1.3  # last point / first point of a cost that counts as flat: laps differ by this much


class Curve(NamedTuple):
    figure: str
    name: str
    is_cost: bool = True  # less is better, and flat is what is wanted


class Plot(NamedTuple):
    title: str
    shown: Callable[[float], str]
    curves: Sequence[Curve]


class Part(NamedTuple):
    name: str
    title: str
    axis: Callable[[float], str]
    text: str
    plots: Sequence[Plot]


def _us(value: float) -> str:
    return span(value)


def _per_s(value: float) -> str:
    return f"{count(round(value))}/s"


def _mb(value: float) -> str:
    return f"{value:,.0f} MB/s" if value >= 10 else f"{value:.2g} MB/s"


def _ms(value: float) -> str:
    return span(value * 1e3)


def _s(value: float) -> str:
    return span(value * 1e6)


def _share(value: float) -> str:
    return f"{value:.1%}"


def _short(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def _memory(value: float) -> str:
    """In powers of ten, as the lines of a plot are."""
    return f"{value / 1000:.3g} kB" if value >= 1000 else f"{value:.3g} B"


def _bytes(value: float) -> str:
    return size(round(value)).replace(".0 ", " ")


PARTS = (
    Part(
        "queues",
        "Queues",
        _short,
        "Messages of 100 bytes to all queues in turn (5,000 of them where there are more), 32 connections, "
        "durable. CPU time of the server for each message, work of its background threads included.",
        (
            Plot(
                "CPU time of the server",
                _us,
                (
                    Curve("send_us", "SendMessage"),
                    Curve("receive_us", "ReceiveMessage"),
                    Curve("create_us", "CreateQueue"),
                ),
            ),
            Plot("SendMessage by the clock", _per_s, (Curve("send_per_s", "SendMessage", False),)),
            Plot("Memory of each new queue", _memory, (Curve("queue_bytes", "queue", False),)),
            Plot("CPU time of one page of /metrics", _ms, (Curve("metrics_ms", "/metrics", False),)),
            Plot("CPU time without requests", _share, (Curve("idle_share", "of a core", False),)),
            Plot("From start to ready", _s, (Curve("restart_s", "restart", False),)),
        ),
    ),
    Part(
        "connections",
        "Connections",
        _short,
        "One message of 100 bytes at a time on each connection, durable. CPU time of the server for each.",
        (
            Plot(
                "CPU time of the server",
                _us,
                (
                    Curve("busy_us", "SendMessage, all busy"),
                    Curve("idle_us", "SendMessage, ten busy, the others idle"),
                    Curve("amqp_us", "AMQP publish and confirm, all busy"),
                ),
            ),
            Plot(
                "By the clock",
                _per_s,
                (Curve("busy_per_s", "SendMessage", False), Curve("amqp_per_s", "AMQP publish", False)),
            ),
            Plot("Memory of an idle connection", _memory, (Curve("connection_bytes", "HTTP", False),)),
        ),
    ),
    Part(
        "backlog",
        "Waiting messages",
        _short,
        "The same requests with so many messages of 100 bytes in the queue, and up to 80,000 more that a lap "
        "adds and the next one takes away; 32 connections, durable. CPU time of the server for each message.",
        (
            Plot(
                "CPU time of the server",
                _us,
                (
                    Curve("send_us", "SendMessage"),
                    Curve("receive_us", "receive ten and delete them"),
                    Curve("batch_us", "SendMessageBatch of ten"),
                    Curve("consume_us", "AMQP consume and ack"),
                    Curve("publish_us", "AMQP publish and confirm"),
                ),
            ),
            Plot(
                "By the clock",
                _per_s,
                (
                    Curve("send_per_s", "SendMessage", False),
                    Curve("receive_per_s", "receive ten and delete them", False),
                ),
            ),
            Plot("Memory of each waiting message", _memory, (Curve("message_bytes", "message", False),)),
        ),
    ),
    Part(
        "bodies",
        "Bodies",
        _bytes,
        "Durable, in batches of about 1 MiB (at most a thousand messages), beside the same blocks appended "
        "to a file with pwrite and fdatasync.",
        (
            Plot(
                "Publish",
                _mb,
                (
                    Curve("disk_mb_s", "bare append and fdatasync", False),
                    Curve("publish_mb_s", "embedded", False),
                    Curve("rest_mb_s", "REST, 4 connections", False),
                    Curve("amqp_mb_s", "AMQP with confirms", False),
                ),
            ),
            Plot(
                "Receive and ack",
                _mb,
                (Curve("receive_mb_s", "embedded", False), Curve("consume_mb_s", "AMQP", False)),
            ),
        ),
    ),
)


def page_of(points: Mapping[str, Points], title: str) -> str:
    parts = [f"<header><h1>How cost grows</h1><p class=sub>{escape(title)}</p></header>", _verdicts(points)]
    for part in PARTS:
        found = points.get(part.name, {})
        if not found:
            parts.append(f"<h2>{part.title}</h2><p class=none>Not measured.</p>")
            continue
        plots = "".join(growth_plot(plot, part.axis, found) for plot in part.plots)
        parts.append(
            f"<h2>{part.title}</h2><p class=sub>{escape(part.text, 1_000)}</p>"
            f"<section class=card><div class=plots>{plots}</div></section>{_figures(part, found)}"
        )
    return page("OpenQ: how cost grows", "".join(parts))


def growth(points: Points, figure: str) -> float | None:
    """The last value divided by the first."""
    values = [figures[figure] for _, figures in sorted(points.items()) if figures.get(figure)]
    return values[-1] / values[0] if len(values) > 1 else None


def _verdicts(points: Mapping[str, Points]) -> str:
    rows = []
    for part in PARTS:
        found = points.get(part.name, {})
        for plot in part.plots:
            for curve in plot.curves:
                ratio = growth(found, curve.figure)
                if not curve.is_cost or ratio is None:
                    continue
                first, last = min(found), max(found)
                word = "flat" if ratio <= FLAT else f"<b>grows {ratio:.2g} times</b>"
                cells = (part.axis(first), part.axis(last))
                values = [plot.shown(found[x][curve.figure]) for x in (first, last)]
                rows.append((escape(curve.name), part.title.lower(), *cells, *values, f"{ratio:.2f}", word))
    heads = ("cost of a message", "over", "from", "to", "first", "last", "ratio", "")
    return table("From the first point to the last", heads, rows, (4, 5, 6))


def _figures(part: Part, points: Points) -> str:
    curves = [(plot, curve) for plot in part.plots for curve in plot.curves]
    heads = [part.title.lower(), *(f"{plot.title}: {curve.name}" for plot, curve in curves)]
    rows = [
        [
            part.axis(x),
            *(plot.shown(figures[c.figure]) if c.figure in figures else NO_VALUE for plot, c in curves),
        ]
        for x, figures in sorted(points.items())
    ]
    inner = table(f"{part.title}: all figures", heads, rows, range(len(heads)))
    return f"<details><summary>All figures</summary>{inner}</details>"


# -- plots ------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 520, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 10, 24


def growth_plot(plot: Plot, axis: Callable[[float], str], points: Points) -> str:
    """Both axes are logarithmic, so that a straight level line is a flat cost and a power law a slope."""
    lines = [
        [
            (x, figures[curve.figure])
            for x, figures in sorted(points.items())
            if figures.get(curve.figure, 0) > 0
        ]
        for curve in plot.curves
    ]
    values = [value for line in lines for _, value in line]
    if not values:
        return f"<figure><figcaption>{escape(plot.title)}</figcaption><p class=none>Nothing.</p></figure>"
    xs = sorted(points)
    low, high = _bounds(values)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def across(x: float) -> float:
        if len(xs) == 1:
            return (_LEFT + right) / 2
        return _LEFT + (right - _LEFT) * math.log(x / xs[0]) / math.log(xs[-1] / xs[0])

    def up(value: float) -> float:
        return bottom - (bottom - _TOP) * math.log(value / low) / math.log(high / low)

    drawn = []
    for tick in _ticks(low, high):
        drawn.append(f"<path class=grid d='M{_LEFT} {up(tick):.1f}H{right}'/>")
        label = escape(plot.shown(tick))
        drawn.append(f"<text x={_LEFT - 6} y={up(tick) + 3.5:.1f} text-anchor=end>{label}</text>")
    for x in xs:
        anchor = "start" if x == xs[0] and len(xs) > 1 else "end" if x == xs[-1] and len(xs) > 1 else "middle"
        drawn.append(f"<text x={across(x):.1f} y={_HEIGHT - 6} text-anchor={anchor}>{escape(axis(x))}</text>")
    for at, (curve, line) in enumerate(zip(plot.curves, lines, strict=True)):
        if not line:
            continue
        path = "L".join(f"{across(x):.1f} {up(value):.1f}" for x, value in line)
        dots = "".join(
            f"M{across(x):.1f} {up(value):.1f}m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0" for x, value in line
        )
        drawn.append(
            f"<path class='line c{at + 1}' d='M{path}{dots}'><title>{escape(curve.name)}</title></path>"
        )
    legend = "".join(f"<li><i class=c{at + 1}></i>{escape(c.name)}</li>" for at, c in enumerate(plot.curves))
    spoken = "; ".join(
        f"{curve.name} {plot.shown(line[0][1])} to {plot.shown(line[-1][1])}"
        for curve, line in zip(plot.curves, lines, strict=True)
        if line
    )
    return (
        f"<figure><figcaption>{escape(plot.title)}</figcaption>"
        f"<svg class=plot viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img "
        f"aria-label='{escape(plot.title)}: {escape(spoken, 500)}'>{''.join(drawn)}</svg>"
        f"<ul class=legend>{legend}</ul></figure>"
    )


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """From a 1, 2 or 5 below to one above; at least a factor of ten, or noise would look like a trend."""
    steps = [digit * 10.0**power for power in range(-9, 13) for digit in (1, 2, 5)]
    low = max(step for step in steps if step <= min(values) * 0.999)
    high = min(step for step in steps if step >= max(values) * 1.001)
    while high / low < 9.99:
        high = min(step for step in steps if step > high)
        if high / low < 9.99:
            low = max(step for step in steps if step < low)
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    digits = (1, 2, 5) if high / low <= 150 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [digit * 10.0**power for power in powers for digit in digits]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001]
