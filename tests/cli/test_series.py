"""`openq series`, over the REST route `series` of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.cli.helpers import Cli
from tests.serving import Served, served
from tests.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Not the server of the other tests: their queues have taken all series, and keep each for a minute."""
    with served() as running:
        yield running


def test_counts_of_a_queue_are_a_table_or_json(cli: Cli, q: str) -> None:
    until(lambda: cli.json("series", "*")["recorded"], "the recorder has begun")
    cli("send", q, "one")
    cli("send", q, "two")

    def is_counted(queue: str, step: str) -> bool:
        found = cli.json("series", queue, "published", "--step", step)
        return sum(each or 0 for each in found["values"]["published"]) >= 2

    # The rows of one sample are written one after the other: each ring is waited for.
    for queue in (q, "*"):
        for step in ("1s", "60s", "1h"):
            until(partial(is_counted, queue, step), f"counts of {queue} in steps of {step}")
    head, *lines = cli("series", q, "published", "ready", "--step", "1h").out.splitlines()
    assert head.split() == ["time", "published", "ready"]
    rows = [line.split()[1:] for line in lines]
    assert sum(int(published) for published, _ in rows if published != "-") == 2  # an hour may end in between
    assert [ready for _, ready in rows if ready != "-"][-1] == "2"
    total = cli.json("series", "*", "published", "oldest_age", "--step", "60s")
    assert total["step"] == 60
    assert total["sums"] == ["published"]


def test_a_wrong_name_step_or_queue_is_refused(cli: Cli, q: str) -> None:
    assert "unknown name 'publisht'; there are published" in cli("series", q, "publisht", code=2).err
    assert "does not exist" in cli("series", "nowhere", code=3).err
    assert "11000 points" in cli("series", q, "--since", "30d", "--step", "1s", code=2).err


def test_a_queue_without_a_series_says_so(cli: Cli, q: str) -> None:
    assert cli.json("series", q)["recorded"] is False
    assert "only the busiest queues have one" in cli("series", q).out
