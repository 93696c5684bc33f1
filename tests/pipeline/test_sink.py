"""The sink: columns as packed parts, one publish for a batch, and what is refused before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from openq import OpenQ
from openq.auth.rules import ACTIONS, Rule
from openq.auth.store import UserStore
from openq.client.http import Refused, Unreachable
from openq.errors import InvalidSetting, OpenQError, QueueNotFound
from openq.packed import unpack
from openq.pipeline.link import Link
from openq.pipeline.packed_rows import PART_BYTES, pack, parts, unpack_to_arrow
from openq.pipeline.sink import BatchWriter, columns_of, make_stream_writer, make_writer
from tests.serving import Served, served

URL = {"url": "http://127.0.0.1:1", "queue": "q"}

# -- rows -----------------------------------------------------------------------------------------


def batch(**columns: Any) -> pa.RecordBatch:
    arrays = {name: each if isinstance(each, pa.Array) else pa.array(each) for name, each in columns.items()}
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def test_columns_arrive_as_they_left() -> None:
    attributes = pa.array(
        [
            [("a", {"type": "String", "string": "x", "binary": None})],
            None,
            [("b", {"type": "Binary", "string": None, "binary": b"\x00\xff"})],
        ],
        pa.map_(
            pa.string(), pa.struct([("type", pa.string()), ("string", pa.string()), ("binary", pa.binary())])
        ),
    )
    rows = batch(
        body=[b"one", b"", b"\x00three"],
        queue=["a", "b", "b"],
        priority=pa.array([None, 3, 0], pa.int32()),
        type=[None, "t", None],
        delay=[0.5, None, 2.0],
        attributes=attributes,
        headers=pa.array([[("h", "1")], [], None], pa.map_(pa.string(), pa.string())),
    )

    made = pack([rows, rows.slice(1, 1)])

    assert made.rows == 4
    assert sorted(made.queues) == ["a", "b"]
    assert unpack(made.data) == {
        "body": [b"one", b"", b"\x00three", b""],
        "queue": ["a", "b", "b", "b"],
        "priority": [None, 3, 0, 3],
        "type": [None, "t", None, "t"],
        "delay_us": [500_000, None, 2_000_000, None],
        "attributes": [
            {"a": {"type": "String", "string": "x", "binary": None}},
            None,
            {"b": {"type": "Binary", "string": None, "binary": "AP8="}},
            None,
        ],
        "headers": [{"h": "1"}, {}, None, {}],
    }


def test_packed_rows_are_read_into_the_columns_of_the_history() -> None:
    from openq.packed import pack as pack_rows

    data = pack_rows(
        {
            "seq": [7, 8],
            "ts_us": [1_700_000_000_000_000, 1_700_000_000_000_001],
            "queue": ["q", "q"],
            "type": [None, "t"],
            "body": [b"x", b""],
            "attributes": [{"n": {"type": "Number", "string": "1"}}, None],
        },
        {"attributes": "json"},
    )

    [rows] = unpack_to_arrow(data, ["seq", "ts", "queue", "type", "body", "size", "attributes", "group"])

    assert rows.to_pylist() == [
        {
            "seq": 7,
            "ts": rows["ts"][0].as_py(),
            "queue": "q",
            "type": None,
            "body": b"x",
            "size": 1,
            "attributes": [("n", {"type": "Number", "string": "1", "binary": None})],
            "group": None,
        },
        {
            "seq": 8,
            "ts": rows["ts"][1].as_py(),
            "queue": "q",
            "type": "t",
            "body": b"",
            "size": 0,
            "attributes": None,
            "group": None,
        },
    ]
    assert rows["ts"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_000, 1_700_000_000_000_001]


def test_large_batches_become_several_parts_and_a_huge_row_one_of_its_own() -> None:
    sizes = [1 << 20] * 20 + [PART_BYTES + 5] + [10] * 50
    rows = batch(body=[bytes([n % 251]) * size for n, size in enumerate(sizes)])

    made = list(parts([rows.slice(0, 30), rows.slice(30)], ["body"]))

    assert [len(body) for part in made for body in unpack(part.data)["body"]] == sizes
    assert all(len(part.data) < PART_BYTES + (1 << 10) or part.rows == 1 for part in made)
    assert len(made) >= 4


def test_no_rows_are_no_part() -> None:
    assert list(parts([batch(body=pa.array([], pa.binary()))], ["body"])) == []


def test_a_row_without_a_body_or_a_queue_is_refused() -> None:
    with pytest.raises(OpenQError, match="body is null"):
        pack([batch(body=[b"x", None])])
    with pytest.raises(OpenQError, match="queue is null"):
        pack([batch(body=[b"x"], queue=pa.array([None], pa.string()))])


def schema(**columns: pa.DataType) -> StructType:
    return from_arrow_schema(pa.schema(list(columns.items())))


TEXT, INT, STRUCT = pa.string(), pa.int64(), pa.struct([("a", pa.int32())])
PLAIN = schema(body=TEXT)

# -- what is refused at once ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": INT}, r"no column body .*to_json"),
        ({"body": STRUCT}, "to_json"),
        ({"body": TEXT, "nonsense": INT}, "no column 'nonsense'"),
        ({"body": TEXT, "type": INT}, "type must be string"),
        ({"body": TEXT, "priority": TEXT}, "priority must be a whole number"),
        ({"body": TEXT, "attributes": pa.list_(TEXT)}, "attributes must be a map"),
        ({"body": TEXT, "delay": INT, "delay_us": INT}, "two delays"),
        ({"body": TEXT, "delay": TEXT}, "number of seconds"),
    ],
)
def test_an_invalid_schema_is_refused(columns: dict[str, pa.DataType], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        make_writer(URL, schema(**columns), False)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"queue": "q"}, "url"),
        ({**URL, "onError": "dlq"}, "dlq=QUEUE"),
        ({**URL, "dlq": "d"}, "onError=dlq"),
        ({**URL, "jobId": "a b"}, "jobId"),
        ({**URL, "batchId": "3"}, "jobId"),
        ({**URL, "exchange": "e"}, "no option 'exchange'"),
        ({"url": URL["url"]}, "column queue"),
        ({**URL, "jobid2": "x"}, "jobId"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        make_writer(options, PLAIN, False)


def test_a_queue_is_never_overwritten() -> None:
    with pytest.raises(InvalidSetting, match="append"):
        make_writer(URL, PLAIN, True)
    with pytest.raises(InvalidSetting, match="append"):
        make_stream_writer(URL, PLAIN, True)


def test_a_row_of_the_history_can_be_written_as_it_is() -> None:
    from openq.history.schema import arrow_schema
    from openq.pipeline.options import WRITE, SourceOptions
    from openq.pipeline.sink import SinkTarget

    target = SinkTarget(SourceOptions.parse(URL, WRITE))

    assert columns_of(from_arrow_schema(arrow_schema("messages")), target) == [
        *("message_id", "type", "group", "dedup_id", "priority", "delay_us", "content_type"),
        *("attributes", "headers", "body"),
    ]


# -- at a server ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("sink") / "data") as started:
        yield started


def writer(server: Served, kind: StructType = PLAIN, **options: object) -> BatchWriter:
    given = {name: str(value) for name, value in options.items()}
    return make_writer({"url": server.url, **given}, kind, False)


def drained(server: Served, name: str) -> list[bytes]:
    with OpenQ(name, url=server.url, codec="raw") as queue:
        return [message.body for message in queue.receive_many(1000)]


def stages(server: Served) -> list[Any]:
    link = Link(server.url)
    try:
        return list(link.call("GET", "pipeline/stages").json()["stages"])
    finally:
        link.close()


def test_only_attempts_that_succeeded_are_published_and_a_second_commit_is_nothing(server: Served) -> None:
    job = writer(server, queue="once", jobId="once", createQueue="true")
    failed = job.write(iter([batch(body=["lost"])]))  # its task was tried again
    done = [
        job.write(iter([batch(body=["a", "b"])])),
        job.write(iter([])),
        job.write(iter([batch(body=["c"])])),
    ]

    job.commit(done)
    job.commit(done)
    again = writer(server, queue="once", jobId="once")
    again.commit([again.write(iter([batch(body=["d"])]))])

    assert failed.rows == 1
    assert drained(server, "once") == [b"a", b"b", b"c"]
    assert stages(server) == []


def test_a_queue_that_does_not_exist_is_refused_with_the_option_before_a_row_is_uploaded(
    server: Served,
) -> None:
    says = r"queue 'nowhere' does not exist; create it, or set the option createQueue to true"
    with pytest.raises(QueueNotFound, match=says):
        writer(server, queue="nowhere")
    with pytest.raises(QueueNotFound, match=says):
        make_stream_writer({"url": server.url, "queue": "nowhere"}, PLAIN, False)
    with pytest.raises(QueueNotFound, match=says):
        writer(server, schema(body=TEXT, queue=TEXT), onError="dlq", dlq="nowhere")
    by_row = writer(server, schema(body=TEXT, queue=TEXT))
    with pytest.raises(QueueNotFound, match=says):
        by_row.write(iter([batch(body=["x"], queue=["nowhere"])]))

    assert stages(server) == []


def test_batches_of_a_job_are_published_once_each(server: Served) -> None:
    for number, text in ((0, "a"), (1, "b"), (1, "again"), (0, "again"), (2, "c")):
        job = writer(server, queue="counted", jobId="counted", batchId=number, createQueue="true")
        job.commit([job.write(iter([batch(body=[text])]))])

    assert drained(server, "counted") == [b"a", b"b", b"c"]


def test_rows_name_their_queues_and_properties(server: Served) -> None:
    kind = schema(
        body=TEXT, queue=TEXT, type=TEXT, priority=INT, attributes=pa.map_(TEXT, TEXT), message_id=TEXT
    )
    job = writer(server, kind, createQueue="true")
    attributes = pa.array([[("shop", "north")], None], pa.map_(TEXT, TEXT))
    columns = {"body": ["x", "y"], "queue": ["first", "second"], "type": ["t", None], "priority": [5, None]}

    job.commit([job.write(iter([batch(**columns, attributes=attributes, message_id=["my-id", None])]))])

    with OpenQ("first", url=server.url, codec="raw") as queue:
        message = queue.receive()
    assert (message.body, message.id, message.priority) == (b"x", "my-id", 5)
    assert message.attributes["shop"] == "north"
    assert drained(server, "second") == [b"y"]


def test_a_bad_row_stops_the_batch_or_becomes_a_dead_letter(server: Served) -> None:
    kind = schema(body=TEXT, queue=TEXT)
    rows = batch(body=["good", "too long"], queue=["strict", "strict"])
    OpenQ("strict", url=server.url, max_body=4).close()
    OpenQ("letters", url=server.url).close()

    strict = writer(server, kind)
    sent = strict.write(iter([rows]))
    with pytest.raises(Refused, match="4"):
        strict.commit([sent])
    strict.abort([sent])
    assert drained(server, "strict") == []
    assert stages(server) == []

    lenient = writer(server, kind, onError="dlq", dlq="letters")
    lenient.commit([lenient.write(iter([rows]))])
    assert drained(server, "strict") == [b"good"]
    assert drained(server, "letters") == [b"too long"]

    elsewhere = batch(body=["bad"], queue=["nowhere"])
    lenient = writer(server, kind, onError="dlq", dlq="letters")
    lenient.commit([lenient.write(iter([elsewhere]))])
    assert drained(server, "letters") == [b"bad"]


def test_a_token_for_one_queue_writes_to_that_one_and_no_other(tmp_path: Path) -> None:
    users = UserStore(tmp_path / "data" / "users.json")
    users.add_user("loader", rules=[Rule("allow", frozenset({"send"}), "a")])
    users.add_user("admin", rules=[Rule("allow", ACTIONS, account="*")])
    token, admin = users.create_token("loader", "t"), users.create_token("admin", "t")
    kind = schema(body=TEXT, queue=TEXT)
    with served(tmp_path / "data") as guarded:
        for name in ("a", "b"):
            OpenQ(name, url=guarded.url, token=admin).close()
        good = writer(guarded, queue="a", token=token)
        good.commit([good.write(iter([batch(body=["x"])]))])
        both = writer(guarded, kind, token=token)
        sent = both.write(iter([batch(body=["y", "z"], queue=["a", "b"])]))
        with pytest.raises(Refused, match="may not"):
            both.commit([sent])
        both.abort([sent])

        found = {}
        for name in ("a", "b"):
            with OpenQ(name, url=guarded.url, token=admin, codec="raw") as queue:
                found[name] = [message.body for message in queue.receive_many(10)]

    assert found == {"a": [b"x"], "b": []}


def test_a_commit_waits_for_an_unreachable_server(tmp_path: Path) -> None:
    with served(tmp_path / "data") as first:
        job = writer(first, queue="q", createQueue="true", retryTimeout="1s")
        sent = [job.write(iter([batch(body=["a", "b"])])), job.write(iter([batch(body=["c"])]))]
        OpenQ("q", url=first.url).close()
        first.kill()

        with pytest.raises(Unreachable, match="nothing listens there"):
            job.commit(sent)
        with served(tmp_path / "data", port=first.port) as second:
            with OpenQ("q", url=second.url, codec="raw") as queue:
                assert queue.peek_many(10) == []
            job.commit(sent)
            job.commit(sent)
            assert drained(second, "q") == [b"a", b"b", b"c"]


def test_a_wrong_token_is_refused_before_anything_is_computed(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--auth", "on") as guarded, pytest.raises(Refused):
        writer(guarded, queue="q", token="nonsense")


def test_a_missing_server_is_an_error() -> None:
    with pytest.raises(Unreachable, match="openq serve"):
        make_writer({**URL, "retryTimeout": "1s"}, PLAIN, False)
