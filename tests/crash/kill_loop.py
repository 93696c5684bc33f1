"""Kill a broker at random moments while many use it, start it again, go on; then look for what is missing.

The broker runs in a process of its own. Everything that is known about it here was read from its answers,
so what the ledger calls confirmed was confirmed to somebody outside.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.crash.client import Client, Died, Received, Refused, Uncertain
from tests.crash.ledger import Ledger, Verdict
from tests.isolation import with_tests

SPACES = {"work-dead": "work", "work-other": "work"}
QUEUES: dict[str, dict[str, Any]] = {
    "work-dead": {},
    "work": {"max_receives": 3, "dead_letter": "work-dead"},
    "work-other": {},
    "fifo": {"fifo": True},
    "fan-a": {},
    "fan-b": {},
    "purged": {},
    "history": {},
    "replayed": {},
}
# Short enough to end within a run, long enough to matter in it.
LEASES_MS = (200, 500, 1500)

# Refusals of late calls; any other refusal on a sound disk is a fault.
EXPECTED = {"VisibilityTimeoutExpired", "MessageNotFoundError", "QueueInUse"}


class Process:
    """One life of a broker; `kill_after` answers it is killed, wherever it is just then."""

    def __init__(self, path: str | os.PathLike[str], options: dict[str, Any], kill_after: int = 0) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.host", os.fspath(path), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=with_tests(),
        )
        self._mutex = threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, list[dict[str, Any]]]] = {}
        self._number = 0
        self._kill_after = kill_after
        self.answers = 0
        self.over = threading.Event()
        self.ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self, call: dict[str, Any]) -> dict[str, Any]:
        event = threading.Event()
        answer: list[dict[str, Any]] = []
        with self._mutex:
            if self.over.is_set():
                raise Died()
            self._number += 1
            self._waiting[self._number] = (event, answer)
            line = json.dumps({**call, "number": self._number}) + "\n"
            assert self._child.stdin is not None
            try:
                self._child.stdin.write(line)
                self._child.stdin.flush()
            except OSError:
                raise Died() from None
        event.wait()
        if not answer:
            raise Died()
        return answer[0]

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            if not line.endswith("\n"):
                break  # cut off by the kill: no client got an answer
            answer = json.loads(line)
            if answer["number"] == 0:
                self.ready.set()
                continue
            event, place = self._waiting.pop(answer["number"])
            place.append(answer)
            event.set()
            self.answers += 1
            if self.answers == self._kill_after:
                self._child.kill()
        with self._mutex:
            self.over.set()
            for event, _ in self._waiting.values():
                event.set()
        self.ready.set()

    def kill(self) -> None:
        self._child.kill()
        self.reap()

    def stop(self) -> int:
        """In good order. Returns the exit status."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        return self.reap()

    def reap(self) -> int:
        status = self._child.wait(timeout=120)
        self._reader.join()
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            self._child.stdin.close()
        except OSError:
            pass  # what was not sent will never be
        self._child.stdout.close()
        return status


class Actor:
    """One thread's worth of habits, kept over all lives of the broker."""

    def __init__(self, loop: KillLoop, name: str, session: int, act: Callable[[Actor], None]) -> None:
        self.loop = loop
        self.random = random.Random(f"{loop.seed} {name}")
        self.client = Client(loop.ledger, self._dead, f"{name}.", session)
        self._act = act
        self.orders: dict[str, int] = {}
        self.unanswered: list[tuple[str, str]] = []  # key and deduplication id of publishes to repeat

    @staticmethod
    def _dead(call: dict[str, Any]) -> dict[str, Any]:
        raise Died()

    def live(self, process: Process) -> None:
        self.client.using(process.call)
        try:
            while True:
                try:
                    self._act(self)
                except Refused as refused:
                    if refused.error not in EXPECTED:
                        self.loop.ledger.complain(str(refused))
                except Uncertain as uncertain:
                    self.loop.ledger.complain(f"a sound disk, but {uncertain}")
        except Died:
            pass


