"""`spark.read.format("openq")` and `history()` give every row once, whatever way it takes to Spark."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.errors import HistoryUnavailable
from openq.history.archive import Archive, Manifest
from openq.history.local import LocalHistory
from openq.history.selection import Selection
from openq.history.tracker import MessageTracker
from openq.journal.format import make_location
from openq.pipeline import history, reason
from openq.pipeline.history import MANY_IDS
from openq.pipeline.options import READ, SourceOptions
from openq.pipeline.remote_history import RemoteHistory
from openq.pipeline.source import MetaSource, open_history
from tests.pipeline.conftest import Filled, fill_path, fill_server
from tests.serving import served, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 300
SEGMENT_BYTES = 16 << 10
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Data(NamedTuple):
    path: str
    with_bodies: Filled
    messages: list[dict[str, Any]]  # as plain Python reads them, in the order of their sequence
    events: list[dict[str, Any]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    path = tmp_path_factory.mktemp("batch") / "data"
    filled = fill_path(path, COUNT, SEGMENT_BYTES)
    return Data(str(path), filled, plain(str(path), "messages"), plain(str(path), "events"))


def plain(path: str, table: str, archive: str | None = None) -> list[dict[str, Any]]:
    """The table without Spark."""
    local, selection = LocalHistory(path, archive), Selection(table)
    snapshot = local.snapshot(selection)
    return ordered(
        row
        for batch in local.read_many(snapshot.pieces, selection)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    )


def ordered(rows: Any) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row.get("position", 0), row.get("item") or 0, row.get("seq") or 0))


def read(spark: SparkSession, place: str, **given: object) -> DataFrame:
    where = "url" if place.startswith("http") else "path"
    return spark.read.format("openq").options(**{where: place, **given}).load()


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    return ordered(frame.toArrow().to_pylist(maps_as_pydicts="strict"))


def picked(rows: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: row[name] for name in names} for row in rows]


@contextmanager
def refused(said: str) -> Iterator[None]:
    """Spark's error has our one sentence in it."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as raised:
        yield
    reported = reason(raised.value)
    assert reported is not None, str(raised.value)[:2000]
    assert said in reported


def test_every_message_that_was_sent_is_one_row(spark: SparkSession, data: Data) -> None:
    rows = rows_of(read(spark, data.path))

    assert rows == data.messages
    assert len(list(Path(data.path, "journal").glob("*.seg"))) > 2
    found = {row["message_id"]: row for row in rows}
    assert found.keys() == data.with_bodies.sent.keys()
    assert len(rows) == len(found)
    for message_id, sent in data.with_bodies.sent.items():
        row = found[message_id]
        assert (row["queue"], row["body"], row["priority"] or 0) == (sent.queue, sent.body, sent.priority)
        assert row["group"] == sent.group
        assert row["size"] == len(sent.body)
        reported = {name: each["string"] for name, each in (row["attributes"] or {}).items()}
        assert reported == (sent.attributes or {})


def test_every_event_is_one_row(spark: SparkSession, data: Data) -> None:
    frame = read(spark, data.path, table="events")

    rows = rows_of(frame)

    assert rows == data.events
    counts = Counter(row["event"] for row in rows)
    filled = data.with_bodies
    assert counts["publish"] == len(filled.sent)
    assert counts["ack"] == len(filled.acked)
    assert counts["nack"] == len(filled.nacked)
    assert {row["message_id"] for row in rows if row["event"] == "dead_letter"} == set(filled.dead)


