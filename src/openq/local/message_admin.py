"""Changing queued messages by hand: cancel, edit, move, reschedule, redrive, replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ..broker import bulk
from ..broker.interface import Filter
from ..engine import admin
from ..engine.queue import QueueState
from ..errors import OpenQError
from ..model import Draft, Entry
from .backups import LocalBackups
from .core import BrokerCore
from .inspector import Inspector


class MessageAdmin:
    """The `Admin` part of the local broker. Long work takes the lock only for each small batch of changes."""

    def __init__(self, core: BrokerCore, inspector: Inspector, backups: LocalBackups) -> None:
        self.backups = backups
        self._core = core
        self._inspector = inspector
        self._engine = core.engine
        self._lock = core.lock
        self._guard = core.guard

    def cancel(self, queue: str, message_id: str) -> None:
        with self._lock, self._guard:
            admin.cancel(self._engine, self._core.queue(queue), message_id, self._core.now_ms())
            self._core.end_change()

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        with self._lock, self._guard:
            found = self._core.queue(queue)
            self._core.require_body_room(len(draft.body))
            admin.edit(self._engine, found, message_id, self._core.now_ms(), draft)
            self._core.end_change()

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        with self._lock, self._guard:
            source, target = self._core.queue(queue), self._core.queue(to)
            errors = admin.move(self._engine, source, message_ids, target, self._core.now_ms())
            self._core.end_change()
            return errors

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        with self._lock, self._guard:
            admin.reschedule(self._engine, self._core.queue(queue), message_id, due_ms, self._core.now_ms())
            self._core.end_change()

    def redrive_targets(self, queue: str, entries: Sequence[Entry], to: str | None) -> list[str | None]:
        """Where each of these dead letters would go; None: nowhere."""
        with self._lock:
            found = self._core.queue(queue)
            targets = [admin.redrive_target(self._engine, found, entry, to) for entry in entries]
        return [None if target is None else target.name for target in targets]

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        allowed: Callable[[str], bool] | None = None,
    ) -> int:
        """Return dead letters to the queues that dead-lettered them, or to `to`. At most `rate` a second.

        `progress` is called with the number so far, also during waits; returning False stops. Without `to`,
        dead letters of queues that are not `allowed` stay. `allowed` is called under the lock.
        """
        bulk.check_rate(rate)
        if to is not None:
            with self._lock, self._guard:
                self._core.queue(to)

        def send_on(entries: list[Entry]) -> int:
            with self._lock, self._guard:
                found = self._core.queue(queue)
                live = [each for each in entries if found.find(each.seq) is not None]
                if allowed is not None and to is None:
                    live = [each for each in live if self._may_return(found, each, allowed)]
                done = admin.redrive(self._engine, found, live, to, self._core.now_ms())
                self._core.end_change()
            self._core.sync()
            return done

        chosen = self._inspector.matching(queue, filter or Filter(state="ready"))
        return bulk.redrive(chosen, send_on, rate, progress)

    def _may_return(self, queue: QueueState, entry: Entry, allowed: Callable[[str], bool]) -> bool:
        target = admin.redrive_target(self._engine, queue, entry, None)
        return target is not None and allowed(target.name)

    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        dry_run: bool = False,
        include_purged: bool = False,
        until_ms: int | None = None,
    ) -> int:
        """Publish again the messages that were published to `queue` from a point on and are no longer in it.

        Those that were published at `until_ms` or later are left out.

        A purge is final: messages that it removed are left out, unless `include_purged` is set. Messages that
        are still waiting or in flight are not duplicated. Ids stay, so a replay can be repeated. `progress`
        is called with the number so far; returning False stops. A dry run only counts.
        """
        bulk.check_rate(rate)
        with self._lock, self._guard:
            source = self._core.queue(queue)
            target = source if to is None else self._core.queue(to)
            now_ms = self._core.now_ms()
        self._core.sync()
        act = self._count_missing if dry_run else self._replay_batch
        past = self._core.history.published(
            self._engine, source, since_ms, since_id, now_ms, include_purged, until_ms
        )
        chosen = bulk.chosen_drafts(past, self._engine.id_of, filter)
        count = bulk.replay(chosen, partial(act, target), rate, progress, dry_run=dry_run)
        self._core.sync()
        return count

    def _count_missing(self, target: QueueState, drafts: Sequence[Draft]) -> int:
        with self._lock, self._guard:
            seqs = [self._engine.seq_of(target, draft.id or "") for draft in drafts]
            return sum(not seq or target.find(seq) is None for seq in seqs)

    def _replay_batch(self, target: QueueState, drafts: Sequence[Draft]) -> int:
        count = 0
        with self._lock, self._guard:
            for draft in drafts:
                self._core.require_body_room(len(draft.body))
                count += not self._engine.publish(target, draft, self._core.now_ms(), again=True)[1]
            self._core.end_change()
        return count