def produce(actor: Actor) -> None:
    client, chance = actor.client, actor.random
    what = chance.randrange(9)
    if what == 0:
        client.publish_many("work", chance.randint(2, 6))
    elif what == 1:
        client.publish_run("work", chance.randint(2, 12))
    elif what == 2:
        client.publish("work", delay_ms=chance.choice((20, 100, 400)))
    elif what == 3:
        client.publish("work", priority=chance.randint(1, 9), type="some")
    elif what == 4:
        key = client.next_key()
        actor.unanswered.append((key, f"dedup {key}"))
        _repeat(actor)
    elif what == 5:
        client.route("fan", "eu.north", ["fan-a", "fan-b"])
    elif what == 6:
        client.publish("work", size=chance.randint(100, 4000))
    else:
        client.publish("work")


def _repeat(actor: Actor) -> None:
    """A publish whose answer did not come is tried again, as a careful producer does."""
    while actor.unanswered:
        key, dedup = actor.unanswered[0]
        try:
            actor.client.publish("work", key, dedup=dedup)
        except Died:
            if not actor.loop.keeps_history:
                actor.unanswered.clear()  # its memory of duplicates is too short for a restart
            raise
        actor.unanswered.pop(0)


def consume(actor: Actor) -> None:
    client, chance = actor.client, actor.random
    queue = chance.choice(("work", "work", "work", "fan-a", "fan-b", "work-other"))
    found = client.receive(queue, chance.choice((1, 1, 4, 10)), chance.choice(LEASES_MS))
    if chance.random() < 0.5:
        client.ack(*found)
        return
    for delivery in found:
        _finish(actor, delivery)


def _finish(actor: Actor, delivery: Received) -> None:
    client, chance = actor.client, actor.random
    what = chance.randrange(10)
    if what == 0:
        client.nack(delivery, 0)
    elif what == 1:
        client.nack(delivery, chance.choice((10, 200)))
    elif what == 2 and delivery.queue == "work":
        client.reject(delivery)
    elif what == 3:
        client.release(delivery)
    elif what == 4:
        client.extend(delivery, 2000)
        client.ack(delivery)
    elif what != 5:  # else it is forgotten, and its lease ends
        client.ack(delivery)


def dead_letter(actor: Actor) -> None:
    client, chance = actor.client, actor.random
    if chance.random() < 0.3:
        # A server does not sync for a redrive that found nothing: it is no promise about what was before.
        client.do("redrive", changes=False, queue="work-dead")
    client.ack(*client.receive("work-dead", 5, 1500))


def produce_fifo(actor: Actor) -> None:
    group = actor.random.choice("abc")
    order = actor.orders[group] = actor.orders.get(group, 0) + 1
    actor.client.publish("fifo", group=group, order=order, dedup=f"{group}{order}")


def consume_fifo(actor: Actor) -> None:
    client, chance = actor.client, actor.random
    for delivery in client.receive("fifo", chance.choice((1, 3)), chance.choice(LEASES_MS)):
        what = chance.randrange(8)
        if what == 0:
            client.nack(delivery, 0)
            break  # the rest of the batch is left to its lease: order would be ours to break
        if what == 1:
            break
        client.ack(delivery)


def purge(actor: Actor) -> None:
    actor.client.publish_run("purged", 3)
    if actor.random.random() < 0.3:
        actor.client.purge("purged")


def replay(actor: Actor) -> None:
    client = actor.client
    for _ in range(5):
        client.publish("history")
    client.ack(*client.receive("history", 10, 1500))
    if actor.loop.keeps_history and actor.random.random() < 0.2:
        client.replay("history", "replayed")
    client.ack(*client.receive("replayed", 50, 1500))


def change(actor: Actor) -> None:
    client, chance = actor.client, actor.random
    key, message_id = client.publish("work", delay_ms=2000)
    what = chance.randrange(6)
    if what == 0:
        client.edit("work", key, message_id, 1, chance.choice((0, 500)))
    elif what == 1:
        client.cancel("work", key, message_id)
    elif what == 2:
        due_ms = client.do("now", changes=False) + chance.choice((50, 3000))
        client.reschedule("work", key, message_id, due_ms)
    elif what == 3:
        client.move("work", key, message_id, "work-other")
    elif what == 4:
        client.do("snapshot", changes=False)
    else:
        client.do("housekeeping", changes=False)


