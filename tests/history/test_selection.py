"""The column model, what a selection means, and the signatures of errors."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from openq.errors import InvalidSetting
from openq.history.error_signature import MAX_SIGNATURE, signature
from openq.history.schema import (
    BODY_COLUMNS,
    TABLES,
    VERSION_KEY,
    arrow_schema,
    check_version,
    column_names,
    ddl,
)
from openq.history.selection import Selection


@pytest.mark.parametrize("table", TABLES)
def test_arrow_and_spark_schemas_have_the_same_columns(table: str) -> None:
    schema = arrow_schema(table)

    assert schema.metadata[VERSION_KEY] == b"1"
    assert [part.split("`")[1] for part in ddl(table).split(", `")] != []
    assert schema.names == column_names(table)
    for name in schema.names:
        assert f"`{name}` " in ddl(table)


def test_columns_keep_the_requested_order() -> None:
    assert arrow_schema("messages", ["body", "seq"]).names == ["body", "seq"]
    assert ddl("events", ["group", "ts"]) == "`group` STRING, `ts` TIMESTAMP"
    assert set(column_names("messages")) - set(column_names("messages", body=False)) == set(BODY_COLUMNS)
    assert ddl("messages", ["seq"], body="json") == "`seq` BIGINT, `body_json` VARIANT"


@pytest.mark.parametrize(
    ("table", "columns", "body"),
    [
        ("nothing", None, True),
        ("messages", ["sequence"], True),
        ("messages", ["seq", "seq"], True),
        ("messages", [], True),
        ("messages", ["body"], False),
    ],
)
def test_an_unknown_column_is_refused(table: str, columns: list[str] | None, body: bool) -> None:
    with pytest.raises(InvalidSetting):
        arrow_schema(table, columns, body)


def test_columns_of_another_version_are_refused() -> None:
    check_version(arrow_schema("events").metadata, "f")
    with pytest.raises(InvalidSetting, match="not hold columns of OpenQ"):
        check_version(None, "f")
    with pytest.raises(InvalidSetting, match="newer OpenQ"):
        check_version({VERSION_KEY: b"2"}, "f")


FULL = Selection(
    "events",
    queues=("a", "b*"),
    since_us=1,
    until_us=2,
    first_seq=3,
    last_seq=4,
    first_position=5,
    end_position=6,
    ids=("x",),
    columns=("seq", "event"),
    body=False,
    events=("ack",),
)


def test_a_selection_survives_json_and_pickle() -> None:
    for selection in (Selection(), FULL):
        assert Selection.from_json(json.dumps(selection.to_json())) == selection
        assert Selection.from_json(selection.to_json()) == selection
        assert pickle.loads(pickle.dumps(selection)) == selection
    assert Selection().to_json() == {}


@pytest.mark.parametrize(
    "value",
    [
        "",
        "[]",
        "[" * 100_000,
        "{" + '"a":' * 3 + "1}",
        {"tables": "events"},
        {"table": "none"},
        {"table": ["events"]},
        {"queues": "a"},
        {"queues": [1]},
        {"queues": [""]},
        {"since_us": "1"},
        {"since_us": True},
        {"since_us": 1 << 63},
        {"since_us": 2, "until_us": 1},
        {"first_seq": 2, "last_seq": 1},
        {"body": 1},
        {"columns": "seq"},
        {"columns": []},
        {"columns": ["none"]},
        {"events": ["ack"]},
        {"table": "events", "events": ["none"]},
    ],
)
def test_an_invalid_selection_is_refused(value: object) -> None:
    with pytest.raises(InvalidSetting):
        Selection.from_json(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "ab", True),
        ("*b", "ab", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[ab]", "a", False),
        ("a.c", "abc", False),
        ("@x/*", "@x/q", True),
        ("*", "a\nb", True),
        ("*" * 60 + "x", "y" * 200, False),
        ("a*" * 14 + "b", "a" * 250, False),  # would take years of going back and forth
    ],
)
def test_queues_are_names_or_patterns(pattern: str, name: str, matches: bool) -> None:
    assert Selection(queues=(pattern,)).matches_queue(name) is matches
    assert Selection(queues=("other", pattern)).matches_queue(name) is matches
    assert Selection().matches_queue(name)


def test_keep_filters_and_projects_and_null_matches_nothing() -> None:
    batch = pa.record_batch(
        {
            "seq": pa.array([1, 2, None, 4], pa.int64()),
            "queue": pa.array(["a", "b", "a", None]),
            "event": pa.array(["ack", "ack", "purge", "ack"]),
            "ts": pa.array([10, 20, 30, 40], pa.timestamp("us", "UTC")),
        }
    )

    def seqs(**chosen: object) -> list[int | None]:
        selection = Selection("events", columns=("seq",), **chosen)  # type: ignore[arg-type]
        kept = selection.keep(batch)
        assert kept.schema.names == ["seq"]
        return kept.column(0).to_pylist()

    assert seqs() == [1, 2, None, 4]
    assert seqs(queues=("a",)) == [1, None]
    assert seqs(queues=("*",)) == [1, 2, None]
    assert seqs(first_seq=2) == [2, 4]
    assert seqs(last_seq=2) == [1, 2]
    assert seqs(since_us=20, until_us=40) == [2, None]
    assert seqs(events=("purge",)) == [None]
    assert seqs(queues=("nobody",)) == []
    assert Selection("events", columns=("seq",), since_us=1, queues=("a",)).read_columns == [
        "seq",
        "queue",
        "ts",
    ]


@pytest.mark.parametrize(
    ("text", "kind", "sign"),
    [
        (None, None, None),
        ("  ", None, None),
        ("ValueError: bad row 17", "ValueError", "ValueError: bad row <n>"),
        ("ValueError", "ValueError", "ValueError"),
        (
            "app.errors.Broken: 'x' at /var/lib/a.py:3",
            "app.errors.Broken",
            "app.errors.Broken: <s> at <path>:<n>",
        ),
        ("timeout: no answer", "timeout", "timeout: no answer"),
        ("note: nothing is wrong", None, "note: nothing is wrong"),
        ("user 42 at 10.0.0.7:5432 failed", None, "user <n> at <address> failed"),
        ("no such key 3f2504e0-4f89-11d3-9a0c-0305e82c3301", None, "no such key <id>"),
        ("object at 0x7f3a21", None, "object at <id>"),
        ("digest deadbeef01234567 differs", None, "digest <id> differs"),
        ("GET https://example.org/a?b=1 gave 500", None, "GET <url> gave <n>"),
        ("mail to joe@example.org bounced", None, "mail to <address> bounced"),
        ("at 2024-01-02T03:04:05Z: late", None, "at <time>: late"),
        ('KeyError: "a b"\nTraceback ...', "KeyError", "KeyError: <s>"),
        ("it isn't and won't work", None, "it isn't and won't work"),
        ("std::bad_alloc", None, "std::bad_alloc"),
    ],
)
def test_equal_failures_have_one_signature(text: str | None, kind: str | None, sign: str | None) -> None:
    assert signature(text) == (kind, sign)


def test_a_signature_is_short_and_quick_for_any_text() -> None:
    for text in ("x" * 1_000_000, "'" * 50_000, "a." * 50_000 + ":", "1" * 100_000, "/" * 10_000, "\ud800 é"):
        kind, sign = signature(text)
        assert len(sign or "") <= MAX_SIGNATURE
        assert kind is None or len(kind) <= MAX_SIGNATURE
