"""A statement of SQL over queues: what is ours in it, where mistakes are, and that each row arrives once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from openq import OpenQ
from openq.cli.terminal import USAGE
from openq.errors import InvalidSetting, OpenQError
from openq.pipeline.sql_parser import SqlSource, SqlSyntaxError, SqlTarget, parse
from openq.pipeline.sqljob import sql
from tests.cli.helpers import run_in_process
from tests.serving import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- the statement ------------------------------------------------------------------------------------


def test_queues_become_views_and_the_rest_stays_as_it_is() -> None:
    made = parse(
        "INSERT INTO queue(b)\nSELECT body, 'FROM queue(x)' AS note -- from queue(y)\n"
        "FROM stream(queue(a.b-c, 'd e')) s JOIN events(\"x\") USING (message_id);"
    )

    assert made.target == SqlTarget("queue", "b")
    assert made.query == (
        "SELECT body, 'FROM queue(x)' AS note -- from queue(y)\n"
        "FROM openq_stream_1 s JOIN openq_batch_2 USING (message_id)"
    )
    assert made.sources == (
        SqlSource("messages", "stream", ("a.b-c", "d e"), "openq_stream_1"),
        SqlSource("events", "batch", ("x",), "openq_batch_2"),
    )
    assert made.is_stream


def test_the_same_history_twice_is_one_snapshot() -> None:
    made = parse("SELECT * FROM queue(a) x, queue(`a`) y, queue('a*') z WHERE queue = upper(queue)")

    assert made.query == (
        "SELECT * FROM openq_batch_1 x, openq_batch_1 y, openq_batch_2 z WHERE queue = upper(queue)"
    )
    assert [source.queues for source in made.sources] == [("a",), ("a*",)]
    assert not made.is_stream


def test_targets_are_a_queue_or_files() -> None:
    for kind in ("parquet", "json", "csv"):
        made = parse(f"insert into {kind}('some dir/x') select body from consume(queue(a))")
        assert (made.target, made.subscription_queues) == (SqlTarget(kind, "some dir/x"), ("a",))
    assert parse("INSERT OVERWRITE csv('d') SELECT 1").target == SqlTarget("csv", "d", overwrite=True)


def test_a_checkpoint_depends_on_the_words_not_the_layout() -> None:
    one = parse("INSERT INTO queue(b) SELECT body FROM stream(queue(a))")

    assert parse("INSERT INTO queue(b)\n  SELECT body -- all\n FROM stream( queue(a) );").key() == one.key()
    assert parse("INSERT INTO queue(c) SELECT body FROM stream(queue(a))").key() != one.key()


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 1, "there is no statement"),
        ("INSERT queue(b) SELECT 1", 8, "INTO is expected"),
        ("INSERT INTO topic(b) SELECT 1", 13, "INSERT INTO writes to"),
        ("INSERT INTO queue b SELECT 1", 19, r"\( is expected"),
        ("INSERT INTO queue(b SELECT 1", 21, "needs quotes"),
        ("INSERT INTO queue(b*) SELECT 1", 13, "one queue"),
        ("INSERT INTO queue(a, b) SELECT 1", 13, "takes one name"),
        ("INSERT INTO queue(b)", 21, "a query"),
        ("INSERT INTO queue(b) DELETE FROM x", 22, "a query"),
        ("INSERT OVERWRITE queue(b) SELECT 1", 8, "cannot be overwritten"),
        ("SELECT * FROM queue()", 21, "wants a name"),
        ("SELECT * FROM queue(a", 22, "not closed"),
        ("SELECT * FROM queue('a)", 21, "never closed"),
        ("SELECT * FROM stream(queue(a))", 1, "name its target"),
        ("INSERT INTO queue(b) SELECT * FROM stream(a)", 43, r"stream\(queue\(NAME\)\)"),
        ("INSERT INTO queue(b) SELECT * FROM consume(events(a))", 44, r"consume\(queue\(NAME\)\)"),
        ("INSERT INTO queue(b) SELECT * FROM consume(queue(a, c))", 44, "one queue"),
        ("INSERT INTO queue(b) SELECT * FROM stream(queue(a) x", 52, "not closed"),
        ("INSERT INTO queue(a) SELECT * FROM stream(queue(a))", 1, "read and written"),
        ("SELECT queue(a) FROM x", 8, "follow FROM or JOIN"),
        ("SELECT * FROM queu(a)", 15, r"did you mean queue"),
        ("SELECT 1; SELECT 2", 9, "one statement"),
    ],
)
def test_a_mistake_is_reported_with_its_position(text: str, column: int, says: str) -> None:
    with pytest.raises(SqlSyntaxError, match=says) as raised:
        parse(text)

    assert raised.value.column == column
    assert str(raised.value).startswith(f"column {column}: ")


def test_lines_are_counted_where_there_are_several() -> None:
    with pytest.raises(SqlSyntaxError, match="line 2, column 13: "):
        parse("SELECT *\nFROM events()")


def test_the_command_refuses_a_wrong_statement_before_spark_starts() -> None:
    done = run_in_process("pipeline", "sql", "SELECT * FROM queue(")
    assert (done.code, done.out) == (USAGE, "")
    assert "column 21: " in done.err

    assert run_in_process("pipeline", "sql", "SELECT 1", "--once", "--continuous").code == USAGE


def test_contradicting_arguments_are_refused() -> None:
    nobody: SparkSession = None  # type: ignore[assignment]
    stream = "INSERT INTO parquet('x') SELECT * FROM stream(queue(a))"
    for text, words, says in (
        ("SELECT * FROM queue(a)", {}, "say where the queues are"),
        ("INSERT INTO queue(b) SELECT * FROM queue(a)", {"path": "d"}, "need a server"),
        (stream, {"path": "d", "until": "1h"}, "a stream has no end"),
        (stream, {"path": "d", "job": "j"}, "checkpoint"),
        ("SELECT * FROM queue(a)", {"path": "d", "continuous": True}, "is for streams"),
    ):
        with pytest.raises(InvalidSetting, match=says):
            sql(nobody, text, **words)  # type: ignore[arg-type]


# -- with Spark ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("sql") / "data") as started:
        yield started


def orders(first: int, count: int) -> list[bytes]:
    return [json.dumps({"order": n, "total": n * 10}).encode() for n in range(first, first + count)]


def publish(server: Served, queue: str, bodies: list[bytes]) -> None:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        opened.publish_many(bodies)


def taken(server: Served, queue: str) -> list[bytes]:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        return [message.body for message in opened.receive_many(1000)]


def test_a_stream_brings_every_row_once_run_after_run(
    spark: SparkSession, server: Served, tmp_path: Path
) -> None:
    text = (
        "INSERT INTO queue(large) SELECT to_json(struct(body_json:order::int AS n)) AS body "
        "FROM stream(queue(orders)) WHERE body_json:total::double >= 20"
    )
    publish(server, "orders", orders(0, 5))
    first = sql(spark, text, url=server.url, checkpoint=tmp_path / "c", create=True)
    publish(server, "orders", orders(5, 2))
    second = sql(spark, text, url=server.url, checkpoint=tmp_path / "c", create=True)

    assert (first.rows, second.rows) == (5, 2)
    assert [json.loads(body)["n"] for body in taken(server, "large")] == [2, 3, 4, 5, 6]
    # The history of both: a batch with a snapshot of its own, and nothing is taken.
    done = sql(
        spark, "SELECT queue, count(*) AS n FROM queue('*') GROUP BY queue ORDER BY queue", url=server.url
    )
    assert done.frame is not None
    assert {(row["queue"], row["n"]) for row in done.frame.collect()} >= {("large", 5), ("orders", 7)}


def test_consuming_leaves_nothing_behind_and_joins_what_it_needs(
    spark: SparkSession, server: Served, tmp_path: Path
) -> None:
    publish(server, "todo", [b"1", b"2", b"3"])
    publish(server, "names", [b"2=two", b"3=three"])
    text = f"""
        INSERT INTO parquet('{tmp_path / "out"}')
        SELECT CAST(t.body AS STRING) AS n, substr(CAST(names.body AS STRING), 3) AS name
        FROM consume(queue(todo)) t
        LEFT JOIN queue(names) names ON substr(names.body, 1, 1) = t.body
    """

    done = sql(spark, text, url=server.url, checkpoint=tmp_path / "c", max_messages=2)

    assert done.batches == 2
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(row["n"], row["name"]) for row in rows} == {("1", None), ("2", "two"), ("3", "three")}
    stats = json.loads(server.get("/api/v1/queues/todo/stats")[1])
    assert (stats["ready"], stats["in_flight"]) == (0, 0)


def test_errors_of_spark_have_their_position_in_the_statement(spark: SparkSession, server: Served) -> None:
    publish(server, "here", [b"x"])
    for text, column, says in (
        ("SELECT bodi FROM queue(here)", 8, "bodi"),
        ("SELECT * FROM queue(here) WHRE 1 = 1 x", 32, "Syntax error"),
    ):
        with pytest.raises(SqlSyntaxError, match=says) as raised:
            sql(spark, text, url=server.url)
        assert raised.value.column == column
        assert "openq_batch" not in str(raised.value)
    with pytest.raises(OpenQError, match="queue 'nowhere' does not exist"):
        sql(spark, "SELECT * FROM queue(nowhere)", url=server.url)
    with pytest.raises(OpenQError, match="queue 'nowhere' does not exist"):
        sql(spark, "INSERT INTO queue(nowhere) SELECT body FROM stream(queue(here))", url=server.url)
    with pytest.raises(OpenQError, match="there is no column body"):
        sql(spark, "INSERT INTO queue(here) SELECT 1 AS n", url=server.url)


def test_the_command_shows_rows_and_nothing_else(spark: SparkSession, server: Served) -> None:
    """That Spark adds nothing of its own, test_session.py shows in a process of its own."""
    publish(server, "shown", [b'{"a": 1}', b"\xff"])

    statement = "SELECT body, size FROM queue(shown) ORDER BY size"
    done = run_in_process("pipeline", "sql", statement, "--json", "--url", server.url)

    assert [json.loads(line) for line in done.out.splitlines()] == [
        {"body": "/w==", "size": 1},
        {"body": '{"a": 1}', "size": 8},
    ]
    assert (done.code, done.err) == (0, "")
