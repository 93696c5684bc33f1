"""`openq pipeline analytics` and `openq pipeline triage`: what happened in queues, and what went wrong."""

from __future__ import annotations

from contextlib import contextmanager

from .parser import CommandGroup, Parser, add_json, positive
from .terminal import EMPTY, OK, say, styled

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any

    from ..pipeline.triage import Triage

_BARS = "▁▂▃▄▅▆▇█"


def add(verbs: CommandGroup) -> None:
    _add_analytics(verbs)
    _add_triage(verbs)


def _add_range(parser: Parser) -> None:
    parser.add_argument("--since", metavar="TIME", help="from this time on: 2h, 7d, or 2026-01-31T12:00:00Z")
    parser.add_argument("--until", metavar="TIME", help="before this time")


def _add_place(parser: Parser) -> None:
    from .pipeline import add_history, add_spark

    add_history(parser)
    add_spark(parser)


def _add_analytics(verbs: CommandGroup) -> None:
    analytics = verbs.add(
        "analytics",
        _analytics,
        "rates, waits, retries, failures and consumers, per queue and window",
        [
            ("openq pipeline analytics --data ./data --open", "all of it, and the report in a browser"),
            ("openq pipeline analytics --data ./data --window 1h --since 30d", "a month in hours"),
            ("openq pipeline analytics --queue 'orders*' --out figures", "of a server, some queues"),
            ("openq pipeline analytics --data ./data --json", "the summary, for programs"),
        ],
        "Writes Parquet tables, summary.json and report.html (which needs no server) to --out. Run again,\n"
        "it reads only what is new and corrects the windows that were still open.",
    )
    analytics.add_argument("--window", metavar="SPAN", default="5m", help="length of a window (default 5m)")
    _add_range(analytics)
    analytics.add_argument(
        "--queue", metavar="NAME", action="append", help="a name or pattern; may be repeated"
    )
    analytics.add_argument(
        "--out", metavar="DIR", help="where results go (default: DATA/analytics, or ./openq-analytics)"
    )
    analytics.add_argument(
        "--anew", action="store_true", help="from the beginning, not from the last results on"
    )
    analytics.add_argument(
        "--top", metavar="N", type=positive, default=20, help="lines of each list (default 20)"
    )
    analytics.add_argument("--open", action="store_true", help="show the report in a browser")
    analytics.add_argument("--dry-run", action="store_true", help="only tell what would be read")
    add_json(analytics)
    _add_place(analytics)


def _add_triage(verbs: CommandGroup) -> None:
    triage = verbs.add(
        "triage",
        _triage,
        "group dead letters by what went wrong, and say what to do",
        [
            ("openq pipeline triage --data ./data", "all dead letters, the largest groups first"),
            ("openq pipeline triage --queue orders-dead --since 7d --top 5", "of a server, one queue"),
            (
                "openq pipeline triage --data ./data --html dead.html",
                "with timelines and samples, to look at",
            ),
        ],
        "Numbers, ids and addresses in a reason do not count. `openq pipeline redrive` sends a group back.",
    )
    triage.add_argument(
        "--queue", metavar="NAME", action="append", help="a dead-letter queue or pattern; may be repeated"
    )
    _add_range(triage)
    triage.add_argument("--top", metavar="N", type=positive, default=20, help="groups to show (default 20)")
    triage.add_argument("--samples", metavar="N", type=int, default=3, help="messages of each (default 3)")
    triage.add_argument("--html", metavar="FILE", help="write a page that needs no server")
    add_json(triage)
    _add_place(triage)


# -- commands ----------------------------------------------------------------------------------------------


@contextmanager
def _unwrap_spark_errors() -> Iterator[None]:
    """An error of ours that Spark wrapped comes out as ours."""
    from ..errors import OpenQError

    try:
        yield
    except OpenQError:
        raise
    except Exception as error:
        from ..pipeline.session import reason

        sentence = reason(error)
        if sentence is None:
            raise
        raise OpenQError(sentence) from None


