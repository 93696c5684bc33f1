"""The kill loop against `openq serve`: clients come by every protocol, and come back after each death."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.amqp_protocol import AmqpProtocol
from tests.crash.client import Died
from tests.crash.host import Answer, Call
from tests.crash.kill_loop import CAST, Actor, KillLoop, Process
from tests.crash.protocols import RestProtocol, SqsProtocol
from tests.serving import Served, free_port, start

# Small files, so that a short life fills several. Names that were deleted are free again at once.
FLAGS = ("--segment-bytes", "65536", "--limits", "testing", "--log-level", "warning")
FORGETFUL = ("--history-bytes", "1")
# A start takes about this long; some deaths come in the middle of it.
LONGEST_START_S = 0.5
SOONEST = 4


class ServerProcess(Process):
    """One life of a server. Each session has its own connection and its own protocol."""

    def __init__(
        self, path: Path, port: int, flags: tuple[str, ...], kill_after: int, dies_at_start: float | None
    ) -> None:
        amqp_port = free_port()
        self._served: Served = start(path, *flags, "--amqp-port", str(amqp_port), port=port)
        self._port = port
        self._amqp_port = amqp_port
        self._kill_after = kill_after
        self._mutex = threading.Lock()
        self._protocols: dict[int, RestProtocol] = {}
        self.answers = 0
        self.ready = self._served._ready
        self._timer: threading.Timer | None = None
        if dies_at_start is not None:
            self._timer = threading.Timer(dies_at_start, self._served.process.kill)
            self._timer.start()

    @property
    def pid(self) -> int:
        return self._served.pid

    def call(self, call: Call) -> Answer:
        session = call["session"]
        with self._mutex:
            protocol = self._protocols.get(session)
            if protocol is None:
                protocol = self._protocols[session] = self._protocol(session)
        answer = protocol.answer(call)
        with self._mutex:
            self.answers += 1
            if self.answers == self._kill_after:
                self._served.process.kill()
        return answer

    def _protocol(self, session: int) -> RestProtocol:
        if session % 3 == 2:
            return AmqpProtocol(self._port, self._amqp_port, is_transactional=session % 2 == 1)
        return (SqsProtocol if session % 3 else RestProtocol)(self._port)

    def kill(self) -> None:
        self._served.process.kill()
        self.reap()

    def stop(self) -> int:
        for protocol in self._protocols.values():
            protocol.close()
        return self._served.stop()

    def reap(self) -> int:
        if self._timer is not None:
            self._timer.join()
        status = self._served._ended()
        for protocol in self._protocols.values():
            protocol.close()
        return status

    @property
    def complaints(self) -> list[str]:
        """What it logged that a sound disk gives no reason for."""
        return [line for line in self._served.log if "Traceback" in line or '"error"' in line]


def come_and_go(actor: Actor) -> None:
    """A queue of its own: created, used, deleted."""
    client = actor.client
    actor.orders["brief"] = number = actor.orders.get("brief", 0) + 1
    queue = f"brief-{number}"
    client.do("declare", queue=queue, settings={})
    client.publish_many(queue, 3)
    client.ack(*client.receive(queue, 1, 1500))
    client.purge(queue, "delete")


def deduplicate(actor: Actor) -> None:
    """A publish whose answer did not come is sent again after the restart, and is there once."""
    client = actor.client
    if not actor.unanswered:
        key = client.next_key()
        actor.unanswered.append((key, f"once-{key}"))
    key, dedup = actor.unanswered[0]
    for _ in range(2):
        client.publish("once", key, group="g", dedup=dedup, order=0)
    actor.unanswered.pop(0)
    if actor.random.random() < 0.5:
        client.ack(*client.receive("once", 3, 1500))


class ServerLoop(KillLoop):
    def __init__(
        self,
        path: Path,
        seed: int,
        *,
        keeps_history: bool = True,
        flags: tuple[str, ...] = (),
        shift: int = 0,
        after_death: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(path, seed, keeps_history=keeps_history, after_death=after_death)
        self._port = free_port()
        self._flags = (*FLAGS, *(() if keeps_history else FORGETFUL), *flags)
        self._starts = random.Random(f"{seed} starts")
        cast = [*CAST, ("brief", come_and_go), ("once", deduplicate)]
        # The session chooses the protocol: shifted, everyone comes by another one.
        self._actors = [
            Actor(self, name, session, act) for session, (name, act) in enumerate(cast, 1 + shift)
        ]
        self._lives: list[ServerProcess] = []

    def start(self, path: Path, kill_after: int = 0) -> Process:
        dies_at_start = None
        if 0 < kill_after <= SOONEST:
            dies_at_start = self._starts.uniform(0, LONGEST_START_S)
        process = ServerProcess(path, self._port, self._flags, kill_after, dies_at_start)
        process.ready.wait()
        self._lives.append(process)
        return process

    def _declare(self, process: Process) -> None:
        super()._declare(process)
        settings: dict[str, Any] = {"fifo": True}
        answer = process.call({"do": "declare", "session": 0, "queue": "once", "settings": settings})
        if "error" in answer:
            raise Died()

    def live(self, kill_after: int) -> None:
        super().live(kill_after)
        for line in self._lives[-1].complaints:
            self.ledger.complain(f"logged: {line[:300]}")