def test_options_select_the_same_rows_as_a_filter(spark: SparkSession, data: Data) -> None:
    full, middle = data.messages, data.messages[len(data.messages) // 2]
    ids = sorted(data.with_bodies.sent)[5:9]
    wanted: list[tuple[dict[str, object], list[dict[str, Any]]]] = [
        ({"queues": "orders, m?ils"}, [row for row in full if row["queue"] in ("orders", "mails")]),
        ({"startingSeq": 20, "endingSeq": 40}, [row for row in full if 20 <= row["seq"] <= 40]),
        ({"messageIds": json.dumps(ids)}, [row for row in full if row["message_id"] in ids]),
        ({"startingTimestamp": middle["ts"].isoformat()}, [row for row in full if row["ts"] >= middle["ts"]]),
        (
            {"endingPosition": middle["position"]},
            [row for row in full if row["position"] < middle["position"]],
        ),
    ]
    for options, rows in wanted:
        columns = ("position", "seq", "queue")
        assert 0 < len(rows) < len(full)
        assert rows_of(read(spark, data.path, columns=",".join(columns), **options)) == picked(rows, *columns)
    lean = read(spark, data.path, body="false")
    assert "body" not in lean.columns
    assert lean.count() == len(full)


def test_filters_give_the_same_rows_pushed_down_or_not(spark: SparkSession, data: Data) -> None:
    middle = data.messages[len(data.messages) // 2]
    where = [
        "queue = 'orders' AND seq > 30",
        "queue IN ('mails', 'none') AND body LIKE 'mail 1%'",
        f"ts >= TIMESTAMP '{middle['ts'].isoformat()}' AND priority = 3",
        f"message_id = '{middle['message_id']}'",
        "queue LIKE 'e%' AND NOT (priority = 3) AND `group` IS NULL",
        "queue = 'none'",
    ]
    found: dict[str, list[list[dict[str, Any]]]] = {}
    try:
        for setting in ("true", "false"):
            spark.conf.set(PUSHDOWN, setting)
            frame = read(spark, data.path, columns="position,seq,ts,queue,message_id,priority,group,body")
            found[setting] = [rows_of(frame.where(each)) for each in where]
    finally:
        spark.conf.set(PUSHDOWN, "true")

    assert found["true"] == found["false"]
    assert [len(rows) > 0 for rows in found["true"]] == [True, True, True, True, True, False]


def test_a_schema_of_the_caller_prunes_columns(spark: SparkSession, data: Data) -> None:
    frame = spark.read.format("openq").schema("queue STRING, seq BIGINT, position BIGINT").load(data.path)

    assert rows_of(frame) == picked(data.messages, "queue", "seq", "position")
    with refused("table messages has no column 'nothing'"):
        spark.read.format("openq").schema("nothing STRING").load(data.path).collect()
    with refused("column seq is bigint, not string"):
        spark.read.format("openq").schema("seq STRING").load(data.path).collect()


def test_partitions_follow_the_options(spark: SparkSession, data: Data) -> None:
    few = read(spark, data.path, columns="seq")
    many = read(spark, data.path, columns="seq", minPartitions=5, maxBytesPerPartition="16k")

    assert few.rdd.getNumPartitions() == 1
    assert many.rdd.getNumPartitions() >= 5
    assert sorted(many.toArrow()["seq"].to_pylist()) == sorted(row["seq"] for row in data.messages)


def test_bodies_that_are_json_come_as_variant(spark: SparkSession, data: Data) -> None:
    wanted = [
        {"seq": row["seq"], "order": json.loads(row["body"])["order"] if row["queue"] == "orders" else None}
        for row in data.messages
    ]
    frames = [
        read(spark, data.path, columns="seq,queue", body="json"),
        history(spark, path=data.path, columns=["seq", "queue"], body="json"),
    ]

    for frame in frames:
        assert frame.columns == ["seq", "queue", "body_json"]
        orders = frame.selectExpr("seq", "try_variant_get(body_json, '$.order', 'int') AS order")
        assert sorted(rows_of(orders), key=lambda row: row["seq"]) == wanted


def test_sql_reads_it_and_a_source_without_bodies_can_be_registered(spark: SparkSession, data: Data) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW sent USING openq OPTIONS (path '{data.path}', queues 'orders')"
    )
    spark.dataSource.register(MetaSource)

    assert spark.sql("SELECT count(*) FROM sent").first()[0] == COUNT
    assert "body" not in spark.read.format("openq.meta").load(data.path).columns


def test_mistakes_are_one_sentence(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    with refused("there is no option 'queus': did you mean queues?"):
        read(spark, data.path, queus="orders").collect()
    with refused("queue 'ordres' does not exist"):
        read(spark, data.path, queues="ordres,mails").collect()
    with refused("there is no such directory"):
        read(spark, str(tmp_path / "nothing")).collect()
    with refused("nothing listens there"):
        read(spark, "http://127.0.0.1:9", retryTimeout="0s").collect()
    assert read(spark, data.path, queues="ordres*").count() == 0
    assert rows_of(read(spark, data.path, queues="dead")) == []  # there, and nothing was published to it


# -- with an archive


def write_archive(path: str, segments: int) -> int:
    """Put the first segments of a journal into its archive; the position it reaches to."""
    local = LocalHistory(path)
    assert local.journal is not None
    refs = local.journal.segments()[:segments]
    through = make_location(refs[-1].number + 1, 0)
    tracker = MessageTracker()
    for ref in refs:
        tracker.context_for(ref, local.journal.index(ref.number))
    store = Archive(local.archive_path)
    files = []
    for table in ("messages", "events"):
        selection = Selection(table, end_position=through)
        batches = list(local.read_many(local.snapshot(selection).pieces, selection))
        rows = pa.Table.from_batches(batches).sort_by([("queue", "ascending"), ("seq", "ascending")])
        for n, first in enumerate(range(0, len(rows), 400)):
            name = f"{table}/dt=2026-01-0{n + 1}/{table} {n}.parquet"
            Path(store.path, name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(rows.slice(first, 400), Path(store.path, name), 64, compression="zstd")
            files.append(store.describe(table, name))
    prefix = tracker.id_prefix
    store.commit(Manifest(1, 0, f"{refs[0].salt:016x}", prefix, through, files, tracker.state()))
    return through


def test_archive_and_journal_are_one_history(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    path = str(tmp_path / "da*ta")  # a pattern to Spark, a name to us
    shutil.copytree(data.path, path)
    through = write_archive(path, 3)
    middle = data.messages[len(data.messages) // 2]
    columns = ["position", "seq", "ts", "queue", "message_id"]
    ids = sorted(data.with_bodies.sent)[::3]

    assert len(ids) < MANY_IDS
    assert 0 < len([row for row in data.messages if row["position"] < through]) < len(data.messages)
    assert rows_of(history(spark, path=path)) == data.messages
    assert rows_of(history(spark, path=path, table="events")) == data.events
    assert rows_of(read(spark, path)) == data.messages
    assert rows_of(read(spark, path, table="events")) == data.events
    for wanted, rows in (
        ({"queues": ["or*", "mails"]}, [row for row in data.messages if row["queue"] in ("orders", "mails")]),
        ({"since": middle["ts"]}, [row for row in data.messages if row["ts"] >= middle["ts"]]),
        ({"until": middle["ts"].isoformat()}, [row for row in data.messages if row["ts"] < middle["ts"]]),
        ({"ids": ids}, [row for row in data.messages if row["message_id"] in ids]),
        ({"ids": ids * 2, "queues": "orders"}, None),
        ({"as_of": 1}, [row for row in data.messages if row["position"] < through]),
    ):
        if rows is None:
            rows = [row for row in data.messages if row["message_id"] in ids and row["queue"] == "orders"]
        assert rows_of(history(spark, path=path, columns=columns, **wanted)) == picked(rows, *columns)
    assert rows_of(read(spark, path, asOf=1, columns="seq,position")) == picked(
        [row for row in data.messages if row["position"] < through], "seq", "position"
    )
    with pytest.raises(HistoryUnavailable, match="has no version 7; there are 1 to 1"):
        history(spark, path=path, as_of=7)


def test_rows_after_the_call_are_not_read(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill_path(path, 10)
    before = [history(spark, path=path, columns=["seq"]), history(spark, path=path, table="events")]
    counts = [30, before[1].count()]

    fill_path(path, 10)

    assert [frame.count() for frame in before] == counts
    assert history(spark, path=path, columns=["seq"]).count() == 60


def test_a_gap_in_the_history_is_reported(spark: SparkSession, data: Data, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(data.path, path)
    through = write_archive(str(path), 1)
    segments = sorted((path / "journal").glob("*.seg"))
    for segment in segments[:3]:
        segment.unlink()
        segment.with_suffix(".idx").unlink(missing_ok=True)
    kept = make_location(int(segments[3].stem), 0)
    rows = [row for row in data.messages if row["position"] < through or row["position"] >= kept]

    with refused(f"positions {through} to {kept} are neither in the archive nor in the journal"):
        read(spark, str(path)).collect()
    with pytest.raises(HistoryUnavailable, match=f"positions {through} to {kept}"):
        history(spark, path=path)
    assert rows_of(read(spark, str(path), failOnDataLoss="false", columns="seq,position")) == picked(
        rows, "seq", "position"
    )
    assert rows_of(history(spark, path=path, fail_on_data_loss=False, columns=["seq", "position"])) == picked(
        rows, "seq", "position"
    )


# -- from a server


def test_a_server_gives_the_same_rows_as_its_files(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    with served(path, "--segment-bytes", "65536") as server:
        filled = fill_server(server.url, COUNT)
        messages, events = plain(str(path), "messages"), plain(str(path), "events")

        assert {row["message_id"] for row in messages} == filled.sent.keys()
        assert rows_of(read(spark, server.url)) == messages
        assert rows_of(read(spark, server.url, table="events", minPartitions=4)) == events
        assert rows_of(history(spark, url=server.url, columns=["seq", "position"])) == picked(
            messages, "seq", "position"
        )
        where = "queue = 'events' AND priority > 5"
        assert rows_of(read(spark, server.url).where(where)) == [
            row for row in messages if row["queue"] == "events" and row["priority"] > 5
        ]
        # A task that finds another journal under the path, as on another machine, asks the server.
        fill_path(tmp_path / "other", 10)
        given = {"path": str(tmp_path / "other"), "url": server.url}
        selection = Selection(columns=("seq", "position"))
        pieces = LocalHistory(path).snapshot(selection).pieces
        taken = open_history(SourceOptions.parse(given, READ, {}), pieces)
        assert isinstance(taken, RemoteHistory)
        rows = [row for batch in taken.read_many(pieces, selection) for row in batch.to_pylist()]
        assert ordered(rows) == picked(messages, "seq", "position")
        with refused("queue 'ordres' does not exist"):
            read(spark, server.url, queues="ordres").collect()
        assert read(spark, server.url, queues="ordres*").count() == 0


def test_a_restarting_server_is_waited_for_and_a_missing_one_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    fill_path(path, 20)
    server = start(path).wait()
    waiting = read(spark, server.url, columns="seq")
    in_vain = read(spark, server.url, columns="seq", retryTimeout="1s")
    for frame in (waiting, in_vain):
        frame._jdf.queryExecution().executedPlan()  # planned: the pieces are known
    server.stop()

    with refused("nothing listens there"):
        in_vain.collect()
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(waiting.count)
        again = start(path, port=server.port).wait()
        try:
            assert coming.result(120) == 60
        finally:
            again.stop()


def test_a_token_shows_what_its_user_may_see_until_it_expires(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "data"
    fill_path(path, 10)
    users = UserStore(path / "users.json")
    users.add_user("reader", rules=[Rule("allow", frozenset({"peek"}), "mail*")])
    good = users.create_token("reader", "good")
    expired = users.create_token("reader", "expired", expires_s=1.0)
    with served(path) as server:
        rows = rows_of(read(spark, server.url, token=good, columns="seq,queue"))

        assert {row["queue"] for row in rows} == {"mails"}
        assert len(rows) == 10
        with refused("may not peek 'orders'"):
            read(spark, server.url, token=good, queues="orders", columns="seq").collect()
        for token in (expired, "nonsense"):
            with refused("token"):
                read(spark, server.url, token=token, columns="seq").collect()
