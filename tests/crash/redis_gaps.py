"""How long nothing is confirmed after the death of a master: by a library's threads, by asyncio, by a server.

`python -m tests.crash.redis_gaps [cluster|sentinel] [--rounds N]` prints, for each fault, when the servers
had another master and the longest time without a confirmed publish. It measures and asserts nothing: the
times depend on the settings of the servers (`cluster-node-timeout`, `down-after-milliseconds`) and on the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import openq.aio
from openq import OpenQ
from openq.errors import OpenQError
from tests.redis.servers import FORCED, Cluster, Sentinel, Server, cluster, sentinel
from tests.serving import Served, free_port

QUEUES = 6  # on different nodes of a cluster
CALM_S = 2.0  # before a fault, and after everybody goes on
PAUSE_S = 0.01
MAX_S = 60.0


class Clients:
    """Each publishes again and again; `done` is when which of them was last confirmed, `gap` its longest."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
        self.gap: dict[str, float] = {}
        self.why: dict[str, str] = {}
        self.stopping = threading.Event()
        self._lock = threading.Lock()

    def confirmed(self, name: str) -> None:
        now_s = time.monotonic()
        with self._lock:
            before_s = self.last.get(name, now_s)
            self.gap[name] = max(self.gap.get(name, 0.0), now_s - before_s)
            self.last[name] = now_s

    def reset(self) -> None:
        with self._lock:
            self.gap = dict.fromkeys(self.gap, 0.0)
            self.why.clear()

    def all_since(self, at_s: float) -> bool:
        with self._lock:
            return min(self.last.values()) > at_s

    def by_kind(self) -> dict[str, float]:
        with self._lock:
            kinds: dict[str, float] = {}
            for name, gap in self.gap.items():
                kind = name.partition(" ")[0]
                kinds[kind] = max(kinds.get(kind, 0.0), gap)
            return kinds

    def publish(self, name: str, publish: Callable[[], object]) -> None:
        while not self.stopping.is_set():
            try:
                publish()
                self.confirmed(name)
            except (OpenQError, OSError) as error:
                self.why[name] = str(error)
            self.stopping.wait(PAUSE_S)


def _by_asyncio(clients: Clients, url: str) -> None:
    async def one(number: int) -> None:
        name = f"asyncio {number}"
        async with openq.aio.OpenQ(f"gap-{number}", url=url) as queue:
            while not clients.stopping.is_set():
                try:
                    await queue.publish("x")
                    clients.confirmed(name)
                except OpenQError as error:
                    clients.why[name] = str(error)
                await asyncio.sleep(PAUSE_S)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(QUEUES)))

    asyncio.run(main())


def _by_server(server: Served, number: int) -> None:
    request = urllib.request.Request(
        f"{server.url}/api/v1/queues/gap-{number}/messages",
        b'{"payload": "x"}',
        {"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=MAX_S).close()


@contextmanager
def publishing(url: str) -> Iterator[Clients]:
    clients = Clients()
    with ExitStack() as stack:
        queues = [stack.enter_context(OpenQ(f"gap-{number}", url=url)) for number in range(QUEUES)]
        server = Served(["--store", url], free_port()).wait()
        stack.callback(server.stop)
        threads = [threading.Thread(target=_by_asyncio, args=(clients, url))]
        for number, queue in enumerate(queues):
            names = f"library {number}", f"server {number}"
            acts = (lambda queue=queue: queue.publish("x"), lambda number=number: _by_server(server, number))
            threads += [
                threading.Thread(target=clients.publish, args=each) for each in zip(names, acts, strict=True)
            ]
        for thread in threads:
            thread.start()
        try:
            wait(lambda: len(clients.last) == 3 * QUEUES)
            yield clients
        finally:
            clients.stopping.set()
            for thread in threads:
                thread.join()


def wait(condition: Callable[[], bool]) -> float:
    """Until it holds; how long that took."""
    begun_s = time.monotonic()
    while not condition() and time.monotonic() - begun_s < MAX_S:
        time.sleep(PAUSE_S)
    return time.monotonic() - begun_s


def _rounds(
    kind: str, servers: Cluster | Sentinel, rounds: int, fault: str, choose: Callable[[int], Server]
) -> float:
    longest_s = 0.0
    with publishing(servers.url) as clients:
        for number in range(rounds):
            time.sleep(CALM_S)
            clients.reset()
            victim = choose(number)
            heirs = servers.replicas_of(victim) if isinstance(servers, Cluster) else []
            begun_s = time.monotonic()
            (victim.kill9 if fault == "killed" else victim.freeze)()
            if isinstance(servers, Cluster):
                servers.wait_replaced(victim, heirs)
            else:
                servers.wait_for_another(victim)
            replaced_s = time.monotonic() - begun_s
            wait(lambda at_s=begun_s + replaced_s: clients.all_since(at_s))
            time.sleep(CALM_S)
            gaps = clients.by_kind()
            longest_s = max(longest_s, *gaps.values())
            reported = {name: round(gap, 2) for name, gap in sorted(gaps.items())}
            line = {
                "kind": kind,
                "fault": fault,
                "replaced_s": round(replaced_s, 2),
                "longest_gap_s": reported,
            }
            print(json.dumps(line), flush=True)
            (victim.start if fault == "killed" else victim.thaw)()
            servers.wait_whole()
    return longest_s


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.redis_gaps", description=__doc__)
    parser.add_argument("kind", nargs="*", choices=[[], "cluster", "sentinel"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fault", choices=["killed", "frozen"], help="both, if none is named")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    longest: dict[str, float] = {}
    for kind in options.kind or ("cluster", "sentinel"):
        for fault in [options.fault] if options.fault else ("killed", "frozen"):
            if kind == "cluster":
                with cluster(3, 1, *FORCED) as nodes:
                    masters = lambda number, nodes=nodes: nodes.masters()[number % 3]  # noqa: E731
                    gap_s = _rounds(kind, nodes, options.rounds, fault, masters)
            else:
                with sentinel(1, *FORCED) as group:
                    gap_s = _rounds(kind, group, options.rounds, fault, lambda _, group=group: group.master)
            longest[f"{kind} {fault}"] = round(gap_s, 2)
    print(json.dumps({"longest_gap_s": longest}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
