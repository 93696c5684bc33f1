"""Kill a server with readers of its events at any moment, many times.

Clients publish, receive, ack and nack meanwhile. The readers connect again with `Last-Event-ID`, and leave by
themselves now and then. Afterwards every reader has got exactly the events of the journal, each once, in
order: nothing that was shown is gone, nothing is missing, nothing came twice.
"""

from __future__ import annotations

import random
import threading
import time
from http.client import HTTPException
from pathlib import Path

from openq.broker.events import EventFilter
from openq.local.broker import LocalBroker
from tests.events.sse import EventStream
from tests.rest.helpers import Client
from tests.serving import Served, free_port, start

LONGEST_S = 0.5
QUEUES = ("q", "dead")
_BROKEN = (OSError, HTTPException, ValueError, IndexError, AssertionError)  # the server was killed

Seen = tuple[str, str, str | None]  # id, event, message id


class EventReaderThread(threading.Thread):
    """Reads everything from the oldest event on, and resumes after every end of its connection."""

    def __init__(self, port: int, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._chance = random.Random(seed)
        self._last = ""
        self.seen: list[Seen] = []
        self.complaint = ""
        self.connections = 0
        self.is_last = threading.Event()  # set: read to the end once more, then stop

    def run(self) -> None:
        while not self.complaint:
            is_last = self.is_last.is_set()
            try:
                is_done = self._read("0" if is_last else "1")
            except _BROKEN:
                time.sleep(0.01)
                continue
            if is_last and is_done:
                return

    def _read(self, follow: str) -> bool:
        """True if the server ended the stream."""
        headers = {"last_event_id": self._last} if self._last else {}
        path = f"events?from=oldest&follow={follow}"
        limit = self._chance.randrange(1, 400) if follow == "1" else 1 << 60
        with EventStream(self._port, path, timeout=2.0, **headers) as stream:
            if stream.status != 200:
                raise OSError(f"status {stream.status}")
            self.connections += 1
            for _ in range(limit):
                block = stream.block()
                if block is None:
                    return True
                if block.event == "gap":
                    self.complaint = f"a gap: {block.data}"
                    return True
                self._last = block.id
                self.seen.append((block.id, block.event, block.data.get("message_id")))
        return False


class EventsLoop:
    def __init__(self, path: Path, seed: int, readers: int = 3) -> None:
        self._path = path
        self._port = free_port()
        self._chance = random.Random(seed)
        self._readers = [EventReaderThread(self._port, seed + n) for n in range(readers)]
        self._stopping = threading.Event()
        self.events = 0
        self.connections = 0

    def run(self, kills: int) -> str:
        """The complaint; empty: everything is as it should be."""
        server = self._start()
        workers = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(2)]
        for thread in (*workers, *self._readers):
            thread.start()
        for _ in range(kills):
            time.sleep(self._chance.uniform(0.02, LONGEST_S))
            server.kill()
            server = self._start()
        self._stopping.set()
        for worker in workers:
            worker.join()
        for reader in self._readers:
            reader.is_last.set()
        for reader in self._readers:
            reader.join(60)
        server.stop()
        self.connections = sum(reader.connections for reader in self._readers)
        return self._judge()

    def _start(self) -> Served:
        return start(self._path, port=self._port).wait()

    def _work(self, number: int) -> None:
        client = Client(f"http://127.0.0.1:{self._port}")
        chance = random.Random(number)
        while not self._stopping.is_set():
            try:
                self._some_work(client, chance)
            except _BROKEN:
                time.sleep(0.005)

    def _some_work(self, client: Client, chance: random.Random) -> None:
        client.put("/queues/dead", {})
        client.put("/queues/q", {"dlq": "dead", "max_receives": 2, "retry": "none"})
        while not self._stopping.is_set():
            items = [{"payload": n, "message_type": "t"} for n in range(chance.randrange(1, 20))]
            client.post("/queues/q/messages/batch", items)
            client.post("/queues/q/messages", {"payload": "x", "id": f"own-{chance.random()}"})
            queue = chance.choice(QUEUES)
            found = client.receive(f"/queues/{queue}", max=10)
            receipts = [each["receipt_id"] for each in found]
            if receipts:
                verb = chance.choice(("ack", "ack", "nack"))
                client.post(f"/queues/{queue}/{verb}", {"receipts": receipts})

    def _judge(self) -> str:
        broker = LocalBroker(self._path)
        kept: list[Seen] = []
        after = None
        while True:
            page = broker.events.read(after, 1000, EventFilter())
            kept += [(event.id, event.event, event.message_id) for event in page.events]
            after = page.next
            if page.is_end:
                break
        broker.close()
        self.events = len(kept)
        for number, reader in enumerate(self._readers):
            if reader.complaint:
                return f"reader {number}: {reader.complaint}"
            if reader.is_alive():
                return f"reader {number} has not come to an end"
            # What the recovery of this last look added was not there for the readers.
            complaint = _difference(reader.seen, kept)
            if complaint:
                return f"reader {number}: {complaint}"
        return ""


def _difference(seen: list[Seen], kept: list[Seen]) -> str:
    for at, (one, other) in enumerate(zip(seen, kept, strict=False)):
        if one != other:
            return f"event {at} is {one}, the journal has {other}"
    if len(seen) > len(kept):
        return f"{len(seen) - len(kept)} events that the journal does not have, from {seen[len(kept)]} on"
    missing = [event for event in kept[len(seen) :] if event[1] not in ("released", "lease_expired")]
    return f"{len(missing)} events are missing, from {missing[0]} on" if missing else ""
