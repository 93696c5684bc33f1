"""Options and filters, without Spark: what is misspelled is refused, and pushing down never loses a row."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.errors import InvalidSetting
from openq.history.selection import Selection
from openq.pipeline.options import READ, STREAM, WRITE, SourceOptions, as_options
from openq.pipeline.pushdown import ColumnFilter, filter_batch, narrow_selection

PATH = {"path": "data"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({**PATH, **given}, READ, {})


def test_names_of_options_ignore_case() -> None:
    found = SourceOptions.parse({"PATH": "data", "startingseq": "3", "MAXBYTESPERPARTITION": "64m"}, READ, {})

    assert (found.path, found.value("startingSeq"), found.value("maxBytesPerPartition")) == (
        "data",
        3,
        64 << 20,
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "set the option url"),
        ({**PATH, "queus": "a"}, "there is no option 'queus': did you mean queues?"),
        ({**PATH, "zzzz": "a"}, "there is no option 'zzzz': there are url, path"),
        ({**PATH, "table": "message"}, "table must be messages or events, not 'message'"),
        ({**PATH, "body": "maybe"}, "body must be true or false or json"),
        ({**PATH, "columns": "seq,bodi"}, "table messages has no column 'bodi'"),
        ({**PATH, "startingTimestamp": "yesterday"}, "startingTimestamp must look like 2023-04-03T10:30:00Z"),
        ({**PATH, "startingSeq": "-1"}, "startingSeq must be an integer, 0 or more"),
        ({**PATH, "startingSeq": "9", "endingSeq": "3"}, "nothing can match"),
        ({**PATH, "maxBytesPerPartition": "much"}, "maxBytesPerPartition must be a size"),
        ({**PATH, "minPartitions": "0"}, "minPartitions must be 1 or more"),
        ({**PATH, "failOnDataLoss": "perhaps"}, "failOnDataLoss must be true or false"),
        ({**PATH, "asOf": "last"}, "asOf must be a version of the archive"),
        ({**PATH, "queues": " , "}, "queues must name at least one"),
        ({**PATH, "queues": "[1]"}, "queues must be names separated by commas"),
        ({**PATH, "events": "acked", "table": "events"}, "there is no event 'acked'"),
        ({**PATH, "table": "events", "body": "json"}, "body=json is for table=messages"),
        ({**PATH, "jobId": "a"}, "option jobId does not go with read; it is for write"),
    ],
)
def test_invalid_options_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        SourceOptions.parse(given, READ, {})

    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_options_added_by_spark_are_accepted() -> None:
    SourceOptions.parse({"url": "http://127.0.0.1:1", "checkpointLocation": "x", "path": "y"}, WRITE, {})


def test_writing_and_consuming_need_a_server() -> None:
    with pytest.raises(InvalidSetting, match="writing goes through a server: set the option url"):
        SourceOptions.parse({"queue": "a"}, WRITE, {})
    with pytest.raises(InvalidSetting, match="mode=consume needs a server"):
        SourceOptions.parse({**PATH, "mode": "consume"}, STREAM, {})


def test_a_token_comes_from_the_option_or_the_environment_and_is_never_shown(tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text("from-a-file\n")

    reported = SourceOptions.parse({**PATH, "token": "reported"}, READ, {"OPENQ_TOKEN": "environment"})
    inherited = SourceOptions.parse(PATH, READ, {"OPENQ_TOKEN": "environment"})
    kept = SourceOptions.parse(PATH, READ, {"OPENQ_TOKEN_FILE": str(file)})

    assert [reported.token, inherited.token, kept.token] == ["reported", "environment", "from-a-file"]
    assert "reported" not in repr(reported)
    assert pickle.loads(pickle.dumps(reported)) == reported
    with pytest.raises(InvalidSetting, match="no token from the environment"):
        SourceOptions.parse(PATH, READ, {"OPENQ_TOKEN_FILE": str(tmp_path / "none")})


def test_python_values_become_the_options_that_mean_them() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
    found = SourceOptions.parse(
        as_options(path="data", queues=["a,b", "c*"], startingTimestamp=moment, body=False, columns=None),
        READ,
        {},
    )

    assert found.selection() == Selection(
        queues=("a,b", "c*"), since_us=(moment - EPOCH) // timedelta(microseconds=1), body=False
    )


def test_a_time_may_be_milliseconds_as_kafkas_are() -> None:
    assert options(startingTimestamp="1700000000123").selection().since_us == 1_700_000_000_123_000


# -- filters


QUEUES = ["a", "b", "c"]
ROWS = st.fixed_dictionaries(
    {
        "seq": st.none() | st.integers(0, 9),
        "position": st.integers(0, 9),
        "ts": st.integers(0, 9),
        "queue": st.none() | st.sampled_from(QUEUES),
        "message_id": st.none() | st.sampled_from(["x", "xy", "yx"]),
        "type": st.none() | st.sampled_from(["", "x", "xyx"]),
    }
)
ORDER = ["EqualTo", "EqualNullSafe", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"]


@st.composite
def a_term(draw: Any) -> ColumnFilter:
    column = draw(st.sampled_from(["seq", "position", "ts", "queue", "message_id", "type"]))
    text = st.sampled_from([*QUEUES, "x", "xy", "", "*"])
    value = (
        st.integers(-1, 10)
        if column in ("seq", "position")
        else st.integers(-1, 10).map(lambda n: EPOCH + timedelta(microseconds=n))
        if column == "ts"
        else text
    )
    kinds = [*ORDER, "In", "IsNull", "IsNotNull"]
    if column in ("queue", "message_id", "type"):
        kinds += ["StringStartsWith", "StringEndsWith", "StringContains"]
    kind = draw(st.sampled_from(kinds))
    if kind == "In":
        wanted: Any = tuple(draw(st.lists(st.none() | value, min_size=1, max_size=3)))
    elif kind.startswith("Is"):
        wanted = None
    else:
        wanted = draw(st.none() | value if kind == "EqualNullSafe" else value)
    return ColumnFilter(kind, column, wanted, draw(st.booleans()))


def truth(term: ColumnFilter, row: dict[str, Any]) -> bool | None:
    """SQL's answer: true, false, or not known."""
    has = row[term.column]
    if term.column == "ts":
        has = EPOCH + timedelta(microseconds=has)
    found: bool | None
    if term.kind in ("IsNull", "IsNotNull"):
        found = (has is None) == (term.kind == "IsNull")
    elif term.kind == "EqualNullSafe":
        found = has == term.value
    elif has is None:
        found = None
    elif term.kind == "In":
        found = True if has in term.value else None if None in term.value else False
    else:
        found = {
            "EqualTo": lambda: has == term.value,
            "GreaterThan": lambda: has > term.value,
            "GreaterThanOrEqual": lambda: has >= term.value,
            "LessThan": lambda: has < term.value,
            "LessThanOrEqual": lambda: has <= term.value,
            "StringStartsWith": lambda: has.startswith(term.value),
            "StringEndsWith": lambda: has.endswith(term.value),
            "StringContains": lambda: term.value in has,
        }[term.kind]()
    return found if not term.negated or found is None else not found


