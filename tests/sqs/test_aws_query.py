"""The Query protocol, with botocore's serializer and parser on the other side."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import msgspec
import pytest
from botocore.parsers import create_parser
from botocore.serialize import create_serializer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openq.sqs import aws_query, errors
from openq.sqs import requests as sqs
from openq.sqs.errors import SqsError
from tests.budget import examples
from tests.sqs.model import ACTIONS, QUERY, operation, replies, values

SERIALIZER = create_serializer("query")
PARSER = create_parser("query")

many = settings(max_examples=examples(12), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def form(action: str, /, **parameters: str) -> bytes:
    return urlencode({"Action": action, "Version": aws_query.VERSION, **parameters}).encode()


def dotted(action: str, parameters: dict[str, str]) -> bytes:
    return form(action, **parameters)


def refused(body: bytes, query: str = "") -> SqsError:
    with pytest.raises(SqsError) as caught:
        aws_query.decode(query, body)
    return caught.value


@pytest.mark.parametrize("action", ACTIONS)
@many
@given(data=st.data())
def test_every_request_of_botocore_arrives_as_it_was(action: str, data: st.DataObject) -> None:
    model = operation(QUERY, action)
    given_values = data.draw(values(model.input_shape))
    wire = SERIALIZER.serialize_to_request(given_values, model)

    name, request = aws_query.decode("", urlencode(wire["body"]).encode())

    assert name == action
    assert request == msgspec.convert(given_values, sqs.REQUESTS[action])


@pytest.mark.parametrize("action", sorted(sqs.REPLIES))
@many
@given(data=st.data())
def test_every_reply_is_what_botocore_reads(action: str, data: st.DataObject) -> None:
    expected = data.draw(replies(action))
    reply = msgspec.convert(expected, sqs.REPLIES[action])

    body = aws_query.encode(action, reply, "the-request")

    shape = operation(QUERY, action).output_shape
    parsed = PARSER.parse({"body": body, "headers": {}, "status_code": 200}, shape)
    assert parsed.pop("ResponseMetadata")["RequestId"] == "the-request"
    assert parsed == expected


@pytest.mark.parametrize("action", sorted(set(ACTIONS) - set(sqs.REPLIES)))
def test_an_action_without_a_reply_has_no_result_element(action: str) -> None:
    root = ElementTree.fromstring(aws_query.encode(action, None, "r"))

    namespace = "{http://queue.amazonaws.com/doc/2012-11-05/}"
    assert root.tag == f"{namespace}{action}Response"
    assert [child.tag for child in root] == [f"{namespace}ResponseMetadata"]


def test_a_reply_looks_as_it_does_on_the_wire() -> None:
    message = sqs.Message(
        message_id="m",
        body="a<b>\r\n&",
        attributes={"SentTimestamp": "1"},
        message_attributes={"n": sqs.MessageAttributeValue(binary_value=b"\x00", data_type="Binary")},
    )

    body = aws_query.encode("ReceiveMessage", sqs.ReceiveMessageReply(messages=[message]), "r-1")

    assert body.decode() == (
        '<?xml version="1.0"?>'
        '<ReceiveMessageResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/"><ReceiveMessageResult>'
        "<Message><MessageId>m</MessageId><Body>a&lt;b&gt;&#13;\n&amp;</Body>"
        "<Attribute><Name>SentTimestamp</Name><Value>1</Value></Attribute>"
        "<MessageAttribute><Name>n</Name><Value><BinaryValue>AA==</BinaryValue><DataType>Binary</DataType>"
        "</Value></MessageAttribute></Message>"
        "</ReceiveMessageResult><ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata>"
        "</ReceiveMessageResponse>"
    )


def test_tags_have_keys_where_attributes_have_names() -> None:
    body = aws_query.encode("ListQueueTags", sqs.ListQueueTagsReply(tags={"k": "v"}), "r")

    assert b"<Tag><Key>k</Key><Value>v</Value></Tag>" in body


@given(st.text())
def test_any_text_survives_as_xml_except_what_xml_cannot_carry(text: str) -> None:
    root = ElementTree.fromstring(f"<a>{aws_query.escape(text)}</a>".encode())

    carried = "".join(
        char if char in "\t\n\r" or (char >= " " and char not in "\ufffe\uffff") else "\ufffd"
        for char in text
    )
    assert (root.text or "") == carried


@given(st.text(st.characters(categories=("Cs", "Cc", "Lu"))))
def test_no_text_makes_the_xml_unreadable(text: str) -> None:
    ElementTree.fromstring(f"<a>{aws_query.escape(text)}</a>".encode())


def test_botocore_reads_an_error() -> None:
    error = errors.queue_does_not_exist()

    body = aws_query.encode_error(error, "r-2")

    parsed = PARSER.parse({"body": body, "headers": {}, "status_code": error.status}, None)
    assert parsed["Error"] == {
        "Type": "Sender",
        "Code": "AWS.SimpleQueueService.NonExistentQueue",
        "Message": "The specified queue does not exist for this wsdl version.",
        "Detail": None,
    }
    assert parsed["ResponseMetadata"]["RequestId"] == "r-2"


def test_an_error_may_quote_anything() -> None:
    body = aws_query.encode_error(errors.receipt_handle_expired("<&\x00\r>"), "r")

    parsed = PARSER.parse({"body": body, "headers": {}, "status_code": 404}, None)
    assert "<&\ufffd\r>" in parsed["Error"]["Message"]


def test_parameters_may_stand_in_the_url() -> None:
    query = form("SendMessage", QueueUrl="q", MessageBody="a b+c").decode()

    assert aws_query.decode(query, b"") == (
        "SendMessage",
        sqs.SendMessage(queue_url="q", message_body="a b+c"),
    )


def test_the_form_counts_more_than_the_url() -> None:
    _, request = aws_query.decode("QueueUrl=of-the-url", form("PurgeQueue", QueueUrl="of-the-form"))

    assert request == sqs.PurgeQueue(queue_url="of-the-form")


def test_the_queue_may_be_named_by_the_path_alone() -> None:
    _, request = aws_query.decode("", form("PurgeQueue"), "/000000000000/orders")

    assert request == sqs.PurgeQueue(queue_url="/000000000000/orders")


def test_a_queue_url_counts_more_than_the_path() -> None:
    _, request = aws_query.decode("", form("PurgeQueue", QueueUrl="named"), "/000000000000/orders")

    assert request == sqs.PurgeQueue(queue_url="named")


def test_without_a_path_the_queue_url_is_missing() -> None:
    assert refused(form("PurgeQueue")).message == "The request must contain the parameter QueueUrl."


def test_a_single_item_may_stand_without_a_number() -> None:
    _, request = aws_query.decode("", form("GetQueueAttributes", QueueUrl="q", AttributeName="All"))
    assert request == sqs.GetQueueAttributes(queue_url="q", attribute_names=["All"])

    parameters = {"QueueUrl": "q", "Attribute.Name": "DelaySeconds", "Attribute.Value": "5"}
    _, request = aws_query.decode("", dotted("SetQueueAttributes", parameters))
    assert request == sqs.SetQueueAttributes(queue_url="q", attributes={"DelaySeconds": "5"})


def test_items_come_in_the_order_of_their_numbers() -> None:
    parameters = {"QueueUrl": "q", "TagKey.10": "ten", "TagKey.9": "nine", "TagKey.1": "one"}

    _, request = aws_query.decode("", dotted("UntagQueue", parameters))

    assert request == sqs.UntagQueue(queue_url="q", tag_keys=["one", "nine", "ten"])


def test_an_empty_batch_is_left_to_the_action() -> None:
    _, request = aws_query.decode("", form("DeleteMessageBatch", QueueUrl="q"))

    assert request == sqs.DeleteMessageBatch(queue_url="q", entries=[])


def test_an_empty_body_in_a_batch_is_left_to_the_action() -> None:
    entry = "SendMessageBatchRequestEntry.1."

    _, request = aws_query.decode(
        "", dotted("SendMessageBatch", {"QueueUrl": "q", f"{entry}Id": "1", f"{entry}MessageBody": ""})
    )

    assert isinstance(request, sqs.SendMessageBatch)
    assert request.entries[0].message_body == ""


@pytest.mark.parametrize(
    ("action", "parameters", "name"),
    [
        ("SendMessage", {"QueueUrl": "q"}, "MessageBody"),
        ("SendMessage", {"QueueUrl": "q", "MessageBody": ""}, "MessageBody"),
        ("ChangeMessageVisibility", {"QueueUrl": "q", "ReceiptHandle": "r"}, "VisibilityTimeout"),
        ("SetQueueAttributes", {"QueueUrl": "q"}, "Attribute.Name"),
        ("SetQueueAttributes", {"QueueUrl": "q", "Attribute.1.Value": "5"}, "Attribute.1.Name"),
        ("SetQueueAttributes", {"QueueUrl": "q", "Attribute.Name": "Policy"}, "Attribute.Value"),
        ("TagQueue", {"QueueUrl": "q"}, "Tags"),
        ("TagQueue", {"QueueUrl": "q", "Tag.1.Value": "v"}, "Tag.1.Key"),
        (
            "SendMessageBatch",
            {"QueueUrl": "q", "SendMessageBatchRequestEntry.3.Id": "x"},
            "SendMessageBatchRequestEntry.3.MessageBody",
        ),
    ],
)
def test_a_missing_parameter_is_named(action: str, parameters: dict[str, str], name: str) -> None:
    error = refused(dotted(action, parameters))

    assert (error.code, error.status) == ("MissingParameter", 400)
    assert error.message == f"The request must contain the parameter {name}."


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({}, "Value for parameter QueueName is invalid. Reason: Must specify a queue name."),
        (
            {"QueueName": ""},
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length",
        ),
    ],
)
def test_a_queue_name_has_errors_of_its_own(parameters: dict[str, str], text: str) -> None:
    error = refused(dotted("CreateQueue", parameters))

    assert (error.code, error.message) == ("InvalidParameterValue", text)


@pytest.mark.parametrize("value", ["abc", "1.5", "2147483648", "99999999999999", "\u0663", " 5"])
def test_what_is_no_integer_is_refused(value: str) -> None:
    error = refused(form("SendMessage", QueueUrl="q", MessageBody="b", DelaySeconds=value))

    assert (error.code, error.message) == ("MalformedInput", f"{value} can not be converted to an Integer")


def test_an_empty_integer_is_none() -> None:
    _, request = aws_query.decode("", form("SendMessage", QueueUrl="q", MessageBody="b", DelaySeconds=""))

    assert request == sqs.SendMessage(queue_url="q", message_body="b")


def test_what_is_no_base64_is_refused() -> None:
    value = "MessageAttribute.1.Value."
    parameters = {"QueueUrl": "q", "MessageBody": "b", "MessageAttribute.1.Name": "n"}

    error = refused(
        dotted("SendMessage", {**parameters, f"{value}DataType": "Binary", f"{value}BinaryValue": "?"})
    )

    assert (error.code, error.message) == ("MalformedInput", "Invalid Base64 Encoding")


def test_an_attribute_name_may_not_come_twice() -> None:
    parameters = {"QueueUrl": "q", "MessageBody": "b"}
    for number in ("1", "2"):
        parameters[f"MessageAttribute.{number}.Name"] = "n"
        parameters[f"MessageAttribute.{number}.Value.DataType"] = "String"
        parameters[f"MessageAttribute.{number}.Value.StringValue"] = "v"

    error = refused(dotted("SendMessage", parameters))

    assert (error.code, error.message) == (
        "InvalidParameterValue",
        "Message attribute name 'n' already exists.",
    )


@pytest.mark.parametrize(
    ("query", "body", "code"),
    [
        ("", b"", "MissingAction"),
        ("Action=", b"", "MissingAction"),
        ("Action=Nothing", b"", "InvalidAction"),
        ("Action=ListQueues&Version=1999-01-01", b"", "NoSuchVersion"),
        ("Action=%FF", b"", "MalformedQueryString"),
        ("", b"\xff", "MalformedQueryString"),
        ("", b"a=1&" * (aws_query.MAX_PARAMETERS + 1), "MalformedQueryString"),
    ],
)
def test_what_is_no_request_is_refused(query: str, body: bytes, code: str) -> None:
    assert refused(body, query).code == code


def test_a_version_may_be_left_out() -> None:
    assert aws_query.decode("Action=ListQueues", b"") == ("ListQueues", sqs.ListQueues())


def test_a_type_that_query_cannot_carry_is_found_at_once() -> None:
    class Odd(msgspec.Struct):
        when: float

    with pytest.raises(TypeError, match="does not know"):
        aws_query._build_plans(Odd)


part = st.sampled_from(["", "1", "2", "999999999999", "-1", "Name", "Value", "Key", "DataType", "\u0661"])


@settings(max_examples=examples(120), deadline=None)
@given(data=st.data())
def test_nothing_but_an_sqs_error_leaves_the_decoder(data: st.DataObject) -> None:
    action = data.draw(st.sampled_from(ACTIONS))
    known: list[Any] = [
        name for field in aws_query._PLANS[sqs.REQUESTS[action]] for name in (field.wire, field.item)
    ]
    name = st.tuples(st.sampled_from(known), st.lists(part, max_size=4)).map(
        lambda drawn: ".".join([drawn[0], *drawn[1]])
    )
    parameters = data.draw(st.dictionaries(name | st.text(max_size=10), st.text(max_size=10), max_size=12))
    body = data.draw(st.just(dotted(action, parameters)) | st.binary(max_size=60))

    try:
        aws_query.decode("", body)
    except SqsError as error:
        ElementTree.fromstring(aws_query.encode_error(error, "r"))
