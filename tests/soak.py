"""Load for some minutes, then a minute of rest: the server gives its memory back.

`make soak MINUTES=10`, or `python -m tests.soak --minutes 10 --protocols sqs,rest,amqp`. One server per
protocol, with its data in a temporary directory. Several clients send, receive and settle messages of 100
bytes to 200 kB; some of them hang up in the middle of what they send. Afterwards every queue is empty and no
client is connected. The resident memory must then be within 10 MiB of what it was before the load. Ends with
1 if it is not.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.amqp.raw_client import RawClient, method, publish
from tests.server.raw_http import ConnectionClosed, RawHttpClient, queue_url, request_bytes
from tests.serving import Served, served_amqp
from tests.waiting import until

MIB = 1 << 20
CLIENTS = 6
ALLOWED_BYTES = 10 * MIB
ROUNDS_PER_CONNECTION = 25
HALF_MESSAGE = 4 * MIB  # the most that a client sends of a message it never finishes


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def body_of(random_: random.Random) -> str:
    """Mostly small, now and then large; different from one another."""
    size = random_.choice((100, 100, 1000, 1000, 4000, 4000, 16_000, 200_000))
    return f"{random_.getrandbits(64):016x}" + "x" * size


class Client:
    """One of them. `round` sends some messages and takes as many as it finds; returns how many it settled."""

    def __init__(self, ports: tuple[int, int], number: int) -> None:
        self.http_port, self.amqp_port = ports
        self.queue = f"soak-{number % 3}"
        self.random = random.Random(number)

    def open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def round(self, sends: bool = True) -> int:
        raise NotImplementedError

    def leave_half(self) -> None:
        """Hang up in the middle of a message."""
        raise NotImplementedError


class SqsClient(Client):
    def open(self) -> None:
        self.wire = RawHttpClient(self.http_port)
        assert self.wire.sqs("CreateQueue", QueueName=self.queue).status == 200

    def close(self) -> None:
        self.wire.close()

    def round(self, sends: bool = True) -> int:
        url = queue_url(self.queue)
        if sends:
            entries = [{"Id": str(n), "MessageBody": body_of(self.random)} for n in range(5)]
            self.wire.sqs("SendMessageBatch", QueueUrl=url, Entries=entries)
        found = (
            self.wire.sqs("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10).json().get("Messages", [])
        )
        if found:
            receipts = [
                {"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(found)
            ]
            self.wire.sqs("DeleteMessageBatch", QueueUrl=url, Entries=receipts)
        return len(found)

    def leave_half(self) -> None:
        leave_half_request(self.wire, self.random)


class RestClient(Client):
    def open(self) -> None:
        self.wire = RawHttpClient(self.http_port)
        assert self.wire.rest("PUT", f"queues/{self.queue}").status in (200, 201)

    def close(self) -> None:
        self.wire.close()

    def round(self, sends: bool = True) -> int:
        path = f"queues/{self.queue}"
        if sends:
            batch = [{"payload": body_of(self.random)} for _ in range(20)]
            self.wire.rest("POST", f"{path}/messages/batch", batch)
        found = self.wire.rest("POST", f"{path}/receive", {"max": 50}).json()["messages"]
        if found:
            receipts = [each["receipt_id"] for each in found]
            assert self.wire.rest("POST", f"{path}/ack", {"receipts": receipts}).status == 200
        self.wire.rest("GET", f"{path}/messages?limit=10")
        return len(found)

    def leave_half(self) -> None:
        leave_half_request(self.wire, self.random)


def leave_half_request(wire: RawHttpClient, random_: random.Random) -> None:
    size = random_.randrange(HALF_MESSAGE)
    wire.send(request_bytes("POST", "/api/v1/queues/soak-0/messages", b"x" * size)[: -1 - size // 10])


class AmqpClient(Client):
    def open(self) -> None:
        self.talk = RawClient(self.amqp_port).confirming()
        self.talk.declare(self.queue)

    def close(self) -> None:
        self.talk.close()

    def round(self, sends: bool = True) -> int:
        talk = self.talk
        if sends:
            talk.publish_all(self.queue, [body_of(self.random).encode() for _ in range(20)])
        count = min(talk.declare(self.queue), 40)
        got = 0
        for _ in range(count):
            talk.send(method(1, "basic.get", queue=self.queue))
        while got < count:
            for answer in talk.next():
                if answer[1] == "basic.get-ok":
                    talk.send(method(1, "basic.ack", delivery_tag=answer[2]["delivery_tag"]))
                elif answer[1] != "basic.get-empty":
                    continue
                got += 1
        return got

    def leave_half(self) -> None:
        size = self.random.randrange(HALF_MESSAGE)
        self.talk.send(publish(1, self.queue, b"x" * size)[: -1 - size // 10])


CLIENTS_OF: dict[str, type[Client]] = {"sqs": SqsClient, "rest": RestClient, "amqp": AmqpClient}


def work(client: Client, is_over: Callable[[], bool], done: list[int]) -> None:
    """Rounds on one connection after another; every second connection ends in the middle of a message."""
    connections = 0
    while not is_over():
        client.open()
        try:
            for _ in range(ROUNDS_PER_CONNECTION):
                if is_over():
                    break
                done.append(client.round())
            connections += 1
            if connections % 2:
                client.leave_half()
        except ConnectionClosed:
            pass
        finally:
            client.close()


def load(kind: type[Client], ports: tuple[int, int], seconds: float, clients: int = CLIENTS) -> int:
    """How many messages were settled."""
    end = time.monotonic() + seconds
    failures: list[BaseException] = []
    counts: list[list[int]] = []

    def run(number: int, done: list[int]) -> None:
        try:
            work(kind(ports, number), lambda: time.monotonic() >= end or bool(failures), done)
        except BaseException as error:
            failures.append(error)

    threads = []
    for number in range(clients):
        counts.append([])
        threads.append(threading.Thread(target=run, args=(number, counts[-1]), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(map(sum, counts)) + drain(kind, ports, clients)


def drain(kind: type[Client], ports: tuple[int, int], clients: int) -> int:
    """Nothing stays in the queues: what waits there is in memory by right."""
    total = 0
    for number in range(min(clients, 3)):
        client = kind(ports, number)
        client.open()
        while count := client.round(sends=False):
            total += count
        client.close()
    return total


def no_clients(server: Served) -> bool:
    text = server.get("/metrics")[1].decode()
    counts = [line for line in text.splitlines() if line.startswith("openq_connections{")]
    return sum(float(line.rpartition(" ")[2]) for line in counts) <= 1  # this question has one of its own


def soak(protocol: str, seconds: float, rest_s: float, folder: Path) -> dict[str, Any]:
    kind = CLIENTS_OF[protocol]
    with served_amqp(folder / protocol) as (server, amqp_port):
        ports = server.port, amqp_port
        load(kind, ports, 0.5, 2)  # what is imported and built for the first request stays
        until(lambda: no_clients(server))
        time.sleep(min(rest_s, 15))
        before = resident_bytes(server.pid)
        count = load(kind, ports, seconds)
        until(lambda: no_clients(server))
        busy = resident_bytes(server.pid)
        time.sleep(rest_s)
        after = resident_bytes(server.pid)
    return {
        "protocol": protocol,
        "seconds": round(seconds),
        "messages": count,
        "before_mib": round(before / MIB, 1),
        "after_load_mib": round(busy / MIB, 1),
        "after_rest_mib": round(after / MIB, 1),
        "grown_mib": round((after - before) / MIB, 1),
        "ok": after - before <= ALLOWED_BYTES,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rest-s", type=float, default=60.0)
    parser.add_argument("--protocols", default="sqs,rest,amqp")
    options = parser.parse_args()
    is_well = True
    with tempfile.TemporaryDirectory(prefix="openq-soak-") as folder:
        for protocol in options.protocols.split(","):
            result = soak(protocol, options.minutes * 60, options.rest_s, Path(folder))
            print(json.dumps(result), flush=True)
            is_well = is_well and result["ok"]
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
