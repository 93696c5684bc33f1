"""boto3 cannot tell this server from SQS, whichever of the two wire formats it speaks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.real_clients import boto
from tests.real_clients.boto import arn_of, attributes_of, bodies, fresh, make, take, with_dead_letters
from tests.real_clients.programs.every_operation import refusals, walk
from tests.serving import Served
from tests.waiting import until


def refusal(call: Any, **arguments: Any) -> tuple[str, int]:
    """The code and the status that boto3 shows of a call that must fail."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    answer = caught.value.response
    return answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]


def test_every_operation_of_the_newest_model_works(sqs: Any) -> None:
    operations = set(sqs.meta.service_model.operation_names)

    assert walk(sqs) == operations
    assert len(operations) == 23


# Queues


def test_a_queue_can_be_made_twice_with_the_same_attributes_and_not_with_others(sqs: Any) -> None:
    name = fresh()
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "5"})["QueueUrl"]

    assert sqs.create_queue(QueueName=name)["QueueUrl"] == url
    assert sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "5"})["QueueUrl"] == url
    other = {"VisibilityTimeout": "6"}
    assert refusal(sqs.create_queue, QueueName=name, Attributes=other) == ("QueueAlreadyExists", 400)


def test_the_attributes_of_a_new_queue_are_those_that_sqs_gives_it(sqs: Any) -> None:
    name = fresh()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    shown = attributes_of(sqs, url)

    assert abs(int(shown.pop("CreatedTimestamp")) - time.time()) < 3600
    assert abs(int(shown.pop("LastModifiedTimestamp")) - time.time()) < 3600
    assert shown == {
        "QueueArn": f"arn:aws:sqs:us-east-1:000000000000:{name}",
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
    }


def test_a_deleted_queue_is_gone_and_its_name_is_not_free_at_once(sqs: Any) -> None:
    name = fresh()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]
    sqs.delete_queue(QueueUrl=url)

    gone = ("AWS.SimpleQueueService.NonExistentQueue", 400)
    assert refusal(sqs.get_queue_url, QueueName=name) == gone
    assert refusal(sqs.send_message, QueueUrl=url, MessageBody="x") == gone
    assert refusal(sqs.delete_queue, QueueUrl=url) == gone
    assert refusal(sqs.receive_message, QueueUrl=url) == gone
    again = refusal(sqs.create_queue, QueueName=name)
    assert again == ("AWS.SimpleQueueService.QueueDeletedRecently", 400)


def test_a_queue_is_purged_once_a_minute(sqs: Any) -> None:
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")

    sqs.purge_queue(QueueUrl=url)

    assert take(sqs, url) == []
    again = refusal(sqs.purge_queue, QueueUrl=url)
    assert again == ("AWS.SimpleQueueService.PurgeQueueInProgress", 403)


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        ({"VisibilityTimeout": "43201"}, "InvalidAttributeValue"),
        ({"VisibilityTimeout": "soon"}, "InvalidAttributeValue"),
        ({"DelaySeconds": "901"}, "InvalidAttributeValue"),
        ({"MessageRetentionPeriod": "59"}, "InvalidAttributeValue"),
        ({"MaximumMessageSize": "1048577"}, "InvalidAttributeValue"),
        ({"ReceiveMessageWaitTimeSeconds": "21"}, "InvalidAttributeValue"),
        ({"Policy": "no policy"}, "InvalidAttributeValue"),
        ({"RedrivePolicy": "{}"}, "InvalidParameterValue"),
        ({"Colour": "red"}, "InvalidAttributeName"),
        ({"QueueArn": "arn:aws:sqs:us-east-1:000000000000:x"}, "InvalidAttributeName"),
    ],
)
def test_attributes_beyond_the_limits_are_refused(sqs: Any, attributes: dict[str, str], code: str) -> None:
    url = make(sqs)

    assert refusal(sqs.set_queue_attributes, QueueUrl=url, Attributes=attributes) == (code, 400)
    assert refusal(sqs.create_queue, QueueName=fresh(), Attributes=attributes) == (code, 400)


