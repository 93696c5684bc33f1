"""How soon a thousand subscribers of one queue get a message each: from before the publish until it is read.

All of them are WebSocket connections of one durable server, with a credit of one message. `at once`: one
publish of as many messages as there are subscribers, so that the last one waits for all others. `one by one`:
a hundred messages a second, each of which wakes the next subscriber.
"""

from __future__ import annotations

import statistics
import time

from .amqp_client import body
from .amqp_load import percentile
from .harness import BenchTarget, Row, Run
from .push_client import MSGPACK, StreamPublisher
from .push_common import BENCH
from .push_crowd import Crowd, as_many_as_allowed
from .push_load import StreamLink
from .server_load import STUCK_S, RequestRefused
from .server_processes import OpenQ
from .server_rounds import started

SUBSCRIBERS = 1_000
PACE_PER_S = 100
QUEUE = "wake"
TARGET = BenchTarget(100, 100, more_is_better=False)


def run(run: Run) -> None:
    subscribers = as_many_as_allowed(run, SUBSCRIBERS)
    rounds = run.rounds(10, quick=5)
    server = OpenQ(run.folder("openq"), durable=True)
    with started(server):
        server.queue(QUEUE)
        crowd = Crowd()
        try:
            crowd.open_streams(server.port, subscribers, lambda number: QUEUE, credit=1)
            wakes = Wakes(server.port, crowd)
            wakes.at_once(subscribers)  # once, uncounted
            began_s = server.cpu_s()
            bursts = [wakes.at_once(subscribers) for _ in range(rounds)]
            burst_cpu_ms = (server.cpu_s() - began_s) / rounds * 1000
            paced = wakes.one_by_one(300 if run.quick else 2_000)
            wakes.close()
        finally:
            crowd.close()
    p99s = [percentile(burst, 99) for burst in bursts]
    p50 = statistics.median(percentile(burst, 50) for burst in bursts)
    longest = max(burst[-1] for burst in bursts)
    note = (
        f"{rounds} bursts; p50 {p50:.1f} ms, longest {longest:.1f} ms; "
        f"{burst_cpu_ms:.0f} ms of the server's CPU for each, with the acks"
    )
    what = f"{subscribers:,} subscribers of one queue woken"
    run.emit(Row(BENCH, f"{what} at once, p99", "-", "ms", p99s, TARGET, note=note))
    note = f"{len(paced)} messages; p50 {percentile(paced, 50):.2f} ms, longest {paced[-1]:.1f} ms"
    run.emit(Row(BENCH, f"{what} one by one, p99", "-", "ms", [percentile(paced, 99)], TARGET, note=note))


class Wakes:
    """A publisher, and the crowd that gets its messages and acks them."""

    def __init__(self, port: int, crowd: Crowd) -> None:
        self._crowd = crowd
        self._sent = 0
        self._sent_s: dict[bytes, float] = {}
        self._took_ms: list[float] = []
        self._unsettled = 0
        self._link = StreamLink(port, StreamPublisher(QUEUE, [], 0))

    def close(self) -> None:
        self._link.close()

    def at_once(self, count: int) -> list[float]:
        """Sorted, in milliseconds."""
        self._publish(count)
        self._read_until(count)
        return self._taken()

    def one_by_one(self, count: int) -> list[float]:
        began_s = time.perf_counter()
        for number in range(count):
            while (wait_s := began_s + number / PACE_PER_S - time.perf_counter()) > 0:
                self._read(wait_s)
            self._publish(1)
        self._read_until(count)
        return self._taken()

    def _publish(self, count: int) -> None:
        bodies = [body(number, 100) for number in range(self._sent, self._sent + count)]
        self._sent += count
        data = MSGPACK.request("publish", self._sent, queue=QUEUE, messages=bodies)
        now_s = time.perf_counter()
        for each in bodies:
            self._sent_s[each] = now_s
        self._link.socket.sendall(data)

    def _read_until(self, count: int) -> None:
        end_s = time.perf_counter() + STUCK_S
        while len(self._took_ms) < count or self._unsettled:  # acks too: they are not part of the next lap
            if time.perf_counter() > end_s:
                raise RequestRefused(f"{len(self._sent_s)} messages woke no subscriber")
            self._read(1.0)

    def _read(self, wait_s: float) -> None:
        for fileno, payloads in self._crowd.read(wait_s):
            now_s = time.perf_counter()
            for payload in payloads:
                frame = MSGPACK.decode(payload)
                if frame.op != "deliver":
                    frame.expect("settled")
                    self._unsettled -= frame.count
                    continue
                for message in frame.messages:
                    self._took_ms.append((now_s - self._sent_s.pop(message.payload)) * 1000)
                self._unsettled += len(frame.messages)
                self._crowd.send(fileno, MSGPACK.request("ack", 1, receipts=frame.receipts))

    def _taken(self) -> list[float]:
        taken, self._took_ms = sorted(self._took_ms), []
        return taken
