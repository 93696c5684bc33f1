"""Queues: declare, change, delete, statistics."""

from __future__ import annotations

from collections.abc import Callable

from ..broker.interface import QueueStats, Waiting
from ..engine.queue import Counters
from ..engine.rules import settings_differences
from ..errors import FunctionError, InvalidSetting, QueueExists, QueueInUse, QueueNotFound, StoreError
from ..model import QueueSettings, check_name
from .registry import CachedQueue
from .statistics import add_deleted
from .store import RedisStore

_RETRIES = 200  # against concurrent changes by other clients


class QueueAdmin:
    def __init__(
        self,
        store: RedisStore,
        count_waiters: Callable[[str], int],
        on_delete: Callable[[], None],
    ) -> None:
        """`on_delete` is called after a queue was deleted."""
        self._store = store
        self._registry = store.registry
        self._count_waiters = count_waiters
        self._on_delete = on_delete

    def queues(self) -> list[str]:
        self._store.state.check_open()
        self._store.refresh()
        return list(self._registry.queues)

    def settings(self, queue: str) -> QueueSettings:
        self._store.state.check_open()
        self._store.refresh()
        return self._store.view(queue).settings

    def declare(self, queue: str, settings: QueueSettings, *, change: bool = False) -> QueueSettings:
        """Safe against concurrent clients: all of them see one queue, and the last change counts."""
        check_name(queue)
        self._store.state.check_open()
        for _ in range(_RETRIES):
            self._store.refresh()
            view = self._registry.queues.get(queue)
            if view is None:
                if self._create(queue, settings):
                    return settings
            elif view.settings == settings:
                try:
                    self._apply_settings(view)
                except QueueNotFound:
                    continue  # deleted meanwhile
                return view.settings
            elif not change:
                raise QueueExists(queue, settings_differences(view.settings, settings))
            elif self._change(view, settings):
                return settings
        raise StoreError(f"queue {queue!r} is changed by others all the time; try again")

    def _create(self, queue: str, settings: QueueSettings) -> bool:
        """False: another client created it first."""
        store = self._store
        number, watched_ms = self._registry.next_number(store.calls)
        view = CachedQueue(queue, number, settings, store.redis_now(), self._registry.key_of(number))
        try:
            store.configure(view, watched_ms)
        except (FunctionError, QueueNotFound) as error:
            if isinstance(error, FunctionError) and error.code != "TAKEN":
                raise
            return False  # Redis lost its counters: the number is, or was, in use
        if self._registry.put_queue(store.calls, view):
            store.new_queue(view)
            return True
        store.fcall(view.key, "drop", 0, 0)
        return False

    def _change(self, view: CachedQueue, settings: QueueSettings) -> bool:
        """False: another client changed or deleted it first."""
        if view.fifo != settings.fifo:
            raise InvalidSetting(
                f"queue {view.name!r}: fifo cannot be changed; create another queue and move"
            )
        changed = CachedQueue(view.name, view.number, settings, view.created_ms, view.key)
        changed.version = view.version
        if not self._registry.put_queue(self._store.calls, changed):
            return False
        try:
            self._store.configure(self._store.view(view.name))
        except QueueNotFound:
            return False
        return True

    def _apply_settings(self, view: CachedQueue) -> None:
        """A client that changed the settings may have died before it wrote them to the queue itself."""
        if self._store.fcall_queue(view, "tick")[2][2] < view.version:
            self._store.configure(view)

    def delete(self, queue: str, *, if_empty: bool = False, if_unused: bool = False) -> int:
        store = self._store
        view = store.view(queue)
        if if_unused and self._count_waiters(queue):
            raise QueueInUse(queue, "it has consumers")
        for _ in range(_RETRIES):
            try:
                count, counters = store.fcall_queue(view, "drop", int(if_empty), int(if_unused))[2]
                break
            except FunctionError as error:
                if error.code == "INUSE":
                    raise QueueInUse(queue, error.text) from None
                if error.code != "OUTBOX":
                    raise
                store.moves.drain(view)
        else:
            raise QueueInUse(queue, "messages are on their way from it to other queues")
        add_deleted(store, queue, counters)
        store.drop_deleted(view)
        self._on_delete()
        if self._registry.router.bindings(None, queue):
            self._registry.change_router(store.calls, lambda router: router.drop_queue(queue))
        return int(count)

    def purge(self, queue: str, waiting_only: bool = False) -> int:
        count = int(self._store.ask_queue(self._store.view(queue), "purge", int(waiting_only)))
        self._store.emit("purged", queue, [None], str(count))
        return count

    # -- statistics -----------------------------------------------------------------------------

    def stats(self, queue: str) -> QueueStats:
        store = self._store
        view = store.view(queue)
        outbox, now_ms, answer = store.fcall_queue(view, "stats")
        if outbox:
            store.try_drain(view)
            _, now_ms, answer = store.fcall_queue(view, "stats")
        ready, delayed, in_flight, size, oldest_ms, _, pairs, limited = answer
        counted = {name.decode(): int(value) for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        return QueueStats(
            queue,
            ready,
            delayed,
            in_flight,
            size,
            max(0, now_ms - int(oldest_ms)) if oldest_ms else None,
            self._count_waiters(queue),
            {name: counted.get(name, 0) for name in Counters.__slots__},
            limited,
        )

    def waiting(self, queue: str) -> Waiting:
        stats = self.stats(queue)
        return Waiting(stats.ready, stats.ready + stats.delayed, stats.waiting_bytes)
