"""The log of every state change (`--log-events on`): does it keep up, and what is lost?

    python -m bench.event_log [--messages 20000]

Full throughput is measured by a server without the log; then messages are published to one with it at half
of that rate. Reported: whether publishers kept the rate, how far the log was behind when the last message was
published, and lines, gaps and drops at the end. One line of JSON for each protocol.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable

from tests.amqp.raw_client import RawClient
from tests.server.raw_http import RawHttpClient, sqs_request
from tests.waiting import until

from .metrics_cost import Server

RUN = 100
Publish = Callable[[Server, int, float], float]


def by_sqs(server: Server, count: int, rate: float) -> float:
    """Publish at most at this rate (0: as fast as possible); returns the seconds it took."""
    with RawHttpClient(server.port) as wire:
        wire.sqs("CreateQueue", QueueName="events-sqs")
        url = "http://localhost/000000000000/events-sqs"
        request = sqs_request("SendMessage", {"QueueUrl": url, "MessageBody": "x" * 100})
        began_s = time.monotonic()
        for number in range(count):
            assert wire.ask(request).status == 200
            _pace(began_s, number + 1, rate)
        return time.monotonic() - began_s


def by_amqp(server: Server, count: int, rate: float) -> float:
    with RawClient(server.amqp_port) as talk:
        talk.declare("events-amqp")
        talk.confirming()
        began_s = time.monotonic()
        for number in range(count // RUN):
            talk.publish_all("events-amqp", [b"x" * 100] * RUN)
            _pace(began_s, (number + 1) * RUN, rate)
        return time.monotonic() - began_s


def _pace(began_s: float, done: int, rate: float) -> None:
    if rate:
        ahead_s = done / rate - (time.monotonic() - began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)


def metric(server: Server, name: str) -> float:
    with RawHttpClient(server.port) as wire:
        for line in wire.get("/metrics").body.decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    return 0.0


def measure(name: str, publish: Publish, count: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        plain = Server(folder)
        try:
            publish(plain, count // 4, 0)
            full = count / publish(plain, count, 0)
        finally:
            plain.stop()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        server = Server(folder, more=["--log-events", "on", "--log-format", "json"], log=log)
        try:
            reached = count / publish(server, count, full / 2)
            behind = count - metric(server, "openq_log_events_total")
            until(lambda: metric(server, "openq_log_events_total") >= count)
            dropped = metric(server, "openq_log_lines_dropped_total")
            gaps = metric(server, "openq_log_event_gaps_total")
        finally:
            server.stop()
        log.seek(0)
        lines = sum(b'"event": "published"' in line for line in log)
    return {
        "bench": "event_log",
        "protocol": name,
        "full_per_s": round(full),
        "wanted_per_s": round(full / 2),
        "reached_per_s": round(reached),
        "behind_at_the_end": max(0, round(behind)),
        "published": count,
        "lines": lines,
        "dropped": dropped,
        "gaps": gaps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    count = parser.parse_args().messages
    for name, publish, times in (("sqs", by_sqs, 1), ("amqp", by_amqp, 5)):
        print(json.dumps(measure(name, publish, count * times)), flush=True)


if __name__ == "__main__":
    main()
