"""One fixed piece of work that contains everything that writes, and the trial that follows a crash."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from openq.clock import VirtualClock
from openq.errors import OpenQError
from openq.journal.disk import DiskIo
from openq.journal.file_journal import Journal
from openq.local.broker import LocalBroker
from tests.crash.client import Client, Refused, Uncertain
from tests.crash.host import Host, QuietIo
from tests.crash.ledger import Ledger

# A queue and the places its messages can move to are one space.
SPACES = {"work-dead": "work", "work-other": "work"}
HOUR_MS = 3_600_000

QUEUES: dict[str, dict[str, Any]] = {
    "work": {"max_receives": 2, "dead_letter": "work-dead"},
    "work-dead": {},
    "work-other": {},
    "fifo": {"fifo": True},
    "fan-a": {},
    "fan-b": {},
    "purged": {},
    "small": {"max_length": 2, "overflow": "reject"},
    "replayed": {},
}
# Without history and memory of duplicates nothing keeps an old segment but a live message in it.
FORGETFUL = {"history_ms": 0, "dedup_window_ms": 1000}


def open_broker(path: str | os.PathLike[str], clock: VirtualClock, io: DiskIo | None = None) -> LocalBroker:
    """Raises OpenQError."""
    return LocalBroker(journal=open_journal(path, clock, io), clock=clock, seed=1, history_bytes=1)


def open_journal(
    path: str | os.PathLike[str], clock: VirtualClock | None = None, io: DiskIo | None = None
) -> Journal:
    """Small files, so that a short piece of work fills many."""
    return Journal(
        path,
        segment_bytes=4096,
        first_segment_bytes=2048,
        reserve_bytes=8192,
        now_ms=(clock or VirtualClock()).now_ms,
        io=io or QuietIo(),
        salt=0x0DDB_1A5E,
    )


class Work:
    """The steps in order. A step that is refused or left open does not stop the others."""

    def __init__(self, client: Client, clock: VirtualClock) -> None:
        self.client = client
        self.clock = clock
        self.declared: dict[str, dict[str, Any]] = {}
        self.confirmed = 0

    def run(self) -> None:
        for step in (
            self.declare,
            self.publish,
            self.deliver,
            self.dead_letters,
            self.fifo,
            self.change_messages,
            self.move_about,
            self.fill,
            self.replay,
            self.drop_history,
            self.fill,
            self.housekeeping,
            self.fill,
            self.housekeeping,
        ):
            self.attempt(step)

    def attempt(self, step: Callable[..., object], *arguments: Any) -> None:
        with suppress(Refused, Uncertain):
            step(*arguments)
            self.confirmed += 1

    def declare(self) -> None:
        for queue, settings in QUEUES.items():
            self.attempt(self._declare, queue, settings)
        self.attempt(lambda: self.client.do("declare", queue="brief", settings={}))
        self.attempt(self._exchange)

    def _declare(self, queue: str, settings: dict[str, Any], change: bool = False) -> None:
        self.declared.pop(queue, None)  # until it is answered either may hold
        self.client.do("declare", queue=queue, settings=settings, change=change)
        self.declared[queue] = settings

    def _exchange(self) -> None:
        bindings = [["fan-a", "eu.*"], ["fan-b", "#"]]
        self.client.do("exchange", name="fan", kind="topic", bindings=bindings)
        self.client.do("exchange", name="gone", kind="fanout", bindings=[["fan-a", ""]])
        self.client.do("delete_exchange", name="gone")

    def publish(self) -> None:
        client = self.client
        for _ in range(3):
            self.attempt(client.publish, "work")
        self.attempt(client.publish_many, "work", 3)
        self.attempt(client.publish_run, "work", 6)
        self.attempt(lambda: client.publish("work", delay_ms=5000))
        self.attempt(lambda: client.publish("work", priority=5, type="urgent"))
        self.attempt(lambda: client.publish("work", ttl_ms=30 * HOUR_MS))
        for _ in range(2):  # the same message twice
            self.attempt(lambda: client.publish("work", "once", dedup="once"))
        self.attempt(client.route, "fan", "eu.north", ["fan-a", "fan-b"])
        self.attempt(client.route, "fan", "us", ["fan-b"])
        for _ in range(3):  # the third is refused
            self.attempt(client.publish, "small")
        self.attempt(client.publish_run, "purged", 3)
        self.attempt(lambda: client.purge("purged"))
        self.attempt(client.publish, "brief")
        self.attempt(lambda: client.purge("brief", "delete"))

    def deliver(self) -> None:
        client = self.client
        for delivery in client.receive("work", 3):
            self.attempt(client.ack, delivery)
        batch = client.receive("work", 3)
        self.attempt(client.ack, *batch[:2])
        for delivery in batch[2:]:
            self.attempt(client.extend, delivery, 90_000)
        for delivery in client.receive("work", 1):
            self.attempt(client.nack, delivery)
        for delivery in client.receive("work", 1):
            self.attempt(client.nack, delivery, 7000)
        for delivery in client.receive("work", 1):
            self.attempt(client.release, delivery)
        for delivery in client.receive("fan-b", 1):
            self.attempt(client.ack, delivery)

    def dead_letters(self) -> None:
        client = self.client
        for delivery in client.receive("work", 1):
            self.attempt(client.reject, delivery)
        for _ in range(2):
            self.clock.advance(61)  # the leases of all that was not answered end
            for delivery in client.receive("work", 2):
                self.attempt(client.nack, delivery)
        self.attempt(lambda: client.do("redrive", queue="work-dead"))

    def fifo(self) -> None:
        client = self.client
        for n in range(6):
            group = "ab"[n % 2]
            self.attempt(lambda g=group, n=n: client.publish("fifo", group=g, order=n, dedup=f"f{n}"))
        for delivery in client.receive("fifo", 10):
            self.attempt(client.ack, delivery)
        for delivery in client.receive("fifo", 1):
            self.attempt(client.nack, delivery)

    def change_messages(self) -> None:
        client = self.client
        later_ms = self.clock.now_ms() + HOUR_MS
        for n, size in enumerate((0, 200)):
            with suppress(Refused, Uncertain):
                key, message_id = client.publish("work", priority=9)
                self.attempt(client.edit, "work", key, message_id, n + 1, size)
        with suppress(Refused, Uncertain):
            key, message_id = client.publish("work")
            self.attempt(client.cancel, "work", key, message_id)
        with suppress(Refused, Uncertain):
            key, message_id = client.publish("work", delay_ms=9000)
            self.attempt(client.reschedule, "work", key, message_id, later_ms)
        self._declare("work-other", {"delay_ms": 10}, change=True)

    def move_about(self) -> None:
        client = self.client
        with suppress(Refused, Uncertain):
            key, message_id = client.publish("work", id="own-id")
            self.attempt(client.move, "work", key, message_id, "work-other")
        self.attempt(lambda: client.do("snapshot", changes=False))

    def replay(self) -> None:
        """While everything is still kept."""
        if self.declared.keys() >= {"fan-b", "replayed"}:
            self.client.replay("fan-b", "replayed")

    def drop_history(self) -> None:
        for queue, settings in list(self.declared.items()):
            self.attempt(self._declare, queue, {**settings, **FORGETFUL}, True)
        self.clock.advance(60)

    def fill(self) -> None:
        """Roll segments, with almost nothing left alive in them."""
        client = self.client
        for _ in range(5):
            self.attempt(lambda: client.publish("fan-a", size=900))
            for delivery in client.receive("fan-a", 2):
                self.attempt(client.ack, delivery)

    def housekeeping(self) -> None:
        """Snapshot, copy live messages out of old segments, free those."""
        self.clock.advance(5)
        for _ in range(3):
            self.client.do("housekeeping", changes=False)


def drain(client: Client, clock: VirtualClock, steps: int = 60) -> None:
    """Receive and ack all that there is, however long it has to wait."""
    for _ in range(steps):
        settings = client.do("settings", changes=False)
        left = 0
        for queue in settings:
            while found := client.receive(queue, 100):
                client.ack(*found)
            stats = client.do("stats", changes=False, queue=queue)
            left += stats["ready"] + stats["delayed"] + stats["in_flight"]
        if not left:
            return
        clock.advance(120)
    client.ledger.complain(f"{left} messages do not come out")


def trial(
    path: str | os.PathLike[str],
    ledger: Ledger,
    now_ms: int,
    declared: dict[str, dict[str, Any]] | None = None,
    damage_is_fine: bool = False,
) -> str:
    """Start again on what the crash left, take everything out, and start once more. Empty if all is well."""
    ledger = ledger.copy()
    ledger.restarted()
    clock = VirtualClock(now_ms)
    for again in range(2):
        try:
            broker = open_broker(path, clock)
        except OpenQError as error:
            return f"does not start: {error!r}"
        try:
            client = Client(ledger, Host(broker).answer)
            if not again:
                for queue, settings in (declared or {}).items():
                    found = broker.engine.queues.get(queue)
                    if found is None or found.settings.to_json() != settings:
                        ledger.complain(f"queue {queue} is not as declared")
            drain(client, clock)
        except (Refused, Uncertain) as error:
            ledger.complain(f"a sound disk, but {error!r}")
        finally:
            broker.close()
        ledger.restarted()
    verdict = ledger.judge()
    return "" if verdict.clean else str(verdict)
