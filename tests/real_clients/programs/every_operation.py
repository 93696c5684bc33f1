"""Every operation of SQS at least once, through any boto3, old or new.

Runs by itself in an environment that has boto3 (the server comes from the usual variables) and prints the
wire format that was spoken. Tests import `walk`, too.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import Any


def walk(sqs: Any) -> set[str]:
    """The operations that were called; all answers were right."""
    called: set[str] = set()
    sqs.meta.events.register("before-call.sqs", lambda model, **_: called.add(model.name))
    name = f"walk-{uuid.uuid4().hex}"
    queues(sqs, name)
    messages(sqs, sqs.create_queue(QueueName=f"{name}-messages")["QueueUrl"])
    batches(sqs, sqs.create_queue(QueueName=f"{name}-batches")["QueueUrl"])
    dead_letters(sqs, name)
    return called


def arn_of(sqs: Any, url: str) -> str:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
    arn: str = found["Attributes"]["QueueArn"]
    return arn


def queues(sqs: Any, name: str) -> None:
    url = sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "7"}, tags={"a": "1", "b": "2"})[
        "QueueUrl"
    ]
    assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
    assert sqs.list_queues(QueueNamePrefix=name)["QueueUrls"] == [url]
    assert sqs.list_queues(QueueNamePrefix=name, MaxResults=1).get("NextToken") is None

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "3", "MessageRetentionPeriod": "3600"})
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (shown["VisibilityTimeout"], shown["DelaySeconds"]) == ("7", "3"), shown
    assert shown["MessageRetentionPeriod"] == "3600", shown
    assert shown["QueueArn"].endswith(f":{name}"), shown

    sqs.tag_queue(QueueUrl=url, Tags={"c": "", "a": "one & <two>"})
    sqs.untag_queue(QueueUrl=url, TagKeys=["b"])
    assert sqs.list_queue_tags(QueueUrl=url)["Tags"] == {"a": "one & <two>", "c": ""}

    sqs.add_permission(
        QueueUrl=url,
        Label="theirs",
        AWSAccountIds=["111111111111"],
        Actions=["SendMessage", "ReceiveMessage"],
    )
    policy = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    [statement] = json.loads(policy)["Statement"]
    assert (statement["Sid"], statement["Effect"]) == ("theirs", "Allow"), policy
    assert sorted(statement["Action"]) == ["SQS:ReceiveMessage", "SQS:SendMessage"], policy
    sqs.remove_permission(QueueUrl=url, Label="theirs")
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])

    sqs.purge_queue(QueueUrl=url)
    sqs.delete_queue(QueueUrl=url)
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix=name)


def messages(sqs: Any, url: str) -> None:
    attributes = {
        "text": {"DataType": "String", "StringValue": "über <all> & \U0001f600"},
        "number": {"DataType": "Number", "StringValue": "1.50"},
        "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "custom": {"DataType": "String.uuid", "StringValue": "none"},
    }
    trace = "Root=1-5759e988-bd862e3fe1be46a994272793"
    sent = sqs.send_message(
        QueueUrl=url,
        MessageBody="a body\r\n\twith <marks> & \U0001f600",
        MessageAttributes=attributes,
        MessageSystemAttributes={"AWSTraceHeader": {"DataType": "String", "StringValue": trace}},
    )
    [got] = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], MessageAttributeNames=["All"])[
        "Messages"
    ]
    assert got["MessageId"] == sent["MessageId"]
    assert got["Body"] == "a body\r\n\twith <marks> & \U0001f600", got
    assert got["MD5OfBody"] == sent["MD5OfMessageBody"]
    assert got["MessageAttributes"] == attributes, got
    assert got["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"]
    assert got["Attributes"]["ApproximateReceiveCount"] == "1", got
    assert got["Attributes"]["AWSTraceHeader"] == trace, got

    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    [again] = sqs.receive_message(QueueUrl=url, AttributeNames=["ApproximateReceiveCount"])["Messages"]
    assert again["Attributes"] == {"ApproximateReceiveCount": "2"}, again
    sqs.delete_message(QueueUrl=url, ReceiptHandle=again["ReceiptHandle"])
    counts = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert counts["ApproximateNumberOfMessages"] == counts["ApproximateNumberOfMessagesNotVisible"] == "0"


def batches(sqs: Any, url: str) -> None:
    entries = [{"Id": f"e{n}", "MessageBody": f"m{n}"} for n in range(10)]
    sent = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in sent["Successful"]] == [entry["Id"] for entry in entries]
    got = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    assert sorted(each["Body"] for each in got) == sorted(entry["MessageBody"] for entry in entries)
    held = [{"Id": f"h{n}", "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(got)]
    changed = sqs.change_message_visibility_batch(
        QueueUrl=url, Entries=[{**each, "VisibilityTimeout": 60} for each in held]
    )
    assert len(changed["Successful"]) == 10, changed
    deleted = sqs.delete_message_batch(
        QueueUrl=url, Entries=[*held[:9], {"Id": "bad", "ReceiptHandle": "none"}]
    )
    assert [each["Id"] for each in deleted["Successful"]] == [each["Id"] for each in held[:9]]
    [failed] = deleted["Failed"]
    assert (failed["Id"], failed["Code"], failed["SenderFault"]) == ("bad", "ReceiptHandleIsInvalid", True)


def dead_letters(sqs: Any, name: str) -> None:
    dead = sqs.create_queue(QueueName=f"{name}-dead")["QueueUrl"]
    dead_arn = arn_of(sqs, dead)
    policy = {"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1}
    url = sqs.create_queue(QueueName=f"{name}-live", Attributes={"RedrivePolicy": json.dumps(policy)})[
        "QueueUrl"
    ]
    assert sqs.list_dead_letter_source_queues(QueueUrl=dead)["queueUrls"] == [url]

    for number in range(3):
        sqs.send_message(QueueUrl=url, MessageBody=f"poison {number}")
    sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    slow = sqs.start_message_move_task(SourceArn=dead_arn, MaxNumberOfMessagesPerSecond=1)["TaskHandle"]
    [running] = sqs.list_message_move_tasks(SourceArn=dead_arn)["Results"]
    assert (running["Status"], running["TaskHandle"]) == ("RUNNING", slow), running
    assert "ApproximateNumberOfMessagesMoved" in sqs.cancel_message_move_task(TaskHandle=slow)
    ended(sqs, dead_arn, "CANCELLED")

    sqs.start_message_move_task(SourceArn=dead_arn)
    ended(sqs, dead_arn, "COMPLETED")
    back = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=5)["Messages"]
    assert {each["Body"] for each in back} == {"poison 0", "poison 1", "poison 2"}


def ended(sqs: Any, arn: str, how: str) -> None:
    end = time.monotonic() + 30
    while (newest := sqs.list_message_move_tasks(SourceArn=arn)["Results"][0])["Status"] != how:
        assert time.monotonic() < end, newest
        time.sleep(0.05)
    assert "TaskHandle" not in newest, newest
    assert newest["SourceArn"] == arn, newest


def refusals(sqs: Any) -> None:
    """What SQS refuses are the exceptions that boto3 has for it."""
    url = sqs.create_queue(QueueName=f"walk-{uuid.uuid4().hex}")["QueueUrl"]
    known = sqs.exceptions
    for expected, call, arguments in (
        (known.QueueDoesNotExist, sqs.get_queue_url, {"QueueName": "none"}),
        (known.ReceiptHandleIsInvalid, sqs.delete_message, {"QueueUrl": url, "ReceiptHandle": "none"}),
        (known.EmptyBatchRequest, sqs.send_message_batch, {"QueueUrl": url, "Entries": []}),
        (known.InvalidMessageContents, sqs.send_message, {"QueueUrl": url, "MessageBody": "\x01"}),
        (known.InvalidAttributeName, sqs.set_queue_attributes, {"QueueUrl": url, "Attributes": {"No": "1"}}),
        (known.ResourceNotFoundException, sqs.list_message_move_tasks, {"SourceArn": arn_of(sqs, url) + "0"}),
    ):
        try:
            call(**arguments)
        except expected:
            continue
        raise AssertionError(f"{call.__name__} should raise {expected.__name__}")


def main() -> None:
    import boto3

    sqs = boto3.client("sqs")
    refusals(sqs)
    operations = set(sqs.meta.service_model.operation_names)
    called = walk(sqs)
    assert called == operations, operations - called
    print(sqs.meta.service_model.metadata["protocol"], len(called))


if __name__ == "__main__":
    main()
