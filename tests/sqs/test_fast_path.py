"""The fast path gives the same replies as `messages.py`; `long` switches it off for a request."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config as BotoConfig
from botocore.exceptions import ClientError

from openq.auth.rules import Rule
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.server.http_request import HttpRequest
from tests.server.in_process import InProcessServer, in_process_server


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with in_process_server(LocalBroker(None), Config(memory=True, drain_timeout_s=1)) as server:
        yield server


def call(
    server: InProcessServer, action: str, members: dict[str, Any], long: bool
) -> tuple[int, dict[str, Any]]:
    handler = server.server.sqs
    fast_path = handler.fast_path
    if long:
        handler.fast_path = {}
    try:
        return request(server, action, members)
    finally:
        handler.fast_path = fast_path


def request(server: InProcessServer, action: str, members: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
    url = f"http://127.0.0.1:{server.port}/"
    asked = urllib.request.Request(url, json.dumps(members).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def url_of(server: InProcessServer, name: str, **attributes: str) -> str:
    made = call(server, "CreateQueue", {"QueueName": name, "Attributes": attributes}, False)[1]
    url: str = made["QueueUrl"]
    return url


def shape(value: Any) -> Any:
    """The answer without what is new in each: ids and receipts."""
    if isinstance(value, dict):
        return {
            key: "..." if key in ("MessageId", "ReceiptHandle") else shape(each)
            for key, each in value.items()
        }
    return [shape(each) for each in value] if isinstance(value, list) else value


BODIES = [
    "hello",
    "",
    'with "quotes" and \\ backslash',
    "line\nfeed\tand tab\r",
    "gr\u00fc\u00dfe \u4f60\u597d \U0001f600",
    "\x01",
    "\ufffe",
    "x" * 1000,
    "x" * 1024,
    "x" * 1025,
    "\u2028\x7f\x80",
]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_a_message_is_sent_and_received_alike(server: InProcessServer, body: str) -> None:
    url = url_of(server, "alike", MaximumMessageSize="1024")
    answers = []
    for long in (False, True):
        sent = call(server, "SendMessage", {"QueueUrl": url, "MessageBody": body}, long)
        received = call(server, "ReceiveMessage", {"QueueUrl": url}, long)
        answers.append([(status, shape(reply)) for status, reply in (sent, received)])
        for message in received[1].get("Messages", []):
            members = {"QueueUrl": url, "ReceiptHandle": message["ReceiptHandle"]}
            # The second time is late, and no error.
            answers[-1] += [call(server, "DeleteMessage", members, long) for _ in range(2)]

    assert answers[0] == answers[1]


BATCHES: list[list[dict[str, Any]]] = [
    [{"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "two"}],
    [{"Id": "a", "MessageBody": "one"}, {"Id": "a", "MessageBody": "two"}],
    [{"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "\x01"}],
    [{"Id": "a", "MessageBody": "one"}, {"Id": "b", "MessageBody": "x" * 2000}],
    [{"Id": "no id!", "MessageBody": "one"}],
    [{"Id": "a", "MessageBody": ""}],
    [{"Id": "a"}],
    [{"Id": str(i), "MessageBody": "x"} for i in range(10)],
    [{"Id": str(i), "MessageBody": "x"} for i in range(11)],
    [],
]


@pytest.mark.parametrize("entries", BATCHES, ids=range(len(BATCHES)))
def test_a_batch_is_sent_received_and_deleted_alike(
    server: InProcessServer, entries: list[dict[str, Any]]
) -> None:
    url = url_of(server, "batches", MaximumMessageSize="1024")
    answers = []
    for long in (False, True):
        sent = call(server, "SendMessageBatch", {"QueueUrl": url, "Entries": entries}, long)
        received = call(server, "ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": 10}, long)
        handles = [each["ReceiptHandle"] for each in received[1].get("Messages", [])]
        deletes = [{"Id": str(i), "ReceiptHandle": handle} for i, handle in enumerate(handles)]
        deleted = call(server, "DeleteMessageBatch", {"QueueUrl": url, "Entries": deletes}, long)
        again = call(server, "DeleteMessageBatch", {"QueueUrl": url, "Entries": deletes}, long)
        answers.append([(status, shape(reply)) for status, reply in (sent, received, deleted, again)])

    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    "handle", ["x", "0" * 40, "z" * 40, "\u0661" * 40, "0x" + "0" * 38, " " * 40, "1_" * 20, "-" + "1" * 39]
)
def test_a_handle_that_is_none_is_refused_alike(server: InProcessServer, handle: str) -> None:
    url = url_of(server, "handles")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handle}),
        ("DeleteMessageBatch", {"QueueUrl": url, "Entries": [{"Id": "a", "ReceiptHandle": handle}]}),
    ]
    for action, members in calls:
        assert call(server, action, members, False) == call(server, action, members, True)


@pytest.mark.parametrize(
    "members",
    [
        {"MaxNumberOfMessages": 0},
        {"MaxNumberOfMessages": 11},
        {"WaitTimeSeconds": 21},
        {"WaitTimeSeconds": -1},
        {"VisibilityTimeout": 43201},
        {"VisibilityTimeout": -1},
        {"VisibilityTimeout": "5"},
        {"MaxNumberOfMessages": None},
        {"MaxNumberOfMessages": 1.5},
        {"QueueUrl": "http://127.0.0.1/000000000000/nowhere"},
        {"QueueUrl": None},
    ],
)
def test_a_receive_that_cannot_be_is_refused_alike(server: InProcessServer, members: dict[str, Any]) -> None:
    members = {"QueueUrl": url_of(server, "receives"), **members}

    assert call(server, "ReceiveMessage", members, False) == call(server, "ReceiveMessage", members, True)


def test_a_queue_that_was_made_anew_is_another_one(server: InProcessServer) -> None:
    url = url_of(server, "anew")
    call(server, "SendMessage", {"QueueUrl": url, "MessageBody": "old"}, False)
    call(server, "DeleteQueue", {"QueueUrl": url}, False)

    status, refused = call(server, "SendMessage", {"QueueUrl": url, "MessageBody": "lost"}, False)

    assert status == 400
    assert refused["__type"].endswith("QueueDoesNotExist")


@pytest.mark.parametrize("id", ['a"b', 'x"},{"MessageId":"y', "back\\slash", "\u4f60"])
def test_an_id_of_a_publisher_is_shown_alike_and_breaks_nothing(server: InProcessServer, id: str) -> None:
    url = url_of(server, "chosen")
    for long in (False, True):
        message = json.dumps({"payload": "x", "id": id}).encode()
        headers = {"Content-Type": "application/json"}
        publish = urllib.request.Request(
            f"http://127.0.0.1:{server.port}/api/v1/queues/chosen/messages", message, headers
        )
        with urllib.request.urlopen(publish, timeout=30) as answer:
            assert answer.status == 201
        status, received = call(server, "ReceiveMessage", {"QueueUrl": url}, long)
        assert status == 200
        assert [each["MessageId"] for each in received["Messages"]] == [id]
        deletes = [{"Id": "a", "ReceiptHandle": received["Messages"][0]["ReceiptHandle"]}]
        call(server, "DeleteMessageBatch", {"QueueUrl": url, "Entries": deletes}, long)


def test_an_id_that_only_begins_like_ours_is_answered(server: InProcessServer) -> None:
    url = url_of(server, "like.fifo", FifoQueue="true")
    sent = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    prefix = call(server, "SendMessage", sent, False)[1]["MessageId"][:-12]
    message = json.dumps({"payload": "y", "id": f"{prefix}zz", "group": "h"}).encode()
    publish = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/api/v1/queues/like.fifo/messages",
        message,
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(publish, timeout=30) as answer:
        assert answer.status == 201

    wanted = {"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": ["All"], "WaitTimeSeconds": 1}
    status, received = call(server, "ReceiveMessage", wanted, True)

    assert status == 200
    assert len(received["Messages"]) == 2
    assert f"{prefix}zz" in {each["MessageId"] for each in received["Messages"]}


def client_of(server: InProcessServer, user: str) -> Any:
    key = server.server.store.create_key(user)
    return boto3.client(
        "sqs",
        endpoint_url=f"http://127.0.0.1:{server.port}",
        region_name="us-east-1",
        aws_access_key_id=key.id,
        aws_secret_access_key=key.secret,
        config=BotoConfig(retries={"total_max_attempts": 1}),
    )


def test_a_user_sends_alike_and_only_while_it_may() -> None:
    config = Config(memory=True, drain_timeout_s=1)
    with in_process_server(LocalBroker(None), config) as server:
        store = server.server.store
        store.add_user("root", role="admin", is_root=True)
        store.add_user("ann", rules=[Rule("allow", frozenset(["send", "receive", "peek"]), "jobs*")])
        root, ann = client_of(server, "root"), client_of(server, "ann")
        handler = server.server.sqs
        fast_path, seen = handler.fast_path, []

        def counted(action: Any) -> Any:
            def run(request: HttpRequest, *rest: Any) -> bool:
                taken: bool = action(request, *rest)
                seen.append((request.user, taken))
                return taken

            return run

        url = root.create_queue(QueueName="jobs")["QueueUrl"]
        other = root.create_queue(QueueName="other")["QueueUrl"]
        shown = []
        for path in ({}, {name: counted(action) for name, action in fast_path.items()}):
            handler.fast_path = path
            ann.send_message(QueueUrl=url, MessageBody="one")
            ann.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "two"}])
            received = ann.receive_message(QueueUrl=url, MaxNumberOfMessages=10, AttributeNames=["SenderId"])
            messages = received["Messages"]
            shown.append([(each["Body"], each["Attributes"]) for each in messages])
            ann.delete_message(QueueUrl=url, ReceiptHandle=messages[0]["ReceiptHandle"])
            rest = [{"Id": "a", "ReceiptHandle": messages[1]["ReceiptHandle"]}]
            ann.delete_message_batch(QueueUrl=url, Entries=rest)
        assert shown[0] == shown[1] == [("one", {"SenderId": "ann"}), ("two", {"SenderId": "ann"})]
        # The receive asks for attributes, and is left to the slow path.
        assert seen == [("ann", True), ("ann", True), ("ann", False), ("ann", True), ("ann", True)]

        def is_refused(client: Any, url: str) -> bool:
            try:
                client.send_message(QueueUrl=url, MessageBody="no")
            except ClientError as error:
                return error.response["Error"]["Code"] in ("AccessDenied", "AccessDeniedException")
            return False

        root.send_message(QueueUrl=other, MessageBody="known to the fast path")
        assert is_refused(ann, other)
        store.set_rules("ann", [Rule("allow", frozenset(["receive"]), "jobs*")])
        assert is_refused(ann, url)
        store.set_rules("ann", [Rule("allow", frozenset(["send"]), "jobs*")])
        assert not is_refused(ann, url)
        deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
        root.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})
        assert is_refused(ann, url)
