"""A real server context in memory on a clock that stands still, and SQS queue actions called on it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openq.auth.guard import Guard, Principal
from openq.auth.store import UserStore
from openq.clock import VirtualClock
from openq.config import Config
from openq.local.broker import LocalBroker
from openq.model import Draft
from openq.names import DEFAULT_ACCOUNT
from openq.server.context import ServerContext
from openq.server.http import HttpConnection
from openq.server.http_request import HttpRequest
from openq.server.listener import Listener
from openq.sqs import aws_json
from openq.sqs.call import QueueResolver, SqsCall
from openq.sqs.errors import SqsError
from openq.sqs.queues import QUEUE_ACTIONS
from openq.sqs.requests import REQUESTS

HOST = "queues.test:9324"
ARN = f"arn:aws:sqs:us-east-1:{DEFAULT_ACCOUNT}:"
OTHER = "111122223333"  # another account
POLICY = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "all",
                "Effect": "Allow",
                "Principal": "*",
                "Action": "sqs:SendMessage",
                "Resource": ARN + "orders",
            }
        ],
    }
)


def _unexpected(request: HttpRequest) -> None:
    raise AssertionError("nothing comes from the network here")


class Service:
    """One server's worth of SQS, without sockets."""

    def __init__(self, path: Path | None = None, **config: Any) -> None:
        self.clock = VirtualClock()
        self.broker = LocalBroker(path, clock=self.clock)
        self.loop = asyncio.new_event_loop()
        self.store = UserStore(None)
        self.guard = Guard(self.store, lambda: self.clock.now_ms() / 1000)
        self.context = ServerContext(self.broker, self.loop, Config(memory=True, **config), self.guard)
        self.names = QueueResolver(self.context)
        self.principal = self.guard.open_principal(DEFAULT_ACCOUNT)

    def close(self) -> None:
        self.context.close()
        self.finish()
        self.broker.close()
        self.loop.close()

    def call(self, principal: Principal | None = None) -> SqsCall:
        connection = HttpConnection(Listener(_unexpected))
        request = HttpRequest(connection, "POST", b"/", {b"host": HOST.encode()}, [], b"", True)
        return SqsCall(self.context, self.names, request, principal or self.principal)

    def do(self, action: str, principal: Principal | None = None, **members: Any) -> dict[str, Any]:
        """An action with the members of its request; the reply as JSON clients see it."""
        call = self.call(principal)
        if "queue_url" in members:
            call.queue = self.names.find(call.key_of_url(members["queue_url"]))
        reply = QUEUE_ACTIONS[action](call, REQUESTS[action](**members))
        shown: dict[str, Any] = json.loads(aws_json.encode(reply))
        return shown

    def refused(self, action: str, principal: Principal | None = None, **members: Any) -> SqsError:
        with pytest.raises(SqsError) as caught:
            self.do(action, principal, **members)
        return caught.value

    # Shorter words for what most tests do.

    def create(self, queue_name: str, tags: dict[str, str] | None = None, **attributes: str) -> str:
        reply = self.do("CreateQueue", queue_name=queue_name, attributes=attributes or None, tags=tags)
        url: str = reply["QueueUrl"]
        return url

    def attributes(self, url: str, *names: str) -> dict[str, str]:
        reply = self.do("GetQueueAttributes", queue_url=url, attribute_names=list(names or ["All"]))
        found: dict[str, str] = reply.get("Attributes", {})
        return found

    def set(self, url: str, **attributes: str) -> None:
        self.do("SetQueueAttributes", queue_url=url, attributes=attributes)

    def send(self, queue: str, *bodies: str) -> None:
        for body in bodies:
            self.broker.publish(queue, Draft(body.encode()))

    def dead_letter(self, queue: str, *bodies: str) -> None:
        """Messages that die in a queue at once."""
        self.send(queue, *bodies)
        for delivery in self.broker.receive(queue, len(bodies)):
            self.broker.reject(queue, [(delivery.entry.seq, delivery.number)])

    def finish(self) -> None:
        """Wait for the threads of move tasks."""
        for thread in threading.enumerate():
            if thread.name == "openq-redrive":
                thread.join(30)
                assert not thread.is_alive()


@contextmanager
def serving(path: Path | None = None, **config: Any) -> Iterator[Service]:
    service = Service(path, **config)
    try:
        yield service
    finally:
        service.close()


def redrive_policy(name: str, count: object = 3) -> str:
    return dead_letter_policy(ARN + name, count)


def dead_letter_policy(arn: str, count: object = 3, **more: object) -> str:
    return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": count, **more})


def redrive_allow_policy(permission: object, *arns: object) -> str:
    return json.dumps({"redrivePermission": permission} | ({"sourceQueueArns": list(arns)} if arns else {}))