def test_pages_show_every_queue_once(sqs: Any) -> None:
    prefix = fresh("-page-")
    dead = make(sqs)
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 5})
    made = [
        sqs.create_queue(QueueName=f"{prefix}{n:02}", Attributes={"RedrivePolicy": policy})["QueueUrl"]
        for n in range(7)
    ]

    listed = sqs.get_paginator("list_queues").paginate(
        QueueNamePrefix=prefix, PaginationConfig={"PageSize": 3}
    )
    pages = [page.get("QueueUrls", []) for page in listed]
    sources = sqs.get_paginator("list_dead_letter_source_queues").paginate(
        QueueUrl=dead, PaginationConfig={"PageSize": 2}
    )

    assert [len(page) for page in pages] == [3, 3, 1]
    assert [url for page in pages for url in page] == made
    assert [url for page in sources for url in page["queueUrls"]] == made


# Messages


def test_attributes_of_all_types_come_back_as_they_were_sent(sqs: Any) -> None:
    url = make(sqs)
    attributes: dict[str, Any] = {
        "text": {"DataType": "String", "StringValue": "über & <x> \U0001f600\r\n"},
        "text.custom": {"DataType": "String.uuid", "StringValue": "8f3c"},
        "whole": {"DataType": "Number", "StringValue": "-7"},
        "real": {"DataType": "Number", "StringValue": "1.50"},
        "huge": {"DataType": "Number", "StringValue": "12345678901234567890123456789012345678"},
        "number-custom": {"DataType": "Number.byte", "StringValue": "255"},
        "bytes": {"DataType": "Binary", "BinaryValue": bytes(range(256))},
        "bytes_custom": {"DataType": "Binary.gif", "BinaryValue": b"GIF89a"},
        "message_type": {"DataType": "String", "StringValue": "order"},
        "type2": {"DataType": "String", "StringValue": "x" * 1000},
    }

    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageAttributes=attributes)
    [got] = take(sqs, url, MessageAttributeNames=["All"], VisibilityTimeout=0)
    [some] = take(sqs, url, MessageAttributeNames=["text.*", "real", "none"], VisibilityTimeout=0)
    [none] = take(sqs, url)

    assert got["MessageAttributes"] == attributes
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert set(some["MessageAttributes"]) == {"text", "text.custom", "real"}
    assert some["MD5OfMessageAttributes"] != sent["MD5OfMessageAttributes"]
    assert "MessageAttributes" not in none


