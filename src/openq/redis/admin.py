"""Changing waiting messages: cancel, edit, reschedule, move, redrive, replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..broker import bulk
from ..broker.interface import Filter
from ..engine.admin import in_use
from ..engine.publishing import make_properties
from ..engine.records import MOVED, REDRIVEN
from ..engine.rules import MAX_TIME_MS
from ..errors import InvalidSetting, MessageNotFoundError, OpenQError, QueueInUse
from ..model import Draft, Entry
from .backups import NoBackups
from .event_log import EventLog
from .inspection import Inspector
from .publish import Publisher
from .records import pack_record
from .registry import CachedQueue
from .store import RedisStore


class MessageAdmin:
    def __init__(
        self, store: RedisStore, event_log: EventLog, inspector: Inspector, publisher: Publisher
    ) -> None:
        self.backups = NoBackups()
        self._store = store
        self._view = store.view
        self._event_log = event_log
        self._inspector = inspector
        self._publisher = publisher

    # -- single messages ------------------------------------------------------------------------

    def _change_message(self, view: CachedQueue, message_id: str, verb: str, name: str, *args: Any) -> None:
        entry, state, _ = self._inspector.locate(view, message_id)
        answer = b"in_flight" if state == "in_flight" else self._store.ask_queue(view, name, entry.seq, *args)
        if isinstance(answer, list):
            answer = answer[0]
        if answer == b"in_flight":
            raise in_use(view.name, message_id, verb)
        if answer == b"gone":
            raise MessageNotFoundError(message_id, view.name)

    def cancel(self, queue: str, message_id: str) -> None:
        self._change_message(self._view(queue), message_id, "cancel", "cancel")

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        record = pack_record(draft.body, draft.encoding, make_properties(draft), b"", True)
        self._change_message(self._view(queue), message_id, "edit", "edit", record, draft.type or "")

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        if due_ms > MAX_TIME_MS:
            raise InvalidSetting("a delay of more than 70 million years")
        self._change_message(self._view(queue), message_id, "reschedule", "reschedule", max(due_ms, 0))

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        source, target = self._view(queue), self._view(to)
        return [self._move_one(source, each, target) for each in message_ids]

    def _move_one(self, source: CachedQueue, message_id: str, target: CachedQueue) -> OpenQError | None:
        try:
            entry, state, _ = self._inspector.locate(source, message_id)
            if state == "in_flight":
                raise in_use(source.name, message_id, "move")
            if target is source:
                raise InvalidSetting(f"message {message_id} is in queue {source.name!r} already")
        except (MessageNotFoundError, QueueInUse, InvalidSetting) as error:
            return error
        if self._move_seqs(source, [entry.seq], target, MOVED):
            return None
        return MessageNotFoundError(message_id, source.name)

    def _move_seqs(self, source: CachedQueue, seqs: Sequence[int], target: CachedQueue, why: int) -> int:
        """Returns how many were moved."""
        outbox, _, answers = self._store.fcall_queue(source, "move_out", why, target.name, *seqs)
        if outbox:
            self._store.try_drain(source)
        return sum(answer.isdigit() for answer in answers)

    # -- many messages --------------------------------------------------------------------------

    def redrive_targets(self, queue: str, entries: Sequence[Entry], to: str | None) -> list[str | None]:
        if to is not None:
            self._view(to)
            return [to] * len(entries)
        found: list[str | None] = []
        for entry in entries:
            deaths = () if entry.options is None else entry.options.deaths
            is_known = bool(deaths) and deaths[0].queue in self._store.registry.queues
            found.append(deaths[0].queue if is_known else None)
        return found

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        allowed: Callable[[str], bool] | None = None,
    ) -> int:
        bulk.check_rate(rate)
        self._store.refresh()
        source = self._view(queue)
        if to is not None:
            self._view(to)

        def move(entries: list[Entry]) -> int:
            targets: dict[str, list[int]] = {}
            for entry, name in zip(entries, self.redrive_targets(queue, entries, to), strict=True):
                if name is not None and name != queue and (to or allowed is None or allowed(name)):
                    targets.setdefault(name, []).append(entry.seq)
            done = sum(
                self._move_seqs(source, seqs, self._view(name), REDRIVEN) for name, seqs in targets.items()
            )
            self._store.sync()
            return done

        # All candidates first: messages that return while this runs are not redriven again.
        chosen = list(self._inspector.matching(queue, filter or Filter(state="ready")))
        return bulk.redrive(chosen, move, rate, progress)

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
        bulk.check_rate(rate)
        source = self._view(queue)
        target = source if to is None else self._view(to)
        act = self._count_missing if dry_run else self._publisher.replay
        past = list(self._event_log.published(source, since_ms, since_id, include_purged, until_ms))
        chosen = bulk.chosen_drafts(past, self._store.message_id, filter)
        count = bulk.replay(chosen, partial(act, target), rate, progress, dry_run=dry_run)
        self._store.sync()
        return count

    def _count_missing(self, target: CachedQueue, drafts: Sequence[Draft]) -> int:
        found = self._inspector.locate_many(target, [each.id or "" for each in drafts])
        present = {self._store.message_id(entry) for entry, _, _ in found}
        return sum(draft.id not in present for draft in drafts)
