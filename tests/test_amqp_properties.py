"""Message properties of AMQP as the other protocols show them, back again, and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq import amqp_fields, model
from openq.amqp_fields import (
    CONTENT_TYPES,
    MAX_DEPTH,
    AmqpProperties,
    Long,
    PlainShapes,
    amqp_properties_of,
    attributes_of,
    decode,
    encode,
    from_json,
    is_plain,
    to_json,
)
from tests.amqp.fuzz_codec import EVERY_PROPERTY, assert_plain, same
from tests.test_amqp_fields import all_properties, blobs, nested, nesting, numbers, tables, texts


def way_back(attributes: dict[str, Any], **changes: Any) -> AmqpProperties:
    """The properties of a message of another protocol."""
    facts: dict[str, Any] = {
        "encoding": model.ENCODING_BYTES,
        "type": None,
        "priority": 0,
        "group": None,
        "dedup": None,
        "message_id": "openq-id",
        "expiration": None,
    }
    return decode(amqp_properties_of(attributes, **{**facts, **changes}))


# -- as the other protocols see them


def test_headers_and_describing_properties_are_attributes() -> None:
    attributes = attributes_of(encode(EVERY_PROPERTY))

    assert attributes == {
        "bool": True,
        "small": -1,
        "large": 1 << 40,
        "wide": 7,
        "real": 1.5,
        "text": "grün",
        "bytes": b"\xff\0",
        "none": None,
        "time": 1_700_000_000,
        "price": "12.50",
        "list": [1, "two", [3.0, {"four": None}]],
        "table": {"inner": {"deep": [False]}},
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "correlation_id": "c",
        "reply_to": "amq.rabbitmq.reply-to",
        "message_id": "m",
        "timestamp": 1_700_000_000,
        "user_id": "guest",
        "app_id": "app",
        "cluster_id": "cluster",
    }
    assert type(attributes["time"]) is int


def test_what_a_message_says_in_another_way_is_no_attribute() -> None:
    headers = {
        "x-group-id": "g",
        "x-deduplication-header": "d",
        "x-delay": 5,
        "openq.delay": 5,
        "BCC": ["secret"],
        "CC": ["seen"],
        "x-delivery-count": 2,
        "x-death": [{}],
        "x-first-death-queue": "q",
        "x-amzn-trace-id": "Root=1",
    }

    assert attributes_of(encode(AmqpProperties(headers=headers))) == {"CC": ["seen"], "openq.trace": "Root=1"}
    assert amqp_fields.group_of(headers) == "g"
    assert amqp_fields.dedup_of(headers) == "d"


def test_a_group_that_is_not_text_is_only_an_attribute() -> None:
    headers = {"x-group-id": 5, "x-deduplication-header": [1]}

    assert (amqp_fields.group_of(headers), amqp_fields.dedup_of(headers)) == (None, None)
    assert (amqp_fields.group_of(None), amqp_fields.dedup_of({})) == (None, None)
    assert attributes_of(encode(AmqpProperties(headers=headers))) == headers


@given(all_properties)
def test_attributes_are_plain_whatever_the_properties_hold(some: AmqpProperties) -> None:
    assert_plain(attributes_of(encode(some)))


def test_attributes_of_what_is_not_utf_8_are_bytes_and_cleaned_names() -> None:
    assert attributes_of(b"\xa0\0\1\xff\0\0\0\4\1\xfft\1") == {"content_type": b"\xff", "\ufffd": True}


def test_numbers_that_json_lacks_are_text() -> None:
    amqp_properties = encode(AmqpProperties(headers={"a": float("nan"), "b": [float("-inf")]}))

    assert attributes_of(amqp_properties) == {"a": "nan", "b": ["-inf"]}


# -- and back


def test_a_message_of_another_protocol_leaves_with_what_it_has() -> None:
    left = way_back(
        {"colour": "red", "correlation_id": "c", "timestamp": 5, "openq.trace": "Root=1", "raw": b"\xff"},
        encoding=model.ENCODING_JSON,
        type="order",
        priority=4,
        group="g",
        dedup="d",
        expiration="1000",
    )

    assert left == AmqpProperties(
        content_type="application/json",
        headers={
            "colour": "red",
            "x-amzn-trace-id": "Root=1",
            "raw": b"\xff",
            "x-group-id": "g",
            "x-deduplication-header": "d",
        },
        delivery_mode=2,
        priority=4,
        correlation_id="c",
        expiration="1000",
        message_id="openq-id",
        timestamp=5,
        type="order",
    )


@pytest.mark.parametrize(
    ("body_encoding", "content_type"),
    [
        (model.ENCODING_BYTES, "application/octet-stream"),
        (model.ENCODING_TEXT, "text/plain"),
        (model.ENCODING_JSON, "application/json"),
        (model.ENCODING_MSGPACK, "application/msgpack"),
        (model.ENCODING_PICKLE, "application/octet-stream"),
    ],
)
def test_every_form_of_a_body_has_its_content_type(body_encoding: int, content_type: str) -> None:
    assert CONTENT_TYPES[body_encoding] == content_type
    assert way_back({}, encoding=body_encoding).content_type == content_type
    assert way_back({"content_type": "mine"}, encoding=body_encoding).content_type == "mine"


def test_a_plain_message_leaves_without_headers_and_priority() -> None:
    assert way_back({}) == AmqpProperties(
        content_type="application/octet-stream", delivery_mode=2, message_id="openq-id"
    )


def test_a_message_id_of_its_own_goes_before_ours() -> None:
    assert way_back({"message_id": "mine"}).message_id == "mine"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("reply_to", 5),
        ("app_id", "x" * 256),
        ("timestamp", "now"),
        ("timestamp", True),
        ("timestamp", -1),
        ("user_id", b"bytes"),
    ],
)
def test_an_attribute_of_another_type_than_its_property_is_a_header(name: str, value: object) -> None:
    left = way_back({name: value})

    assert getattr(left, name) is None
    assert left.headers == {name: value}


def test_what_no_table_can_carry_leaves_as_text_or_cut() -> None:
    headers = way_back(
        {
            "ü" * 200: 1,
            "number": 1 << 64,
            "huge": 10**5000,
            "broken": "\ud800",
            "price": Decimal("1E+99"),
            "deep": nested(40),
            "pair": (1, {"x" * 300: object}),
        },
        type="t" * 300,
        message_id="\ud800",
        priority=1000,
    )

    assert headers.type == "t" * 255
    assert headers.message_id == "?"
    assert headers.priority == 255
    assert headers.headers is not None
    deep = headers.headers.pop("deep")
    for _ in range(MAX_DEPTH):
        deep = deep["in"] if isinstance(deep, dict) else deep
    assert deep == "..."
    assert headers.headers.pop("huge").startswith("0x")
    assert headers.headers == {
        "ü" * 127: 1,
        "number": str(1 << 64),
        "broken": "?",
        "price": "1E+99",
        "pair": [1, {"x" * 255: "<class 'object'>"}],
    }


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | blobs,
            nesting,
            max_leaves=6,
        ),
    ),
    st.none() | st.text(max_size=20),
    st.none() | st.text(max_size=20),
)
def test_no_message_is_kept_from_leaving(
    attributes: dict[str, Any], type: str | None, group: str | None
) -> None:
    amqp_properties = amqp_properties_of(
        attributes,
        encoding=0,
        type=type,
        priority=0,
        group=group,
        dedup=group,
        message_id="m",
        expiration=None,
    )

    assert_plain(attributes_of(amqp_properties))


@given(
    st.dictionaries(texts.map(lambda text: f"a-{text[:60]}"), numbers | texts | st.booleans() | st.binary())
)
def test_attributes_that_a_table_can_hold_come_back_the_same(attributes: dict[str, Any]) -> None:
    amqp_properties = encode(way_back(attributes))

    back = attributes_of(amqp_properties)

    assert (back.pop("content_type"), back.pop("message_id")) == ("application/octet-stream", "openq-id")
    assert same(back, attributes)


# -- as JSON


@given(tables)
def test_json_holds_every_table_without_loss(table: dict[str, Any]) -> None:
    assert same(from_json(json.loads(json.dumps(to_json(table), allow_nan=False))), table)


@pytest.mark.parametrize("tag", ["$bytes", "$timestamp", "$long", "$decimal", "$float", "$table", "$other"])
def test_a_name_that_looks_like_a_tag_is_no_tag(tag: str) -> None:
    table = {"a": {tag: "YQ=="}, tag: {tag: 1}}

    assert from_json(json.loads(json.dumps(to_json(table)))) == table


def test_plain_arguments_stay_readable_in_json() -> None:
    arguments = {"x-max-length": 10, "x-overflow": "reject-publish", "list": [1, None, True]}

    assert to_json(arguments) == arguments


def test_json_keeps_the_width_of_a_long() -> None:
    assert type(from_json(to_json({"a": Long(1)}))["a"]) is Long


@pytest.mark.parametrize(
    ("kind", "encoding", "body_encoding"),
    [
        (None, None, model.ENCODING_BYTES),
        (None, "utf-8", model.ENCODING_BYTES),
        ("text/plain", None, model.ENCODING_TEXT),
        ("Text/HTML; charset=UTF-8", None, model.ENCODING_TEXT),
        ("text/plain; charset=latin-1", None, model.ENCODING_BYTES),
        ("text/plain", "utf-8", model.ENCODING_TEXT),
        ("text/plain", "gzip", model.ENCODING_BYTES),
        ("application/json", None, model.ENCODING_JSON),
        ("application/problem+json", "UTF-8", model.ENCODING_JSON),
        ("application/json", "base64", model.ENCODING_BYTES),
        ("application/msgpack", None, model.ENCODING_MSGPACK),
        ("application/x-msgpack", "binary", model.ENCODING_MSGPACK),
        ("application/x-python-serialize", "binary", model.ENCODING_BYTES),
        ("application/octet-stream", None, model.ENCODING_BYTES),
    ],
)
def test_the_content_type_says_what_a_body_is(
    kind: str | None, encoding: str | None, body_encoding: int
) -> None:
    amqp_properties = encode(AmqpProperties(content_type=kind, content_encoding=encoding, headers={"a": 1}))

    assert amqp_fields.encoding_of(amqp_properties) == body_encoding


@pytest.mark.parametrize(
    "body_encoding", [model.ENCODING_BYTES, model.ENCODING_TEXT, model.ENCODING_JSON, model.ENCODING_MSGPACK]
)
def test_the_content_type_that_a_form_is_given_says_that_form_again(body_encoding: int) -> None:
    assert (
        amqp_fields.encoding_of(encode(AmqpProperties(content_type=amqp_fields.CONTENT_TYPES[body_encoding])))
        == body_encoding
    )


@pytest.mark.parametrize("word", ["", "x" * 1025, 7, None, b"g"])
def test_what_cannot_name_a_group_is_a_header_like_others(word: object) -> None:
    headers = {"x-group-id": word, "x-deduplication-header": word}

    assert amqp_fields.group_of(headers) is amqp_fields.dedup_of(headers) is None
    assert attributes_of(encode(AmqpProperties(headers=headers))) == headers


PLAIN = replace(EVERY_PROPERTY, expiration=None, type=None, user_id=None, priority=None, reply_to="answers")


@given(amqp_properties=st.binary(max_size=60))
def test_what_looks_plain_is_in_order(amqp_properties: bytes) -> None:
    if is_plain(amqp_properties):
        amqp_fields.decode(amqp_properties)


@given(data=st.data())
def test_a_known_shape_is_plain_where_a_walk_says_so(data: st.DataObject) -> None:
    """Properties that differ from known ones in any bytes: what a mask over the known ones says is what the
    walk through all of them says."""
    known = amqp_fields.encode(
        data.draw(st.sampled_from([PLAIN, AmqpProperties(headers={"a": 1, "b": "x-delay"})]))
    )
    shapes = PlainShapes()
    assert shapes.plain_until([known], 0) == 1
    changed = bytearray(known)
    for _ in range(data.draw(st.integers(0, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    other = bytes(changed)

    found = shapes.plain_until([known, other, known], 0)

    assert found == (3 if is_plain(other) else 1)


def test_an_address_of_direct_replies_is_no_value_like_others() -> None:
    address = "amq.rabbitmq.reply-to"
    shapes = PlainShapes()
    plain, direct = (encode(AmqpProperties(reply_to=each)) for each in ("x" * len(address), address))

    assert shapes.plain_until([plain, plain, direct, plain], 0) == 2


@given(data=st.data())
def test_what_looks_plain_after_a_change_is_in_order_too(data: st.DataObject) -> None:
    amqp_properties = bytearray(amqp_fields.encode(PLAIN))
    for _ in range(data.draw(st.integers(0, 3))):
        amqp_properties[data.draw(st.integers(0, len(amqp_properties) - 1))] = data.draw(st.integers(0, 255))
    if is_plain(bytes(amqp_properties)):
        found = amqp_fields.decode(bytes(amqp_properties))
        headers = found.headers or {}
        assert not found.priority
        assert found.expiration is found.type is found.user_id is None
        assert not headers.keys() & {
            "CC",
            "BCC",
            "x-delay",
            "openq.delay",
            "x-group-id",
            "x-deduplication-header",
        }


@pytest.mark.parametrize(
    ("changes", "plain"),
    [
        ({}, True),
        (
            {"headers": {"a": 1, "deep": {"x-delay": 5, "list": [1, None, {"b": "c"}]}}, "message_id": "id"},
            True,
        ),
        ({"reply_to": "answers", "correlation_id": "1", "priority": 0, "delivery_mode": 2}, True),
        ({"reply_to": "amq.rabbitmq.reply-to"}, False),
        ({"delivery_mode": 3}, False),
        ({"priority": 1}, False),
        ({"expiration": "1000"}, False),
        ({"type": "t"}, False),
        ({"user_id": "guest"}, False),
        *(
            ({"headers": {name: "x"}}, False)
            for name in ("CC", "BCC", "x-delay", "openq.delay", "x-group-id")
        ),
        ({"headers": {"x-deduplication-header": "x"}}, False),
    ],
)
def test_plain_is_what_concerns_nobody_but_the_consumer(changes: dict[str, Any], plain: bool) -> None:
    assert is_plain(amqp_fields.encode(amqp_fields.AmqpProperties(**changes))) is plain
