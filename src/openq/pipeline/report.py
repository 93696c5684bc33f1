"""The report of an analysis: one HTML file without external resources. Pure: a summary in, text out.

Texts in a summary are not trusted: names and error texts pass through `escape`, and never get where a browser
would run them. The content security policy of the page also forbids all scripts but its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ..client.times import from_ms

NO_VALUE = "\u2013"  # in place of a missing value
_MAX_TEXT = 240  # characters of an untrusted text
_WIDTH, _HEIGHT = 520, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 8, 8, 22

# Invisible characters, and those that change the direction of text.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def escape(text: object, longest: int = _MAX_TEXT) -> str:
    """An untrusted text for an element or a quoted attribute."""
    shown = str(text)
    if len(shown) > longest:
        shown = shown[: longest - 1] + "…"
    shown = _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", shown)
    return html.escape(shown, quote=True)


# -- formatted numbers --------------------------------------------------------------------------------


def count(number: float | None) -> str:
    if number is None:
        return NO_VALUE
    if isinstance(number, float) and number != int(number):
        return f"{number:,.2f}" if number < 10 else f"{number:,.1f}" if number < 100 else f"{number:,.0f}"
    return f"{int(number):,}"


def span(us: float | None) -> str:
    """A duration in a readable unit."""
    if us is None:
        return NO_VALUE
    for limit, unit, name in (
        (1e3, 1, "µs"),
        (1e6, 1e3, "ms"),
        (120e6, 1e6, "s"),
        (7200e6, 60e6, "min"),
        (172_800e6, 3600e6, "h"),
    ):
        if us < limit:
            return f"{us / unit:.3g} {name}"
    return f"{us / 86_400e6:.3g} d"


def size(number: float | None) -> str:
    if number is None:
        return NO_VALUE
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    at = 0
    while number >= 1024 and at < len(units) - 1:
        number /= 1024
        at += 1
    return f"{number:.0f} {units[0]}" if not at else f"{number:.1f} {units[at]}"


def moment(us: int | None, seconds: bool = True) -> str:
    if us is None:
        return NO_VALUE
    return from_ms(us // 1000).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%m-%d %H:%M")


# -- parts of a page ------------------------------------------------------------------------------------


def table(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()
) -> str:
    """Cells are HTML already; columns in `numbers` are right-aligned."""
    if not rows:
        return f"<p class=none>{escape(caption)}: nothing.</p>"

    def cell(tag: str, at: int, inner: str) -> str:
        side = " class=n" if at in numbers else ""
        return f"<{tag}{' scope=col' if tag == 'th' else ''}{side}>{inner}</{tag}>"

    head = "".join(cell("th", at, escape(text)) for at, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', at, text) for at, text in enumerate(row))}</tr>" for row in rows)
    return (
        f"<div class=wide tabindex=0 role=region aria-label='{escape(caption)}'>"
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def text_cell(text: object, kind: str = "") -> str:
    shown = NO_VALUE if text is None or text == "" else escape(text)
    # Untrusted text may be right-to-left; its surroundings must not be.
    return f"<bdi{f' class={kind}' if kind else ''}>{shown}</bdi>"


def examples(ids: Sequence[str]) -> str:
    return "<br>".join(f"<code>{escape(each, 80)}</code>" for each in ids)


def sparkline(values: Sequence[int], label: str) -> str:
    """A small bar chart over time."""
    if not values:
        return ""
    most = max(values) or 1
    values = list(values)
    wide = max(120, len(values))
    step = wide / len(values)
    drawn = "".join(
        f"M{at * step:.1f} 24v-{max(value / most * 22, 1):.1f}h{max(step - 0.4, 0.6):.1f}V24z"
        for at, value in enumerate(values)
        if value
    )
    return (
        f"<svg class=spark viewBox='0 0 {wide} 24' preserveAspectRatio=none role=img "
        f"aria-label='{escape(label)}'><title>{escape(label)}</title><path d='{drawn}'/></svg>"
    )


def stacked_bar(parts: Sequence[tuple[str, int, str]], label: str) -> str:
    """One bar of several parts: (name, number, class of its colour)."""
    total = sum(number for _, number, _ in parts)
    if not total:
        return ""
    drawn, x = [], 0.0
    for name, number, colour in parts:
        width = 100 * number / total
        if number:
            drawn.append(
                f"<rect class={colour} x='{x:.2f}' y=0 width='{width:.2f}' height=10>"
                f"<title>{escape(name)}: {count(number)}</title></rect>"
            )
        x += width
    return (
        "<svg class=stack viewBox='0 0 100 10' preserveAspectRatio=none role=img "
        f"aria-label='{escape(label)}'>"
        f"<title>{escape(label)}</title>{''.join(drawn)}</svg>"
    )


Series = tuple[str, str, Sequence[float | None]]  # name, class of its colour, values


def line_plot(
    title: str,
    from_us: int,
    step_us: int,
    series: Sequence[Series],
    shown: Callable[[float], str],
    log: bool = False,
) -> str:
    """A plot of lines over time; "" without values. The table below the plots has the same numbers."""
    values = [value for _, _, each in series for value in each if value is not None]
    size_ = max((len(each) for _, _, each in series), default=0)
    if not values or not any(values):
        return ""
    low, high = _limits(values, log)
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(at: int) -> float:
        return _LEFT + (right - _LEFT) * (at / (size_ - 1) if size_ > 1 else 0.5)

    def y(value: float) -> float:
        if log:
            share = (math.log10(max(value, low)) - math.log10(low)) / (math.log10(high) - math.log10(low))
        else:
            share = (value - low) / (high - low)
        return bottom - (bottom - _TOP) * share

    parts = []
    for tick in _ticks(low, high, log):
        at = y(tick)
        parts.append(f"<path class=grid d='M{_LEFT} {at:.1f}H{right}'/>")
        parts.append(f"<text x={_LEFT - 6} y={at + 3.5:.1f} text-anchor=end>{escape(shown(tick))}</text>")
    for at in sorted({0, (size_ - 1) // 2, size_ - 1}):
        anchor = "middle" if 0 < at < size_ - 1 or size_ == 1 else "start" if at == 0 else "end"
        when = moment(from_us + at * step_us, seconds=False)
        parts.append(f"<text x={x(at):.1f} y={_HEIGHT - 6} text-anchor={anchor}>{when}</text>")
    for name, colour, each in series:
        drawn = _path([(x(at), y(value)) if value is not None else None for at, value in enumerate(each)])
        parts.append(f"<path class='line {colour}' d='{drawn}'><title>{escape(name)}</title></path>")
    legend = "".join(f"<li><i class={colour}></i>{escape(name)}</li>" for name, colour, _ in series)
    description = ", ".join(f"{name} up to {shown(max((v for v in each if v is not None), default=0))}"
                     for name, _, each in series)  # fmt: skip
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f"<svg class=plot viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img "
        f"aria-label='{escape(title)}: {escape(description)}'>"
        f"{''.join(parts)}</svg><ul class=legend>{legend}</ul></figure>"
    )


def _path(places: Sequence[tuple[float, float] | None]) -> str:
    """A missing value interrupts the line; a single value is a dot."""
    drawn, pen_down = [], False
    for at, place in enumerate(places):
        if place is None:
            pen_down = False
            continue
        drawn.append(f"{'L' if pen_down else 'M'}{place[0]:.1f} {place[1]:.1f}")
        if not pen_down and (at + 1 == len(places) or places[at + 1] is None):
            drawn.append("m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0")
        pen_down = True
    return "".join(drawn)


def _limits(values: Sequence[float], log: bool) -> tuple[float, float]:
    high = max(values)
    if not log:
        step = 10 ** math.floor(math.log10(high))
        return 0.0, math.ceil(high / step) * step
    low = max(min(value for value in values if value > 0), 1)
    return 10 ** math.floor(math.log10(low)), 10 ** max(
        math.ceil(math.log10(high)), math.floor(math.log10(low)) + 1
    )


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if not log:
        return [low, (low + high) / 2, high]
    first, last = round(math.log10(low)), round(math.log10(high))
    step = max(1, (last - first + 3) // 4)
    return [10.0**power for power in range(first, last + 1, step)]


def bar_plot(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, int, str]]]]) -> str:
    """Columns of several parts each, side by side: (label, parts). "" without any."""
    if not groups:
        return ""
    most = max(sum(number for _, number, _ in parts) for _, parts in groups) or 1
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    step = min((right - _LEFT) / len(groups), 80)
    drawn = [
        f"<path class=grid d='M{_LEFT} {bottom}H{right}'/>",
        f"<text x={_LEFT - 6} y={_TOP + 8} text-anchor=end>{count(most)}</text>",
        f"<text x={_LEFT - 6} y={bottom} text-anchor=end>0</text>",
    ]
    names: dict[str, str] = {}
    for at, (label, parts) in enumerate(groups):
        left, y = _LEFT + at * step, float(bottom)
        for name, number, colour in parts:
            if not number:
                continue
            names[name] = colour
            tall = (bottom - _TOP) * number / most
            y -= tall
            drawn.append(
                f"<rect class={colour} x='{left + step * 0.12:.1f}' y='{y:.1f}' "
                f"width='{step * 0.76:.1f}' height='{tall:.1f}'>"
                f"<title>{escape(label)}: {count(number)} {escape(name)}</title></rect>"
            )
        drawn.append(
            f"<text x='{left + step * 0.5:.1f}' y={_HEIGHT - 6} text-anchor=middle>{escape(label, 12)}</text>"
        )
    legend = "".join(f"<li><i class={colour}></i>{escape(name)}</li>" for name, colour in names.items())
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f"<svg class=plot viewBox='0 0 {_WIDTH} {_HEIGHT}' role=img aria-label='{escape(title)}'>"
        f"{''.join(drawn)}</svg><ul class=legend>{legend}</ul></figure>"
    )


# -- the page ------------------------------------------------------------------------------------------

_STYLE = """
:root{color-scheme:light dark;--ink:light-dark(#1a1f27,#e6e9ee);--dim:light-dark(#545d6b,#a3acb9);
--paper:light-dark(#f6f7f9,#14161a);--card:light-dark(#ffffff,#1b1e24);--edge:light-dark(#dde1e7,#2e333c);
--c1:light-dark(#3b5bdb,#7f9bff);--c2:light-dark(#12855b,#52cf9b);--c3:light-dark(#8a5200,#f3b95f);
--c4:light-dark(#c92a2a,#ff8a80);--c5:light-dark(#8450c9,#c09bf5);--c6:light-dark(#8a93a1,#6c7583)}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font-variant-numeric:tabular-nums;
font:14px/1.45 system-ui,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans","Liberation Sans",Arial,sans-serif;
overflow-wrap:anywhere}
main{max-width:1680px;margin:0 auto;padding:20px 24px 64px}
h1{font-size:1.5rem;margin:.2em 0}h2{font-size:1.15rem;margin:2em 0 .6em}h3,.card h2{font-size:1rem;
margin:0 0 .6em}
p.sub,.none,caption,figcaption,.legend{color:var(--dim)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:10px;margin:16px 0;
padding:0;list-style:none}
.tiles li,.card{background:var(--card);border:1px solid var(--edge);border-radius:6px;padding:12px 14px}
.tiles b{display:block;font-size:1.35rem;font-variant-numeric:tabular-nums}
.tiles span{color:var(--dim);font-size:.85rem}
.card{margin:0 0 16px}.plots{display:grid;
grid-template-columns:repeat(auto-fill,minmax(min(100%,420px),1fr));gap:16px}
figure{margin:0;min-width:0}figcaption{font-size:.85rem;margin-bottom:4px}
svg.plot{width:100%;height:auto;display:block}svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
.grid{stroke:var(--edge);fill:none}.line{fill:none;stroke-width:1.8;stroke-linejoin:round;
stroke-linecap:round}
path.c1{stroke:var(--c1)}path.c2{stroke:var(--c2)}path.c3{stroke:var(--c3)}path.c4{stroke:var(--c4)}
path.c5{stroke:var(--c5)}
path.c6{stroke:var(--c6)}rect.c1{fill:var(--c1)}rect.c2{fill:var(--c2)}rect.c3{fill:var(--c3)}
rect.c4{fill:var(--c4)}rect.none{fill:var(--edge)}
rect.c5{fill:var(--c5)}rect.c6{fill:var(--c6)}i.c1{background:var(--c1)}i.c2{background:var(--c2)}
i.c3{background:var(--c3)}
i.c4{background:var(--c4)}i.c5{background:var(--c5)}i.c6{background:var(--c6)}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;list-style:none;margin:4px 0 0;padding:0;
font-size:.8rem}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
svg.spark{width:130px;height:24px;display:block}svg.spark path{fill:var(--c4)}svg.stack{width:130px;
height:10px;display:block}
.wide{overflow-x:auto;max-width:100%;margin-bottom:16px}table{border-collapse:collapse;width:100%;font-size:.93em}
td{min-width:7ch}td:first-child{min-width:12ch}caption{text-align:left;font-size:.85rem;padding:2px 0 6px}
th,td{text-align:left;padding:5px 10px 5px 0;border-bottom:1px solid var(--edge);vertical-align:top}
th{font-weight:600;white-space:nowrap}th button{all:unset;cursor:pointer}
th button:focus-visible{outline:2px solid var(--c1)}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code,.sig{font:12px/1.45 ui-monospace,monospace}
.sig{display:block;max-width:46ch;min-width:16ch}details{margin-top:10px}summary{cursor:pointer;
color:var(--dim);font-size:.85rem}
pre{margin:4px 0;padding:6px 8px;border:1px solid var(--edge);border-radius:6px;white-space:pre-wrap;
font-size:12px}
@media print{body{background:#fff}.card{break-inside:avoid}}
"""

# A click on a header sorts a table; without scripts tables are static.
_SCRIPT = """
for(const table of document.querySelectorAll("table")){
  const heads=[...table.querySelectorAll("thead th")];
  heads.forEach((head,at)=>{
    const button=document.createElement("button");
    button.type="button";button.textContent=head.textContent;head.textContent="";head.append(button);
    button.addEventListener("click",()=>{
      const down=head.getAttribute("aria-sort")!=="descending";
      heads.forEach(each=>each.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort",down?"descending":"ascending");
      const body=table.tBodies[0];
      const key=row=>row.cells[at].dataset.v??row.cells[at].textContent.trim();
      const number=text=>{
        const found=/^(-?[\\d,.]+) ?(\\S+)?$/.exec(text);
        if(!found)return NaN;
        const units={"µs":1e-6,ms:1e-3,s:1,min:60,h:3600,d:86400,KiB:1024,MiB:1048576,GiB:1073741824};
        const unit=units[found[2]]??1;
        return parseFloat(found[1].replaceAll(",",""))*unit;
      };
      [...body.rows].sort((one,two)=>{
        const a=key(one),b=key(two),x=number(a),y=number(b);
        const order=isNaN(x)||isNaN(y)?a.localeCompare(b):x-y;
        return down?-order:order;
      }).forEach(row=>body.append(row));
    });
  });
}
"""


def page(title: str, inner: str) -> str:
    own = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{own}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name=viewport content="width=device-width,initial-scale=1">'
        "<meta name=referrer content=no-referrer>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>{inner}</main>"
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def render(summary: dict[str, Any]) -> str:
    """The report of an analysis."""
    queues = summary["queues"]
    if summary["until"] is None:
        inner = "<h1>Queues</h1><p class=none>The history holds no events (yet).</p>"
        return page("OpenQ: no events", inner)
    since, until = moment(summary["from"]), moment(summary["until"])
    parts = [
        "<header><h1>Queues</h1>",
        f"<p class=sub>{since} to {until} UTC, in windows of {span(summary['window_s'] * 1e6)}; "
        f"made {escape(summary.get('made', ''))}. All times are UTC.</p></header>",
        _tiles(queues),
        "<h2>Queues</h2>",
        _queue_table(queues),
        "<h2>Over time</h2>",
        *_queue_cards(summary),
        "<h2>Dead letters by what went wrong</h2>",
        _dead_table(summary["plots"]["dead_letters"]),
        "<h2>Failures</h2>",
        _failure_table(summary["failures"]),
        _type_table(summary["types"]),
        "<h2>Consumers</h2>",
        _consumer_table(summary["consumers"]),
        "<h2>Producers</h2>",
        _producer_table(summary["producers"]),
    ]
    return page(f"OpenQ: {len(queues)} queues until {until}", "".join(parts))


def _tiles(queues: Sequence[dict[str, Any]]) -> str:
    def total(name: str) -> int:
        return sum(queue[name] for queue in queues)

    oldest = max((queue["oldest_age_us"] or 0 for queue in queues), default=0)
    tiles = [
        ("published", count(total("published"))),
        ("acknowledged", count(total("acked"))),
        ("retried", count(total("retried"))),
        ("dead letters", count(total("dead_lettered"))),
        ("waiting at the end", count(total("waiting"))),
        ("in flight at the end", count(total("in_flight"))),
        ("oldest open", span(oldest or None)),
        ("bytes published", size(total("bytes"))),
    ]
    return (
        "<ul class=tiles>"
        + "".join(f"<li><b>{value}</b><span>{name}</span></li>" for name, value in tiles)
        + "</ul>"
    )


def _queue_table(queues: Sequence[dict[str, Any]]) -> str:
    names = (
        "published",
        "delivered",
        "acked",
        "retried",
        "dead_lettered",
        "expired",
        "redriven",
        "in_flight",
        "waiting",
    )
    heads = ["queue", *(name.replace("_", " ") for name in names), "oldest", "wait p50", "wait p99"]
    heads += ["work p50", "work p99", "bytes"]
    rows = [
        [
            text_cell(queue["queue"]),
            *(count(queue[name]) for name in names),
            span(queue["oldest_age_us"]),
            *(
                span((queue[kind] or {}).get(f"{p}_us"))
                for kind in ("wait", "processing")
                for p in ("p50", "p99")
            ),
            size(queue["bytes"]),
        ]
        for queue in queues
    ]
    note = (
        "Totals; a wait is from publish or arrival to the first delivery, work from a delivery to its answer"
    )
    return table(note, heads, rows, range(1, len(heads)))


def _queue_cards(summary: dict[str, Any]) -> list[str]:
    plots = summary["plots"]
    from_us, step_us = plots["from_us"], plots["step_us"]
    totals = {queue["queue"]: queue for queue in summary["queues"]}
    cards: list[str] = []
    quiet: list[str] = []
    for name, points in plots["queues"].items():
        per_s = 1e6 / step_us
        rates: list[Series] = [
            (label, colour, [value * per_s for value in points[each]])
            for label, colour, each in (
                ("published", "c1", "published"),
                ("acknowledged", "c2", "acked"),
                ("retried", "c3", "retried"),
                ("dead letters", "c4", "dead_lettered"),
            )
        ]
        waits: list[tuple[str, list[Series]]] = [
            (
                title,
                [
                    (p, colour, points[f"{kind}_{p}_us"])
                    for p, colour in (("p50", "c1"), ("p90", "c5"), ("p99", "c3"))
                ],
            )
            for title, kind in (
                ("Waiting for the first delivery", "wait"),
                ("Work, delivery to answer", "processing"),
            )
        ]
        depth = [
            (
                str(each["deliveries"]),
                [
                    ("acknowledged", each.get("ack", 0), "c2"),
                    ("dead letters", each.get("dead_letter", 0), "c4"),
                    ("ended otherwise", each.get("other", 0), "c6"),
                ],
            )
            for each in totals[name]["retry_depth"][:24]
        ]
        drawn = [line_plot("Messages per second", from_us, step_us, rates, _rate)]
        drawn += [line_plot(title, from_us, step_us, series, span, log=True) for title, series in waits]
        drawn.append(bar_plot("Deliveries that a message took", depth))
        if not any(drawn):
            quiet.append(name)
            continue
        cards.append(
            f"<section class=card><h3>{text_cell(name)}</h3><div class=plots>{''.join(drawn)}</div>"
            f"<details><summary>The same as a table</summary>{_points_table(name, points, from_us, step_us)}"
            f"</details></section>"
        )
    if quiet:
        names = ", ".join(map(text_cell, quiet))
        cards.append(f"<p class=none>Without messages in this time: {names}.</p>")
    hidden = len(totals) - len(plots["queues"])
    if hidden > 0:
        cards.append(
            f"<p class=none>The {len(plots['queues'])} busiest queues are drawn; "
            f"{hidden} more are in the table.</p>"
        )
    return cards


def _rate(value: float) -> str:
    return f"{value:.3g}/s" if value < 1000 else f"{value / 1000:.3g}k/s"


def _points_table(name: str, points: dict[str, Any], from_us: int, step_us: int) -> str:
    numbers = ("published", "delivered", "acked", "retried", "dead_lettered")
    spans = [f"{kind}_{p}_us" for kind in ("wait", "processing") for p in ("p50", "p90", "p99")]
    rows = [
        [
            moment(from_us + at * step_us),
            *(count(points[each][at]) for each in numbers),
            *(span(points[each][at]) for each in spans),
        ]
        for at in range(len(points["published"]))
        if any(points[each][at] for each in (*numbers, *spans))
    ]
    heads = ["from (UTC)", *numbers, *(each.removesuffix("_us") for each in spans)]
    return table(
        f"{name}, every {span(step_us)}",
        [head.replace("_", " ") for head in heads],
        rows,
        range(1, len(heads)),
    )


def _dead_table(found: Sequence[dict[str, Any]]) -> str:
    most = max((each["count"] for each in found), default=0)
    rows = [
        [
            text_cell(each["signature"] or "(no reason given)", "sig"),
            count(each["count"]),
            stacked_bar(
                [("dead letters", each["count"], "c4"), ("", most - each["count"], "none")],
                "share of the most frequent",
            ),
            sparkline(
                each["counts"],
                f"{count(each['count'])} over time, at most {count(max(each['counts']))} at once",
            ),
        ]
        for each in found
    ]
    return table("Dead letters by signature", ["signature", "count", "share", "when"], rows, [1])


def _failure_table(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            text_cell(each["error_signature"] or f"({each['event'].replace('_', ' ')})", "sig"),
            text_cell(each["event"].replace("_", " ")),
            text_cell(each["queue"]),
            text_cell(each["type"]),
            count(each["count"]),
            moment(each["first_seen"]),
            moment(each["last_seen"]),
            examples(each["examples"]),
        ]
        for each in found
    ]
    heads = ["signature", "event", "queue", "type", "count", "first seen", "last seen", "examples"]
    return table("The most frequent failures", heads, rows, [4])


def _type_table(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            text_cell(each["type"]),
            text_cell(each["queue"]),
            count(each["count"]),
            count(each["dead_lettered"]),
            moment(each["last_seen"]),
        ]
        for each in found
    ]
    return table(
        "Types of messages that fail most",
        ["type", "queue", "failures", "dead letters", "last seen"],
        rows,
        [2, 3],
    )


def _consumer_table(found: Sequence[dict[str, Any]]) -> str:
    names = ("deliveries", "acks", "nacks", "timeouts", "abandoned", "dead_lettered", "holding")
    rows = [
        [
            text_cell(each["consumer"] or "(no name)"),
            text_cell(each["queue"]),
            stacked_bar(
                [
                    ("acks", each["acks"], "c2"),
                    ("nacks", each["nacks"], "c3"),
                    ("timeouts", each["timeouts"], "c4"),
                    ("abandoned", each["abandoned"], "c5"),
                    ("dead letters", each["dead_lettered"], "c6"),
                    ("holding", each["holding"], "c1"),
                ],
                f"of {count(each['deliveries'])} deliveries: {count(each['acks'])} acks, "
                f"{count(each['nacks'])} nacks, {count(each['timeouts'])} timeouts, "
                f"{count(each['abandoned'])} abandoned",
            ),
            *(count(each[name]) for name in names),
            span(each["slowest_us"]),
            f"<code>{escape(each['slowest_id'] or NO_VALUE, 80)}</code>",
            moment(each["last_seen"]),
        ]
        for each in found
    ]
    heads = [
        "consumer",
        "queue",
        "answers",
        *(name.replace("_", " ") for name in names),
        "slowest",
        "which",
        "last seen",
    ]
    note = (
        "What became of each consumer's deliveries; a timeout is a lease that ran out, "
        "abandoned is one that its holder left"
    )
    return table(note, heads, rows, range(3, 11))


def _producer_table(found: Sequence[dict[str, Any]]) -> str:
    rows = [
        [
            text_cell(each["producer"] or "(no name)"),
            text_cell(each["queue"]),
            count(each["published"]),
            size(each["bytes"]),
            moment(each["last_seen"]),
        ]
        for each in found
    ]
    return table("Who published", ["producer", "queue", "published", "bytes", "last seen"], rows, [2, 3])
