"""What the parts of the growth bench share: laps of a server, and the CPU time of each message."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from .growth_run import GrowthRun
from .server_load import Repeat, Tally, drive
from .server_processes import ServerProcess
from .server_requests import body, post_json, post_msgpack

ACCOUNT = "000000000000"
BATCH = 1_000


def cost(run: GrowthRun, peer: ServerProcess, work: Callable[[], Tally]) -> tuple[float, float]:
    """Microseconds of the server's CPU for each message, and messages per second: medians of the laps."""
    costs: list[float] = []
    rates: list[float] = []
    for _ in range(run.laps):
        before_s = peer.cpu_s()
        tally = work()
        costs.append((peer.cpu_s() - before_s) / tally.count * 1e6)
        rates.append(tally.count / tally.wall_s)
    return statistics.median(costs), statistics.median(rates)


def costs_of_pair(
    run: GrowthRun, peer: ServerProcess, put: Callable[[], Tally], take: Callable[[], Tally]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """The same for two works in turns: what a lap of one puts in, the next lap of the other takes out."""
    laps: dict[Callable[[], Tally], list[tuple[float, float]]] = {put: [], take: []}
    for _ in range(run.laps):
        for work, found in laps.items():
            before_s = peer.cpu_s()
            tally = work()
            found.append(((peer.cpu_s() - before_s) / tally.count * 1e6, tally.count / tally.wall_s))
    medians = [tuple(map(statistics.median, zip(*found, strict=True))) for found in laps.values()]
    (put_us, put_rate), (take_us, take_rate) = medians
    return (put_us, put_rate), (take_us, take_rate)


def queue_url(port: int, queue: str) -> str:
    return f"http://127.0.0.1:{port}/{ACCOUNT}/{queue}"


def create_queues(port: int, names: Sequence[str]) -> Tally:
    requests = [
        post_json(
            port,
            "CreateQueue",
            json.dumps({"QueueName": name, "Attributes": {"VisibilityTimeout": "600"}}).encode(),
        )
        for name in names
    ]
    plan = Repeat(requests, limit=len(requests), seconds=600.0)
    return drive(port, 32, plan)


def send_request(port: int, queue: str, number: int = 0) -> bytes:
    call = {"QueueUrl": queue_url(port, queue), "MessageBody": body(number)}
    return post_json(port, "SendMessage", json.dumps(call).encode())


def receive_request(port: int, queue: str) -> bytes:
    call = {"QueueUrl": queue_url(port, queue), "MaxNumberOfMessages": 1}
    return post_json(port, "ReceiveMessage", json.dumps(call).encode())


def fill(port: int, queue: str, count: int) -> None:
    """By the REST API, a thousand at a time."""
    messages = [body(number).encode() for number in range(BATCH)]
    request = post_msgpack(port, f"/api/v1/queues/{queue}/messages/batch", msgspec.msgpack.encode(messages))
    plan = Repeat([request], messages=BATCH, limit=-(-count // BATCH), seconds=900.0)
    drive(port, 4, plan)


class InTurn(Repeat):
    """The next requests of an iterator: a lap goes on where the last one ended."""

    def __init__(self, requests: Iterator[bytes], limit: int) -> None:
        super().__init__([b""], limit=limit)
        self._repeat_requests = requests
