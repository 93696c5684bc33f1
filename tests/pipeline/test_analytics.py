"""The analytics job against a slow recount of the same events, all at once and in steps."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from openq.cli.main import main
from openq.columns.history import LocalHistory
from openq.columns.select import Selection
from openq.errors import HistoryUnavailable, InvalidSetting
from openq.pipeline.analytics import Job, Results, ResultsBusy, analytics, window_us
from openq.pipeline.place import moment_us, queue_list
from openq.pipeline.triage import triage
from tests.pipeline.conftest import fill_path
from tests.pipeline.recount import START_US, History, Recount, Simulation, micros, nearest

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
    return Job(out, window, **more).run(history, incremental, lambda text: None)


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


def test_every_figure_equals_a_recount_and_steps_equal_the_whole(spark: SparkSession, tmp_path: Path) -> None:
    simulation = Simulation(seed=7)
    simulation.history.spark = spark

    for steps in (250, 1, 350):
        in_steps = run(simulation.run(steps), tmp_path / "steps")
    whole = run(simulation.history, tmp_path / "whole")

    check(whole, Recount(simulation.history, WINDOW_US))
    assert everything(in_steps) == everything(whole)
    # Each run read only what was new, and the last two versions are kept.
    assert simulation.history.read_from[0] == simulation.history.read_from[-1] == 0
    assert simulation.history.read_from[1] > 100
    assert [path.name for path in sorted((tmp_path / "steps/versions").iterdir())] == ["00000002", "00000003"]


def test_a_window_that_was_open_is_corrected_by_the_next_run(spark: SparkSession, tmp_path: Path) -> None:
    history = History(spark=spark)
    life = history.publish("orders", type="order.made")
    history.now_us += 4_000_000
    history.happen("deliver", *life, receive_count=1, consumer="worker")
    # A time zone of the session changes nothing.
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    try:
        first = run(history, tmp_path)
        [before] = rows(first, "windows")
        again = run(history, tmp_path)

        history.now_us += 2_000_000
        history.happen("ack", *life)
        history.now_us += 2 * WINDOW_US
        history.publish("orders")
        second = run(history, tmp_path)
        ended, idle = rows(second, "windows")
        others = run(history, tmp_path, queues=("mail*",))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert (before["published"], before["delivered"], before["acked"], before["in_flight"]) == (1, 1, 0, 1)
    assert before["oldest_age_us"] == 4_000_000
    assert micros(before["window_start"]) == START_US - START_US % WINDOW_US
    assert (again.version, again.repeated) == (first.version, True)
    assert (ended["acked"], ended["in_flight"], ended["oldest_age_us"]) == (1, 0, None)
    assert ended["wait_p50_us"] == 4_000_000
    assert ended["processing_max_us"] == 2_000_000
    assert (idle["published"], idle["waiting"], idle["oldest_age_us"]) == (1, 1, 0)
    assert json.loads((tmp_path / "current.json").read_text())["version"] == others.version
    assert others.summary["queues"] == []


def test_a_journal_is_analysed_as_its_own_rows_say(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    filled = fill_path(data, count=30)

    results = analytics(spark, data, window="1h")

    history = History()
    local = LocalHistory(data)
    for table, rows_ in (("messages", history.messages), ("events", history.events)):
        selection = Selection(table=table)
        for batch in local.read_many(local.snapshot(selection).pieces, selection):
            rows_ += batch.to_pylist()
    check(results, Recount(history, 3_600_000_000))
    [orders] = [each for each in results.summary["queues"] if each["queue"] == "orders"]
    assert orders["published"] == 30
    assert orders["acked"] == len(filled.acked)
    assert orders["dead_lettered"] == len(filled.dead)
    assert results.out == data / "analytics"
    found = triage(spark, data, queues="dead", samples=1)
    assert [(group.source, group.signature, group.there) for group in found.groups] == [
        ("orders", "ValueError: <s> is no amount", 1)
    ]
    assert found.groups[0].samples[0]["body"].startswith('{"order":')

    code = main(["pipeline", "analytics", "--data", str(data), "--window", "1h", "--dry-run"])
    assert code == 0
    assert "nothing is new" in capsys.readouterr().out
    code = main(["pipeline", "analytics", "--data", str(data), "--window", "2h", "--dry-run", "--json"])
    assert code == 0
    assert json.loads(capsys.readouterr().out)["anew"].startswith("the settings")


def test_an_empty_history_gives_an_empty_report(spark: SparkSession, tmp_path: Path) -> None:
    results = run(History(spark=spark), tmp_path)

    assert rows(results, "windows") == []
    assert results.summary["queues"] == []
    assert "no events" in results.report.read_text()


def test_what_cannot_be_gone_on_with_is_refused_and_leaves_the_results(tmp_path: Path) -> None:
    history = History()
    pointer = {
        "version": 3,
        "position": 50,
        "journal": "salt",
        "settings": Job(tmp_path, WINDOW_US).settings,
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
    with Job(tmp_path, WINDOW_US)._alone(), pytest.raises(ResultsBusy):
        run(history, tmp_path)
    assert not (tmp_path / "versions").exists()


@pytest.mark.parametrize("window", ["0", "500ms", "soon", "-5m", "1000d"])
def test_a_window_that_makes_no_sense_is_refused(window: str) -> None:
    with pytest.raises(InvalidSetting, match="window must be"):
        window_us(window)


def test_settings_are_read_as_people_write_them() -> None:
    assert window_us("5m") == 300_000_000
    assert queue_list("orders,mail*") == ("orders", "mail*")
    assert moment_us("2026-01-01T00:00:00Z", "since") == 1_767_225_600_000_000
    assert (moment_us("1h", "since") or 0) < (moment_us("30m", "since") or 0)
    with pytest.raises(InvalidSetting, match="since"):
        moment_us("yesterday", "since")
