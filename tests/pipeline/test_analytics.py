"""The analytics job against a slow recount of the same events, all at once and in steps."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from openq import OpenQ
from openq.cli.main import main
from openq.errors import HistoryUnavailable, InvalidSetting
from openq.history.local import LocalHistory
from openq.history.selection import Selection
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.pipeline.analytics import AnalyticsJob, Results, ResultsBusy, analytics, window_us
from openq.pipeline.archive import archive
from openq.pipeline.target import moment_us, queue_list
from openq.pipeline.triage import triage
from tests.cli.helpers import run_in_process
from tests.pipeline.recount import History, Recount, Simulation, micros, nearest
from tests.serving import Served, served
from tests.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WINDOW_US = 300_000_000
EVENTS = {
    "published": ("publish",),
    "arrived": ("arrive",),
    "delivered": ("deliver",),
    "acked": ("ack",),
    "retried": ("nack", "lease_expired"),
    "released": ("release",),
    "dead_lettered": ("dead_letter",),
    "redriven": ("redrive",),
    "expired": ("expire",),
    "dropped": ("drop",),
    "cancelled": ("cancel",),
    "purged": ("purge",),
}


def run(
    history: History, out: Path, window: int = WINDOW_US, incremental: bool = True, **more: Any
) -> Results:
    return AnalyticsJob(out, window, **more).run(history, incremental, lambda text: None)


def rows(results: Results, name: str) -> list[dict[str, Any]]:
    return results.table(name).to_pylist()  # type: ignore[no-any-return]


def everything(results: Results) -> dict[str, Any]:
    """All tables and the summary, without what differs from run to run."""
    tables = {
        path.stem: sorted(map(repr, pq.read_table(path).to_pylist()))
        for path in sorted(results.directory.glob("*.parquet"))
    }
    summary = {name: each for name, each in results.summary.items() if name not in ("version", "made")}
    return {**tables, "summary": summary}


def check(results: Results, recount: Recount) -> None:
    windows = rows(results, "windows")
    assert windows
    found = {(row["queue"], micros(row["window_start"])): row for row in windows}
    wanted = {key[:2] for key in recount.counts}
    assert wanted <= set(found)
    for (queue, window), row in found.items():
        for name, events in EVENTS.items():
            assert row[name] == sum(recount.counts.get((queue, window, event), 0) for event in events), name
        assert row["bytes"] == recount.bytes.get((queue, window), 0)
        assert row["in_flight"] == recount.in_flight(queue, window)
        assert row["oldest_age_us"] == recount.oldest_us(queue, window)
        for kind, samples in (("wait", recount.waits), ("processing", recount.work)):
            values = samples.get((queue, window), [])
            assert (row[f"{kind}_count"] or 0) == len(values)
            if values:
                assert row[f"{kind}_max_us"] == max(values)
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                    exact = nearest(values, share)
                    assert row[f"{kind}_{name}_us"] == pytest.approx(exact, rel=0.01)

    depths: dict[Any, int] = defaultdict(int)
    for row in rows(results, "retries"):
        depths[row["queue"], micros(row["window_start"]), row["outcome"], row["deliveries"]] += row["count"]
    assert depths == recount.depths

    failures = rows(results, "failures")
    assert len(failures) == len(recount.failures)
    for row in failures:
        seen = recount.failures[
            row["queue"], row["event"], row["type"], row["error_type"], row["error_signature"]
        ]
        assert row["count"] == len(seen)
        assert micros(row["first_seen"]) == min(seen)[1]
        assert micros(row["last_seen"]) == max(seen)[1]
        assert {min(seen)[2], max(seen)[2]} <= set(row["examples"]) <= {each[2] for each in seen}

    answers = {"deliveries": "deliver", "acks": "ack", "nacks": "nack", "timeouts": "lease_expired"}
    for row in rows(results, "consumers"):
        queue, who = row["queue"], row["consumer"]
        for name, event in {**answers, "abandoned": "release"}.items():
            assert row[name] == recount.consumers.get((queue, who, event), 0)
        assert row["slowest_us"] == recount.slowest.get((queue, who))
        held = [each for each in recount.lives.values() if each.queue == queue and each.lease is not None]
        assert row["holding"] == sum((each.lease or (0, ""))[1] in (who, who or None) for each in held)
    made = {
        (row["queue"], row["producer"]): [row["published"], row["bytes"]]
        for row in rows(results, "producers")
    }
    assert made == recount.producers

    for total in results.summary["queues"]:
        queue = total["queue"]
        open_ = [life for life in recount.lives.values() if life.queue == queue and life.ended_us is None]
        assert total["in_flight"] == sum(life.lease is not None for life in open_)
        assert total["waiting"] == sum(life.lease is None for life in open_)
        waits = [value for (name, _), each in recount.waits.items() if name == queue for value in each]
        if waits:
            assert total["wait"]["p90_us"] == pytest.approx(nearest(waits, 0.9), rel=0.01)


def test_metrics_equal_a_recount_and_incremental_runs_equal_one_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    simulation = Simulation(seed=7)
    simulation.history.spark = spark

    run(simulation.run(250), tmp_path / "steps")
    # A time zone of the session changes nothing, and a run without anything new none of the results.
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        in_steps = run(simulation.run(350), tmp_path / "steps")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    again = run(simulation.history, tmp_path / "steps")
    whole = run(simulation.history, tmp_path / "whole")

    check(whole, Recount(simulation.history, WINDOW_US))
    assert everything(in_steps) == everything(whole)
    assert (again.version, again.repeated) == (in_steps.version, True)
    # Each run read only what was new.
    assert simulation.history.read_from[0] == simulation.history.read_from[-1] == 0
    assert simulation.history.read_from[1] > 100
    assert json.loads((tmp_path / "steps/current.json").read_text())["version"] == 2


# -- a real server --------------------------------------------------------------------------------------

COUNTERS = {
    "published": "openq_queue_messages_sent_total",
    "delivered": "openq_queue_messages_delivered_total",
    "acked": "openq_queue_messages_acked_total",
    "nacked": "openq_queue_messages_nacked_total",
    "lease_expired": "openq_queue_leases_expired_total",
    "dead_lettered": "openq_queue_messages_dead_lettered_total",
    "expired": "openq_queue_messages_expired_total",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A part of its history is archived, the rest is in the journal, and all of it happened in some way."""
    data = tmp_path_factory.mktemp("analytics") / "data"
    before = LocalBroker(data)
    before.declare("spared", QueueSettings())
    for number in range(5):
        before.publish("spared", Draft(b"%d" % number))
    [leased] = before.receive("spared", 1)
    assert before.purge("spared", waiting_only=True) == 4
    before.ack("spared", [(leased.entry.seq, leased.number)])
    before.sync()
    before.close()
    archive(None, path=str(data), include_open=True)
    with served(data) as server:
        traffic(server)
        yield server


