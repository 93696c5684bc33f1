"""Server-sent events to a thousand readers, against a loop that writes the same bytes to as many sockets.

Messages are published in groups, and at most two groups are under way. The readers are in one thread, the
same for both sides. It shares the machine with the server, so the rows by the clock are nearer to 1 than
those per CPU-second of the server. A server that finds two groups writes them together; the loop does not.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from .amqp_client import body
from .amqp_load import Clock
from .harness import BenchTarget, Run
from .push_bare import END, SIZE
from .push_client import MSGPACK, StreamPublisher
from .push_common import BENCH
from .push_crowd import Crowd, as_many_as_allowed
from .push_load import StreamLink
from .server_load import STUCK_S, RequestRefused, Tally
from .server_processes import ROOT, OpenQ, ServerProcess
from .server_rounds import Contender, Work, compared, in_turns, started

READERS = 1_000
WINDOW = 2  # groups that are written and not read
QUEUE = "fan-out"
PATH = f"/api/v1/queues/{QUEUE}/events?events=published"
TARGET = BenchTarget(0.4, 0.8)
_MARK = b"event: published"
_TAIL = 1024


class BareLoop(ServerProcess):
    name = "bare loop"

    def argv(self) -> list[str]:
        return [sys.executable, "-m", "bench.push_bare", str(self.port)]

    def env(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(ROOT)}

    def is_ready(self) -> bool:
        """The first connection is the one that controls it."""
        self.control = socket.create_connection(("127.0.0.1", self.port), timeout=STUCK_S)
        return True


def run(run: Run) -> None:
    readers = as_many_as_allowed(run, READERS)
    sizes = {100: 40 if run.quick else 150, 1: 200 if run.quick else 1_000}  # messages in a group: groups
    ours, bare = OpenQ(run.folder("openq"), durable=True), BareLoop(run.folder("bare"))
    with started(ours, bare):
        ours.queue(QUEUE)
        events, plain = EventSide(ours.port, readers), BareSide(bare, readers)
        try:
            for size, groups in sizes.items():
                served = Contender(ours, partial(events.ready, size, groups))
                written = Contender(bare, partial(plain.ready, size, groups, lambda: events.group))
                in_turns([served, written], run.rounds(7, quick=3))
                note = f"{len(events.group) // size} bytes per event"
                for by, target in (("per_s", TARGET if size > 1 else None), ("per_cpu_s", None)):
                    what = f"events to {readers:,} SSE readers, published by {size}, in all"
                    what += ", wall" if by == "per_s" else ""
                    row = compared(what, "a bare loop, same bytes", served, written, target, by=by, note=note)
                    run.emit(replace(row, bench=BENCH))
        finally:
            events.close()
            plain.close()


class Readers:
    """The crowd. One of them is the witness: it shows how far the others should be."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._tails: dict[int, bytes] = dict.fromkeys(crowd.filenos, b"")
        self._witness = crowd.filenos[0]
        self.begin()

    def begin(self) -> None:
        self._tails = dict.fromkeys(self._tails, b"")
        self._seen: list[bytes] = []
        self.bytes_seen = self.events_seen = 0  # by the witness, in this lap

    @property
    def seen(self) -> bytes:
        return b"".join(self._seen)

    def read(self) -> None:
        """What is there; at least something."""
        was_read = False
        for fileno, [data] in self._crowd.read(STUCK_S):
            was_read = True
            before = self._tails[fileno]
            self._tails[fileno] = data[-_TAIL:] if len(data) >= _TAIL else (before + data)[-_TAIL:]
            if fileno == self._witness:
                self._seen.append(data)
                self.bytes_seen += len(data)
                self.events_seen += (before[1 - len(_MARK) :] + data).count(_MARK)
        if not was_read:
            raise RequestRefused(f"the readers got nothing for {STUCK_S:.0f} s")

    def read_until(self, all_have: bytes) -> None:
        """The last bytes of the lap."""
        behind = set(self._tails)
        while True:
            behind = {each for each in behind if all_have not in self._tails[each]}
            if not behind:
                return
            self.read()


class EventSide:
    def __init__(self, port: int, readers: int) -> None:
        self._crowd = Crowd()
        self._crowd.open_events(port, readers, lambda number: PATH)
        self._crowd.rest(1.0)  # the heads of the streams
        self._readers = Readers(self._crowd)
        self._link = StreamLink(port, StreamPublisher(QUEUE, [], 0))
        self.group = b""  # what a reader got for a group

    def ready(self, size: int, groups: int) -> Work:
        bodies = [body(number, 100) for number in range(size)]
        request = MSGPACK.request("publish", 1, queue=QUEUE, messages=bodies)
        return lambda: self._lap(size, groups, request)

    def _lap(self, size: int, groups: int, request: bytes) -> Tally:
        readers = self._readers
        readers.begin()
        clock = Clock()
        published = 0
        while (read := readers.events_seen) < groups * size:
            while published < groups and published * size - read < WINDOW * size:
                published += 1
                self._link.socket.sendall(request)
            readers.read()
        seen = readers.seen
        last = seen.rindex(b"id: ")
        readers.read_until(seen[last : seen.index(b"\n", last) + 1])
        tally = clock.count_records(groups * size * len(self._crowd))
        self.group = seen[: len(seen) // groups]
        return tally

    def close(self) -> None:
        self._crowd.close()
        self._link.close()


class BareSide:
    def __init__(self, bare: BareLoop, readers: int) -> None:
        self._crowd = Crowd()
        self._crowd.open_plain(bare.port, readers)
        self._readers = Readers(self._crowd)
        self._control = bare.control

    def ready(self, size: int, groups: int, last_group: Callable[[], bytes]) -> Work:
        group = last_group()
        self._control.sendall(b"d" + SIZE.pack(len(group)) + group)
        return lambda: self._lap(size, groups, len(group))

    def _lap(self, size: int, groups: int, group_bytes: int) -> Tally:
        readers = self._readers
        readers.begin()
        clock = Clock()
        written = 0
        while readers.bytes_seen < groups * group_bytes + len(END):
            while written < groups and written * group_bytes - readers.bytes_seen < WINDOW * group_bytes:
                written += 1
                self._control.sendall(b"e" if written == groups else b"w")
            readers.read()
        readers.read_until(END)
        return clock.count_records(groups * size * len(self._crowd))

    def close(self) -> None:
        self._crowd.close()
        self._control.close()
