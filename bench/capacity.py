"""The figures of docs/CAPACITY.md: CPU time of a durable server for one message, by protocol.

    python -m bench.capacity [--messages 20000] [--rounds 3]

A message of 1 KiB is published, received and acked, by one client of each protocol. CPU time of the server
process with all its threads; beside it that of the engine alone (`openq.cli.plan`), because the ratio of both
is what another machine has in common with this one. The best of the rounds. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable

import pika

from openq.cli.plan import engine_us
from tests.amqp.raw_client import RawClient
from tests.server.raw_http import RawHttpClient, sqs_request

from .metrics_cost import Server

BODY = "x" * 1024
RUN = 100


def amqp(server: Server, count: int) -> int:
    with RawClient(server.amqp_port) as talk:
        talk.declare("amqp")
        talk.confirming()
        for _ in range(count // RUN):
            talk.publish_all("amqp", [BODY.encode()] * RUN)
    left = count = count // RUN * RUN
    with pika.BlockingConnection(pika.ConnectionParameters(port=server.amqp_port)) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=RUN)
        for method, _, _ in channel.consume("amqp"):
            left -= 1
            if left % RUN == 0:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if not left:
                break
        channel.cancel()
    return count


def sqs(server: Server, count: int, size: int) -> int:
    url = "http://localhost/000000000000/sqs"
    ids = [str(number) for number in range(size)]
    with RawHttpClient(server.port) as wire:
        wire.sqs("CreateQueue", QueueName="sqs")
        if size == 1:
            send = sqs_request("SendMessage", {"QueueUrl": url, "MessageBody": BODY})
        else:
            entries = [{"Id": each, "MessageBody": BODY} for each in ids]
            send = sqs_request("SendMessageBatch", {"QueueUrl": url, "Entries": entries})
        receive = sqs_request("ReceiveMessage", {"QueueUrl": url, "MaxNumberOfMessages": size})
        for _ in range(count // size):
            assert wire.ask(send).status == 200
        left = count // size * size
        while left > 0:
            handles = [each["ReceiptHandle"] for each in json.loads(wire.ask(receive).body)["Messages"]]
            if size == 1:
                wire.ask(sqs_request("DeleteMessage", {"QueueUrl": url, "ReceiptHandle": handles[0]}))
            else:
                found = [{"Id": ids[i], "ReceiptHandle": each} for i, each in enumerate(handles)]
                wire.ask(sqs_request("DeleteMessageBatch", {"QueueUrl": url, "Entries": found}))
            left -= len(handles)
    return count // size * size


WORK: dict[str, Callable[[Server, int], int]] = {
    "AMQP": amqp,
    "SQS in tens": lambda server, count: sqs(server, count // 2, 10),
    "SQS one by one": lambda server, count: sqs(server, count // 10, 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    best: dict[str, float] = {}
    for _ in range(options.rounds):
        best["engine"] = min(best.get("engine", 1e9), engine_us(BODY.encode()))
        for name, work in WORK.items():
            with tempfile.TemporaryDirectory(dir=".") as folder:
                server = Server(folder)
                try:
                    began = server.cpu_s()
                    count = work(server, options.messages)
                    spent = (server.cpu_s() - began) / count * 1e6
                finally:
                    server.stop()
            best[name] = min(best.get(name, 1e9), spent)
    print(json.dumps({"bench": "capacity", "us": {name: round(us, 1) for name, us in best.items()}}))


if __name__ == "__main__":
    main()