def test_system_attributes_describe_the_life_of_a_message(sqs: Any) -> None:
    url = make(sqs)
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a9"}}
    sent = sqs.send_message(QueueUrl=url, MessageBody="x", MessageSystemAttributes=trace)

    [first] = take(sqs, url, AttributeNames=["All"], VisibilityTimeout=0)
    [second] = take(sqs, url, AttributeNames=["All"])

    assert "MD5OfMessageSystemAttributes" in sent
    system = first["Attributes"]
    assert set(system) == {
        "SenderId",
        "SentTimestamp",
        "ApproximateReceiveCount",
        "ApproximateFirstReceiveTimestamp",
        "AWSTraceHeader",
    }
    assert system["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert int(system["SentTimestamp"]) <= int(system["ApproximateFirstReceiveTimestamp"])
    assert second["Attributes"] == {**system, "ApproximateReceiveCount": "2"}


@pytest.mark.parametrize(
    "message",
    [
        {"MessageBody": "\x00"},
        {"MessageBody": "x", "DelaySeconds": 901},
        {"MessageBody": "x", "DelaySeconds": -1},
        {"MessageBody": "x" * (1 << 20) + "y"},
        {"MessageBody": "x", "MessageDeduplicationId": "d"},
        {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Colour", "StringValue": "red"}}},
        {"MessageBody": "x", "MessageAttributes": {"a": {"DataType": "Number", "StringValue": "ten"}}},
        {"MessageBody": "x", "MessageAttributes": {"AWS.a": {"DataType": "String", "StringValue": "v"}}},
        {
            "MessageBody": "x",
            "MessageAttributes": {f"a{n}": {"DataType": "String", "StringValue": "v"} for n in range(11)},
        },
    ],
    ids=["control", "delay", "negative", "size", "dedup", "type", "number", "name", "count"],
)
def test_invalid_messages_are_refused_and_not_queued(sqs: Any, message: dict[str, Any]) -> None:
    url = make(sqs)

    code, status = refusal(sqs.send_message, QueueUrl=url, **message)

    assert code == ("InvalidMessageContents" if message["MessageBody"] == "\x00" else "InvalidParameterValue")
    assert status == 400
    assert attributes_of(sqs, url)["ApproximateNumberOfMessages"] == "0"


def test_the_largest_message_and_the_largest_batch_pass(sqs: Any) -> None:
    url = make(sqs)
    largest = "é" * (1 << 19)

    sqs.send_message(QueueUrl=url, MessageBody=largest)
    [got] = take(sqs, url)

    assert got["Body"] == largest
    tenth = "x" * ((1 << 20) // 10)
    entries = [{"Id": str(n), "MessageBody": tenth} for n in range(10)]
    assert len(sqs.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
    entries[0]["MessageBody"] += "y" * 10
    too_long = refusal(sqs.send_message_batch, QueueUrl=url, Entries=entries)
    assert too_long == ("AWS.SimpleQueueService.BatchRequestTooLong", 400)


def test_a_batch_with_bad_entries_does_the_good_ones(sqs: Any) -> None:
    url = make(sqs)
    entries: list[dict[str, Any]] = [
        {"Id": "good", "MessageBody": "good"},
        {"Id": "control", "MessageBody": "\x01"},
        {"Id": "late", "MessageBody": "x", "DelaySeconds": 1000},
        {"Id": "fine", "MessageBody": "fine"},
    ]

    answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    got = take(sqs, url)

    assert [each["Id"] for each in answer["Successful"]] == ["good", "fine"]
    assert {each["Id"]: (each["Code"], each["SenderFault"]) for each in answer["Failed"]} == {
        "control": ("InvalidMessageContents", True),
        "late": ("InvalidParameterValue", True),
    }
    assert sorted(bodies(got)) == ["fine", "good"]

    handles = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(got)]
    changes = [
        {**handles[0], "VisibilityTimeout": 0},
        {"Id": "far", "ReceiptHandle": got[1]["ReceiptHandle"], "VisibilityTimeout": 43_201},
        {"Id": "none", "ReceiptHandle": "none", "VisibilityTimeout": 1},
    ]
    changed = sqs.change_message_visibility_batch(QueueUrl=url, Entries=changes)
    assert [each["Id"] for each in changed["Successful"]] == ["0"]
    assert {each["Id"]: each["Code"] for each in changed["Failed"]} == {
        "far": "InvalidParameterValue",
        "none": "ReceiptHandleIsInvalid",
    }
    deleted = sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "x", "ReceiptHandle": "x"}, *handles])
    assert [each["Id"] for each in deleted["Successful"]] == ["0", "1"]
    assert [(each["Id"], each["Code"]) for each in deleted["Failed"]] == [("x", "ReceiptHandleIsInvalid")]


def test_an_invalid_batch_is_refused_as_a_whole(sqs: Any) -> None:
    url = make(sqs)
    send = sqs.send_message_batch
    eleven = [{"Id": str(n), "MessageBody": "x"} for n in range(11)]
    twice = [{"Id": "a", "MessageBody": "x"}, {"Id": "a", "MessageBody": "y"}]

    prefix = "AWS.SimpleQueueService."
    assert refusal(send, QueueUrl=url, Entries=[]) == (f"{prefix}EmptyBatchRequest", 400)
    assert refusal(send, QueueUrl=url, Entries=eleven) == (f"{prefix}TooManyEntriesInBatchRequest", 400)
    assert refusal(send, QueueUrl=url, Entries=twice) == (f"{prefix}BatchEntryIdsNotDistinct", 400)
    space = [{"Id": "a b", "MessageBody": "x"}]
    assert refusal(send, QueueUrl=url, Entries=space) == (f"{prefix}InvalidBatchEntryId", 400)
    assert take(sqs, url) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"VisibilityTimeout": 43_201},
        {"VisibilityTimeout": -1},
        {"ReceiveRequestAttemptId": "only for FIFO queues"},
    ],
)
def test_a_receive_beyond_the_limits_is_refused(sqs: Any, wrong: dict[str, Any]) -> None:
    assert refusal(sqs.receive_message, QueueUrl=make(sqs), **wrong) == ("InvalidParameterValue", 400)


def test_invalid_and_expired_receipts(sqs: Any) -> None:
    url = make(sqs)
    sqs.send_message(QueueUrl=url, MessageBody="x")
    [got] = take(sqs, url)
    handle = got["ReceiptHandle"]

    none = ("ReceiptHandleIsInvalid", 404)
    assert refusal(sqs.delete_message, QueueUrl=url, ReceiptHandle="none") == none
    assert refusal(sqs.delete_message, QueueUrl=make(sqs), ReceiptHandle=handle) == none
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=handle)
    late = refusal(sqs.change_message_visibility, QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=1)
    assert late == ("InvalidParameterValue", 400)


