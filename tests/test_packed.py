"""Rows in columns: what goes in comes out, and what is not a whole part is refused before memory is spent."""

from __future__ import annotations

import json
import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openq.errors import InvalidSetting
from openq.packed import MAGIC, Part, pack, unpack
from tests.budget import examples

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=20),
    "text": st.text(max_size=10),
    "int": st.integers(-(1 << 63), (1 << 63) - 1),
    "json": st.recursive(
        st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[dict[str, list[Any]], dict[str, str]]:
    kinds = draw(st.dictionaries(st.text(min_size=1, max_size=5), st.sampled_from(list(VALUES)), max_size=4))
    rows = draw(st.integers(0, 6)) if kinds else 0
    few = st.sampled_from([1, 3])  # often all values are alike, or of one size
    values = {
        name: draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows))
        if draw(few) > 1
        else [draw(VALUES[kind])] * rows
        for name, kind in kinds.items()
    }
    return values, kinds


@given(columns())
@settings(max_examples=examples(100))
def test_what_is_packed_comes_back(given: tuple[dict[str, list[Any]], dict[str, str]]) -> None:
    values, kinds = given

    data = pack(values, kinds)

    assert unpack(data) == values
    part = Part(data)
    assert part.kinds == kinds
    assert all(part.column(name) == each for name, each in values.items())
    assert part.column("not there") == []


def test_kinds_follow_from_the_values() -> None:
    data = pack(
        {
            "body": [b"a", None],
            "queue": ["q", "r"],
            "n": [None, 3],
            "about": [{"a": 1}, None],
            "no": [None] * 2,
        }
    )

    assert Part(data).kinds == {"body": "bytes", "queue": "text", "n": "int", "about": "json", "no": "text"}


@given(columns(), st.data())
@settings(max_examples=examples(100))
def test_a_part_that_is_cut_or_changed_is_refused_or_read_but_never_worse(
    given: tuple[dict[str, list[Any]], dict[str, str]], data: st.DataObject
) -> None:
    whole = bytearray(pack(*given))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    for torn in (bytes(whole), bytes(whole[:at]), bytes(whole) + b"x"):
        with suppress(InvalidSetting):
            unpack(torn)


def claimed(rows: object, columns: object, rest: bytes = b"") -> bytes:
    head = json.dumps({"rows": rows, "columns": columns}).encode()
    return MAGIC + struct.pack("<I", len(head)) + head + rest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"OQP1",
        b"PAR1" + b"\0" * 40,
        MAGIC + struct.pack("<I", 0xFFFFFFFF),
        MAGIC + struct.pack("<I", 4) + b"[[[[",
        MAGIC + struct.pack("<I", 60_000) + b"[" * 60_000,
        MAGIC + struct.pack("<I", 2) + b"[]",
        claimed(1_000_000_000, [["body", "bytes"]], b"\0" * 100),
        claimed(1_000_000_000, [["n", "int"]], b"\0" * 100),
        claimed(1 << 80, [["body", "bytes"]]),
        claimed(5, []),
        claimed(-1, [["body", "bytes"]]),
        claimed(True, [["body", "bytes"]]),
        claimed(1, [["body", "bytes"]], struct.pack("<I", 5) + b"four"),
        claimed(2, [["body", "bytes"]], struct.pack("<II", 0xFFFFFFFE, 0xFFFFFFFE)),
        claimed(1, [["body", "bytes"]], struct.pack("<I", 1) + b"ab"),
        claimed(1, [["body", "blob"]], struct.pack("<I", 0)),
        claimed(1, [["body"]], struct.pack("<I", 0)),
        claimed(0, [["a", "int"], ["a", "int"]]),
        claimed(0, [[f"c{i}", "int"] for i in range(101)]),
        claimed(1, [["t", "text"]], struct.pack("<I", 1) + b"\xff"),
        claimed(2, [["t", "json"]], struct.pack("<II", 1, 2) + b"{{}"),
    ],
)
def test_what_is_no_part_is_refused_before_memory_is_spent(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidSetting, match="not a part of packed rows"):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({"a": [1], "b": [1, 2]}, {}),
        ({"a": [1 << 63]}, {}),
        ({"a": ["x"]}, {"a": "int"}),
        ({"a": [1]}, {"a": "bytes"}),
        ({"a": [1]}, {"a": "text"}),
        ({"a": [object()]}, {"a": "json"}),
        ({"a": [b"x"]}, {"a": "blob"}),
    ],
)
def test_values_that_do_not_fit_their_column_are_refused(
    values: dict[str, list[Any]], kinds: dict[str, str]
) -> None:
    with pytest.raises(InvalidSetting, match=r"column '[ab]'"):
        pack(values, kinds)
