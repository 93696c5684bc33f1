"""A message that kills its process is delivered at most once more than `max_receives` says, however often."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from openq import OpenQ
from tests.amqp.raw_client import RawClient
from tests.real_clients import boto
from tests.redis.servers import single
from tests.serving import served, served_amqp, start

MAX_RECEIVES = 3
LIVES = 9

# A worker that notes each delivery in a file and dies of it. Without a message it ends by itself.
EMBEDDED = """
import os, signal, sys
from openq import OpenQ

with OpenQ("jobs", path=sys.argv[1]) as queue:
    message = queue.receive(timeout=1)
    if message is not None:
        with open(sys.argv[2], "a") as file:
            file.write("delivered\\n")
        os.kill(os.getpid(), signal.SIGKILL)
"""
ASYNC = """
import asyncio, os, signal, sys
from openq import aio

async def main():
    async with aio.OpenQ("jobs", path=sys.argv[1]) as queue:
        [message] = await queue.receive_many(10, timeout=1) or [None]
        if message is not None:
            with open(sys.argv[2], "a") as file:
                file.write("delivered\\n")
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.parametrize("program", [EMBEDDED, ASYNC], ids=["threads", "aio"])
def test_a_message_that_kills_its_worker(tmp_path: Path, program: str) -> None:
    data, reported = tmp_path / "data", tmp_path / "reported"
    options = {"dlq": "dead", "max_receives": MAX_RECEIVES, "visibility_timeout": 0.01}
    with OpenQ("jobs", path=data, **options) as queue:
        queue.publish("poison")

    for _ in range(LIVES):
        done = subprocess.run(
            [sys.executable, "-c", program, str(data), str(reported)], timeout=120, check=False
        )
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL

    assert MAX_RECEIVES <= reported.read_text().count("delivered") <= MAX_RECEIVES + 1
    with OpenQ("dead", path=data) as dead:
        assert dead.stats().ready == 1


def test_a_message_that_kills_its_worker_on_redis(tmp_path: Path) -> None:
    """There a lease is part of the call that hands a message out: not one delivery is forgotten."""
    reported = tmp_path / "reported"
    program = EMBEDDED.replace("path=", "url=")
    with single() as store:
        url = f"{store.url}?profile=fast"
        options = {"dlq": "dead", "max_receives": MAX_RECEIVES, "visibility_timeout": 0.01}
        with OpenQ("dead", url=url) as dead, OpenQ("jobs", url=url, **options) as queue:
            queue.publish("poison")
            for _ in range(LIVES):
                command = [sys.executable, "-c", program, url, str(reported)]
                if subprocess.run(command, timeout=120, check=False).returncode == 0:
                    break
            assert reported.read_text().count("delivered") == MAX_RECEIVES
            assert dead.stats().ready == 1


def test_a_message_that_kills_the_server_when_it_is_received_by_sqs(tmp_path: Path) -> None:
    deliveries = 0
    with served(tmp_path) as server:
        client = boto.client(server.url)
        dead = client.create_queue(QueueName="dead")["QueueUrl"]
        policy = (
            f'{{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{boto.ACCOUNT}:dead","maxReceiveCount":"3"}}'
        )
        attributes = {"VisibilityTimeout": "1", "RedrivePolicy": policy}
        url = client.create_queue(QueueName="jobs", Attributes=attributes)["QueueUrl"]
        client.send_message(QueueUrl=url, MessageBody="poison")
        port = server.port
        client.close()
    for _ in range(LIVES):
        server = start(tmp_path, port=port).wait()
        client = boto.client(server.url)
        found = client.receive_message(QueueUrl=url, WaitTimeSeconds=3).get("Messages", [])
        deliveries += len(found)
        server.kill()
        client.close()
        if not found:
            break

    assert MAX_RECEIVES <= deliveries <= MAX_RECEIVES + 1
    with served(tmp_path, port=port) as server:
        client = boto.client(server.url)
        assert len(client.receive_message(QueueUrl=dead)["Messages"]) == 1
        client.close()


def test_a_message_that_kills_the_server_when_it_is_delivered_by_amqp(tmp_path: Path) -> None:
    deliveries = 0
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    limit = {"x-queue-type": "quorum", "x-delivery-limit": MAX_RECEIVES - 1}  # it counts redeliveries
    for life in range(LIVES):
        with served_amqp(tmp_path) as (server, port), RawClient(port) as talk:
            if not life:
                talk.confirming().declare("dead")
                talk.declare("jobs", arguments={**letters, **limit})
                talk.publish_all("jobs", [b"poison"])
            elif talk.declare("dead") == 1:
                break
            if life % 2:
                talk.call("basic.get", "basic.get-ok", queue="jobs")
            else:
                talk.call("basic.consume", queue="jobs")
                talk.receive_methods("basic.deliver", 1)
            deliveries += 1
            server.kill()

    assert MAX_RECEIVES <= deliveries <= MAX_RECEIVES + 1