def test_a_long_poll_returns_when_a_message_arrives(sqs: Any) -> None:
    quiet, url = make(sqs), make(sqs)
    sender = boto.client(sqs.meta.endpoint_url)

    with ThreadPoolExecutor(2) as pool:
        # Its time is up before that of the other, unless somebody sends.
        earlier = pool.submit(take, sqs, quiet, WaitTimeSeconds=20)
        poll = pool.submit(take, sqs, url, WaitTimeSeconds=20)
        # Nothing tells from outside that a poll stands in line; that it is not answered is all there is.
        assert wait([earlier, poll], timeout=0.3).done == set()
        sender.send_message(QueueUrl=url, MessageBody="at last")
        got = poll.result()
        is_first = not earlier.done()
        sender.send_message(QueueUrl=quiet, MessageBody="here too")

        assert bodies(got) == ["at last"]
        assert is_first
        assert bodies(earlier.result()) == ["here too"]
    sender.close()


def test_a_long_poll_returns_for_delayed_and_returned_messages(sqs: Any) -> None:
    url = make(sqs, {"ReceiveMessageWaitTimeSeconds": "20", "VisibilityTimeout": "1"})
    sqs.send_message(QueueUrl=url, MessageBody="later", DelaySeconds=1)
    assert attributes_of(sqs, url)["ApproximateNumberOfMessagesDelayed"] == "1"

    [first] = take(sqs, url)
    [second] = take(sqs, url, AttributeNames=["ApproximateReceiveCount"])

    assert first["MessageId"] == second["MessageId"]
    assert second["Attributes"] == {"ApproximateReceiveCount": "2"}


def test_the_counts_follow_the_messages(sqs: Any) -> None:
    url = make(sqs)
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": "x"} for n in range(5)])
    sqs.send_message(QueueUrl=url, MessageBody="x", DelaySeconds=900)
    take(sqs, url, 2)

    shown = attributes_of(
        sqs,
        url,
        "ApproximateNumberOfMessages",
        "ApproximateNumberOfMessagesNotVisible",
        "ApproximateNumberOfMessagesDelayed",
    )

    assert list(shown.values()) == ["3", "2", "1"]


# FIFO and fair queues

FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}


def test_a_fifo_queue_keeps_the_order_of_each_group(sqs: Any) -> None:
    url = make(sqs, FIFO)
    numbers = [
        sqs.send_message(QueueUrl=url, MessageBody=f"{group}{n}", MessageGroupId=group)["SequenceNumber"]
        for n in range(3)
        for group in ("a", "b")
    ]

    first = take(sqs, url, 1, AttributeNames=["All"])
    rest = take(sqs, url, 10)

    assert numbers == sorted(numbers)
    assert bodies(first) == ["a0"]
    assert first[0]["Attributes"]["MessageGroupId"] == "a"
    assert first[0]["Attributes"]["SequenceNumber"] == numbers[0]
    # Group a waits for its first message; group b does not.
    assert bodies(rest) == ["b0", "b1", "b2"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert bodies(take(sqs, url, 10)) == ["a1", "a2"]


def test_a_fifo_queue_deduplicates_messages(sqs: Any) -> None:
    url = make(sqs, {"FifoQueue": "true"})
    send = {"QueueUrl": url, "MessageGroupId": "g"}

    first = sqs.send_message(**send, MessageBody="x", MessageDeduplicationId="1")
    again = sqs.send_message(**send, MessageBody="changed", MessageDeduplicationId="1")
    sqs.send_message(**send, MessageBody="y", MessageDeduplicationId="2")
    got = take(sqs, url, 10, AttributeNames=["MessageDeduplicationId"])

    assert again["MessageId"] == first["MessageId"]
    assert again["SequenceNumber"] == first["SequenceNumber"]
    assert bodies(got) == ["x", "y"]
    assert [each["Attributes"]["MessageDeduplicationId"] for each in got] == ["1", "2"]
    no_id = refusal(sqs.send_message, **send, MessageBody="z")
    assert no_id == ("InvalidParameterValue", 400)
    no_group = refusal(sqs.send_message, QueueUrl=url, MessageBody="z", MessageDeduplicationId="3")
    assert no_group == ("MissingParameter", 400)


def test_content_that_was_sent_is_not_sent_again_within_a_group_scope(sqs: Any) -> None:
    scope = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
    url = make(sqs, {**FIFO, **scope})

    for group in ("a", "b", "a", "b"):
        sqs.send_message(QueueUrl=url, MessageBody="same", MessageGroupId=group)

    assert bodies(take(sqs, url)) == ["same", "same"]


def test_a_receive_attempt_that_is_repeated_gets_the_same_messages(sqs: Any) -> None:
    url = make(sqs, FIFO)
    for n in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=str(n), MessageGroupId="g")

    first = take(sqs, url, 2, ReceiveRequestAttemptId="try")
    again = take(sqs, url, 2, ReceiveRequestAttemptId="try")
    other = take(sqs, url, 2, ReceiveRequestAttemptId="another")

    assert bodies(first) == bodies(again) == ["0", "1"]
    assert other == []


