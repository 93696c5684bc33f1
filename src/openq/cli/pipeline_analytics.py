"""`openq pipeline analytics` and `openq pipeline triage`."""

from __future__ import annotations

import time
import webbrowser
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..client.times import from_ms, iso
from ..errors import OpenQError
from ..pipeline.analytics import analytics as run_analytics
from ..pipeline.analytics import plan as plan_analytics
from ..pipeline.report import count, moment, span
from ..pipeline.session import reason
from ..pipeline.triage import Triage, render
from ..pipeline.triage import triage as run_triage
from .output import escape_control, print_json, print_table, shorten
from .pipeline import history_source, spark_session, validate_source
from .pipeline_results import publish, shorter_analytics, shorter_triage
from .terminal import EMPTY, OK, say, styled

_BARS = "▁▂▃▄▅▆▇█"


# -- commands ----------------------------------------------------------------------------------------------


@contextmanager
def _unwrap_spark_errors() -> Iterator[None]:
    """Raise the OpenQ error inside an error of Spark."""

    try:
        yield
    except OpenQError:
        raise
    except Exception as error:
        sentence = reason(error)
        if sentence is None:
            raise
        raise OpenQError(sentence) from None


def analytics(options: Namespace) -> int:
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
    chosen = plan_analytics(**words)
    if options.dry_run:
        facts = {"out": str(chosen.out), "first_position": chosen.first_position}
        facts |= {"end_position": chosen.end_position, "anew": chosen.anew}
        if options.json:
            print_json(facts)
        elif chosen.nothing:
            print(f"no new history since the last results in {chosen.out}")
        else:
            why = (
                f"everything ({chosen.anew})" if chosen.anew else f"from position {chosen.first_position} on"
            )
            print(f"would read {why}, up to position {chosen.end_position}, and write to {chosen.out}")
        return OK
    with _unwrap_spark_errors():
        results = run_analytics(spark_session(options), **words, top=options.top, progress=say)
    if options.publish:
        publish(options, "analytics", results.summary, shorter_analytics(results.summary))
    if options.json:
        print_json(results.summary)
    else:
        _print_analytics(results.summary)
        print(f"{styled('report', 'dim')}  {results.report}")
    if options.open:
        webbrowser.open(results.report.absolute().as_uri())
    return OK if results.summary["queues"] else EMPTY


def _print_analytics(summary: dict[str, Any]) -> None:
    if not summary["queues"]:
        say("the history has no events of these queues")
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
                [count(each["count"]), each["event"], each["queue"], shorten(each["error_signature"] or "-")]
                for each in summary["failures"][:10]
            ],
            right=["failures"],
        )
    print()


def triage(options: Namespace) -> int:
    place = history_source(options)
    validate_source(place, options.since, options.until, options.queue or ())
    with _unwrap_spark_errors():
        found = run_triage(
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
    if options.publish:
        document = {"made": iso(from_ms(time.time_ns() // 1_000_000)), **found.to_json()}
        publish(options, "triage", document, shorter_triage(document))
    if options.json:
        print_json(found.to_json())
    elif not options.html:
        _print_triage(found)
    return OK if found.groups else EMPTY


def _print_triage(found: Triage) -> None:
    if not found.groups:
        say("no dead letters")
        return
    for group in found.groups:
        signature = escape_control(shorten(group.signature or "(no reason)", 100))
        print(f"{styled(f'{count(group.count):>9}', 'bold')}  {signature}")
        type = f", type {group.type}" if group.type else ""
        print(f"           {escape_control(f'{group.source} -> {group.dead_queue}{type}')}")
        when = f"{moment(group.first_us)} to {moment(group.last_us)} UTC"
        print(f"           {when}  {sparkline(group.timeline)}")
        state = f"{count(group.there)} still there, {count(group.redriven)} redriven"
        print(f"           {state}, {count(group.discarded)} discarded")
        for sample in group.samples:
            body = shorten(sample["body"] or "", 60)
            print(styled(f"           {escape_control(sample['id'] or '?')}  {escape_control(body)}", "dim"))
        print(f"           {styled(group.action, 'yellow')}: {escape_control(group.advice)}")
        if group.command:
            print(f"           {escape_control(group.command)}")
        print()
    shown = sum(group.count for group in found.groups)
    groups = f"{len(found.groups)} of {found.groups_in_all} groups"
    print(f"{count(shown)} of {count(found.total)} dead letters, {groups}")


def sparkline(timeline: tuple[int, ...]) -> str:
    """A timeline as one line of text."""
    most = max(timeline, default=0)
    return "".join(_BARS[(value * 8 - 1) // most] if value else " " for value in timeline)
