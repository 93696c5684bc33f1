"""What metrics and history cost: CPU of the server per message, on against off, in turns; and of a scrape.

    python -m bench.metrics_cost [--rounds 7]
    python -m bench.metrics_cost --instructions

"Off" is the same server without its recorder, times and commit figures. CPU time of the server process, not
wall clock: others may share the machine. With `--instructions` valgrind counts the instructions of a message
instead, in memory and without sockets; nothing disturbs that. One line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO

from openq.local.broker import LocalBroker
from openq.metrics import pieces
from openq.model import Draft, QueueSettings
from openq.server.queue_metrics import QueueChoice, columns, totals
from tests.amqp.raw_client import RawClient
from tests.server.raw_http import ConnectionClosed, RawHttpClient, sqs_request
from tests.serving import free_port
from tests.waiting import until

SENDS = 2_000
PUBLISHES = 100_000
RUN = 100
SWITCHED_OFF = """
from openq.engine.times import MessageTimes
from openq.journal.figures import CommitFigures
from openq.local.statistics import LocalStatistics
from openq.server.process_metrics import ProcessFigures
from openq.server.series_thread import SeriesThread
LocalStatistics.measure = lambda self: MessageTimes()
CommitFigures.add = lambda self, seconds, records, size: None
ProcessFigures.start = lambda self, loop: None
SeriesThread.start = lambda self: None
"""
START = "import sys; from openq.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Server:
    def __init__(
        self, folder: str, is_on: bool = True, more: Sequence[str] = (), log: IO[bytes] | None = None
    ) -> None:
        self.port, self.amqp_port = free_port(), free_port()
        flags = ["--port", str(self.port), "--amqp-port", str(self.amqp_port), "--data", folder, *more]
        code = START if is_on else SWITCHED_OFF + START
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL if log is None else log,
        )
        until(self._is_up, ignoring=(ConnectionClosed,))

    def _is_up(self) -> bool:
        with RawHttpClient(self.port) as wire:
            return wire.get("/livez").status == 200

    def cpu_s(self) -> float:
        """Of all threads, in nanoseconds of the scheduler."""
        tasks = f"/proc/{self.process.pid}/task"
        spent = 0
        for task in os.listdir(tasks):
            with open(f"{tasks}/{task}/schedstat", "rb") as file:
                spent += int(file.read().split()[0])
        return spent / 1e9

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def send_all(server: Server) -> int:
    with RawHttpClient(server.port) as wire:
        wire.sqs("CreateQueue", QueueName="cost")
        request = sqs_request(
            "SendMessage", {"QueueUrl": "http://localhost/000000000000/cost", "MessageBody": "x" * 100}
        )
        for _ in range(SENDS):
            assert wire.ask(request).status == 200
    return SENDS


def publish_all(server: Server) -> int:
    with RawClient(server.amqp_port) as talk:
        talk.declare("cost-amqp")
        talk.confirming()
        for _ in range(PUBLISHES // RUN):
            talk.publish_all("cost-amqp", [b"x" * 100] * RUN)
    return PUBLISHES


def microseconds(server: Server, work: Callable[[Server], int]) -> float:
    began = server.cpu_s()
    count = work(server)
    return (server.cpu_s() - began) / count * 1e6


def scrape_ms() -> dict[str, float]:
    broker = LocalBroker()
    broker.statistics.measure()
    for number in range(10_000):
        broker.declare(f"queue-{number:05}", QueueSettings())
        broker.publish(f"queue-{number:05}", Draft(b"x"))

    def best(work: Callable[[], object]) -> float:
        spent = []
        for _ in range(5):
            began = time.process_time()
            work()
            spent.append(time.process_time() - began)
        return round(min(spent) * 1000, 1)

    found = {
        "metrics": best(lambda: b"".join(pieces(totals(broker, True)))),
        "metrics_queues": best(lambda: b"".join(pieces(columns(broker, QueueChoice("limit=10000"), True)))),
    }
    broker.close()
    return found


def count_instructions() -> dict[str, object]:
    found: dict[str, object] = {"bench": "metrics_cost"}
    for name, module, work, few, many in (
        ("sqs_send", "server_profile", "send", 640, 3_200),
        ("amqp_publish", "amqp_profile", "publish", 2_000, 12_000),
    ):
        counts = {}
        for state, before in (("on", ""), ("off", SWITCHED_OFF)):
            code = f"{before}import runpy; runpy.run_module('bench.{module}', run_name='__main__')"
            runs = [
                instructions(["-c", code, work, "--once", "--count", str(count)]) for count in (few, many)
            ]
            counts[state] = round((runs[1] - runs[0]) / (many - few))
        found[name] = counts | {"cost_percent": round((counts["on"] / counts["off"] - 1) * 100, 1)}
    return found


def instructions(arguments: Sequence[str]) -> int:
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, *arguments]
    # Hashes that differ from run to run would differ in their collisions.
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise SystemExit(done.stderr)
    return int(found[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    if options.instructions:
        print(json.dumps(count_instructions()))
        return
    rounds = options.rounds
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        servers = {"on": Server(one, True), "off": Server(other, False)}
        try:
            for _ in range(rounds):
                for name, work in (("sqs_send", send_all), ("amqp_publish", publish_all)):
                    for state, server in servers.items():
                        found.setdefault(f"{name}_{state}", []).append(microseconds(server, work))
        finally:
            for server in servers.values():
                server.stop()
    cost = {
        name: round((min(found[f"{name}_on"]) / min(found[f"{name}_off"]) - 1) * 100, 1)
        for name in ("sqs_send", "amqp_publish")
    }
    shown = {name: [round(each, 2) for each in sorted(values)] for name, values in found.items()}
    print(
        json.dumps(
            {"bench": "metrics_cost", "cost_percent": cost, "us": shown, "scrape_10k_cpu_ms": scrape_ms()}
        )
    )


if __name__ == "__main__":
    main()
