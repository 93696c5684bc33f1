"""Consumers of the others, as their users write them, each in the process that measures it.

A lap fills a queue, which is not measured, and empties it: subscribe, get each message, ack it, and one more
request behind the last ack. Imports are late: only a measured process has the folder of the rivals.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import shutil
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from .amqp_client import PREFETCH, body
from .amqp_load import fill
from .harness import Lap, lap
from .server_load import STUCK_S, RequestRefused
from .server_processes import TOOLS, NotAvailable, ServerProcess, pip_install
from .worker_common import use_rivals

PACKAGES = ("aio-pika>=9", "nats-py>=2.6")
FOLDER = TOOLS / "push-rivals"
QUEUE = "bench"


def obtain_rivals() -> str:
    """The folder with the clients, installed once. Raises NotAvailable."""
    pip_install(FOLDER.name, *PACKAGES)
    return str(FOLDER)


class NatsServer(ServerProcess):
    """JetStream with its defaults: each message is written to its file, which is synced every two minutes."""

    name = "NATS"

    @classmethod
    def obtain(cls) -> None:
        if shutil.which("nats-server") is None:
            raise NotAvailable("it is not installed; `apt-get install nats-server` brings it")

    def argv(self) -> list[str]:
        config = Path(self.folder, "nats.conf")
        store = f'jetstream {{ store_dir: "{self.folder}/jetstream" }}'
        config.write_text(f'listen: "127.0.0.1:{self.port}"\n{store}\n', "ascii")
        return ["nats-server", "-c", str(config)]

    def is_ready(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as found:
            return found.recv(4096).startswith(b"INFO ")


class Emptied:
    """A contestant: fills its queue, then consumes it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._loop = asyncio.new_event_loop()

    async def fill(self) -> None:
        raise NotImplementedError

    async def consume(self) -> None:
        """Get and ack `count` messages; return when the acks have arrived."""
        raise NotImplementedError

    def lap(self, given: Any) -> Lap:
        self._run(self.fill)
        return lap(self._count, lambda: self._run(self.consume))

    def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(2 * STUCK_S):
                await work()

        self._loop.run_until_complete(bounded())

    def close(self) -> None:
        self._loop.close()


class AioPika(Emptied):
    """aio-pika on RabbitMQ: a durable queue, persistent messages."""

    def __init__(self, folder: str, port: int, count: int, kind: str) -> None:
        use_rivals(folder)
        super().__init__(count)
        self._port = port
        self._kind = kind
        self._pika = importlib.import_module("aio_pika")
        self._numbers = iter(range(1 << 30))
        self._queue = ""

    async def fill(self) -> None:
        self._queue = f"{QUEUE}-{self._kind}-{next(self._numbers)}"
        async with await self._pika.connect(port=self._port) as connection:
            channel = await connection.channel()
            await channel.declare_queue(self._queue, durable=True, arguments={"x-queue-type": self._kind})
        fill(self._port, self._queue, self._count)

    async def consume(self) -> None:
        async with await self._pika.connect(port=self._port) as connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=PREFETCH)
            queue = await channel.get_queue(self._queue, ensure=False)
            left = self._count
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    left -= 1
                    if not left:
                        break
            found = await channel.declare_queue(self._queue, passive=True)  # behind the last ack
            if found.declaration_result.message_count:
                raise RequestRefused(f"{found.declaration_result.message_count} messages are left")
            await queue.delete(if_unused=False, if_empty=False)


class NatsPush(Emptied):
    """nats-py on JetStream: a stream in files, a push consumer with explicit acks."""

    def __init__(self, folder: str, port: int, count: int) -> None:
        use_rivals(folder)
        super().__init__(count)
        self._nats = importlib.import_module("nats")
        self._api = importlib.import_module("nats.js.api")
        self._url = f"nats://127.0.0.1:{port}"
        self._client: Any = None

    async def _jetstream(self) -> Any:
        if self._client is None:
            self._client = await self._nats.connect(self._url)
        return self._client.jetstream()

    async def fill(self) -> None:
        stream = await self._jetstream()
        with contextlib.suppress(importlib.import_module("nats.js.errors").NotFoundError):
            await stream.delete_stream(QUEUE)
        await stream.add_stream(name=QUEUE, subjects=[QUEUE], storage=self._api.StorageType.FILE)
        for first in range(0, self._count, PREFETCH):
            some = range(first, min(first + PREFETCH, self._count))
            await asyncio.gather(*(stream.publish(QUEUE, body(number, 100)) for number in some))

    async def consume(self) -> None:
        stream = await self._jetstream()
        config = self._api.ConsumerConfig(
            ack_policy=self._api.AckPolicy.EXPLICIT, max_ack_pending=PREFETCH, ack_wait=300
        )
        subscription = await stream.subscribe(QUEUE, durable="bench", config=config, manual_ack=True)
        left = self._count
        async for message in subscription.messages:
            await message.ack()
            left -= 1
            if not left:
                break
        await self._client.flush()
        info = await stream.consumer_info(QUEUE, "bench")
        if info.num_ack_pending or info.num_pending:
            raise RequestRefused(f"{info.num_ack_pending + info.num_pending} messages are left")
        await subscription.unsubscribe()

    def close(self) -> None:
        if self._client is not None:
            self._loop.run_until_complete(self._client.close())
        super().close()
