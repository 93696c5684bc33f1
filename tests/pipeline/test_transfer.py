"""Files into a queue and back: nothing twice, nothing half, and the same bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openq import OpenQ
from openq.cli.terminal import NOT_FOUND
from openq.errors import InvalidSetting, OpenQError
from openq.pipeline.transfer import export, format_of, job_of, list_files, load
from tests.cli.helpers import run_in_process
from tests.serving import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("transfer") / "data") as started:
        yield started


def publish(server: Served, queue: str, bodies: list[bytes]) -> list[str]:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        return opened.publish_many(bodies)


def stats(server: Served, queue: str) -> tuple[int, int]:
    reported = json.loads(server.get(f"/api/v1/queues/{queue}/stats")[1])
    return reported["ready"], reported["in_flight"]


def ready(server: Served, queue: str) -> int:
    return stats(server, queue)[0]


# -- names --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "format"),
    [
        (["a.parquet", "b.zstd.parquet"], "parquet"),
        (["a.jsonl", "b.json.gz", "c.ndjson"], "json"),
        (["s3a://bucket/x.csv"], "csv"),
        (["app.log"], "text"),
    ],
)
def test_the_format_follows_from_the_file_names(names: list[str], format: str) -> None:
    assert format_of(names) == format


def test_unclear_file_names_need_a_format(tmp_path: Path) -> None:
    for names in (["a"], ["a.csv", "b.json"], ["a.xlsx"]):
        with pytest.raises(InvalidSetting, match="one of parquet, json, csv, text"):
            format_of(names)
    assert format_of(["a"], "csv") == "csv"
    with pytest.raises(InvalidSetting, match="does not exist"):
        list_files(tmp_path / "nothing.csv")


def test_a_job_is_named_after_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "_SUCCESS").write_text("")
    files = list_files(tmp_path)
    name = job_of(files, ["orders"])

    assert job_of(files, ["orders"]) == name
    assert job_of(files, ["bills"]) != name
    (tmp_path / "_SUCCESS").write_text("again")
    assert job_of(files, ["orders"]) == name
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    assert job_of(files, ["orders"]) != name


def test_the_command_refuses_invalid_arguments_before_spark_starts(tmp_path: Path) -> None:
    done = run_in_process("pipeline", "load", tmp_path / "nothing.csv", "--to", "q", "--dry-run")
    assert (done.code, "does not exist" in done.err) == (NOT_FOUND, True)


# -- load ---------------------------------------------------------------------------------------------


def test_lines_of_json_are_published_unchanged_and_once(
    spark: SparkSession, server: Served, tmp_path: Path
) -> None:
    lines = ['{"id": 7, "n": 1.50, "who": "ada"}', "", '{"who":"zoe","id":8}']
    (tmp_path / "orders.jsonl").write_text("\n".join(lines))

    first = load(spark, tmp_path / "orders.jsonl", "lines", url=server.url, id="id", create=True)
    again = load(spark, tmp_path / "orders.jsonl", "lines", url=server.url, id="id", create=True)

    assert (first.published, first.repeated) == (2, False)
    assert (again.published, again.repeated, again.job) == (2, True, first.job)
    with OpenQ("lines", url=server.url, codec="raw") as queue:
        got = {message.id: message.body.decode() for message in queue.receive_many(10)}
    assert got == {"7": lines[0], "8": lines[2]}
    (tmp_path / "orders.jsonl").write_text(lines[0] + "\nno json\n")
    with pytest.raises(OpenQError, match="a line is not JSON: no json"):
        load(spark, tmp_path / "orders.jsonl", "lines", url=server.url)
    assert ready(server, "lines") == 0


def test_tables_are_published_by_their_columns(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('code,who,rank\n007,"a, b",3\n008,,4\n')

    load(spark, tmp_path / "t.csv", "tables", url=server.url, priority="rank", group="code", create=True)

    with OpenQ("tables", url=server.url, codec="raw") as queue:
        got = {message.priority: json.loads(message.body) for message in queue.receive_many(10)}
    assert got == {
        3: {"code": "007", "who": "a, b", "rank": "3"},
        4: {"code": "008", "who": None, "rank": "4"},
    }
    with pytest.raises(OpenQError, match="there is no column 'no': there are code, who, rank"):
        load(spark, tmp_path / "t.csv", "tables", url=server.url, body="no")
    with pytest.raises(OpenQError, match="queue 'nowhere' does not exist"):
        load(spark, tmp_path / "t.csv", "nowhere", url=server.url)


# -- export -------------------------------------------------------------------------------------------


def test_an_export_can_be_loaded_again(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    bodies = [b"plain", b"\x00\xff\xfe", '{"ä": "ö"}'.encode(), b""]
    ids = publish(server, "source", bodies)

    done = export(spark, "source", tmp_path / "out", url=server.url, job="once")
    again = export(spark, "source", tmp_path / "out", url=server.url, job="once")

    assert (done.rows, done.repeated, again.repeated, again.rows) == (4, False, True, 4)
    assert ready(server, "source") == 4  # only read
    with pytest.raises(InvalidSetting, match="exists already"):
        export(spark, "source", tmp_path / "out", url=server.url)
    load(spark, tmp_path / "out", "copy", url=server.url, body="body", id="message_id", create=True)
    with OpenQ("copy", url=server.url, codec="raw") as queue:
        assert {each.id: each.body for each in queue.receive_many(10)} == dict(zip(ids, bodies, strict=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_bodies_in_json_and_csv_are_text_or_base64(
    spark: SparkSession, server: Served, tmp_path: Path
) -> None:
    publish(server, "mixed", [b'a,\n"b"', b"\xff"])
    columns = ["queue", "body", "attributes"]
    for format in ("json", "csv"):
        export(spark, "mixed", tmp_path / format, url=server.url, format=format, columns=columns)
        reader = (
            spark.read.option("header", "true").option("multiLine", format == "csv").option("escape", '"')
        )
        rows = reader.format(format).load(str(tmp_path / format)).collect()
        assert {(row["body"], row["body_base64"]) for row in rows} == {('a,\n"b"', None), (None, "/w==")}
    with pytest.raises(InvalidSetting, match="leave columns out"):
        export(spark, "mixed", tmp_path / "t", url=server.url, format="text", columns=columns)


def test_a_drained_queue_is_only_in_its_files(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    publish(server, "full", [b"%d" % n for n in range(5)])
    first = export(spark, "full", tmp_path / "out", url=server.url, format="text", drain=True, max_messages=3)
    publish(server, "full", [b"5"])
    second = export(spark, "full", tmp_path / "out", url=server.url, format="text", drain=True)

    assert (first.rows, second.rows) == (5, 1)
    assert stats(server, "full") == (0, 0)
    lines = Counter(row["value"] for row in spark.read.text(str(tmp_path / "out")).collect())
    assert lines == Counter(str(n) for n in range(6))
    for words, says in (
        ({"format": "csv"}, "holds queue 'full' as text"),
        ({"format": "text", "since": "1h"}, "since does not go with drain"),
    ):
        with pytest.raises(InvalidSetting, match=says):
            export(spark, "full", tmp_path / "out", url=server.url, drain=True, **words)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="one queue can be drained"):
        export(spark, "f*", tmp_path / "other", url=server.url, drain=True)
    assert not (tmp_path / "other").exists()