@given(st.lists(ROWS, max_size=12), st.lists(a_term(), max_size=3), st.booleans())
def test_pushed_down_filters_keep_every_row_that_sql_keeps(
    rows: list[dict[str, Any]], found: list[ColumnFilter], is_bounded: bool
) -> None:
    selection = Selection(queues=("a", "b*"), first_seq=2, until_us=8) if is_bounded else Selection()
    columns = ("seq", "position", "ts", "queue", "message_id", "type")
    selection = Selection(**{**vars(selection), "columns": columns})
    kinds = [pa.int64(), pa.int64(), pa.timestamp("us", "UTC"), pa.string(), pa.string(), pa.string()]
    schema = pa.schema(list(zip(columns, kinds, strict=True)))
    batch = pa.RecordBatch.from_pylist(rows, schema)
    bounded = selection.keep(batch)
    wanted = [
        row
        for row in bounded.to_pylist()
        if all(truth(each, {**row, "ts": (row["ts"] - EPOCH) // timedelta(microseconds=1)}) for each in found)
    ]

    narrow = narrow_selection(selection, found)

    kept = [] if narrow is None else narrow.keep(batch).to_pylist()
    assert [row for row in kept if row not in bounded.to_pylist()] == []
    assert [row for row in wanted if row not in kept] == []
    assert filter_batch(bounded, found).to_pylist() == wanted or any(
        each.kind == "In" and each.negated and None in each.value for each in found
    )


def test_body_json_may_be_named_among_the_columns() -> None:
    reported = SourceOptions.parse({"path": "x", "body": "json", "columns": "seq,body_json"}, READ)

    assert reported.selection().names == ["seq"]
    assert reported.ddl() == "`seq` BIGINT, `body_json` VARIANT"
    with pytest.raises(InvalidSetting, match="body_json"):
        SourceOptions.parse({"path": "x", "columns": "seq,body_json"}, READ)