def test_a_fifo_receipt_that_is_over_deletes_nothing(sqs: Any) -> None:
    url = make(sqs, FIFO)
    sqs.send_message(QueueUrl=url, MessageBody="x", MessageGroupId="g")
    [first] = take(sqs, url, VisibilityTimeout=0)
    [second] = take(sqs, url)

    late = refusal(sqs.delete_message, QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])

    assert late == ("InvalidParameterValue", 400)


def test_a_tenant_with_many_messages_does_not_delay_others(sqs: Any) -> None:
    url = make(sqs)
    for start in range(0, 60, 10):
        entries = [
            {"Id": str(n), "MessageBody": f"noisy {start + n}", "MessageGroupId": "noisy"} for n in range(10)
        ]
        sqs.send_message_batch(QueueUrl=url, Entries=entries)
    for tenant in ("quiet", "calm"):
        sqs.send_message(QueueUrl=url, MessageBody=tenant, MessageGroupId=tenant)

    early = take(sqs, url, 10) + take(sqs, url, 10, AttributeNames=["MessageGroupId"])

    assert {"quiet", "calm"} <= set(bodies(early))
    assert sum(body.startswith("noisy") for body in bodies(early)) == 18
    assert all("MessageGroupId" in each["Attributes"] for each in early[10:])


# Dead letters


def test_a_message_that_was_received_too_often_lies_in_the_dead_letter_queue(sqs: Any) -> None:
    url, dead = with_dead_letters(sqs, 2)
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="poison",
        MessageAttributes={"a": {"DataType": "Number", "StringValue": "1"}},
    )

    for _ in range(2):
        assert bodies(take(sqs, url, VisibilityTimeout=0)) == ["poison"]
    assert take(sqs, url) == []
    [letter] = take(sqs, dead, AttributeNames=["All"], MessageAttributeNames=["All"])

    assert letter["MessageId"] == sent["MessageId"]
    assert letter["MessageAttributes"] == {"a": {"DataType": "Number", "StringValue": "1"}}
    assert letter["Attributes"]["DeadLetterQueueSourceArn"] == arn_of(sqs, url)
    assert letter["Attributes"]["ApproximateReceiveCount"] == "3"


def test_dead_letters_go_back_or_elsewhere_on_request(sqs: Any) -> None:
    url, dead = with_dead_letters(sqs)
    elsewhere = make(sqs)

    def moved(body: str, **target: str) -> dict[str, Any]:
        sqs.send_message(QueueUrl=url, MessageBody=body)
        take(sqs, url, VisibilityTimeout=0)
        assert take(sqs, url) == []
        sqs.start_message_move_task(SourceArn=arn_of(sqs, dead), **target)
        newest: dict[str, Any] = {}

        def is_done() -> bool:
            newest.update(
                sqs.list_message_move_tasks(SourceArn=arn_of(sqs, dead), MaxResults=1)["Results"][0]
            )
            return bool(newest["Status"] != "RUNNING")

        until(is_done)
        return newest

    home = moved("home")
    assert home["Status"] == "COMPLETED"
    assert home["ApproximateNumberOfMessagesMoved"] == home["ApproximateNumberOfMessagesToMove"] == 1
    [back] = take(sqs, url, AttributeNames=["All"])
    assert back["Body"] == "home"
    assert back["Attributes"]["ApproximateReceiveCount"] == "1"
    assert "DeadLetterQueueSourceArn" not in back["Attributes"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=back["ReceiptHandle"])

    away = moved("away", DestinationArn=arn_of(sqs, elsewhere))
    assert away["DestinationArn"] == arn_of(sqs, elsewhere)
    assert bodies(take(sqs, elsewhere)) == ["away"]