def traffic(server: Served) -> None:
    """Publishes, acks, retries, loans that ran out, dead letters, redrives, expiries and a purge."""
    with (
        OpenQ("dead", url=server.url, codec="raw") as dead,
        OpenQ("orders", url=server.url, codec="raw", dlq="dead", max_receives=3) as orders,
        OpenQ("mails", url=server.url, codec="raw") as mails,
    ):
        for number in range(30):
            kind = "order.made" if number % 2 else "order.paid"
            orders.publish(b'{"order": %d}' % number, message_type=kind, publisher="shop")
        for message in orders.receive_many(10):
            orders.ack(message)
        for number in range(6):
            taken = orders.receive(consumer=f"worker-{number % 2}")
            orders.nack(taken, delay=0, reason=f"TimeoutError: no answer within {number} s")
        for number in range(4):
            orders.reject(orders.receive(), reason=f"ValueError: {number} <script>alert(1)</script>")
        for _ in range(2):
            orders.receive(visibility_timeout=0.05)
        until(lambda: orders.stats().counters["lease_expired"] == 2)
        assert dead.redrive(ids=[dead.peek().id]) == 1
        dead.ack(dead.receive())
        mails.publish(b"too late", ttl=0.02)
        until(lambda: mails.stats().counters["expired"] == 1)
        mails.publish_many([b"a", b"b", b"c"])
        mails.receive()
        assert mails.purge() == 3
        mails.publish(b"d")


def metrics(server: Served) -> dict[tuple[str, str], int]:
    """What the server itself has counted, by queue and name."""
    _, text = server.get("/metrics/queues")
    names = {metric: name for name, metric in COUNTERS.items()}
    found = re.findall(r'^(\w+)\{account="[^"]*",queue="([^"]*)"\} (\d+)', text.decode(), re.MULTILINE)
    return {(queue, names[metric]): int(value) for metric, queue, value in found if metric in names}


def test_metrics_over_http_equal_those_of_the_server(
    spark: SparkSession, server: Served, tmp_path: Path
) -> None:
    data = Path(server.arguments[1])

    results = analytics(spark, url=server.url, window="1h", out=tmp_path)

    history = History.of(data)
    check(results, Recount(history, 3_600_000_000))
    queues = {each["queue"]: each for each in results.summary["queues"]}
    counted = metrics(server)
    assert {queue for queue, _ in counted} == {"dead", "mails", "orders", "spared"} == queues.keys()
    windows = rows(results, "windows")
    for (queue, name), value in counted.items():
        # History tells the last failure of a message as its death; the server counts it as a failure too.
        names = ("nacked", "dead_lettered") if name == "nacked" else (name,)
        assert sum(row[each] for row in windows if row["queue"] == queue for each in names) == value, (
            queue,
            name,
        )
    # The purge found four that waited, and left alone the one on loan.
    assert [row["item"] for row in history.events if row["event"] == "purge"] == [1, 0]
    assert sum(row["purged"] for row in windows if row["queue"] == "spared") == 4
    assert queues["spared"]["acked"] == 1
    assert "&lt;script&gt;alert" in results.report.read_text()


