"""Kill servers that push messages, and their clients, at any moment, many times.

Afterwards every message whose publish was confirmed was delivered, and no message was delivered again after
its ack was confirmed. Publisher and consumers are clients of the WebSocket stream.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Sequence
from itertools import count, cycle

from websockets.exceptions import WebSocketException

from tests.push.streams import Stream, opened
from tests.rest.helpers import Client
from tests.serving import Served, free_port
from tests.waiting import until

LONGEST_S = 0.4
CONSUMERS = 2
BATCH = 10
_LOST = (WebSocketException, OSError, TimeoutError)


class StreamLoop:
    def __init__(self, store: Sequence[str], seed: int, servers: int = 1) -> None:
        """`store`: the arguments that name the store of the servers."""
        self._store = list(store)
        self._chooser = random.Random(seed)
        self._ports = [free_port() for _ in range(servers)]
        self._numbers = count(1)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._published: set[str] = set()  # confirmed
        self._seen: set[str] = set()
        self._acked: set[str] = set()  # confirmed
        self._streams: set[Stream] = set()
        self._complaint = ""
        self.cut = 0  # clients

    @property
    def confirmed(self) -> int:
        return len(self._published)

    def run(self, lives: int) -> str:
        """What is wrong; empty if all is well."""
        servers = [Served(self._store, port) for port in self._ports]
        for server in servers:
            server.wait()
        Client(servers[0].url).queue("q", retry={"kind": "none"})
        works = [self._publish] + [self._consume] * CONSUMERS
        threads = [threading.Thread(target=self._again, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            for _ in range(lives):
                time.sleep(self._chooser.uniform(0, LONGEST_S))
                self._cut_a_client()
                time.sleep(self._chooser.uniform(0, LONGEST_S))
                at = self._chooser.randrange(len(servers))
                servers[at].kill()
                servers[at] = Served(self._store, self._ports[at]).wait()
            before = self.confirmed
            until(lambda: self.confirmed > before, "publishing goes on")
            self._publishing_ends = True
            until(lambda: self._complaint or self._published <= self._seen, "everything is delivered")
        finally:
            self._stopping.set()
            for stream in list(self._streams):
                stream.connection.socket.close()
            for thread in threads:
                thread.join(60)
            for server in servers:
                server.stop()
        return self._complaint

    _publishing_ends = False

    def _cut_a_client(self) -> None:
        with self._lock:
            streams = list(self._streams)
        if streams:
            self.cut += 1
            try:
                self._chooser.choice(streams).connection.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _again(self, work: object) -> None:
        assert callable(work)
        ports = cycle(self._ports)
        while not self._stopping.is_set():
            try:
                with opened(f"http://127.0.0.1:{next(ports)}") as stream:
                    with self._lock:
                        self._streams.add(stream)
                    try:
                        work(stream)
                    finally:
                        with self._lock:
                            self._streams.discard(stream)
            except _LOST:
                self._stopping.wait(0.01)

    def _publish(self, stream: Stream) -> None:
        while not self._stopping.is_set():
            if self._publishing_ends:
                self._stopping.wait(0.01)
                continue
            bodies = [str(next(self._numbers)) for _ in range(BATCH)]
            reply = stream.ask("publish", queue="q", messages=bodies)
            if reply["op"] == "published":
                self._published.update(bodies)

    def _consume(self, stream: Stream) -> None:
        stream.subscribe("q", credit={"messages": 2 * BATCH})
        while not self._stopping.is_set():
            messages = stream.next("deliver")["messages"]
            bodies = {each["payload"] for each in messages}
            with self._lock:
                again = bodies & self._acked
                self._seen |= bodies
            if again:
                self._complaint = f"delivered again after a confirmed ack: {sorted(again)[:5]}"
            reply = stream.ack(messages)
            failed = {each["receipt_id"] for each in reply.get("failed", ())}
            with self._lock:
                self._acked |= {each["payload"] for each in messages if each["receipt_id"] not in failed}
