"""Projects of Declarative Pipelines: what `init` writes runs, and every message arrives once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from openq import OpenQ
from openq.cli.terminal import USAGE
from openq.errors import InvalidSetting
from openq.pipeline.project import TEMPLATES, PipelineFailed, init, run, spec_of
from tests.cli.helpers import run_in_process
from tests.serving import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("project") / "data") as started:
        yield started


def publish(server: Served, queue: str, bodies: list[bytes]) -> None:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        opened.publish_many(bodies)


def taken(server: Served, queue: str) -> list[dict[str, object]]:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        return [json.loads(message.body) for message in opened.receive_many(100)]


def test_a_project_is_written_into_a_new_directory(tmp_path: Path) -> None:
    for template in TEMPLATES:
        made = init(tmp_path / template, template, source="it's", target='a "b"', url="http://host:1")

        assert {"README.md", "spark-pipeline.yml", "transformations"} <= {
            path.name for path in (tmp_path / template).iterdir()
        }
        assert all(path.is_file() and "{{" not in path.read_text() for path in made)
        for path in (tmp_path / template).rglob("*.py"):
            compile(path.read_text(), path.name, "exec")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(TEMPLATES)
    (tmp_path / "empty").mkdir()
    assert init(tmp_path / "empty") != []


def test_an_invalid_init_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    for directory, words, says in (
        ("full", {}, "is not empty"),
        ("full/mine", {}, "not a directory"),
        ("new", {"template": "queue-to-moon"}, "there are queue-to-table, "),
        ("new", {"name": "1st"}, "begin with a letter"),
        ("new", {"source": "a", "target": "a"}, "name two queues"),
        ("new", {"source": "a*"}, "without"),
    ):
        with pytest.raises(InvalidSetting, match=says):
            init(tmp_path / directory, **words)
    assert [path.name for path in tmp_path.rglob("*")] == ["full", "mine"]


def test_an_invalid_project_is_refused_before_spark_starts(tmp_path: Path) -> None:
    done = run_in_process("pipeline", "run", tmp_path)
    assert (done.code, "`openq pipeline init` creates one" in done.err) == (USAGE, True)
    (tmp_path / "spark-pipeline.yml").write_text("name: [")
    with pytest.raises(InvalidSetting, match="is not YAML"):
        run(tmp_path)
    (tmp_path / "spark-pipeline.yml").write_text("name: x")
    with pytest.raises(InvalidSetting, match="name and storage"):
        run(tmp_path)
    (tmp_path / "spark-pipeline.yaml").write_text("name: x")
    with pytest.raises(InvalidSetting, match="keep one"):
        spec_of(tmp_path)


def test_the_command_writes_a_project(tmp_path: Path) -> None:
    words = ("pipeline", "init", tmp_path / "bills", "--from", "orders", "--to", "bills")
    done = run_in_process(*words, OPENQ_URL="http://host:1")

    assert "openq pipeline run" in done.out
    text = (tmp_path / "bills" / "transformations" / "flow.py").read_text()
    assert "FROM, TO = 'orders', 'bills'" in text
    assert "'http://host:1'" in text
    assert run_in_process(*words).code == USAGE


@pytest.fixture
def database(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """For tables of the session that all tests share; Spark makes a directory for others at once."""
    own = urlsplit(spark.conf.get("spark.sql.warehouse.dir") or "").path
    was_there = os.path.exists(own)
    spark.sql(f"CREATE DATABASE templates LOCATION '{(tmp_path / 'tables').as_uri()}'")
    yield "templates"
    spark.sql("DROP DATABASE templates CASCADE")
    if not was_there and os.path.isdir(own):
        os.rmdir(own)


def test_every_template_runs(spark: SparkSession, database: str, server: Served, tmp_path: Path) -> None:
    messages = [{"customer": "ada", "amount": 1.5}, {"customer": "zoe", "amount": 2.0}]
    for queue in ("seen", "passed", "known"):
        publish(server, queue, [json.dumps(message).encode() for message in messages])
    publish(server, "passed", [b""])
    init(tmp_path / "table", "queue-to-table", source="seen")
    init(tmp_path / "files", "table-to-queue", target="rows")
    init(tmp_path / "pass", "queue-to-queue", source="passed", target="passed-on")
    init(tmp_path / "rich", "enrich", source="known", target="enriched")
    # One run for all four: most of the time goes into beginning one.
    spec = f"name: all\nstorage: {(tmp_path / 'state').as_uri()}\ndatabase: {database}\nlibraries:\n"
    for name in ("table", "files", "pass", "rich"):
        spec += f"  - glob:\n      include: {name}/transformations/**\n"
    (tmp_path / "spark-pipeline.yml").write_text(spec)
    lines: list[str] = []

    ran = run(tmp_path, spark=spark, url=server.url, progress=lines.append)

    assert set(ran.flows.values()) == {"COMPLETED"}
    assert len(ran.flows) == 5
    assert set(ran.acked) == {"pass", "rich"}
    assert any("RUNNING" in line for line in lines)
    rows = spark.sql(f"SELECT body FROM {database}.table ORDER BY body").collect()
    assert [json.loads(row["body"]) for row in rows] == messages
    assert spark.sql(f"SELECT messages FROM {database}.table_by_day").collect()[0]["messages"] == 2
    assert taken(server, "seen") == messages  # only read
    assert [row["id"] for row in taken(server, "rows")] == [1, 2, 3]
    assert taken(server, "passed-on") == messages
    assert taken(server, "enriched") == [
        {"customer": "ada", "amount": 1.5, "country": "GB", "segment": "gold"},
        {"customer": "zoe", "amount": 2.0},
    ]
    for queue in ("passed", "known"):
        stats = json.loads(server.get(f"/api/v1/queues/{queue}/stats")[1])
        assert (stats["ready"], stats["in_flight"]) == (0, 0)


def test_a_mistake_in_a_project_is_one_sentence(spark: SparkSession, server: Served, tmp_path: Path) -> None:
    init(tmp_path / "p", "queue-to-queue", source="nowhere", target="t")
    flow = tmp_path / "p" / "transformations" / "flow.py"
    flow.write_text(flow.read_text().replace('"subscription"', '"subscriptoin"'))

    with pytest.raises(PipelineFailed, match="did you mean subscription") as raised:
        run(tmp_path / "p", spark=spark, url=server.url, dry_run=True)

    assert "\n" not in str(raised.value)
