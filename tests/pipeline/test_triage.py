"""Dead letters by signature, against a plain count of the same events; hostile texts; what to do."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from openq.errors import InvalidSetting
from openq.pipeline.triage import advice_for, command_for, render, triage, triage_history
from tests.pipeline.recount import History, Recount, Simulation, micros

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_US = 3_600_000_000


def source(history: History) -> Any:
    """The words of `openq.pipeline.history` for made-up rows."""

    def read(table: str, columns: Any, events: Any = (), ids: Any = (), **words: Any) -> Any:
        rows = history.events if table == "events" else history.messages
        if events:
            rows = [row for row in rows if row["event"] in events]
        if ids:
            rows = [row for row in rows if row["message_id"] in ids]
        return history.frame(table, rows, body=True).select(*columns)

    return read


def test_groups_equal_a_plain_count(spark: SparkSession) -> None:
    history = Simulation(seed=11).run(500)
    history.spark = spark
    for row in history.messages:
        row["body"] = b'{"n": %d, "x": "<script>alert(1)</script>"}' % row["seq"]
    types = {row["message_id"]: row.get("type") for row in history.messages}

    found = triage_history(source(history), (), top=100, samples=3)

    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in history.events:
        if row["event"] == "dead_letter":
            key = (row["queue"], row["to_queue"], types[row["message_id"]], row["error_signature"])
            groups[key].append(row)
    assert found.total == sum(map(len, groups.values())) > 20
    assert found.groups_in_all == len(found.groups) == len(groups)
    assert [group.count for group in found.groups] == sorted(map(len, groups.values()), reverse=True)
    lives = Recount(history, HOUR_US).lives
    for group in found.groups:
        rows = groups[group.source, group.dead_queue, group.type, group.signature]
        times = [micros(row["ts"]) for row in rows]
        assert (group.first_us, group.last_us) == (min(times), max(times))
        hours = Counter((us // HOUR_US * HOUR_US - (found.from_us or 0)) // found.bucket_us for us in times)
        assert [hours[at] for at in range(len(group.timeline))] == list(group.timeline)
        ends = [lives[row["to_seq"]].ended_by for row in rows]
        assert group.there == ends.count(None)
        assert group.redriven == ends.count("redrive")
        assert group.there + group.redriven + group.discarded == group.count
        ids = {row["message_id"] for row in rows}
        assert {sample["id"] for sample in group.samples} <= ids
        assert len(group.samples) == min(3, len(ids))
        assert all(sample["body"].startswith('{"n": ') for sample in group.samples)
        assert (group.command is None) == (group.there == 0)
    tags = Tags()
    tags.feed(render(found))
    assert tags.count["script"] == 1  # ours
    assert tags.count["img"] == 0

    some = triage_history(source(history), ("no-such*",), top=5, samples=0)
    assert (some.total, some.groups) == (0, ())
    assert "There are none" in render(some)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.count[tag] += 1


@pytest.mark.parametrize(
    ("error_type", "signature", "there", "action"),
    [
        ("ConnectionError", "ConnectionError: <address> refused", 3, "redrive"),
        (None, "HTTP <n>: timeout after <n> s", 3, "redrive"),
        ("KeyError", "KeyError: <s>", 3, "fix"),
        ("PermissionError", "PermissionError: denied", 3, "access"),
        (None, "no such product", 3, "gone"),
        (None, None, 3, "look"),
        ("ConnectionError", "ConnectionError: refused", 0, "none"),
    ],
)
def test_each_kind_of_reason_has_its_advice(
    error_type: str | None, signature: str | None, there: int, action: str
) -> None:
    assert advice_for(error_type, signature, there)[0] == action


def test_the_command_of_a_group_is_safe_to_paste() -> None:
    hostile = "'; DROP TABLE x; $(reboot) `id` \\' \"quoted\""
    row = {"queue": "a b", "to_queue": "dead;letters", "type": None, "error_signature": hostile}

    words = shlex.split(command_for(row))

    assert words[:4] == ["openq", "pipeline", "redrive", "dead;letters"]
    where = words[5]
    text = where.removeprefix("error_signature = '")
    end = text.index("' AND dlq_source = 'a b'")
    assert text[:end].replace("\\'", "'").replace("\\\\", "\\") == hostile


def test_invalid_settings_are_refused_before_anything_is_read() -> None:
    with pytest.raises(InvalidSetting, match="top must be"):
        triage(None, "data", top=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="samples must be"):
        triage(None, "data", samples=99)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match=r"path.*or url"):
        triage(None)  # type: ignore[arg-type]
