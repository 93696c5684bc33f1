"""Changing fields of JSON bodies."""

from __future__ import annotations

from typing import Any

import pytest

from openq.documents.transform import NotTransformed, Transform
from openq.errors import InvalidSetting


@pytest.mark.parametrize(
    ("body", "set", "remove", "result"),
    [
        (b'{"a":1}', {"a": 2}, [], b'{"a":2}'),
        (b'{"a":1}', {"b.c": [1]}, [], b'{"a":1,"b":{"c":[1]}}'),
        (b'{"a":[{"b":1},{"b":2}]}', {"a.1.b": None}, [], b'{"a":[{"b":1},{"b":null}]}'),
        (b'{"a":[1,2,3]}', {}, ["a.1"], b'{"a":[1,3]}'),
        (b'{"a":1,"b":2}', {}, ["a", "x.y"], b'{"b":2}'),
        (b'{"n":1.10,"m":123456789012345678901234567890}', {"a": "\u00e9"}, [], None),
    ],
)
def test_fields_are_set_and_removed(
    body: bytes, set: dict[str, Any], remove: list[str], result: bytes | None
) -> None:
    expected = result or '{"n":1.10,"m":123456789012345678901234567890,"a":"\u00e9"}'.encode()

    assert Transform(set, remove).apply(body) == expected


@pytest.mark.parametrize("body", [b"", b"text", b"\xff", b"[1]", b"5", b'{"a":1}'])
def test_a_body_without_a_place_for_the_change_is_left(body: bytes) -> None:
    with pytest.raises(NotTransformed):
        Transform({"a.b.c": 1}, []).apply(body)


def test_a_transform_has_changes_and_paths() -> None:
    for set, remove in (({}, []), ({"": 1}, []), ({"a.": 1}, []), ({}, ["x" * 1001])):
        with pytest.raises(InvalidSetting):
            Transform(set, remove)
