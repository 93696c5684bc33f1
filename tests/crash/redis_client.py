"""A process that uses queues in Redis, and writes down every call and every answer.

Run as `python -m tests.crash.redis_client OPTIONS` with the options as JSON. Its actors are threads that
share one broker; they go on whatever happens, with the same broker, until standard input ends.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openq.errors import NotReplicated, OpenQError, StoreError, StoreUnavailable
from openq.redis.broker import RedisBroker
from tests.crash.client import UNKNOWN, Client, Died, Refused, Uncertain
from tests.crash.client_log import Notes
from tests.crash.host import Answer, Call, Host, _draft
from tests.crash.kill_loop import EXPECTED, consume, consume_fifo, dead_letter, produce, produce_fifo

AWAY = "StoreUnavailable"
LATE = {"VisibilityTimeoutExpired", "MessageNotFoundError"}
ALIVE_NS = 50_000_000  # often enough to be waited for
HELD_LEASE_MS = 700


def is_open(error: BaseException | str | None) -> bool:
    """Whether it leaves open what happened."""
    return isinstance(error, NotReplicated) or (isinstance(error, StoreUnavailable) and error.sent)


class RedisHost(Host):
    """Calls to a broker whose store may be away; raises Died where the outcome is not known."""

    def __init__(self, broker: RedisBroker, notes: Notes) -> None:
        super().__init__(broker)  # type: ignore[arg-type]
        self._notes = notes

    def answer(self, call: Call) -> Answer:
        try:
            return {"ok": getattr(self, "do_" + call["do"])(call)}
        except Died:
            raise
        except OpenQError as error:
            if is_open(error):
                raise Died() from error
            return {"error": type(error).__name__, "text": str(error)}
        except Exception as error:
            return {"error": "!" + type(error).__name__, "text": repr(error)}

    def sync(self, call: Call) -> None:
        try:
            self.broker.sync()
        except StoreError as error:
            raise Died() from error  # it was done; how well it is kept is not known

    def do_publish_many(self, call: Call) -> list[str | None]:
        return self._publish(call, [_draft(draft) for draft in call["drafts"]])

    def do_publish_run(self, call: Call) -> int:
        bodies = [body.encode() for body in call["bodies"]]
        run = self.broker.publish_bodies(call["queue"], bodies, 0)
        if run is None:
            sent = self._publish(call, [_draft({"body": body}) for body in call["bodies"]])
            assert None not in sent, "some of a run were refused"
            return len(sent)
        self.sync(call)
        return len(run)

    def _publish(self, call: Call, drafts: Sequence[Any]) -> list[str | None]:
        results = self.broker.publish_many(call["queue"], drafts)
        self.sync(call)
        if any(is_open(each) for each in results):
            raise Died()
        return [None if isinstance(each, OpenQError) else each[0] for each in results]

    def do_ack(self, call: Call) -> list[str | None]:
        errors = self.broker.ack(call["queue"], [tuple(receipt) for receipt in call["receipts"]])
        self.sync(call)
        said: list[str | None] = []
        for (seq, number), error in zip(call["receipts"], errors, strict=True):
            if error is None:
                self._notes.acked(call["queue"], seq, number)
            said.append(UNKNOWN if is_open(error) else error and type(error).__name__)
        if late := sum(name in LATE for name in said):
            self._notes.late(late)
        return said


class Actor:
    """One thread's worth of habits; what the habits of the kill loop need is here under the same names."""

    def __init__(
        self, name: str, session: int, broker: RedisBroker, notes: Notes, options: dict[str, Any]
    ) -> None:
        self.name = name
        self.random = random.Random(f"{options['seed']} {name}")
        self.client = Client(notes, RedisHost(broker, notes).answer, f"{name}.", session)  # type: ignore[arg-type]
        self.orders: dict[str, int] = {}
        self.unanswered: list[tuple[str, str]] = []
        self.loop = SimpleNamespace(keeps_history=True)  # a publish may be repeated
        self._notes = notes
        self._pause_s: float = options.get("pause_s", 0.005)
        self._act = HABITS[name.rstrip("0123456789")]
        self._told_ns = 0

    def live(self, over: threading.Event) -> None:
        while not over.is_set():
            try:
                self._act(self)
                self._tell()
            except Refused as refused:
                if refused.error == AWAY:
                    self._notes.away(self.name, str(refused))
                elif refused.error not in EXPECTED:
                    self._notes.complain(f"{self.name}: {refused}")
                else:
                    self._tell()
            except Uncertain:
                pass  # the notes have it
            except Died as died:
                self._notes.away(self.name, str(died.__cause__))
            over.wait(self._pause_s * self.random.random())

    def _tell(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._told_ns > ALIVE_NS:
            self._told_ns = now_ns
            self._notes.alive(self.name)


def hold(actor: Actor) -> None:
    """Work on a batch for a while, within its lease."""
    found = actor.client.receive("held", actor.random.randint(1, 4), HELD_LEASE_MS)
    time.sleep(actor.random.uniform(0.02, 0.15))
    actor.client.ack(*found)


def supply(actor: Actor) -> None:
    actor.client.publish_many("held", 3)
    time.sleep(0.02)


HABITS: dict[str, Callable[[Any], None]] = {
    "produce": produce,
    "consume": consume,
    "dead_letter": dead_letter,
    "order": produce_fifo,
    "follow": consume_fifo,
    "supply": supply,
    "hold": hold,
}


def main(options: dict[str, Any]) -> None:
    faulthandler.register(signal.SIGUSR1)  # where it hangs
    logging.disable(logging.CRITICAL)  # a store that is away is what this is about
    notes = Notes(Path(options["notes"]), options["spaces"])
    broker = RedisBroker(options["url"], profile=options["profile"])
    over = threading.Event()
    actors = [Actor(name, session, broker, notes, options) for session, name in enumerate(options["cast"], 1)]
    threads = [threading.Thread(target=actor.live, args=(over,)) for actor in actors]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    broker.close()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
