"""A server for tests: real ports, in a thread of the test process, emptied between tests.

    with OpenQServer() as server:
        server.sqs.create_queue(QueueName="orders")                    # a boto3 client
        pika.BlockingConnection(pika.URLParameters(server.amqp_url))
        server.queue("orders").publish("one coffee")                   # the library over HTTP
        server.reset()

With `OpenQServer(VirtualClock())` leases, delays and expiry follow that clock; the timeouts of long polls
and heartbeats stay real time. With pytest use the fixture `openq_server`.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from types import TracebackType
from typing import Any

from ..client.queues import Queue
from ..clock import Clock
from ..config import Config
from ..errors import OpenQError
from ..local.broker import LocalBroker
from ..server.app import Server
from ..server.ports import PortTaken

REGION = "us-east-1"
_MIN_PORT, _MAX_PORT = 10_000, 32_000  # below the ports that the system gives to clients
_TRIES = 20


class OpenQServer:
    """SQS, REST and AMQP over one broker in memory."""

    url: str  # of SQS and REST
    amqp_url: str

    def __init__(self, clock: Clock | None = None, **settings: Any) -> None:
        """`settings` are further fields of `openq.config.Config`, such as `limits="strict"`."""
        self.broker = LocalBroker(clock=clock)
        self.clock = clock
        self._queues: list[Queue] = []
        self._loop = asyncio.new_event_loop()  # closing one of uvloop was seen to hang
        self._server = self._start({"limits": "testing", "drain_timeout_s": 1.0, **settings})
        self.url = self._server.url
        self.amqp_url = f"{self._server.amqp_url.replace('://', '://guest:guest@')}/"
        self._thread = threading.Thread(target=self._loop.run_forever, name="openq-server", daemon=True)
        self._thread.start()
        # The loop runs before it can be stopped: closing a loop that was stopped first may hang.
        started: Future[None] = Future()
        self._loop.call_soon_threadsafe(started.set_result, None)
        started.result()

    def _start(self, settings: dict[str, Any]) -> Server:
        for tries in range(_TRIES):
            config = Config(memory=True, **{"port": _free_port(), "amqp_port": _free_port(), **settings})
            server = Server(config, self.broker, self._loop)
            try:
                self._loop.run_until_complete(server.start())
                return server
            except PortTaken:
                # Another process took it between the choice and the bind.
                if tries == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    @cached_property
    def sqs(self) -> Any:
        """A boto3 client for SQS, with credentials that the server accepts."""
        return self.boto3_client("sqs")

    def boto3_client(self, service: str = "sqs", **options: Any) -> Any:
        defaults = {
            "endpoint_url": self.url,
            "region_name": REGION,
            "aws_access_key_id": "test",
            "aws_secret_access_key": "test",
        }
        return import_module("boto3").client(service, **{**defaults, **options})

    def queue(self, name: str = "queue", **options: Any) -> Queue:
        """Open a queue of this server; `reset` closes it."""
        queue = Queue(name, url=self.url, **options)
        self._queues.append(queue)
        return queue

    def reset(self) -> None:
        """Remove all queues, messages, key-values, schedules, exchanges, bindings, policies and users.

        Connections stay open.
        """
        for queue in self._queues:
            queue.close()
        self._queues.clear()
        done: Future[None] = Future()
        self._loop.call_soon_threadsafe(_complete, done, self._reset)
        done.result()

    def _reset(self) -> None:
        """On the loop, like every request."""
        server, broker = self._server, self.broker
        for binding in broker.exchanges.bindings():
            if binding.source:
                broker.exchanges.unbind(binding)
        for exchange in broker.exchanges.list_exchanges():
            with suppress(OpenQError):  # predeclared exchanges stay
                broker.exchanges.delete_exchange(exchange.name)
        for schedule in broker.schedules.list():
            broker.schedules.delete(schedule.name)
        for name in broker.queues():
            with suppress(OpenQError):  # deleted with another one
                broker.delete(name)
        for bucket in broker.kv.buckets():
            while page := broker.kv.list(bucket.name):
                broker.kv.delete_many(bucket.name, [entry.key for entry in page])
        for policy in server.topology.policies.all():
            server.topology.policies.clear(policy.vhost, policy.name)
        for user in server.store.users():
            server.store.remove_user(user.name)
        server.sqs.resolver.deleted.clear()
        server.sqs.resolver.purged.clear()

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        for queue in self._queues:
            queue.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._server.drain())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> OpenQServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<OpenQServer {self.url} {self.amqp_url}>"


def _complete(done: Future[None], work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException as error:
        done.set_exception(error)
    else:
        done.set_result(None)


def _free_port() -> int:
    while True:
        port = random.SystemRandom().randrange(_MIN_PORT, _MAX_PORT)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
