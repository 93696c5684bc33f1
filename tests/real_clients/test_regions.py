"""One server, several regions: boto3 clients that differ in nothing but their region."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest
from botocore.exceptions import ClientError

from tests.real_clients import boto
from tests.serving import Served, served, served_amqp
from tests.waiting import until

WEST = "eu-west-1"
NAMESPACE = f"{WEST}.{boto.ACCOUNT}"


class Regional:
    """A server, its AMQP port, and a client in each of two regions."""

    def __init__(self, server: Served, amqp_port: int, protocol: str) -> None:
        self.server = server
        self.amqp_port = amqp_port
        self.own = boto.client(server.url, protocol=protocol)
        self.west = boto.client(server.url, protocol=protocol, region=WEST)

    def close(self) -> None:
        self.own.close()
        self.west.close()

    def rest(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.server.url}/api/v1/{path}", timeout=30) as answer:
            return json.loads(answer.read())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, int]]:
    data: Path = tmp_path_factory.mktemp("regions")
    with served_amqp(data) as found:
        yield found


@pytest.fixture(params=["json", "query"])
def regional(request: pytest.FixtureRequest, running: tuple[Served, int]) -> Iterator[Regional]:
    found = Regional(*running, request.param)
    yield found
    found.close()


def bodies(sqs: Any, url: str, **more: Any) -> list[str]:
    found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **more).get("Messages", [])
    if found:
        entries = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)]
        assert "Failed" not in sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    return [each["Body"] for each in found]


def test_a_queue_is_known_in_its_region_only(regional: Regional) -> None:
    name = boto.fresh()
    own, west = (sqs.create_queue(QueueName=name)["QueueUrl"] for sqs in (regional.own, regional.west))

    assert own != west
    assert WEST in west
    assert regional.own.get_queue_url(QueueName=name)["QueueUrl"] == own
    assert regional.west.get_queue_url(QueueName=name)["QueueUrl"] == west
    assert west in regional.west.list_queues()["QueueUrls"]
    assert west not in regional.own.list_queues()["QueueUrls"]
    assert own not in regional.west.list_queues()["QueueUrls"]
    regional.own.delete_queue(QueueUrl=own)
    assert regional.west.get_queue_url(QueueName=name)["QueueUrl"] == west


@pytest.mark.parametrize(
    "more", [{}, {"VisibilityTimeout": 20, "AttributeNames": ["All"]}], ids=["fast", "slow"]
)
def test_messages_stay_in_their_region(regional: Regional, more: dict[str, Any]) -> None:
    name = boto.fresh()
    own, west = (sqs.create_queue(QueueName=name)["QueueUrl"] for sqs in (regional.own, regional.west))

    regional.west.send_message(QueueUrl=west, MessageBody="one")
    regional.west.send_message_batch(QueueUrl=west, Entries=[{"Id": "a", "MessageBody": "two"}])

    assert bodies(regional.own, own, **more) == []
    assert bodies(regional.west, west, **more) == ["one", "two"]
    regional.own.send_message(QueueUrl=west, MessageBody="by its URL")
    assert bodies(regional.west, west, **more) == ["by its URL"]


@pytest.mark.parametrize("more", [{}, {"AttributeNames": ["All"]}], ids=["fast", "slow"])
def test_a_url_without_a_region_is_of_the_callers_as_soon_as_it_has_one(
    regional: Regional, more: dict[str, Any]
) -> None:
    name = boto.fresh()
    own = regional.own.create_queue(QueueName=name)["QueueUrl"]

    regional.west.send_message(QueueUrl=own, MessageBody="to the one there is")
    assert bodies(regional.own, own, **more) == ["to the one there is"]
    regional.west.create_queue(QueueName=name)
    regional.west.send_message(QueueUrl=own, MessageBody="to the caller's own")
    assert bodies(regional.own, own, **more) == []
    assert bodies(regional.west, own, **more) == ["to the caller's own"]


def test_a_malformed_url_touches_no_queue(regional: Regional) -> None:
    name = boto.fresh()
    urls = [sqs.create_queue(QueueName=name)["QueueUrl"] for sqs in (regional.own, regional.west)]
    for path in (
        f"queue/{WEST}/{NAMESPACE}/{name}",
        f"queue/{WEST.upper()}/{boto.ACCOUNT}/{name}",
        f"a/b/{name}",
    ):
        url = f"{regional.server.url}/{path}"
        for call, more in (
            ("delete_queue", {}),
            ("send_message", {"MessageBody": "x"}),
            ("receive_message", {}),
        ):
            for sqs in (regional.own, regional.west):
                with pytest.raises(ClientError, match="is not valid for this endpoint") as caught:
                    getattr(sqs, call)(QueueUrl=url, **more)
                assert caught.value.response["Error"]["Code"].endswith("InvalidAddress")

    for url, sqs in zip(urls, (regional.own, regional.west), strict=True):
        assert sqs.get_queue_url(QueueName=name)["QueueUrl"] == url
        assert bodies(sqs, url) == []


def test_a_receipt_is_of_one_region(regional: Regional) -> None:
    name = boto.fresh()
    own, west = (sqs.create_queue(QueueName=name)["QueueUrl"] for sqs in (regional.own, regional.west))
    regional.west.send_message(QueueUrl=west, MessageBody="one")
    [message] = regional.west.receive_message(QueueUrl=west)["Messages"]

    with pytest.raises(ClientError, match="is not valid for this queue"):
        regional.own.delete_message(QueueUrl=own, ReceiptHandle=message["ReceiptHandle"])
    regional.west.delete_message(QueueUrl=west, ReceiptHandle=message["ReceiptHandle"])


def test_dead_letters_name_the_queue_of_their_region(regional: Regional) -> None:
    sqs = regional.west
    dead = sqs.create_queue(QueueName=boto.fresh())["QueueUrl"]
    asked = {"AttributeNames": ["QueueArn"]}
    dead_arn = sqs.get_queue_attributes(QueueUrl=dead, **asked)["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 1})
    attributes = {"RedrivePolicy": policy, "VisibilityTimeout": "0"}
    url = sqs.create_queue(QueueName=boto.fresh(), Attributes=attributes)["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, **asked)["Attributes"]["QueueArn"]

    sqs.send_message(QueueUrl=url, MessageBody="poison")
    assert len(sqs.receive_message(QueueUrl=url)["Messages"]) == 1
    assert "Messages" not in sqs.receive_message(QueueUrl=url)
    wanted = {"MessageSystemAttributeNames": ["DeadLetterQueueSourceArn"], "WaitTimeSeconds": 10}
    [message] = sqs.receive_message(QueueUrl=dead, **wanted)["Messages"]

    assert arn.startswith(f"arn:aws:sqs:{WEST}:{boto.ACCOUNT}:")
    assert message["Attributes"] == {"DeadLetterQueueSourceArn": arn}


def test_the_other_protocols_know_a_region_as_a_namespace(regional: Regional) -> None:
    name = boto.fresh()
    url = regional.west.create_queue(QueueName=name)["QueueUrl"]
    where = pika.ConnectionParameters("127.0.0.1", regional.amqp_port, NAMESPACE)

    connection = pika.BlockingConnection(where)
    connection.channel().basic_publish("", name, b"by AMQP")
    connection.close()

    shown = regional.rest(f"accounts/{NAMESPACE}/queues/{name}")
    assert (shown["name"], shown["stats"]["ready"]) == (name, 1)
    assert name not in [queue["name"] for queue in regional.rest(f"queues?prefix={name}")["queues"]]
    assert bodies(regional.west, url) == ["by AMQP"]


def test_an_unsigned_request_takes_the_region_of_the_url(regional: Regional) -> None:
    name = boto.fresh()
    regional.own.create_queue(QueueName=name)
    url = regional.west.create_queue(QueueName=name)["QueueUrl"]
    regional.west.send_message(QueueUrl=url, MessageBody="only in the west")

    with urllib.request.urlopen(f"{url}?Action=ReceiveMessage", timeout=30) as answer:
        assert "<Body>only in the west</Body>" in answer.read().decode()


def test_the_look_without_receiving_names_the_region(regional: Regional) -> None:
    name = boto.fresh()
    regional.own.create_queue(QueueName=name)
    url = regional.west.create_queue(QueueName=name)["QueueUrl"]
    regional.west.send_message(QueueUrl=url, MessageBody="only in the west")

    def look(where: str) -> str:
        address = f"{regional.server.url}/_aws/sqs/messages{where}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            text: str = answer.read().decode()
            return text

    for where in (f"?QueueUrl={url}", f"/{WEST}/{boto.ACCOUNT}/{name}"):
        assert "only in the west" in look(where)
    assert "only in the west" not in look(f"/us-east-1/{boto.ACCOUNT}/{name}")


def test_a_region_that_becomes_the_servers_own_hides_its_older_queues(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        sqs = boto.client(server.url, region=WEST)
        sqs.create_queue(QueueName="orders")
        sqs.close()
    with served(tmp_path, "--region", WEST) as server:
        sqs = boto.client(server.url, region=WEST)

        assert "QueueUrls" not in sqs.list_queues()
        until(lambda: any(f"SQS does not show the queues of {NAMESPACE}" in line for line in server.log))
        sqs.close()
