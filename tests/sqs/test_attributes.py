"""What SQS allows in texts, names and message attributes, and that they come back as they were."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.engine.record_values import pack_value, unpack_value
from openq.sqs import message_attributes, queue_attributes
from openq.sqs.errors import SqsError
from openq.sqs.requests import AttributeValues, DeleteMessageBatchRequestEntry, MessageAttributeValue
from openq.trace_context import AMAZON_SYSTEM_ATTRIBUTE
from tests.sqs.model import DESCRIPTION


def text(value: str, data_type: str | None = "String") -> MessageAttributeValue:
    return MessageAttributeValue(string_value=value, data_type=data_type)


def binary(value: bytes, data_type: str = "Binary") -> MessageAttributeValue:
    return MessageAttributeValue(binary_value=value, data_type=data_type)


def refused(check: Callable[..., object], *arguments: Any) -> SqsError:
    with pytest.raises(SqsError) as caught:
        check(*arguments)
    return caught.value


def refused_value(value: MessageAttributeValue) -> SqsError:
    return refused(message_attributes.check_message_attributes, {"name": value})


# Texts and names.

XML = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")


@given(st.text(st.characters()))
def test_a_text_is_valid_when_xml_can_carry_it(body: str) -> None:
    valid = XML.fullmatch(body) is not None

    assert message_attributes.is_valid_text(body) is valid
    if valid:
        message_attributes.check_body(body)
    else:
        assert refused(message_attributes.check_body, body).name == "InvalidMessageContents"


@pytest.mark.parametrize(
    "body", ["\t\n\r", "\x7f\x80", "\ud7ff\ue000\ufffd\U00010000\U0010ffff", "", "\u200b"]
)
def test_the_corners_of_what_is_allowed_are(body: str) -> None:
    assert message_attributes.is_valid_text(body)


@pytest.mark.parametrize("body", ["\x00", "\x08", "\x0b", "\x1f", "\ud800", "\ufffe", "\uffff"])
def test_the_corners_of_what_is_not_allowed_are_not(body: str) -> None:
    assert not message_attributes.is_valid_text(f"before{body}after")


@pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 80, "a.fifo", "x" * 75 + ".fifo"])
def test_a_good_queue_name_is_taken(name: str) -> None:
    assert message_attributes.is_valid_queue_name(name)
    message_attributes.check_queue_name(name, name.endswith(".fifo"))


@pytest.mark.parametrize("name", ["", "x" * 81, "a b", "a.b", "ü", "a\n", ".fifo", "x" * 76 + ".fifo", "a/b"])
def test_a_bad_queue_name_is_refused(name: str) -> None:
    assert not message_attributes.is_valid_queue_name(name)
    error = refused(message_attributes.check_queue_name, name, name.endswith(".fifo"))

    assert error.code == "InvalidParameterValue"
    assert "1 to 80 in length" in error.message


def test_a_fifo_queue_needs_its_suffix_and_no_other_may_have_it() -> None:
    assert "must end with .fifo suffix" in refused(message_attributes.check_queue_name, "a", True).message
    assert refused(message_attributes.check_queue_name, "a.fifo", False).code == "InvalidParameterValue"


@pytest.mark.parametrize("value", ["a", "!~", "x" * 128, "a=b&c"])
def test_a_good_group_id_is_taken(value: str) -> None:
    message_attributes.check_fifo_id(value, "MessageGroupId")


@pytest.mark.parametrize("value", ["", "a b", "x" * 129, "ü", "a\n"])
def test_a_bad_group_id_is_refused(value: str) -> None:
    assert refused(message_attributes.check_fifo_id, value, "MessageGroupId").message == (
        f"Value {value} for parameter MessageGroupId is invalid. Reason: MessageGroupId can only include "
        "alphanumeric and punctuation characters. 1 to 128 in length."
    )


def entries(*ids: str) -> list[DeleteMessageBatchRequestEntry]:
    return [DeleteMessageBatchRequestEntry(id=id, receipt_handle="r") for id in ids]


def test_a_good_batch_is_taken() -> None:
    message_attributes.check_batch(entries(*map(str, range(10))), "DeleteMessageBatchRequestEntry")
    message_attributes.check_batch(entries(*map(str, range(99))), "DeleteMessageBatchRequestEntry", None)


@pytest.mark.parametrize(
    ("ids", "name"),
    [
        ([], "EmptyBatchRequest"),
        (list(map(str, range(11))), "TooManyEntriesInBatchRequest"),
        ([""], "InvalidBatchEntryId"),
        (["x" * 81], "InvalidBatchEntryId"),
        (["a:b"], "InvalidBatchEntryId"),
        (["a\n"], "InvalidBatchEntryId"),
        (["a", "b", "a"], "BatchEntryIdsNotDistinct"),
    ],
)
def test_a_bad_batch_is_refused_as_a_whole(ids: list[str], name: str) -> None:
    assert (
        refused(message_attributes.check_batch, entries(*ids), "DeleteMessageBatchRequestEntry").name == name
    )


def test_a_batch_id_is_judged_alone_too() -> None:
    assert message_attributes.is_valid_batch_id("a-b_9")
    assert not message_attributes.is_valid_batch_id("a b")


def test_the_names_of_attributes_are_those_of_the_model() -> None:
    shapes = DESCRIPTION["shapes"]

    assert {*queue_attributes.ATTRIBUTES, "All"} == set(shapes["QueueAttributeName"]["enum"])
    assert {*message_attributes.MESSAGE_SYSTEM_ATTRIBUTES, "All"} == set(
        shapes["MessageSystemAttributeName"]["enum"]
    )
    assert shapes["MessageSystemAttributeNameForSends"]["enum"] == [AMAZON_SYSTEM_ATTRIBUTE]


# Message attributes on their way in.


def test_the_size_counts_name_type_and_value_in_bytes() -> None:
    values = {"name": text("grün"), "n": text("12", "Number.int"), "b": binary(b"\x00\x01\x02")}

    assert message_attributes.check_message_attributes(values) == (4 + 6 + 5) + (1 + 10 + 2) + (1 + 6 + 3)


def test_ten_attributes_are_allowed_and_eleven_are_not() -> None:
    ten = {f"a{number}": text("v") for number in range(10)}
    message_attributes.check_message_attributes(ten)

    error = refused(message_attributes.check_message_attributes, {**ten, "one-more": text("v")})

    assert error.message == "Number of message attributes [11] exceeds the allowed maximum [10]."
    message_attributes.check_message_attributes({**ten, "one-more": text("v")}, limit=None)


@pytest.mark.parametrize("name", ["a", "A.b-c_9", "x" * 256, "awsome", "Amazonas", "openqueue"])
def test_a_good_name_is_taken(name: str) -> None:
    message_attributes.check_message_attributes({name: text("v")})


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 257,
        "a b",
        "a§b",
        "a!b",
        ".a",
        "a.",
        "a..b",
        "AWS.x",
        "aws.x",
        "Amazon.x",
        "aMaZoN.x",
        "openq.x",
        "a\n",
    ],
)
def test_a_bad_name_is_refused(name: str) -> None:
    error = refused(message_attributes.check_message_attributes, {name: text("v")})

    assert error.code == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (MessageAttributeValue(), "must contain a non-empty message attribute value"),
        (text("v", None), "must contain a non-empty attribute type"),
        (text("v", ""), "must contain a non-empty attribute type"),
        (text("v", "string"), "has an invalid message attribute type"),
        (text("v", "Stringy"), "has an invalid message attribute type"),
        (text("v", "String." + "x" * 250), "must be shorter than 256 bytes"),
        (text("v", "String.\x01"), "Invalid binary character '#x1'"),
        (text(""), "'name' must contain a non-empty value of type 'String'"),
        (text("", "Number"), "'name' must contain a non-empty value of type 'Number'"),
        (binary(b""), "'name' must contain a non-empty value of type 'Binary'"),
        (text("v", "Binary"), "'name' must contain a non-empty value of type 'Binary'"),
        (binary(b"v", "String"), "'name' must contain a non-empty value of type 'String'"),
        (MessageAttributeValue(string_value="a", binary_value=b"b", data_type="String"), "multiple values"),
        (text("a\x00"), "Invalid binary character '#x0' was found in the message attribute 'name' value"),
        (text("\ud800"), "Invalid binary character '#xD800'"),
    ],
)
def test_a_bad_value_is_refused(value: MessageAttributeValue, words: str) -> None:
    error = refused_value(value)

    assert error.code == "InvalidParameterValue"
    assert words in error.message


@pytest.mark.parametrize(
    "value",
    [
        MessageAttributeValue(string_list_values=["a"], data_type="String"),
        MessageAttributeValue(binary_list_values=[b"a"], data_type="Binary"),
    ],
)
def test_lists_are_not_supported(value: MessageAttributeValue) -> None:
    assert refused_value(value).name == "UnsupportedOperation"


def test_the_empty_fields_that_some_sdks_send_do_no_harm() -> None:
    value = MessageAttributeValue(
        string_value="v", binary_value=b"", string_list_values=[], binary_list_values=[], data_type="String"
    )

    message_attributes.check_message_attributes({"name": value})


@pytest.mark.parametrize(
    "number",
    [
        "0",
        "-0",
        "+5",
        "1.5",
        ".5",
        "5.",
        "1e10",
        "-1E-128",
        "9" * 38,
        "1" + "0" * 126,
        "0" * 60 + "1",
        "0e999",
    ],
)
def test_a_number_in_range_is_taken(number: str) -> None:
    message_attributes.check_message_attributes({"name": text(number, "Number")})


@pytest.mark.parametrize(
    "number", ["abc", "1 ", "0x1", "1_000", "NaN", "Infinity", ".", "1e", "\u0663", "1e99999999999999999999"]
)
def test_what_is_no_number_is_refused(number: str) -> None:
    assert refused_value(text(number, "Number")).message == (
        "Can't cast the value of message (user) attribute 'name' to a number."
    )


@pytest.mark.parametrize("number", ["1" * 39, "1e127", "1e-129", "1." + "0" * 40 + "1"])
def test_a_number_out_of_range_is_refused(number: str) -> None:
    assert "out of range" in refused_value(text(number, "Number.big")).message


def test_only_the_trace_header_may_be_sent_as_a_system_attribute() -> None:
    message_attributes.check_system_attributes(
        {"AWSTraceHeader": text("Root=1-5759e988-bd862e3fe1be46a994272793")}
    )

    assert refused(message_attributes.check_system_attributes, {"SenderId": text("me")}).message == (
        "Message system attribute name 'SenderId' is invalid."
    )
    for value in (text("1", "Number"), text(""), binary(b"x"), text("\x00")):
        assert refused(message_attributes.check_system_attributes, {"AWSTraceHeader": value}).code == (
            "InvalidParameterValue"
        )


# Between SQS's attributes and ours.


def test_values_become_what_they_are() -> None:
    message_type, ours = message_attributes.to_openq(
        {
            "message_type": text("order.created"),
            "s": text("text"),
            "i": text("42", "Number"),
            "f": text("1.5", "Number"),
            "kept": text("1.50", "Number"),
            "huge": text("9" * 30, "Number"),
            "id": text("x-1", "String.uuid"),
            "count": text("7", "Number.int"),
            "b": binary(b"\x00"),
            "picture": binary(b"\x01", "Binary.png"),
        },
        {"AWSTraceHeader": text("Root=1")},
    )

    assert message_type == "order.created"
    assert ours == {
        "s": "text",
        "i": 42,
        "f": 1.5,
        "kept": "1.50",
        "huge": "9" * 30,
        "id": "x-1",
        "count": 7,
        "b": b"\x00",
        "picture": b"\x01",
        "openq.sqs-types": {
            "kept": "Number",
            "huge": "Number",
            "id": "String.uuid",
            "count": "Number.int",
            "picture": "Binary.png",
        },
        "openq.trace": "Root=1",
    }
    assert message_attributes.trace_header(ours) == "Root=1"


def test_a_message_without_attributes_has_none() -> None:
    assert message_attributes.to_openq(None) == (None, None)
    assert message_attributes.to_openq({"message_type": text("t")}) == ("t", None)
    assert message_attributes.from_openq(None) == {}
    assert message_attributes.trace_header(None) is None
    assert message_attributes.trace_header({"a": 1}) is None


def test_a_number_that_is_none_stays_text() -> None:
    """A queue without limits may let through what SQS would refuse."""
    for value in ("abc", "7" * 40, "1e999"):
        assert message_attributes.to_openq({"n": text(value, "Number")}) == (
            None,
            {"n": value, message_attributes.TYPES: {"n": "Number"}},
        )


def test_only_the_trace_header_is_kept_of_the_system_attributes() -> None:
    assert message_attributes.to_openq(None, {"SenderId": text("me")}) == (None, None)


def test_lines_and_tabs_are_allowed_in_an_attribute() -> None:
    message_attributes.check_message_attributes({"name": text("a\tb\r\nc")})


def test_a_message_type_of_a_custom_type_is_an_attribute_like_any_other() -> None:
    sent = {"message_type": text("t", "String.kind")}

    message_type, ours = message_attributes.to_openq(sent)

    assert message_type is None
    assert message_attributes.from_openq(ours, None) == sent


NAMES = st.text("abcXYZ019_-", min_size=1, max_size=8) | st.just("message_type")
LABELS = st.sampled_from(["", ".int", ".uuid", ".a.b"])
NUMBERS = (
    st.integers().map(str)
    | st.floats(-1e20, 1e20).map(repr)
    | st.from_regex(r"[+-]?[0-9]{1,5}(\.[0-9]{0,5})?(e[0-9])?", fullmatch=True)
)
VALUES = (
    st.builds(lambda value, label: text(value, f"String{label}"), st.text(min_size=1), LABELS)
    | st.builds(lambda value, label: text(value, f"Number{label}"), NUMBERS, LABELS)
    | st.builds(lambda value, label: binary(value, f"Binary{label}"), st.binary(min_size=1), LABELS)
)


@given(st.dictionaries(NAMES, VALUES, max_size=10))
def test_what_only_saw_sqs_leaves_exactly_as_it_came(sent: AttributeValues) -> None:
    message_type, ours = message_attributes.to_openq(sent)
    stored = unpack_value(pack_value(ours))  # as the journal keeps it

    assert message_attributes.from_openq(stored, message_type) == sent
    assert message_attributes.md5_of(
        message_attributes.from_openq(stored, message_type)
    ) == message_attributes.md5_of(sent)


def test_attributes_set_by_other_protocols_are_converted_to_sqs_attributes() -> None:
    shown = message_attributes.from_openq(
        {
            "yes": True,
            "no": False,
            "nothing": None,
            "int": -3,
            "float": 0.5,
            "endless": float("inf"),
            "list": [1, "a", None],
            "table": {"k": b"\x00"},
            "empty": "",
            "openq.other": "hidden",
        },
        "a.type",
    )

    assert shown == {
        "message_type": text("a.type"),
        "yes": text("true"),
        "no": text("false"),
        "int": text("-3", "Number"),
        "float": text("0.5", "Number"),
        "endless": text("inf"),
        "list": text('[1,"a",null]', "String.json"),
        "table": text('{"k":"AA=="}', "String.json"),
        "empty": text(""),
    }


def test_a_type_that_no_longer_fits_its_value_is_not_believed() -> None:
    types = {"a": "Binary.png", "b": "String.uuid", "c": "String.uuid", "d": 5}

    shown = message_attributes.from_openq(
        {"a": "text", "b": b"\x00", "c": 1, "d": "x", message_attributes.TYPES: types}
    )

    assert shown == {"a": text("text"), "b": binary(b"\x00"), "c": text("1", "Number"), "d": text("x")}
    assert message_attributes.from_openq({"a": "text", message_attributes.TYPES: "nonsense"}) == {
        "a": text("text")
    }


# Message attributes on their way out.

KENOBI = {"General": text("Kenobi"), "Hello": text("There"), "Help.Me": text("Me")}


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (None, set()),
        ([], set()),
        (["All"], set(KENOBI)),
        ([".*"], set(KENOBI)),
        (["Foo", "All"], set(KENOBI)),
        (["Foo", "Bar"], set()),
        (["Hello", "General"], {"Hello", "General"}),
        (["Hello", "Foo"], {"Hello"}),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["AWS."], set()),
        (["..foo"], set()),
    ],
)
def test_a_receiver_gets_the_attributes_it_named(names: list[str] | None, chosen: set[str]) -> None:
    assert set(message_attributes.select(KENOBI, names)) == chosen


def test_nothing_can_be_chosen_from_nothing() -> None:
    assert message_attributes.select({}, ["All"]) == {}


@pytest.mark.parametrize(
    ("values", "digest"),
    [
        # Recorded from real SQS.
        (KENOBI, "4c360f3fdafd970e05fae2f149d997f5"),
        ({"Hello": text("There")}, "a311262e065454b75da111d535b8dacd"),
        ({"Hello": text("There"), "General": text("Kenobi")}, "fca026605781cb4126a1e9044df24232"),
        ({"Foo": text("Bar")}, "ae7155c6026991b6d54b11589678bf9c"),
        (
            {
                "attr1": binary(
                    b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01",
                )
            },
            "8cbe4db156db8a94db8b801b7addb984",
        ),
        # As another implementation has them: a custom type, and a system attribute.
        ({"UserId": text("1234567890123456789012", "Number.bigint")}, "797ab158d73dcb5242dedc4412c8e855"),
        ({"AWSTraceHeader": text("some-trace-id")}, "fdce4f2818803f2f73becc09a54792c0"),
    ],
)
def test_the_md5_of_attributes_is_that_of_aws(values: AttributeValues, digest: str) -> None:
    assert message_attributes.md5_of(values) == digest


def test_without_attributes_there_is_no_md5() -> None:
    assert message_attributes.md5_of({}) is None


def test_the_md5_of_a_body_is_that_of_its_bytes() -> None:
    assert message_attributes.md5_of_body(b"test") == "098f6bcd4621d373cade4e832627b4f6"


ANY = st.builds(
    MessageAttributeValue,
    string_value=st.none() | st.text(st.characters()),
    binary_value=st.none() | st.binary(),
    string_list_values=st.none() | st.lists(st.text(), max_size=1),
    binary_list_values=st.none() | st.lists(st.binary(), max_size=1),
    data_type=st.none()
    | st.text(st.characters())
    | st.sampled_from(["String", "Number.x", "Binary", "Number"]),
)


@given(st.dictionaries(st.text(st.characters()) | NAMES, ANY))
def test_nothing_but_an_sqs_error_leaves_the_checks(values: AttributeValues) -> None:
    message_attributes.md5_of(values)
    try:
        message_attributes.check_message_attributes(values)
        message_attributes.check_system_attributes(values)
    except SqsError:
        return
    message_attributes.to_openq(values)
