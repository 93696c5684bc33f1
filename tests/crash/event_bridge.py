"""Kill a server that sends events to a queue bound to `openq.events` at any moment, many times.

Clients publish, receive and ack meanwhile. Afterwards the bound queue has got exactly the events of the
store, each once, in order.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from openq.broker.events import EventFilter, Events
from tests.events.sse import EventStream
from tests.protocol_clients import RestClient
from tests.serving import Served, free_port

LONGEST_S = 0.6
WRITERS = 3
QUIET_S = 8.0  # a server that died may own the position for so long
WANTED = EventFilter(queues=("work",))
_BROKEN = (OSError, HTTPException, ValueError, AssertionError)  # the server was killed


class EventBridgeLoop:
    def __init__(self, arguments: list[str], open_broker: Callable[[], Any], seed: int) -> None:
        """`open_broker` opens the store when no server uses it."""
        self._arguments = arguments
        self._open_broker = open_broker
        self._chance = random.Random(seed)
        self._port = free_port()
        self._rest = RestClient(f"http://127.0.0.1:{self._port}")
        self._is_over = threading.Event()
        self.received: list[str] = []

    def run(self, kills: int) -> str:
        """Returns a complaint, or nothing."""
        server = self._start()
        self._rest.make("work")
        self._rest.make("sink")
        binding = {"source": "openq.events", "destination": "sink", "key": "work.*"}
        self._rest.call("POST", "/bindings", binding)
        writers = [threading.Thread(target=self._write) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        try:
            for _ in range(kills):
                time.sleep(self._chance.uniform(0.05, LONGEST_S))
                server.kill()
                server = self._start()
            time.sleep(self._chance.uniform(0.05, LONGEST_S))
        finally:
            self._is_over.set()
            for writer in writers:
                writer.join()
        try:
            self._receive()
        finally:
            server.stop()
        return self._compare()

    def _start(self) -> Served:
        return Served(self._arguments, self._port).wait()

    def _write(self) -> None:
        while not self._is_over.is_set():
            try:
                self._rest.send("work", {"payload": "x"})
                self._rest.take("work")
            except _BROKEN:
                time.sleep(0.01)

    def _receive(self) -> None:
        """Until the last event of the store has arrived, or nothing has come for long."""
        arrived_s = time.monotonic()
        while time.monotonic() - arrived_s < QUIET_S:
            message = self._rest.take("sink")
            if message is None:
                if self.received and self._is_at_end():
                    return
                time.sleep(0.02)
                continue
            self.received.append(message["payload"]["id"])
            arrived_s = time.monotonic()

    def _is_at_end(self) -> bool:
        """Whether no event of the queue is later than the last that was received."""
        with EventStream(
            self._port, "queues/work/events?follow=0", Last_Event_ID=self.received[-1]
        ) as stream:
            return not stream.rest()

    def _compare(self) -> str:
        broker = self._open_broker()
        try:
            stored = _ids(broker.events)
        finally:
            broker.close()
        if not self.received:
            return "no event arrived"
        if len(set(self.received)) != len(self.received):
            return f"{len(self.received) - len(set(self.received))} events arrived twice"
        expected = stored[1:]  # without the creation of the queue, before the binding
        if self.received != expected:
            missing = len(set(expected) - set(self.received))
            return f"{missing} of {len(expected)} events did not arrive, or not in order"
        return ""


def _ids(events: Events) -> list[str]:
    found: list[str] = []
    after = None
    while True:
        page = events.read(after, 1000, WANTED)
        found += [event.id for event in page.events]
        after = page.next
        if page.is_end:
            return found
