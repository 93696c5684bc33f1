"""Answers that were recorded from Amazon SQS, asked of this server over both wire formats."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.real_clients import boto
from tests.serving import Served

TRACE = "Root=1-3152b799-8954dae64eda91bc9a23a7e8;Parent=7fa8c0f79203be72;Sampled=1"
OTHER_TRACE = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, server: Served) -> Iterator[Any]:
    client = boto.client(server.url, protocol=request.param)
    yield client
    client.close()


@pytest.fixture
def url(sqs: Any) -> str:
    return made(sqs)


def made(sqs: Any, suffix: str = "", **attributes: str) -> str:
    url: str = sqs.create_queue(QueueName=boto.fresh(suffix), Attributes=attributes)["QueueUrl"]
    return url


def refused(act: Any, **members: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        act(**members)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def text(value: str) -> dict[str, str]:
    return {"DataType": "String", "StringValue": value}


# -- the trace header ---------------------------------------------------------------------------


def traced(sqs: Any, action: str) -> Any:
    def add(request: Any, **_: Any) -> None:
        request.headers["X-Amzn-Trace-Id"] = TRACE

    sqs.meta.events.register(f"before-send.sqs.{action}", add)
    return lambda: sqs.meta.events.unregister(f"before-send.sqs.{action}", add)


def traces(sqs: Any, url: str) -> list[str | None]:
    asked = {"MessageSystemAttributeNames": ["AWSTraceHeader"], "MaxNumberOfMessages": 10}
    found = sqs.receive_message(QueueUrl=url, **asked)["Messages"]
    return [message.get("Attributes", {}).get("AWSTraceHeader") for message in found]


def test_the_trace_header_of_a_request_becomes_that_of_its_message(sqs: Any, url: str) -> None:
    stop = traced(sqs, "SendMessage")
    try:
        plain = sqs.send_message(QueueUrl=url, MessageBody="plain")
        own = {"AWSTraceHeader": text(OTHER_TRACE)}
        explicit = sqs.send_message(QueueUrl=url, MessageBody="own", MessageSystemAttributes=own)
    finally:
        stop()

    assert traces(sqs, url) == [TRACE, OTHER_TRACE]
    assert "MD5OfMessageSystemAttributes" not in plain
    assert "MD5OfMessageSystemAttributes" in explicit


def test_the_trace_header_of_a_batch_becomes_that_of_its_messages(sqs: Any, url: str) -> None:
    own = {"AWSTraceHeader": text(OTHER_TRACE)}
    entries = [
        {"Id": "a", "MessageBody": "a"},
        {"Id": "b", "MessageBody": "b", "MessageSystemAttributes": own},
    ]
    stop = traced(sqs, "SendMessageBatch")
    try:
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    finally:
        stop()

    assert traces(sqs, url) == [TRACE, OTHER_TRACE]


# -- message attributes -------------------------------------------------------------------------


def test_attributes_are_chosen_by_name_prefix_or_star(sqs: Any, url: str) -> None:
    sent = {"Help.Me": text("Me"), "Hello": text("There"), "General": text("Kenobi")}
    sqs.send_message(QueueUrl=url, MessageBody="msg", MessageAttributes=sent)

    def shown(*names: str) -> set[str]:
        asked = {"MessageAttributeNames": list(names), "VisibilityTimeout": 0}
        [message] = sqs.receive_message(QueueUrl=url, **asked)["Messages"]
        return set(message.get("MessageAttributes", {}))

    for everything in ("All", "*", ".*"):
        assert shown(everything) == set(sent)
    assert shown("Hel.*") == {"Hello", "Help.Me"}
    assert shown("Foo", "Hello") == {"Hello"}
    for none in ("Foo", "AWS.", "..foo"):
        assert shown(none) == set()


def test_an_attribute_name_may_have_letters_of_any_script(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="msg", MessageAttributes={"attr.1øßä": text("v")})

    [message] = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"] == {"attr.1øßä": text("v")}
    for character in '!"§(?':
        bad = {f"Invalid-{character}-attr": text("v")}
        code, _ = refused(sqs.send_message, QueueUrl=url, MessageBody="msg", MessageAttributes=bad)
        assert code == "InvalidParameterValue"


def test_two_lists_of_system_attributes(sqs: Any, url: str) -> None:
    """Query takes the older parameter of the two, JSON both."""
    sqs.send_message(QueueUrl=url, MessageBody="msg")
    asked = {"MessageSystemAttributeNames": ["All"], "AttributeNames": ["SenderId"]}

    [message] = sqs.receive_message(QueueUrl=url, **asked)["Messages"]

    everything = {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
    }
    is_query = sqs.meta.service_model.metadata["protocol"] == "query"
    assert set(message["Attributes"]) == ({"SenderId"} if is_query else everything)


def test_every_documented_attribute_can_be_requested(sqs: Any, url: str) -> None:
    sqs.send_message(QueueUrl=url, MessageBody="msg")

    [message] = sqs.receive_message(QueueUrl=url, AttributeNames=["SqsManagedSseEnabled"])["Messages"]

    assert "Attributes" not in message


# -- batches ------------------------------------------------------------------------------------


def test_a_batch_with_a_message_of_no_group_is_refused_as_a_whole(sqs: Any) -> None:
    url = made(sqs, ".fifo", FifoQueue="true")
    entries = [
        {"Id": "a", "MessageBody": "a", "MessageGroupId": "g", "MessageDeduplicationId": "1"},
        {"Id": "b", "MessageBody": "b", "MessageDeduplicationId": "2"},
    ]
    sentence = "The request must contain the parameter MessageGroupId."

    assert refused(sqs.send_message_batch, QueueUrl=url, Entries=entries) == (
        "InvalidParameterValue",
        sentence,
    )
    single = {"MessageBody": "b", "MessageDeduplicationId": "2"}
    assert refused(sqs.send_message, QueueUrl=url, **single) == ("MissingParameter", sentence)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_a_message_of_a_batch_that_is_too_long_fails_alone(sqs: Any) -> None:
    url = made(sqs, MaximumMessageSize="1024")
    entries = [{"Id": "fits", "MessageBody": "a" * 1024}, {"Id": "long", "MessageBody": "a" * 1025}]

    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)

    assert [entry["Id"] for entry in answer["Successful"]] == ["fits"]
    assert answer["Failed"] == [
        {
            "Id": "long",
            "SenderFault": True,
            "Code": "InvalidParameterValue",
            "Message": "One or more parameters cannot be validated. "
            "Reason: Message must be shorter than 1024 bytes.",
        }
    ]


# -- receipt handles ----------------------------------------------------------------------------


def test_an_invalid_receipt_handle_is_named(sqs: Any, url: str) -> None:
    other = made(sqs)
    sqs.send_message(QueueUrl=other, MessageBody="msg")
    [message] = sqs.receive_message(QueueUrl=other)["Messages"]
    handle = message["ReceiptHandle"]
    sentences = {
        "garbage": 'The input receipt handle "garbage" is not a valid receipt handle.',
        "-..s3BucketName..-": "The input receipt handle is invalid.",
        handle: f'The receipt handle "{handle}" is not valid for this queue.',
    }

    for wrong, sentence in sentences.items():
        expected = ("ReceiptHandleIsInvalid", sentence)
        assert refused(sqs.delete_message, QueueUrl=url, ReceiptHandle=wrong) == expected
        change = {"ReceiptHandle": wrong, "VisibilityTimeout": 1}
        assert refused(sqs.change_message_visibility, QueueUrl=url, **change) == expected
    entries = [{"Id": str(n), "ReceiptHandle": wrong} for n, wrong in enumerate(sentences)]
    failed = sqs.delete_message_batch(QueueUrl=url, Entries=entries)["Failed"]
    assert [entry["Message"] for entry in failed] == [
        sentences["garbage"],
        'The input receipt handle "-..s3BucketName..-" is not a valid receipt handle.',
        sentences[handle],
    ]


# -- permissions --------------------------------------------------------------------------------


def test_permissions_come_and_go_as_recorded(sqs: Any, url: str) -> None:
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    accounts = ["668614515564", "111111111111"]

    def allow(label: str) -> None:
        sqs.add_permission(QueueUrl=url, Label=label, AWSAccountIds=accounts, Actions=["ReceiveMessage"])

    allow("one")
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert json.loads(shown) == {
        "Version": "2008-10-17",
        "Id": f"{arn}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": [f"arn:aws:iam::{account}:root" for account in accounts]},
                "Action": "SQS:ReceiveMessage",
                "Resource": arn,
            }
        ],
    }
    sqs.remove_permission(QueueUrl=url, Label="one")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])
    sentence = "Value one for parameter Label is invalid. Reason: can't find label."
    expected = ("InvalidParameterValue", sentence)
    assert refused(sqs.remove_permission, QueueUrl=url, Label="one") == expected


# -- what a queue's encryption says of itself ---------------------------------------------------


def test_removing_the_kms_key_ends_encryption(sqs: Any, url: str) -> None:
    names = ["KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled"]

    def shown() -> dict[str, str]:
        found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return found

    assert shown() == {"SqsManagedSseEnabled": "true"}
    key = {"KmsMasterKeyId": "testKeyId", "KmsDataKeyReusePeriodSeconds": "6000"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=key)
    assert shown() == {**key, "SqsManagedSseEnabled": "false"}
    none = {"KmsMasterKeyId": "", "KmsDataKeyReusePeriodSeconds": "300"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes=none)
    assert shown() == {"SqsManagedSseEnabled": "false"}


# -- Query by GET -------------------------------------------------------------------------------


def got(address: str, accept: str | None = None, **parameters: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    query = urllib.parse.urlencode(parameters)
    request = urllib.request.Request(f"{address}?{query}" if query else address)
    if accept is not None:
        request.add_header("Accept", accept)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture(scope="module")
def old(server: Served) -> Any:
    return boto.client(server.url, protocol="query")


def got_json(address: str, **parameters: str) -> Any:
    status, content_type, body = got(address, "application/json", **parameters)
    assert (status, content_type) == (200, "application/json")
    return json.loads(body)


def test_a_get_that_accepts_json_is_answered_in_json(old: Any, server: Served) -> None:
    url = made(old)

    sent = got_json(url, Action="SendMessage", MessageBody='{"foo": "ba\rr"}')["SendMessageResponse"]
    assert sent["ResponseMetadata"]["RequestId"]
    result = sent["SendMessageResult"]
    assert result.keys() >= {"MD5OfMessageBody", "MessageId"}
    assert result["MD5OfMessageAttributes"] is result["SequenceNumber"] is None

    asked = {"Action": "ReceiveMessage", "AttributeName.1": "SenderId"}
    received = got_json(url, **asked)["ReceiveMessageResponse"]["ReceiveMessageResult"]
    [message] = received["messages"]
    assert message["Body"] == '{"foo": "ba\rr"}'
    assert message["Attributes"] == [{"Name": "SenderId", "Value": boto.ACCOUNT}]
    assert message["MessageAttributes"] is None

    again = got_json(url, Action="ReceiveMessage")["ReceiveMessageResponse"]["ReceiveMessageResult"]
    assert again == {"messages": None}
    asked = {"Action": "GetQueueAttributes", "AttributeName.1": "VisibilityTimeout"}
    shown = got_json(url, **asked)["GetQueueAttributesResponse"]["GetQueueAttributesResult"]
    assert shown == {"Attributes": [{"Name": "VisibilityTimeout", "Value": "30"}]}
    listed = got_json(server.url + "/", Action="ListQueues")["ListQueuesResponse"]["ListQueuesResult"]
    assert url in listed["queueUrls"]
    assert got_json(url, Action="PurgeQueue").keys() == {"PurgeQueueResponse"}


def test_an_error_of_a_get_that_accepts_json_is_json(old: Any) -> None:
    status, content_type, body = got(made(old), "application/json", Action="ListQueues")

    assert (status, content_type) == (400, "application/json")
    error = json.loads(body)["Error"]
    assert error["Code"] == "InvalidAction"
    assert error["Message"] == "The action ListQueues is not valid for this endpoint."


def test_a_get_that_accepts_anything_is_answered_in_xml(old: Any) -> None:
    status, content_type, body = got(made(old), "*/*", Action="ReceiveMessage")

    assert (status, content_type) == (200, "text/xml")
    assert "<ReceiveMessageResult/>" in body


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues"])
def test_actions_on_all_queues_are_refused_at_a_queue_url(old: Any, action: str) -> None:
    status, _, body = got(made(old), Action=action, QueueName="another")

    assert status == 400
    assert "<Code>InvalidAction</Code>" in body
    assert f"<Message>The action {action} is not valid for this endpoint.</Message>" in body


def test_any_queue_can_be_looked_up_at_the_address_of_another(old: Any) -> None:
    one, other = made(old), made(old)

    status, _, body = got(one, Action="GetQueueUrl", QueueName=other.rpartition("/")[2])

    assert status == 200
    assert f"<QueueUrl>{other}</QueueUrl>" in body


@pytest.mark.parametrize("accept", [None, "application/json"])
def test_the_address_of_a_queue_without_an_action_is_nothing(old: Any, accept: str | None) -> None:
    status, content_type, body = got(made(old), accept)

    assert (status, content_type) == (404, "text/xml")
    assert body.startswith("<UnknownOperationException")


def test_a_request_in_json_to_the_address_of_a_queue_is_taken(server: Served) -> None:
    url = made(boto.client(server.url))

    answer = boto.client(url).receive_message(QueueUrl=url)

    assert answer["ResponseMetadata"]["HTTPHeaders"]["content-type"] == "application/x-amz-json-1.0"
    assert "Messages" not in answer
