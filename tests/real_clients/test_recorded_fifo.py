"""FIFO queues, deduplication and receipts as recorded from Amazon SQS, over both wire formats."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.real_clients import boto
from tests.serving import Served

FIFO = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
PER_GROUP = {"DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId"}
PER_QUEUE = {"FifoThroughputLimit": "perQueue", "DeduplicationScope": "queue"}


@pytest.fixture(scope="module", params=["json", "query"])
def sqs(request: pytest.FixtureRequest, server: Served) -> Iterator[Any]:
    client = boto.client(server.url, protocol=request.param)
    yield client
    client.close()


def made(sqs: Any, attributes: dict[str, str] | None = None) -> str:
    name = boto.fresh(".fifo" if attributes else "")
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes or {})["QueueUrl"]
    return url


def send(sqs: Any, url: str, *bodies: str, **options: Any) -> list[dict[str, Any]]:
    """The group of a message is the first letter of its body."""
    return [
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=body[0], **options) for body in bodies
    ]


def take(sqs: Any, url: str, most: int = 10, **options: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=most, AttributeNames=["All"], **options
    ).get("Messages", [])
    return found


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def change(sqs: Any, url: str, message: dict[str, Any], seconds: int) -> None:
    handle = message["ReceiptHandle"]
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)


def delete(sqs: Any, url: str, *messages: dict[str, Any]) -> None:
    for message in messages:
        sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def refused(act: Any, *args: Any, **members: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        act(*args, **members)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


# -- hand-out -----------------------------------------------------------------------------------


def test_each_of_ten_consumers_gets_a_group_of_its_own(sqs: Any) -> None:
    url = made(sqs, FIFO)
    groups = "abcdefghij"
    for n in range(10):
        batch = [{"Id": g, "MessageBody": f"{g}{n}", "MessageGroupId": g} for g in groups]
        sqs.send_message_batch(QueueUrl=url, Entries=batch)

    received = [bodies(take(sqs, url)) for _ in groups]

    assert received == [[f"{group}{n}" for n in range(10)] for group in groups]
    assert take(sqs, url) == []


def test_a_message_given_back_is_there_while_a_later_one_is_in_flight(sqs: Any) -> None:
    url = made(sqs, FIFO)
    send(sqs, url, "a1", "a2", "b1")
    first, second = take(sqs, url, 2)

    change(sqs, url, first, 0)

    again = take(sqs, url, 3)
    assert bodies(again) == ["b1", "a1"]
    delete(sqs, url, again[1])
    send(sqs, url, "a3")
    assert take(sqs, url) == []
    delete(sqs, url, second)
    assert bodies(take(sqs, url)) == ["a3"]


def test_groups_that_were_served_go_behind_the_others(sqs: Any) -> None:
    url = made(sqs, FIFO)
    send(sqs, url, "a1", "b1", "b2", "c1", "a2")

    assert bodies(take(sqs, url, 3, VisibilityTimeout=0)) == ["a1", "a2", "b1"]
    assert bodies(take(sqs, url, VisibilityTimeout=0)) == ["c1", "a1", "a2", "b1", "b2"]


def test_a_receive_attempt_gets_its_messages_again_unless_one_was_changed(sqs: Any) -> None:
    url = made(sqs, FIFO)
    send(sqs, url, "a1", "b1", "a2", "b2", "c1")

    first = take(sqs, url, 3, ReceiveRequestAttemptId="one")
    assert bodies(first) == ["a1", "a2", "b1"]
    assert bodies(take(sqs, url, 3, ReceiveRequestAttemptId="one")) == ["a1", "a2", "b1"]
    assert bodies(take(sqs, url, 3, ReceiveRequestAttemptId="two")) == ["c1"]

    change(sqs, url, first[0], 600)
    assert take(sqs, url, 3, ReceiveRequestAttemptId="one") == []


# -- deduplication ------------------------------------------------------------------------------


def test_a_purge_forgets_deduplication_ids(sqs: Any) -> None:
    url = made(sqs, {"FifoQueue": "true"})
    send(sqs, url, "g1", MessageDeduplicationId="id")

    sqs.purge_queue(QueueUrl=url)

    send(sqs, url, "g2", MessageDeduplicationId="id")
    assert bodies(take(sqs, url)) == ["g2"]


@pytest.mark.parametrize(
    ("before", "after", "arrive"), [(PER_QUEUE, PER_GROUP, 1), (PER_GROUP, PER_QUEUE, 2)]
)
def test_a_queue_deduplicates_in_the_scope_it_was_created_with(
    sqs: Any, before: dict[str, str], after: dict[str, str], arrive: int
) -> None:
    url = made(sqs, {"FifoQueue": "true", **before})

    sqs.set_queue_attributes(QueueUrl=url, Attributes=after)

    shown = sqs.get_queue_attributes(
        QueueUrl=url, AttributeNames=["DeduplicationScope", "FifoThroughputLimit"]
    )
    assert shown["Attributes"] == after
    send(sqs, url, "a", "b", MessageDeduplicationId="same")
    assert len(take(sqs, url)) == arrive


def test_content_based_deduplication_follows_the_queue_setting(sqs: Any) -> None:
    url = made(sqs, FIFO)
    send(sqs, url, "a", "a")

    sqs.set_queue_attributes(QueueUrl=url, Attributes={"ContentBasedDeduplication": "false"})

    assert refused(send, sqs, url, "a")[0] == "InvalidParameterValue"
    send(sqs, url, "a", MessageDeduplicationId="own")
    assert bodies(take(sqs, url)) == ["a", "a"]


# -- sequence numbers ---------------------------------------------------------------------------


def test_sequence_numbers_have_twenty_digits_and_are_the_position_everywhere(
    sqs: Any, server: Served
) -> None:
    url = made(sqs, FIFO)
    sent = [each["SequenceNumber"] for each in send(sqs, url, "a", "b", "aa")]
    received = take(sqs, url)

    assert sent == sorted(sent)
    assert all(len(number) == 20 and number.startswith("188") for number in sent)
    assert sorted(each["Attributes"]["SequenceNumber"] for each in received) == sent
    name = url.rsplit("/", 1)[1]
    with urllib.request.urlopen(
        f"{server.url}/api/v1/queues/{name}/messages/{received[0]['MessageId']}"
    ) as answer:
        shown = json.load(answer)
    assert int(received[0]["Attributes"]["SequenceNumber"]) == 18_800_000_000_000_000_000 + shown["position"]


def test_a_dead_letter_has_a_sequence_number_and_a_deduplication_id_of_its_new_queue(sqs: Any) -> None:
    dead = made(sqs, FIFO)
    arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    url = made(sqs, {**FIFO, "RedrivePolicy": policy})
    send(sqs, url, "a")
    send(sqs, dead, "a0")

    take(sqs, url, VisibilityTimeout=0)
    assert take(sqs, url) == []

    found = take(sqs, dead)
    assert bodies(found) == ["a0", "a"]
    assert found[1]["Attributes"]["MessageDeduplicationId"] == found[1]["MessageId"]
    numbers = [each["Attributes"]["SequenceNumber"] for each in found]
    assert numbers == sorted(numbers)


# -- receipts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attributes", [None, FIFO])
def test_the_visibility_of_a_message_can_be_changed_when_its_lease_is_over(
    sqs: Any, attributes: dict[str, str] | None
) -> None:
    url = made(sqs, attributes)
    send(sqs, url, "a")
    [first] = take(sqs, url, VisibilityTimeout=0)

    change(sqs, url, first, 600)

    assert take(sqs, url) == []
    change(sqs, url, first, 0)
    [second] = take(sqs, url)
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    if attributes:
        assert refused(change, sqs, url, first, 600)[0].endswith("MessageNotInflight")


def test_an_older_receipt_can_only_extend_the_current_lease(sqs: Any, server: Served) -> None:
    url = made(sqs)
    send(sqs, url, "a")
    [older] = take(sqs, url, VisibilityTimeout=0)
    [held] = take(sqs, url, VisibilityTimeout=600)

    def deadline() -> str:
        path = f"/api/v1/queues/{url.rpartition('/')[2]}/messages?state=in_flight"
        with urllib.request.urlopen(server.url + path, timeout=30) as answer:
            [message] = json.load(answer)["messages"]
        return str(message["deadline"])

    first = deadline()
    for seconds in (0, 30):
        change(sqs, url, older, seconds)
    delete(sqs, url, older)
    assert (deadline(), take(sqs, url)) == (first, [])

    change(sqs, url, older, 3600)
    assert deadline() > first
    change(sqs, url, held, 0)
    assert bodies(take(sqs, url)) == ["a"]


def test_an_expired_receipt_deletes_from_a_standard_queue_only(sqs: Any) -> None:
    standard, fifo = made(sqs), made(sqs, FIFO)
    for url in (standard, fifo):
        send(sqs, url, "a")
    [late] = take(sqs, standard, VisibilityTimeout=0)
    [expired] = take(sqs, fifo, VisibilityTimeout=0)

    delete(sqs, standard, late)
    code, text = refused(delete, sqs, fifo, expired)

    assert take(sqs, standard) == []
    assert bodies(take(sqs, fifo)) == ["a"]
    assert code == "InvalidParameterValue"
    assert text.endswith("The receipt handle has expired.")
