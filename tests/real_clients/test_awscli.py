"""The AWS CLI, as scripts and people at a terminal use it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.real_clients.boto import fresh
from tests.real_clients.environments import aws_environment, python_with
from tests.serving import Served

CALL_S = 60


@pytest.fixture(scope="module")
def cli() -> Path:
    return python_with("awscli", "awscli>=1.42").with_name("aws")


@pytest.fixture
def aws(server: Served, cli: Path) -> Callable[..., Any]:
    """Runs `aws sqs ...`: its output, or what it says when it must fail."""
    environment = aws_environment(server.url, AWS_MAX_ATTEMPTS="1", AWS_PAGER="")

    def call(*arguments: str, fails: bool = False) -> Any:
        done = subprocess.run(
            [str(cli), "sqs", *arguments, "--endpoint-url", server.url, "--output", "json"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_S,
        )
        assert (done.returncode != 0) is fails, done.stderr
        if fails:
            return done.stderr
        return json.loads(done.stdout) if done.stdout.strip() else {}

    return call


def test_a_message_goes_from_one_command_to_the_next(aws: Callable[..., Any]) -> None:
    name = fresh()
    url = aws("create-queue", "--queue-name", name, "--attributes", "VisibilityTimeout=7", "--tags", "a=1")[
        "QueueUrl"
    ]
    attributes = {"k": {"DataType": "String", "StringValue": "v"}}

    sent = aws(
        *("send-message", "--queue-url", url, "--message-body", "hello ü"),
        *("--message-attributes", json.dumps(attributes)),
    )
    [got] = aws(
        *("receive-message", "--queue-url", url, "--wait-time-seconds", "1"),
        *("--message-attribute-names", "All", "--message-system-attribute-names", "All"),
    )["Messages"]
    aws("delete-message", "--queue-url", url, "--receipt-handle", got["ReceiptHandle"])
    shown = aws("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]

    assert (got["Body"], got["MessageId"]) == ("hello ü", sent["MessageId"])
    assert got["MessageAttributes"] == attributes
    assert got["Attributes"]["ApproximateReceiveCount"] == "1"
    assert (shown["VisibilityTimeout"], shown["ApproximateNumberOfMessages"]) == ("7", "0")
    assert shown["QueueArn"] == f"arn:aws:sqs:us-east-1:000000000000:{name}"
    assert aws("list-queues", "--queue-name-prefix", name)["QueueUrls"] == [url]


def test_a_fifo_queue_and_its_dead_letters_can_be_run_from_the_command_line(aws: Callable[..., Any]) -> None:
    fifo = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}

    def make(**more: str) -> str:
        attributes = json.dumps({**fifo, **more})
        made = aws("create-queue", "--queue-name", fresh(".fifo"), "--attributes", attributes)
        url: str = made["QueueUrl"]
        return url

    dead = make()
    found = aws("get-queue-attributes", "--queue-url", dead, "--attribute-names", "QueueArn")
    arn = found["Attributes"]["QueueArn"]
    url = make(RedrivePolicy=json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"}))
    entries = [{"Id": str(n), "MessageBody": f"m{n % 2}", "MessageGroupId": "g"} for n in range(4)]

    aws("send-message-batch", "--queue-url", url, "--entries", json.dumps(entries))
    receive = ("receive-message", "--queue-url", url, "--max-number-of-messages", "10")
    first = aws(*receive, "--visibility-timeout", "0")["Messages"]
    assert [each["Body"] for each in first] == ["m0", "m1"]
    assert aws(*receive) == {}
    aws("start-message-move-task", "--source-arn", arn)
    back = aws(*receive, "--wait-time-seconds", "10")["Messages"]
    [task] = aws("list-message-move-tasks", "--source-arn", arn)["Results"]

    assert back[0]["Body"] == "m0"
    assert task["SourceArn"] == arn


def test_a_refusal_shows_the_code_that_sqs_gives_it(aws: Callable[..., Any]) -> None:
    said = aws("get-queue-url", "--queue-name", fresh(), fails=True)

    assert "(AWS.SimpleQueueService.NonExistentQueue)" in said
    assert "The specified queue does not exist." in said
