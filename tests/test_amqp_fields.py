"""Field tables and message properties: held to themselves, to pika and py-amqp, and to the other doors."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika
import pika.data
import pytest
from amqp.basic_message import Message as PyAmqpMessage
from amqp.serialization import loads
from hypothesis import given, settings
from hypothesis import strategies as st

from openq import amqp_fields, model
from openq.amqp_fields import (
    CONTENT_TYPES,
    MAX_DEPTH,
    AmqpProperties,
    Long,
    MalformedProperties,
    Timestamp,
    amqp_properties_of,
    attributes_of,
    decode,
    decode_table,
    encode,
    encode_table,
    from_json,
    is_plain,
    to_json,
    with_headers,
)
from tests.amqp.fuzz_codec import EVERY_PROPERTY, RARE_TABLE, TABLE, assert_plain, same

texts = st.text(st.characters(codec="utf-8"), max_size=20)
names = texts
blobs = st.binary(max_size=20)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
decimals = st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(0, 255)).map(
    lambda pair: Decimal(pair[0]).scaleb(-pair[1])
)
leaves = (
    st.none()
    | st.booleans()
    | numbers
    | st.floats()
    | texts
    | blobs
    | st.integers(0, (1 << 64) - 1).map(Timestamp)
    | decimals
)


def nesting(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3)


values = st.recursive(leaves, nesting, max_leaves=6)
tables = st.dictionaries(names, values, max_size=4)
octets = st.integers(0, 255)
all_properties = st.builds(
    AmqpProperties,
    content_type=st.none() | names,
    content_encoding=st.none() | names,
    headers=st.none() | tables,
    delivery_mode=st.none() | octets,
    priority=st.none() | octets,
    correlation_id=st.none() | names,
    reply_to=st.none() | names,
    expiration=st.none() | names,
    message_id=st.none() | names,
    timestamp=st.none() | st.integers(0, (1 << 64) - 1),
    type=st.none() | names,
    user_id=st.none() | names,
    app_id=st.none() | names,
    cluster_id=st.none() | names,
)


def way_back(attributes: dict[str, Any], **changes: Any) -> AmqpProperties:
    """The properties of a message of another door."""
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


def nested(depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for _ in range(depth):
        table = {"in": table}
    return table


# -- tables


@given(tables)
def test_a_table_is_read_back_as_it_was_written(table: dict[str, Any]) -> None:
    amqp_properties = encode_table(table)

    assert same(decode_table(amqp_properties), (table, len(amqp_properties)))


def test_a_table_is_read_from_its_place_in_a_payload() -> None:
    amqp_properties = encode_table({"a": 1})

    assert decode_table(b"xy" + amqp_properties + b"rest", 2) == ({"a": 1}, 2 + len(amqp_properties))


def test_the_types_that_only_other_clients_write_are_read() -> None:
    table, _ = decode_table(RARE_TABLE)

    assert table == {"b": -1, "B": 255, "s": -2, "u": 65534, "i": 4294967295, "L": -1, "f": 1.5}


@pytest.mark.parametrize("code", [b"U", b"C", b"\0", b"\xff"])
def test_a_type_that_rabbitmq_does_not_know_is_refused(code: bytes) -> None:
    item = b"\1a" + code + bytes(8)

    with pytest.raises(MalformedProperties):
        decode_table(len(item).to_bytes(4, "big") + item)


def test_any_octet_but_zero_is_true() -> None:
    assert decode_table(b"\0\0\0\4\1at\7")[0] == {"a": True}


def test_a_text_that_is_not_utf_8_is_bytes() -> None:
    assert decode_table(b"\0\0\0\x08\1aS\0\0\0\1\xff")[0] == {"a": b"\xff"}


def test_a_name_that_is_not_utf_8_goes_out_as_it_came() -> None:
    amqp_properties = b"\0\0\0\4\1\xfft\1"

    assert encode_table(decode_table(amqp_properties)[0]) == amqp_properties


@pytest.mark.parametrize("amqp_properties", [encode_table(TABLE), RARE_TABLE], ids=["usual", "rare"])
def test_every_cut_of_a_table_is_refused(amqp_properties: bytes) -> None:
    for size in range(len(amqp_properties)):
        with pytest.raises(MalformedProperties):
            decode_table(amqp_properties[:size])


@pytest.mark.parametrize("amqp_properties", [encode_table(TABLE), RARE_TABLE], ids=["usual", "rare"])
def test_every_table_whose_own_length_is_too_short_is_refused_or_ends_early(amqp_properties: bytes) -> None:
    for size in range(len(amqp_properties) - 4):
        try:
            _, end = decode_table(size.to_bytes(4, "big") + amqp_properties[4:])
        except MalformedProperties:
            continue
        assert end == size + 4


def test_a_length_beyond_the_bytes_that_are_there_is_refused() -> None:
    with pytest.raises(MalformedProperties, match="4294967295"):
        decode_table(b"\xff\xff\xff\xff")
    with pytest.raises(MalformedProperties, match="4294967295"):
        decode_table(b"\0\0\0\7\1aS\xff\xff\xff\xff")


def test_tables_nest_to_the_limit_and_no_deeper() -> None:
    deepest = encode_table(nested(MAX_DEPTH))
    assert decode_table(deepest)[0] == nested(MAX_DEPTH)
    item = b"\2inF" + deepest

    with pytest.raises(MalformedProperties, match="deep"):
        encode_table(nested(MAX_DEPTH + 1))
    with pytest.raises(MalformedProperties, match="deep"):
        decode_table(len(item).to_bytes(4, "big") + item)


def test_a_hostile_nesting_ends_at_the_limit() -> None:
    amqp_properties = b""
    for _ in range(10_000):
        amqp_properties = b"A" + len(amqp_properties).to_bytes(4, "big") + amqp_properties
    item = b"\1a" + amqp_properties

    with pytest.raises(MalformedProperties, match="deep"):
        decode_table(len(item).to_bytes(4, "big") + item)


@pytest.mark.parametrize(
    "value",
    [
        1 << 63,
        -(1 << 63) - 1,
        Timestamp(-1),
        Timestamp(1 << 64),
        Decimal("NaN"),
        Decimal("Infinity"),
        Decimal("1E+999999"),
        Decimal("1E-256"),
        Decimal(1 << 31),
        Decimal("99999999999"),
        "\ud800",
        pytest.param(object(), id="an object"),
        {1, 2},
        {"x" * 256: 1},
        {1: 1},
    ],
    ids=repr,
)
def test_a_value_that_no_table_can_hold_is_refused(value: object) -> None:
    with pytest.raises(MalformedProperties):
        encode_table({"a": value})


def test_a_long_keeps_its_width() -> None:
    assert encode_table({"a": Long(1)}) == b"\0\0\0\x0b\1al" + (1).to_bytes(8, "big")
    assert encode_table({"a": 1})[6:7] == b"I"


def test_a_decimal_keeps_its_places() -> None:
    for text in ("12.50", "-0.001", "7", "0.00"):
        assert str(decode_table(encode_table({"a": Decimal(text)}))[0]["a"]) == text
    assert decode_table(encode_table({"a": Decimal("1E+3")}))[0] == {"a": Decimal(1000)}


# -- properties


@given(all_properties)
def test_properties_are_read_back_as_they_were_written(given_ones: AmqpProperties) -> None:
    assert same(decode(encode(given_ones)), given_ones)


def test_every_cut_of_the_properties_is_refused() -> None:
    amqp_properties = encode(EVERY_PROPERTY)

    for size in range(len(amqp_properties)):
        with pytest.raises(MalformedProperties):
            decode(amqp_properties[:size])
        with pytest.raises(MalformedProperties):
            with_headers(amqp_properties[:size], {})


def test_bytes_after_the_last_property_are_refused() -> None:
    with pytest.raises(MalformedProperties, match="after the last"):
        decode(encode(EVERY_PROPERTY) + b"\0")
    with pytest.raises(MalformedProperties, match="after the last"):
        with_headers(encode(EVERY_PROPERTY) + b"\0", {})


def test_the_two_flags_without_a_property_are_ignored_as_rabbitmq_ignores_them() -> None:
    assert decode(b"\0\3") == AmqpProperties()
    with pytest.raises(MalformedProperties):
        decode(b"\0\1\0\0")


def test_a_property_that_is_not_utf_8_goes_out_as_it_came() -> None:
    amqp_properties = b"\x80\0\2\xff\xfe"

    assert encode(decode(amqp_properties)) == amqp_properties


@pytest.mark.parametrize(
    "wrong",
    [
        AmqpProperties(priority=256),
        AmqpProperties(delivery_mode=-1),
        AmqpProperties(timestamp=-1),
        AmqpProperties(timestamp=1 << 64),
        AmqpProperties(message_id="x" * 256),
        AmqpProperties(type="\ud800"),
        AmqpProperties(app_id=5),  # type: ignore[arg-type]
    ],
    ids=repr,
)
def test_a_property_out_of_its_range_is_refused(wrong: AmqpProperties) -> None:
    with pytest.raises(MalformedProperties):
        encode(wrong)


# -- held to pika and py-amqp


def for_pika(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, dict):
        return {name: for_pika(item) for name, item in value.items()}
    if isinstance(value, list):
        return [for_pika(item) for item in value]
    return value


# What pika writes as we do: no floats (it cannot write them, and cuts those it reads to whole numbers), times
# of years that datetime knows; decimals have a test of their own.
pika_leaves = (
    st.none() | st.booleans() | numbers | texts | blobs | st.integers(0, 4_000_000_000).map(Timestamp)
)
pika_tables = st.dictionaries(names, st.recursive(pika_leaves, nesting, max_leaves=6), max_size=4)


@given(pika_tables)
def test_pika_writes_the_same_bytes_for_a_table(table: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, for_pika(table))

    assert b"".join(pieces) == encode_table(table)


@given(pika_tables)
def test_pika_reads_what_we_write(table: dict[str, Any]) -> None:
    read, _ = pika.data.decode_table(encode_table(table), 0)

    def comparable(value: Any) -> Any:
        if isinstance(value, datetime):
            return value.replace(tzinfo=UTC)
        if isinstance(value, dict):
            return {name: comparable(item) for name, item in value.items()}
        if isinstance(value, list):
            return [comparable(item) for item in value]
        return value

    assert comparable(read) == for_pika(table)


def test_pika_and_we_agree_on_decimals() -> None:
    for text in ("12.5", "-0.001", "7"):
        pieces: list[bytes] = []
        pika.data.encode_table(pieces, {"a": Decimal(text)})

        assert decode_table(b"".join(pieces))[0] == {"a": Decimal(text)}
        assert pika.data.decode_table(encode_table({"a": Decimal(text)}), 0)[0] == {"a": Decimal(text)}


def test_pika_reads_every_rare_type_as_we_do() -> None:
    theirs, _ = pika.data.decode_table(RARE_TABLE, 0)
    ours, _ = decode_table(RARE_TABLE)

    # Where pika differs from RabbitMQ, we are with RabbitMQ: a float stays one.
    assert (theirs.pop("f"), ours.pop("f")) == (1, 1.5)
    assert theirs == ours


# Tables are compared above.
@given(all_properties.filter(lambda some: some.headers is None))
def test_pika_writes_the_same_bytes_for_properties(ours: AmqpProperties) -> None:
    fields = {name: getattr(ours, name) for name in AmqpProperties.__slots__ if name != "headers"}
    theirs = pika.BasicProperties(**fields)

    assert b"".join(theirs.encode()) == encode(ours)
    read = pika.BasicProperties().decode(encode(ours))
    assert {name: getattr(read, name) for name in fields} == fields


def test_py_amqp_reads_and_writes_the_same_properties() -> None:
    ours = replace(EVERY_PROPERTY, headers={"a": 1, "b": "text", "c": [True, None], "d": {"e": 1.5}})
    fields = {name: getattr(ours, name) for name in AmqpProperties.__slots__}
    fields["application_headers"] = fields.pop("headers")

    theirs = PyAmqpMessage("", **fields)._serialize_properties()
    read = PyAmqpMessage()
    read._load_properties(60, encode(ours), 0)

    assert decode(theirs) == ours
    assert read.properties == fields


def test_py_amqp_reads_our_tables() -> None:
    table = {"a": 1, "b": 1 << 40, "c": "grün", "d": [1.5, False, None], "e": {"f": Decimal("1.25")}}

    [read], _ = loads("F", encode_table(table), 0)

    assert read == table


# -- other headers, everything else untouched


def test_headers_are_added_replaced_and_dropped() -> None:
    amqp_properties = encode(
        AmqpProperties(content_type="a", headers={"keep": 1, "old": 2, "gone": 3}, app_id="z")
    )

    changed = decode(with_headers(amqp_properties, {"old": "new", "more": [1]}, drop=("gone", "never there")))

    assert changed == AmqpProperties(
        content_type="a", headers={"keep": 1, "old": "new", "more": [1]}, app_id="z"
    )


def test_what_is_kept_stays_byte_for_byte() -> None:
    amqp_properties = b"\x20\0" + RARE_TABLE

    changed = with_headers(amqp_properties, {"new": True})

    assert RARE_TABLE[4:] in changed
    assert with_headers(changed, {}, drop=("new",)) == amqp_properties


def test_properties_without_headers_get_them_in_their_place() -> None:
    for wire_properties in (
        AmqpProperties(),
        AmqpProperties(content_encoding="e", delivery_mode=2),
        AmqpProperties(app_id="a"),
    ):
        amqp_properties = encode(wire_properties)
        wire_properties.headers = {"x": 1}

        assert with_headers(amqp_properties, {"x": 1}) == encode(wire_properties)


def test_an_expiration_can_be_dropped_alone() -> None:
    amqp_properties = encode(EVERY_PROPERTY)

    changed = decode(with_headers(amqp_properties, {}, drop_expiration=True))

    assert changed.expiration is None
    changed.expiration = EVERY_PROPERTY.expiration
    assert changed == EVERY_PROPERTY


@given(all_properties, st.dictionaries(names, values, max_size=3), st.sets(names, max_size=3), st.booleans())
@settings(max_examples=60)
def test_other_headers_mean_what_rewriting_everything_would_mean(
    some: AmqpProperties, extra: dict[str, Any], drop: set[str], drop_expiration: bool
) -> None:
    changed = decode(with_headers(encode(some), extra, drop, drop_expiration))

    kept = {name: value for name, value in (some.headers or {}).items() if name not in (drop | extra.keys())}
    if some.headers is not None or extra:
        some.headers = {**kept, **extra}
    if drop_expiration:
        some.expiration = None
    assert same(changed, some)


@pytest.mark.parametrize(
    "table", [b"\5a", b"\1a", b"\1aU\0\0\0\0", b"\1aI\0", b"\1aS\0\0\0\5", b"\1aS\0"], ids=repr
)
def test_a_damaged_table_cannot_be_given_other_headers(table: bytes) -> None:
    with pytest.raises(MalformedProperties):
        with_headers(b"\x20\0" + len(table).to_bytes(4, "big") + table, {"a": 1})


# -- as the other doors see them


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


def test_a_message_of_another_door_leaves_with_what_it_has() -> None:
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


@given(amqp_properties=st.binary(max_size=60))
def test_what_looks_plain_is_in_order(amqp_properties: bytes) -> None:
    if is_plain(amqp_properties):
        amqp_fields.decode(amqp_properties)


@given(data=st.data())
def test_what_looks_plain_after_a_change_is_in_order_too(data: st.DataObject) -> None:
    amqp_properties = bytearray(
        amqp_fields.encode(replace(EVERY_PROPERTY, expiration=None, type=None, user_id=None, priority=None))
    )
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
