"""Field tables and message properties, held to themselves and to pika and py-amqp."""

from __future__ import annotations

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

from openq.amqp_fields import (
    MAX_DEPTH,
    AmqpProperties,
    Long,
    MalformedProperties,
    Timestamp,
    decode,
    decode_table,
    encode,
    encode_table,
    with_headers,
)
from tests.amqp.fuzz_codec import EVERY_PROPERTY, RARE_TABLE, TABLE, same

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
