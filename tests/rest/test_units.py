"""The pure parts: payloads, values, problems, reasons."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from openq import errors
from openq.auth import errors as security_errors
from openq.broker.reasons import normalised
from openq.documents.payloads import read_json, read_msgpack, show_json, show_msgpack
from openq.documents.values import iso, moment_ms, read_attributes, span_ms, to_json_value
from openq.errors import DiskFull, InvalidSetting, JournalFailed, OpenQError
from openq.model import ENCODING_BYTES, ENCODING_JSON, ENCODING_MSGPACK, ENCODING_PICKLE, ENCODING_TEXT
from openq.names import qualified_name, split_name
from openq.rest.problems import PROBLEMS, render

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | TEXT
FINITE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT


def nested(scalars: Any) -> Any:
    return st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=10)


@given(nested(FINITE))
def test_any_json_value_survives_the_way_through_json(value: Any) -> None:
    body, body_encoding = read_json(Raw(json.dumps(value).encode()), UNSET)

    payload, encoding = show_json(body, body_encoding)

    assert encoding is UNSET
    assert body_encoding == (ENCODING_TEXT if isinstance(value, str) else ENCODING_JSON)
    assert json.loads(msgspec.json.encode(payload)) == value


@given(nested(SCALARS | st.binary()))
def test_any_msgpack_value_survives_the_way_through_msgpack(value: Any) -> None:
    body, body_encoding = read_msgpack(Raw(msgspec.msgpack.encode(value)), UNSET)

    payload, encoding = show_msgpack(body, body_encoding)

    assert encoding is UNSET
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(payload), strict=False) == value


@given(
    st.binary(),
    st.sampled_from([ENCODING_BYTES, ENCODING_TEXT, ENCODING_JSON, ENCODING_MSGPACK, ENCODING_PICKLE, 77]),
)
def test_whatever_is_stored_can_be_shown_in_both_formats(body: bytes, body_encoding: int) -> None:
    for show, encode in ((show_json, msgspec.json.encode), (show_msgpack, msgspec.msgpack.encode)):
        payload, _ = show(body, body_encoding)

        assert encode(payload)


@given(st.binary())
def test_bytes_are_marked_in_json_and_come_back(body: bytes) -> None:
    payload, encoding = show_json(body, ENCODING_BYTES)

    assert read_json(Raw(msgspec.json.encode(payload)), encoding) == (body, ENCODING_BYTES)


def test_a_number_that_msgpack_does_not_have_goes_out_as_json_and_back() -> None:
    body = b'{"n":123456789012345678901234567890}'

    payload, encoding = show_msgpack(body, ENCODING_JSON)

    assert (payload, encoding) == (body, "json")
    assert read_msgpack(Raw(msgspec.msgpack.encode(payload)), "json") == (body, ENCODING_JSON)


@given(st.dictionaries(TEXT.filter(bool), nested(FINITE | st.binary())))
def test_attributes_survive_json_with_bytes_anywhere(attributes: dict[str, Any]) -> None:
    attributes = {f"a{name}": value for name, value in attributes.items()}
    on_the_wire = json.loads(json.dumps({name: to_json_value(value) for name, value in attributes.items()}))

    assert read_attributes(on_the_wire, is_json=True) == attributes


@pytest.mark.parametrize(
    "attributes",
    [
        {"a": math.nan},
        {"a": [math.inf]},
        {"a": {1: 2}},
        {"a": 10**5000},
        {"a": msgspec.msgpack.Ext(1, b"")},
        {"openq.sqs-types": "String"},
        {"openq.sqs-types": {"a": 1}},
        {"openq.trace": 1},
    ],
)
def test_attributes_that_no_protocol_can_show_are_refused(attributes: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        read_attributes(attributes, is_json=False)


def test_attributes_that_are_too_deep_are_refused() -> None:
    deep: Any = 1
    for _ in range(100):
        deep = [deep]

    with pytest.raises(InvalidSetting, match="too deeply"):
        read_attributes({"a": deep}, is_json=True)


@given(st.integers(0, 253_402_300_799_999))
def test_a_time_is_read_as_it_was_written(ms: int) -> None:
    assert moment_ms(iso(ms), "time") == ms


def test_times_look_as_the_contract_says() -> None:
    assert iso(1_680_517_800_000) == "2023-04-03T10:30:00Z"
    assert iso(1_680_517_800_001) == "2023-04-03T10:30:00.001Z"
    assert iso(1 << 60).startswith("9999-12-31")
    assert moment_ms("2023-04-03T12:30:00+02:00", "time") == 1_680_517_800_000
    assert moment_ms(1.5, "time") == 1500


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 1e12, -1.0, "soon", "1969-01-01T00:00:00Z", "0001-01-01"]
)
def test_a_time_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSetting):
        moment_ms(value, "time")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e12])
def test_a_span_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(InvalidSetting):
        span_ms(value, "delay")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout after 5 s", "timeout after 31.5 s"),
        ("no user 6f1d0c1e-8a2b-4c3d-9e4f-0123456789ab", "no user 00000000-0000-0000-0000-000000000000"),
        ("at 0xdeadbeef", "at 0x1"),
        ("commit 9f86d081884c7d65", "commit 2c26b46b68ffc68f"),
        ("line  1\n", "line 2"),
    ],
)
def test_reasons_that_differ_only_in_numbers_are_one(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(("one", "other"), [("timeout", "refused"), ("KeyError: 'a'", "KeyError: 'b'")])
def test_reasons_that_differ_in_words_are_two(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


def test_every_error_a_client_can_meet_has_a_status_and_a_hint() -> None:
    kinds = [
        kind
        for module in (errors, security_errors)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, OpenQError)
    ]
    # The roots say nothing by themselves; with some, a server does not start at all.
    unseen = {"error", "refused", "directory_in_use", "cannot_open", "forked", "newer_format"}
    unseen.add("unfinished_migration")

    assert {kind.code for kind in kinds} - unseen <= PROBLEMS.keys()


@pytest.mark.parametrize(
    ("error", "status"), [(DiskFull("x"), 507), (JournalFailed("x"), 503), (RuntimeError("secret"), 500)]
)
def test_a_problem_of_the_server_has_its_status_and_no_traceback(error: Exception, status: int) -> None:
    found, body, _ = render(error)

    assert (found, json.loads(body)["status"]) == (status, status)
    assert b"secret" not in body


@given(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9))
def test_a_queue_key_contains_its_account_and_its_queue(account: str, name: str) -> None:
    assert split_name(qualified_name(account, name)) == (account, name)
