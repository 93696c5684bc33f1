"""boto3 for the tests: in either wire format, as any account, and never with what this machine has set up."""

from __future__ import annotations

import json
import uuid
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.loaders import Loader

from tests.sqs.model import QUERY

ACCOUNT = "000000000000"
REGION = "us-east-1"
# One attempt: what a server refuses must not be hidden by a second try.
CONFIG = Config(retries={"total_max_attempts": 1}, connect_timeout=10, read_timeout=60)


class QueryLoader(Loader):
    """Gives botocore a model of SQS from the time when SQS spoke Query."""

    def load_service_model(self, service_name: str, type_name: str, api_version: str | None = None) -> Any:
        if (service_name, type_name) == ("sqs", "service-2"):
            return QUERY._service_description
        return super().load_service_model(service_name, type_name, api_version)


def session(protocol: str = "json") -> boto3.Session:
    core = botocore.session.Session()
    if protocol == "query":
        core.register_component("data_loader", QueryLoader())
    return boto3.Session(botocore_session=core, region_name=REGION)


def client(
    url: str,
    *,
    protocol: str = "json",
    key: str = "test",
    secret: str = "test",
    token: str | None = None,
    config: Config = CONFIG,
    region: str = REGION,
) -> Any:
    """An SQS client. On a server without users the key may be the number of an account."""
    return session(protocol).client(
        "sqs",
        region_name=region,
        endpoint_url=url,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=config,
    )


def fresh(suffix: str = "") -> str:
    """A name that no other test uses."""
    return f"t-{uuid.uuid4().hex}{suffix}"


def make(sqs: Any, attributes: dict[str, str] | None = None, **more: Any) -> str:
    """A new queue; FIFO if the attributes say so."""
    name = fresh(".fifo" if attributes and "FifoQueue" in attributes else "")
    url: str = sqs.create_queue(QueueName=name, Attributes=attributes or {}, **more)["QueueUrl"]
    return url


def arn_of(sqs: Any, url: str) -> str:
    arn: str = attributes_of(sqs, url, "QueueArn")["QueueArn"]
    return arn


def attributes_of(sqs: Any, url: str, *names: str) -> dict[str, str]:
    answer = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=list(names or ["All"]))
    found: dict[str, str] = answer.get("Attributes", {})
    return found


def take(sqs: Any, url: str, count: int = 10, **more: Any) -> list[dict[str, Any]]:
    """What one receive gives at once."""
    answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=count, **more)
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["Body"] for message in messages]


def with_dead_letters(sqs: Any, most: int = 1, **attributes: str) -> tuple[str, str]:
    """A queue, and the one that gets what was received `most` times."""
    dead = make(sqs, attributes or None)
    policy = {"deadLetterTargetArn": arn_of(sqs, dead), "maxReceiveCount": most}
    return make(sqs, {**attributes, "RedrivePolicy": json.dumps(policy)}), dead
