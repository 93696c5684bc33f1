"""`openq series`, over the REST route `series` of a running server."""

from __future__ import annotations

from tests.cli.helpers import Cli
from tests.waiting import until


def test_counts_of_a_queue_are_a_table_or_json(cli: Cli, q: str) -> None:
    until(lambda: cli("series", "*").out.count("\n") > 1)  # the recorder has begun
    cli("send", q, "one")
    cli("send", q, "two")
    until(lambda: cli.json("series", q, "published")["recorded"])

    def published() -> float:
        found = cli.json("series", q, "published", "--step", "1s")
        return sum(each or 0 for each in found["values"]["published"])

    until(lambda: published() == 2)
    table = cli("series", q, "published", "ready", "--since", "10m", "--step", "1h").out.splitlines()
    assert table[0].split() == ["time", "published", "ready"]
    assert any(line.split()[1:] == ["2", "2"] for line in table[1:])
    total = cli.json("series", "*", "published", "oldest_age", "--step", "60s")
    assert total["step"] == 60
    assert total["sums"] == ["published"]
    assert sum(each or 0 for each in total["values"]["published"]) >= 2


def test_a_wrong_name_step_or_queue_is_refused(cli: Cli, q: str) -> None:
    assert "unknown name 'publisht'; there are published" in cli("series", q, "publisht", code=2).err
    assert "does not exist" in cli("series", "nowhere", code=3).err
    assert "11000 points" in cli("series", q, "--since", "30d", "--step", "1s", code=2).err


def test_a_queue_without_a_series_says_so(cli: Cli, q: str) -> None:
    assert cli.json("series", q)["recorded"] is False
    assert "only the busiest queues have one" in cli("series", q).out