def _analytics(options: Namespace) -> int:
    from ..pipeline.analytics import analytics, plan
    from .output import print_json
    from .pipeline import history_source, spark_session, validate_source

    words: dict[str, Any] = {
        **history_source(options),
        "window": options.window,
        "since": options.since,
        "until": options.until,
        "queues": options.queue or (),
        "out": options.out,
        "incremental": not options.anew,
    }
    validate_source(history_source(options), options.since, options.until, options.queue or ())
    chosen = plan(**words)
    if options.dry_run:
        told = {"out": str(chosen.out), "first_position": chosen.first_position}
        told |= {"end_position": chosen.end_position, "anew": chosen.anew}
        if options.json:
            print_json(told)
        elif chosen.nothing:
            print(f"nothing is new since the last results in {chosen.out}")
        else:
            why = (
                f"everything ({chosen.anew})" if chosen.anew else f"from position {chosen.first_position} on"
            )
            print(f"would read {why}, up to position {chosen.end_position}, and write to {chosen.out}")
        return OK
    with _unwrap_spark_errors():
        results = analytics(spark_session(options), **words, top=options.top, progress=say)
    if options.json:
        print_json(results.summary)
    else:
        _print_analytics(results.summary)
        print(f"{styled('report', 'dim')}  {results.report}")
    if options.open:
        import webbrowser

        webbrowser.open(results.report.absolute().as_uri())
    return OK if results.summary["queues"] else EMPTY


def _print_analytics(summary: dict[str, Any]) -> None:
    from ..pipeline.report import count, span
    from .output import print_table

    if not summary["queues"]:
        say("the history holds no events of these queues")
        return
    names = ("published", "delivered", "acked", "retried", "dead_lettered", "in_flight", "waiting")
    heads = ["queue", *(name.replace("_", " ") for name in names), "oldest", "wait p99", "work p99"]
    rows = [
        [
            each["queue"],
            *(count(each[name]) for name in names),
            span(each["oldest_age_us"]),
            *(span((each[kind] or {}).get("p99_us")) for kind in ("wait", "processing")),
        ]
        for each in summary["queues"]
    ]
    print_table(heads, rows, right=heads[1:])
    if summary["failures"]:
        print()
        print_table(
            ["failures", "event", "queue", "what"],
            [
                [count(each["count"]), each["event"], each["queue"], _shorten(each["error_signature"] or "-")]
                for each in summary["failures"][:10]
            ],
            right=["failures"],
        )
    print()


def _shorten(text: str, longest: int = 70) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _triage(options: Namespace) -> int:
    from ..pipeline.triage import render, triage
    from .output import print_json
    from .pipeline import history_source, spark_session, validate_source

    place = history_source(options)
    validate_source(place, options.since, options.until, options.queue or ())
    with _unwrap_spark_errors():
        found = triage(
            spark_session(options),
            **place,
            queues=options.queue or (),
            since=options.since,
            until=options.until,
            top=options.top,
            samples=options.samples,
        )
    if options.html:
        with open(options.html, "w", encoding="utf-8") as file:
            file.write(render(found))
        say(f"written to {options.html}")
    if options.json:
        print_json(found.to_json())
    elif not options.html:
        _print_triage(found)
    return OK if found.groups else EMPTY


def _print_triage(found: Triage) -> None:
    from ..pipeline.report import count, moment
    from .output import escape_control

    if not found.groups:
        say("there are no dead letters")
        return
    for group in found.groups:
        signature = escape_control(_shorten(group.signature or "(no reason given)", 100))
        print(f"{styled(f'{count(group.count):>9}', 'bold')}  {signature}")
        what = f", type {group.type}" if group.type else ""
        print(
            f"           {escape_control(group.source)} -> {escape_control(group.dead_queue)}{escape_control(what)}"
        )
        when = f"{moment(group.first_us)} to {moment(group.last_us)} UTC"
        print(f"           {when}  {sparkline(group.timeline)}")
        state = f"{count(group.there)} still there, {count(group.redriven)} redriven"
        print(f"           {state}, {count(group.discarded)} discarded")
        for sample in group.samples:
            body = _shorten(sample["body"] or "", 60)
            print(styled(f"           {escape_control(sample['id'] or '?')}  {escape_control(body)}", "dim"))
        print(f"           {styled(group.action, 'yellow')}: {escape_control(group.advice)}")
        if group.command:
            print(f"           {escape_control(group.command)}")
        print()
    shown = sum(group.count for group in found.groups)
    groups = f"{len(found.groups)} of {found.groups_in_all} groups"
    print(f"{count(shown)} of {count(found.total)} dead letters, {groups}")


def sparkline(timeline: tuple[int, ...]) -> str:
    """A timeline in one line of text."""
    most = max(timeline, default=0)
    return "".join(_BARS[(value * 8 - 1) // most] if value else " " for value in timeline)
