"""What doors ask of a broker besides its verbs: small questions, each answered in one place.

They know nothing of an engine, a lock or a journal, so the same doors stand before every kind of broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..broker.scan_position import SECTIONS, ScannedEntry, ScanPosition, entries_after
from ..engine import admin
from ..engine.routing import Binding, Exchange, ExchangeRouter
from ..errors import OpenQError
from ..metrics import Family
from ..model import Delivery, Entry
from .foundation import Foundation


class Views(Foundation):
    waits = False  # no verb suspends its caller
    is_shared = False  # nobody else changes these queues

    @property
    def storage(self) -> str:
        return "memory" if self._journal is None else "journal"

    @property
    def place(self) -> str:
        if self._journal is None:
            return "in memory: nothing is kept"
        return f"everything acknowledged is in {self._journal.path}"

    # -- queues

    def waiting(self, queue: str) -> tuple[int, int]:
        """How many messages wait, and their bytes; a guess is enough."""
        found = self.find_queue(queue)
        return (0, 0) if found is None else (found.waiting_count, found.waiting_bytes)

    def ready_count(self, queue: str) -> int:
        return self._queue(queue).ready_count

    def in_flight(self, queue: str) -> int:
        return len(self._queue(queue).leases)

    def lease(self, queue: str, seq: int) -> Delivery | None:
        """The live delivery of a sequence."""
        return self._queue(queue).leases.get(seq)

    def leases(self, queue: str, limit: int) -> list[Delivery]:
        with self._lock:
            return list(islice(self._queue(queue).leases.values(), limit))

    def leases_of(self, queue: str, seqs: Sequence[int]) -> dict[int, Delivery]:
        """Of those that are on loan."""
        with self._lock:
            leases = self._queue(queue).leases
            return {seq: leases[seq] for seq in seqs if seq in leases}

    def dead_letter_sources(self, queue: str) -> list[str]:
        """The queues whose dead letters go to this one."""
        with self._lock:
            return [
                name
                for name, each in self.engine.queues.items()
                if each.settings.dead_letter == queue and each.settings.max_receives is not None
            ]

    def redrive_targets(self, queue: str, entries: Sequence[Entry], to: str | None) -> list[str | None]:
        """Where each of these dead letters would go; None: nowhere."""
        with self._lock:
            found = self._queue(queue)
            targets = [admin.redrive_target(self.engine, found, entry, to) for entry in entries]
        return [None if target is None else target.name for target in targets]

    def walk(self, queue: str, state: str, after: ScanPosition | None) -> Iterator[ScannedEntry]:
        """Every entry with its state, in hand-out order, as of now; bodies may be on disk only."""
        with self._lock, self._interrupt_guard:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._end_change()
            parts = [
                (number, admin.scan(found, section))
                for number, section in enumerate(SECTIONS)
                if state in (section, "all")
            ]
            max_priority = 0 if found.fifo else found.ready.max_priority
        return entries_after(parts, max_priority, after)

    # -- exchanges

    @property
    def router(self) -> ExchangeRouter:
        """Only to be read, without the lock: for doors that ask for every message."""
        return self.engine.router

    def exchange(self, name: str) -> Exchange:
        with self._lock:
            return self.engine.router.get(name)

    def exchanges(self) -> list[Exchange]:
        with self._lock:
            return self.engine.router.exchanges()

    def bindings(self, source: str | None = None, destination: str | None = None) -> list[Binding]:
        """In the order of binding; `destination` is a queue or an exchange."""
        with self._lock:
            return self.engine.router.bindings(source, destination)

    # -- what servers tell each other: here there is only one, and it knows

    def after_durable(self, callback: Callable[[OpenQError | None], None]) -> None:
        raise NotImplementedError("a site waits for the commits of a journal by itself")

    def document(self, name: str) -> tuple[int, bytes | None]:
        raise NotImplementedError("documents are for stores that servers share")

    def put_document(self, name: str, version: int, data: bytes) -> int:
        raise NotImplementedError("documents are for stores that servers share")

    def heartbeat(self, server: str, data: bytes, ttl_ms: int) -> None:
        """This server is alive for so long, and says this."""

    def servers(self) -> dict[str, bytes]:
        return {}

    def remove_server(self, server: str) -> None:
        """It stops."""

    def announce_url(self, url: str) -> None:
        """Where clients find the server, for those who find the directory in use."""
        if self._journal is not None:
            self._journal.announce(url)

    def gauges(self) -> list[Family]:
        families = [
            Family("openq_relaxed", "gauge", "1: answers come before the sync.", [({}, int(self.relaxed))]),
            *self.damage.families(),
        ]
        if self._journal is not None:
            size = sum(segment.bytes for segment in self._journal.segments())
            families.append(Family("openq_journal_size_bytes", "gauge", "Bytes on disk.", [({}, size)]))
        return families
