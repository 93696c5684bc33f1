"""AWS JSON 1.0, with botocore's serializer and parser on the other side."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openq.sqs import aws_json, errors
from openq.sqs import requests as sqs
from openq.sqs.errors import SqsError
from tests.budget import examples
from tests.sqs.model import ACTIONS, JSON, operation, replies, values

SERIALIZER = create_serializer("json")
PARSER = create_parser("json")

many = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def refused(action: str, body: bytes) -> SqsError:
    with pytest.raises(SqsError) as caught:
        aws_json.decode(action, body)
    return caught.value


@pytest.mark.parametrize("action", ACTIONS)
@many
@given(data=st.data())
def test_every_request_of_botocore_arrives_as_it_was(action: str, data: st.DataObject) -> None:
    model = operation(JSON, action)
    given_values = data.draw(values(model.input_shape))

    wire = SERIALIZER.serialize_to_request(given_values, model)
    request = aws_json.decode(action, wire["body"])

    assert aws_json.action_of(wire["headers"]["X-Amz-Target"].encode()) == action
    # Bytes are base64 on both sides here, so that the two can be compared.
    expected = json.loads(wire["body"])
    arrived = {key: value for key, value in msgspec.to_builtins(request).items() if value is not None}
    assert without_none(arrived) == expected


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_none(item) for item in value]
    return value


@pytest.mark.parametrize("action", sorted(sqs.REPLIES))
@many
@given(data=st.data())
def test_every_reply_is_what_botocore_reads(action: str, data: st.DataObject) -> None:
    shape = operation(JSON, action).output_shape
    expected = data.draw(replies(action))
    reply = msgspec.convert(expected, sqs.REPLIES[action])

    body = aws_json.encode(reply)

    parsed = PARSER.parse({"body": body, "headers": {}, "status_code": 200}, shape)
    del parsed["ResponseMetadata"]
    assert parsed == expected


def test_an_action_without_a_reply_answers_with_an_empty_object() -> None:
    assert aws_json.encode(None) == b"{}"


def test_binary_values_travel_as_base64() -> None:
    body = json.dumps(
        {
            "QueueUrl": "q",
            "MessageBody": "b",
            "MessageAttributes": {
                "a": {"DataType": "Binary", "BinaryValue": base64.b64encode(b"\x00\xff").decode()}
            },
        }
    )

    request = aws_json.decode("SendMessage", body.encode())

    assert isinstance(request, sqs.SendMessage)
    assert request.message_attributes is not None
    assert request.message_attributes["a"].binary_value == b"\x00\xff"


def test_unknown_members_are_ignored() -> None:
    assert aws_json.decode("DeleteQueue", b'{"QueueUrl":"q","Colour":[1,{"a":null}]}') == sqs.DeleteQueue(
        queue_url="q"
    )


def test_a_null_is_no_value() -> None:
    request = aws_json.decode("ListQueues", b'{"QueueNamePrefix":null,"MaxResults":null}')

    assert request == sqs.ListQueues()


def test_an_action_without_a_body_may_come_with_none() -> None:
    assert aws_json.decode("ListQueues", b"") == sqs.ListQueues()


@pytest.mark.parametrize("body", [b'{"QueueUrl":"q"}', b'{"QueueUrl":"q","MessageBody":""}'])
def test_a_missing_or_empty_parameter_is_named(body: bytes) -> None:
    error = refused("SendMessage", body)

    assert (error.code, error.status) == ("MissingParameter", 400)
    assert error.type == "com.amazon.coral.service#MissingRequiredParameterException"
    assert error.message == "The request must contain the parameter MessageBody."


def test_a_null_in_place_of_a_required_parameter_is_a_missing_one() -> None:
    error = refused("SendMessage", b'{"QueueUrl":null,"MessageBody":"b"}')

    assert error.message == "The request must contain the parameter QueueUrl."


def test_a_missing_parameter_of_a_batch_entry_is_named_with_its_place() -> None:
    body = b'{"QueueUrl":"q","Entries":[{"Id":"1","MessageBody":"b"},{"Id":"2"}]}'

    error = refused("SendMessageBatch", body)

    assert (
        error.message == "The request must contain the parameter SendMessageBatchRequestEntry.2.MessageBody."
    )


def test_an_empty_body_in_a_batch_is_left_to_the_action() -> None:
    body = b'{"QueueUrl":"q","Entries":[{"Id":"1","MessageBody":""}]}'

    request = aws_json.decode("SendMessageBatch", body)

    assert isinstance(request, sqs.SendMessageBatch)
    assert request.entries[0].message_body == ""


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{}", "Value for parameter QueueName is invalid. Reason: Must specify a queue name."),
        (
            b'{"QueueName":null}',
            "Value for parameter QueueName is invalid. Reason: Must specify a queue name.",
        ),
        (
            b'{"QueueName":""}',
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        ),
    ],
)
def test_a_queue_name_has_errors_of_its_own(body: bytes, text: str) -> None:
    error = refused("CreateQueue", body)

    assert (error.code, error.message) == ("InvalidParameterValue", text)


@pytest.mark.parametrize(
    ("action", "body", "text"),
    [
        ("SendMessage", b'{"QueueUrl":3}', "NUMBER_VALUE can not be converted to a String"),
        ("SendMessage", b'{"QueueUrl":true}', "TRUE_VALUE can not be converted to a String"),
        ("SendMessage", b'{"MessageBody":{}}', "Start of structure or map found where not expected."),
        ("SendMessage", b'{"MessageBody":[]}', "Start of list found where not expected"),
        ("SendMessage", b'{"DelaySeconds":"5"}', "STRING_VALUE can not be converted to an Integer"),
        ("SendMessage", b'{"DelaySeconds":1.5}', "NUMBER_VALUE can not be converted to an Integer"),
        ("SendMessage", b'{"DelaySeconds":2147483648}', "NUMBER_VALUE can not be converted to an Integer"),
        ("SendMessage", b'{"MessageAttributes":{"a":3}}', "Expected map or null"),
        ("SendMessage", b'{"MessageAttributes":{"a":{"BinaryValue":"?"}}}', "Invalid Base64 Encoding"),
        ("SendMessage", b'{"MessageAttributes":{"a":{"BinaryValue":5}}}', None),
        ("SendMessageBatch", b'{"Entries":{}}', "Expected list or null"),
        ("SendMessageBatch", b'{"Entries":[null]}', "Expected map or null"),
        ("GetQueueAttributes", b'{"AttributeNames":[null]}', "NULL_VALUE can not be converted to a String"),
        ("SendMessage", b"[]", "Start of list found where not expected"),
        ("SendMessage", b"{", "The request body is not valid JSON."),
        ("SendMessage", b'{"QueueUrl":"\xff"}', "The request body is not valid JSON."),
        ("SendMessage", b'{"QueueUrl":"\\ud800"}', "The request body is not valid JSON."),
        ("SendMessage", b'{"a":' + b"[" * 100_000, "The request body is not valid JSON."),
    ],
)
def test_a_malformed_body_is_refused_as_aws_refuses_it(action: str, body: bytes, text: str | None) -> None:
    error = refused(action, body)

    assert error.type == "com.amazon.coral.service#SerializationException"
    assert (error.code, error.status) == ("MalformedInput", 400)
    assert text is None or error.message == text


@pytest.mark.parametrize("target", [None, b"", b"AmazonSQS.", b"AmazonSQS.Nothing", b"AmazonSNS.SendMessage"])
def test_an_unknown_target_is_an_unknown_operation(target: bytes | None) -> None:
    with pytest.raises(SqsError) as caught:
        aws_json.action_of(target)

    assert (caught.value.name, caught.value.code) == ("UnknownOperationException", "InvalidAction")


def test_an_unknown_action_cannot_be_decoded() -> None:
    assert refused("Nothing", b"{}").name == "UnknownOperationException"


def test_botocore_reads_an_error_with_both_of_its_names() -> None:
    error = errors.queue_does_not_exist()
    header, _, value = aws_json.error_headers(error).decode().strip().partition(": ")

    response = {"body": aws_json.encode_error(error), "headers": {header: value}, "status_code": error.status}
    parsed = PARSER.parse(response, None)

    assert parsed["Error"] == {
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "Message": "The specified queue does not exist.",
        "QueryErrorCode": "QueueDoesNotExist",
        "Type": "Sender",
    }
    assert json.loads(aws_json.encode_error(error))["__type"] == "com.amazonaws.sqs#QueueDoesNotExist"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_nothing_but_an_sqs_error_leaves_the_decoder(data: st.DataObject) -> None:
    action = data.draw(st.sampled_from(ACTIONS))
    names = sorted(operation(JSON, action).input_shape.members)
    body = data.draw(
        st.binary(max_size=60)
        | st.dictionaries(st.sampled_from(names), json_values).map(lambda value: json.dumps(value).encode())
    )

    try:
        aws_json.decode(action, body)
    except SqsError as error:
        json.loads(aws_json.encode_error(error))