CAST: list[tuple[str, Callable[[Actor], None]]] = [
    ("p1", produce),
    ("p2", produce),
    ("c1", consume),
    ("c2", consume),
    ("dead", dead_letter),
    ("fp", produce_fifo),
    ("fc1", consume_fifo),
    ("fc2", consume_fifo),
    ("purge", purge),
    ("past", replay),
    ("change", change),
]


class KillLoop:
    """`lives` of a broker on `path`, one after the other, and a last one to take everything out."""

    def __init__(
        self,
        path: Path,
        seed: int,
        *,
        keeps_history: bool = True,
        host: str = "honest",
        io: str = "honest",
        after_death: Callable[[], None] | None = None,
    ) -> None:
        self.path = path
        self.seed = seed
        self.random = random.Random(seed)
        self.keeps_history = keeps_history
        self.ledger = Ledger(SPACES)
        self._after_death = after_death
        self._options: dict[str, Any] = {"host": host, "io": io}
        self._settings: dict[str, Any] = {}
        if not keeps_history:
            self._options.update(history_bytes=1, segment_bytes=16384, first_segment_bytes=4096)
            self._settings = {"history_ms": 0, "dedup_window_ms": 500}
        self._actors = [Actor(self, name, session, act) for session, (name, act) in enumerate(CAST, 1)]
        self.kills = 0

    def run(self, lives: int, longest: int = 600) -> Verdict:
        for _ in range(lives):
            # Early deaths hit what happens at start; they are as likely as all others together.
            few = self.random.random() < 0.2
            self.live(self.random.randint(1, 40 if few else longest))
        self._try_without_snapshots()
        self.drain(self.path, self.ledger)
        return self.ledger.judge()

    def _try_without_snapshots(self) -> None:
        """They only save time: the records alone must give the same."""
        bare = self.path.with_name(self.path.name + "-bare")
        if self.path.exists():  # a disk that lies may have kept nothing at all
            shutil.copytree(self.path, bare)
        shutil.rmtree(bare / "snapshots", ignore_errors=True)
        twin = self.ledger.copy()
        self.drain(bare, twin)
        verdict = twin.judge()
        if not verdict.clean:
            self.ledger.complain(f"without snapshots: {verdict}")

    def start(self, path: Path, kill_after: int = 0) -> Process:
        process = Process(path, self._options, kill_after)
        process.ready.wait()
        return process

    def live(self, kill_after: int) -> None:
        process = self.start(self.path, kill_after)
        threads = [threading.Thread(target=actor.live, args=(process,)) for actor in self._actors]
        try:
            self._declare(process)
            for thread in threads:
                thread.start()
        except Died:
            pass
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        status = process.reap()
        if status != -9:
            self.ledger.complain(f"the broker ended by itself with status {status}")
        self.kills += 1
        if self._after_death is not None:
            self._after_death()
        self.ledger.restarted()

    def _declare(self, process: Process) -> None:
        client = Client(self.ledger, process.call)
        for queue, settings in QUEUES.items():
            client.do("declare", queue=queue, settings={**settings, **self._settings})
        bindings = [["fan-a", "eu.*"], ["fan-b", "#"]]
        client.do("exchange", name="fan", kind="topic", bindings=bindings)

    def drain(self, path: Path, ledger: Ledger, seconds: float = 120.0) -> None:
        """Everything out, twice: what was acked must not be there after another start."""
        for _ in range(2):
            process = self.start(path)
            client = Client(ledger, process.call)
            until = time.monotonic() + seconds
            try:
                while left := self._drain_once(client):
                    if time.monotonic() > until:
                        ledger.complain(f"{left} messages do not come out")
                        break
                    time.sleep(0.02)  # for leases and delays to end, in the other process's time
                status = process.stop()
                if status:
                    ledger.complain(f"the broker stopped with status {status}")
            except (Died, Refused, Uncertain) as error:
                ledger.complain(f"nobody killed it, but {error!r}")
                process.kill()
            ledger.restarted()

    def _drain_once(self, client: Client) -> int:
        left = 0
        for queue in client.do("settings", changes=False):
            while found := client.receive(queue, 100, 60_000):
                client.ack(*found)
            stats = client.do("stats", changes=False, queue=queue)
            left += sum(stats.values())
        return left