def test_an_invalid_move_task_is_refused(sqs: Any) -> None:
    url, dead = with_dead_letters(sqs)
    start, arn = sqs.start_message_move_task, arn_of(sqs, dead)

    assert refusal(start, SourceArn=arn_of(sqs, url)) == ("InvalidParameterValue", 400)
    assert refusal(start, SourceArn=arn, MaxNumberOfMessagesPerSecond=501) == ("InvalidParameterValue", 400)
    assert refusal(start, SourceArn=arn, DestinationArn=arn) == ("InvalidParameterValue", 400)
    assert refusal(start, SourceArn=arn + "-none") == ("ResourceNotFoundException", 404)
    assert refusal(sqs.cancel_message_move_task, TaskHandle="none") == ("InvalidParameterValue", 400)


def test_a_dead_letter_queue_chooses_its_sources(sqs: Any) -> None:
    dead = make(sqs, {"RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"})})
    policy = json.dumps({"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": 1})

    assert refusal(make, sqs=sqs, attributes={"RedrivePolicy": policy}) == ("InvalidParameterValue", 400)
    sqs.set_queue_attributes(
        QueueUrl=dead, Attributes={"RedriveAllowPolicy": json.dumps({"redrivePermission": "allowAll"})}
    )
    make(sqs, {"RedrivePolicy": policy})


# Several accounts


@pytest.fixture
def other(sqs: Any) -> Iterator[Any]:
    """Another account, which has queues of its own."""
    protocol = sqs.meta.service_model.metadata["protocol"]
    client = boto.client(sqs.meta.endpoint_url, protocol=protocol, key="111122223333")
    yield client
    client.close()


def test_accounts_do_not_see_each_others_queues(sqs: Any, other: Any) -> None:
    name = fresh()
    mine = sqs.create_queue(QueueName=name)["QueueUrl"]
    theirs = other.create_queue(QueueName=name)["QueueUrl"]
    sqs.send_message(QueueUrl=mine, MessageBody="mine")

    assert theirs.endswith(f"/111122223333/{name}")
    assert arn_of(other, theirs) == f"arn:aws:sqs:us-east-1:111122223333:{name}"
    assert take(other, theirs) == []
    assert other.list_queues(QueueNamePrefix=name)["QueueUrls"] == [theirs]
    assert refusal(other.send_message, QueueUrl=mine, MessageBody="x") == ("AccessDenied", 403)
    assert refusal(other.receive_message, QueueUrl=mine) == ("AccessDenied", 403)
    assert refusal(other.delete_queue, QueueUrl=mine) == ("AccessDenied", 403)


def test_a_permission_lets_another_account_do_just_that(sqs: Any, other: Any) -> None:
    name = fresh()
    url = sqs.create_queue(QueueName=name)["QueueUrl"]

    actions = ["SendMessage", "GetQueueUrl"]
    sqs.add_permission(QueueUrl=url, Label="send", AWSAccountIds=["111122223333"], Actions=actions)

    assert other.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=boto.ACCOUNT)["QueueUrl"] == url
    other.send_message(QueueUrl=url, MessageBody="theirs")
    other.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "theirs too"}])
    assert refusal(other.receive_message, QueueUrl=url) == ("AccessDenied", 403)
    [first, _] = take(sqs, url, AttributeNames=["SenderId"])
    assert first["Attributes"]["SenderId"] == "111122223333"
    sqs.remove_permission(QueueUrl=url, Label="send")
    assert refusal(other.send_message, QueueUrl=url, MessageBody="x") == ("AccessDenied", 403)