def test_triage_finds_the_same_by_http_and_by_path(spark: SparkSession, server: Served) -> None:
    data = Path(server.arguments[1])

    far = triage(spark, url=server.url, queues="dead", samples=2)
    near = triage(spark, path=data, queues="de*", samples=2)

    assert far == near
    late, bad = "TimeoutError: no answer within <n> s", "ValueError: <n> <script>alert(<n>)</script>"
    states = {(group.signature, group.type): group for group in far.groups}
    assert {key: group.count for key, group in states.items()} == {
        (bad, "order.made"): 2,
        (bad, "order.paid"): 2,
        (late, "order.made"): 1,
        (late, "order.paid"): 1,
    }
    assert sorted((group.there, group.redriven, group.discarded) for group in far.groups) == [
        (0, 0, 1),
        (0, 1, 0),
        (2, 0, 0),
        (2, 0, 0),
    ]
    assert all(sample["body"].startswith('{"order": ') for group in far.groups for sample in group.samples)


def test_the_commands_write_json_and_text(
    spark: SparkSession, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, page, shown = tmp_path / "out/report.html", tmp_path / "dead.html", tmp_path / "shown"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > {shown}\n')
    browser.chmod(0o755)
    where = ("--data", server.arguments[1])
    monkeypatch.setattr("webbrowser._tryorder", None)  # it reads BROWSER once in a process

    reported = run_in_process(
        *("pipeline", "analytics", *where, "--queue", "ord*", "--out", report.parent, "--json", "--open"),
        BROWSER=f"{browser} %s",
    )
    grouped = run_in_process("pipeline", "triage", *where, "--json", "--html", page)

    assert (reported.code, grouped.code) == (0, 0), reported.err + grouped.err
    summary, found = json.loads(reported.out), json.loads(grouped.out)
    assert [(each["queue"], each["published"]) for each in summary["queues"]] == [("orders", 30)]
    assert found["total"] == 6
    assert "<svg" in report.read_text()
    assert "&lt;script&gt;" in page.read_text()
    until(shown.exists)
    until(shown.read_text)
    assert shown.read_text() == report.as_uri()


def test_a_dry_run_shows_what_would_be_read(
    server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pipeline", "analytics", "--url", server.url, "--out", str(tmp_path), "--dry-run"]

    assert main([*words, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    pointer = {
        "version": 1,
        "position": reported["end_position"],
        "settings": AnalyticsJob(tmp_path, WINDOW_US).settings,
    }
    journal = LocalHistory(Path(server.arguments[1])).snapshot(Selection()).journal
    (tmp_path / "current.json").write_text(json.dumps({**pointer, "journal": journal}))

    assert reported["anew"] == "there are no results yet"
    assert main(words) == 0
    assert "no new history" in capsys.readouterr().out
    assert main([*words, "--window", "2h"]) == 0
    assert "would read everything (the settings differ" in capsys.readouterr().out


# -- what is refused ------------------------------------------------------------------------------------


def test_an_empty_history_gives_an_empty_report(spark: SparkSession, tmp_path: Path) -> None:
    results = run(History(spark=spark), tmp_path)

    assert rows(results, "windows") == []
    assert results.summary["queues"] == []
    assert "no events" in results.report.read_text()


def test_results_that_cannot_be_continued_are_refused_and_kept(tmp_path: Path) -> None:
    history = History()
    pointer = {
        "version": 3,
        "position": 50,
        "journal": "salt",
        "settings": AnalyticsJob(tmp_path, WINDOW_US).settings,
    }
    (tmp_path / "current.json").write_text(json.dumps(pointer))

    history.gap = (50, 80)
    with pytest.raises(HistoryUnavailable, match=r"positions 50 to 80.*--anew"):
        run(history, tmp_path)
    history.gap, history.journal = None, "pepper"
    with pytest.raises(InvalidSetting, match="another history"):
        run(history, tmp_path)
    (tmp_path / "current.json").write_text("{")
    with pytest.raises(InvalidSetting, match="cannot be read"):
        run(history, tmp_path)
    with AnalyticsJob(tmp_path, WINDOW_US)._locked(), pytest.raises(ResultsBusy):
        run(history, tmp_path)
    assert not (tmp_path / "versions").exists()


@pytest.mark.parametrize("window", ["0", "500ms", "soon", "-5m", "1000d"])
def test_an_invalid_window_is_refused(window: str) -> None:
    with pytest.raises(InvalidSetting, match="window must be"):
        window_us(window)


def test_settings_accept_units_and_lists() -> None:
    assert window_us("5m") == 300_000_000
    assert queue_list("orders,mail*") == ("orders", "mail*")
    assert moment_us("2026-01-01T00:00:00Z", "since") == 1_767_225_600_000_000
    assert (moment_us("1h", "since") or 0) < (moment_us("30m", "since") or 0)
    with pytest.raises(InvalidSetting, match="since"):
        moment_us("yesterday", "since")