def test_a_policy_decides_by_its_conditions_and_deny_wins(sqs: Any, other: Any) -> None:
    url = make(sqs)
    arn = arn_of(sqs, url)

    def allow(*statements: dict[str, Any]) -> None:
        policy = {"Version": "2012-10-17", "Statement": [{"Resource": arn, **each} for each in statements]}
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps(policy)})

    theirs = {"AWS": "arn:aws:iam::111122223333:root"}
    here = {"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}
    elsewhere = {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}

    allow({"Effect": "Allow", "Principal": theirs, "Action": "sqs:*", "Condition": here})
    other.send_message(QueueUrl=url, MessageBody="x")
    allow({"Effect": "Allow", "Principal": theirs, "Action": "sqs:*", "Condition": elsewhere})
    assert refusal(other.send_message, QueueUrl=url, MessageBody="x") == ("AccessDenied", 403)
    allow(
        {"Effect": "Allow", "Principal": "*", "Action": "sqs:*"},
        {"Effect": "Deny", "Principal": theirs, "Action": "sqs:SendMessage"},
    )
    assert bodies(take(other, url)) == ["x"]
    assert refusal(other.send_message, QueueUrl=url, MessageBody="x") == ("AccessDenied", 403)


# boto3's own conveniences


def test_errors_are_the_exceptions_that_boto3_has_for_them(server: Served) -> None:
    sqs = boto.client(server.url)
    refusals(sqs)
    sqs.close()


def test_the_resource_interface_works_from_name_to_deletion(server: Served) -> None:
    resource = boto.session().resource(
        "sqs", endpoint_url=server.url, aws_access_key_id="test", aws_secret_access_key="test"
    )
    name = fresh()

    queue = resource.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "9"})
    assert resource.get_queue_by_name(QueueName=name).url == queue.url
    assert [each.url for each in resource.queues.filter(QueueNamePrefix=name)] == [queue.url]
    assert queue.attributes["VisibilityTimeout"] == "9"
    queue.send_messages(Entries=[{"Id": str(n), "MessageBody": f"m{n}"} for n in range(3)])
    queue.send_message(MessageBody="m3", MessageAttributes={"a": {"DataType": "String", "StringValue": "b"}})
    messages = queue.receive_messages(MaxNumberOfMessages=10, MessageAttributeNames=["All"])
    assert [each.body for each in messages] == ["m0", "m1", "m2", "m3"]
    assert messages[3].message_attributes == {"a": {"DataType": "String", "StringValue": "b"}}
    messages[0].change_visibility(VisibilityTimeout=0)
    messages[1].delete()
    [again] = queue.receive_messages(MaxNumberOfMessages=10)
    assert again.body == "m0"
    gone = [
        {"Id": str(n), "ReceiptHandle": each.receipt_handle} for n, each in enumerate([again, messages[2]])
    ]
    assert len(queue.delete_messages(Entries=gone)["Successful"]) == 2
    queue.purge()
    queue.delete()
    assert list(resource.queues.filter(QueueNamePrefix=name)) == []
    resource.meta.client.close()


def test_one_queue_is_the_same_by_every_address_that_clients_build(server: Served) -> None:
    sqs = boto.client(server.url)
    name = fresh()
    sqs.create_queue(QueueName=name)
    path = f"{boto.ACCOUNT}/{name}"

    for url in (
        f"{server.url}/{path}",
        f"http://localhost:{server.port}/{path}",
        f"https://sqs.us-east-1.amazonaws.com/{path}",
        f"http://sqs.us-east-1.localhost.localstack.cloud:4566/{path}",
        f"http://queue.amazonaws.com/{path}",
    ):
        sqs.send_message(QueueUrl=url, MessageBody=url)
        assert bodies(take(sqs, url)) == [url]
    sqs.close()


def test_many_clients_at_once_get_every_message_once(server: Served) -> None:
    sqs = boto.client(server.url)
    url = make(sqs)
    wanted = {f"{worker}-{n}" for worker in range(4) for n in range(50)}
    sqs.close()

    def produce(worker: int) -> None:
        mine = boto.client(server.url)
        for start in range(0, 50, 10):
            entries = [{"Id": str(n), "MessageBody": f"{worker}-{start + n}"} for n in range(10)]
            assert len(mine.send_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 10
        mine.close()

    def consume() -> list[str]:
        mine = boto.client(server.url)
        got: list[str] = []
        while messages := take(mine, url, WaitTimeSeconds=2):
            got += bodies(messages)
            entries = [
                {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)
            ]
            assert len(mine.delete_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == len(
                messages
            )
        mine.close()
        return got

    with ThreadPoolExecutor(8) as pool:
        consumers = [pool.submit(consume) for _ in range(4)]
        for producer in [pool.submit(produce, worker) for worker in range(4)]:
            producer.result(60)
        got = [body for consumer in consumers for body in consumer.result(60)]

    assert sorted(got) == sorted(wanted)
