"""Named cursors on Redis: the positions of readers of the streams, and the history kept for them.

A cursor is one text that all servers share. Every queue stores the hold of the cursors as two times: the time
from which its history is kept, and when the hold expires by Redis's clock. So a queue releases the history
held for a dead reader by itself. The process that sweeps all queues also enforces the limit in bytes. A Redis
without free memory keeps no history for cursors.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..broker.cursors import Cursor, CursorNotFound, CursorState, check_room
from ..errors import InvalidSetting
from ..model import check_name
from .json_hash import JsonHash
from .registry import CachedQueue
from .stream_positions import (
    position_of_message,
    position_of_time,
    queues_with_history,
    read_queue_streams,
    read_script,
    stream_keys,
    time_of,
)
from .stream_scripts import RANGES

if TYPE_CHECKING:
    from .servers import ServerDirectory
    from .store import RedisStore

HOLD_BYTES = 1 << 30  # of memory, which costs more than the disk of a journal
_UPDATE_S = 1.0  # delay of updates to the queues for holds that only advance
_UPDATE_EACH_S = 0.001  # and per queue, where there are many
_ROUNDS = 100  # of dropping entries that no cursor holds, in one check of a queue
_NEVER = 0
_ABANDONED = "given_up"  # an additional field of the cursor: it is too far behind
_MAX_MS = 1 << 52

Hold = tuple[int, int]  # start of the history that is kept (ms), expiry


class HoldState:
    """What this process has last sent to the queues."""

    def __init__(self) -> None:
        self.updated_s = float("-inf")
        self.may_hold = True  # true until the first check shows that nothing is held


class RedisCursors:
    holds_all = False

    def __init__(self, store: RedisStore, servers: ServerDirectory, holds: HoldState) -> None:
        self._store = store
        self._servers = servers
        self._holds = holds
        self._hash = JsonHash(store, "cursors")

    def get(self, name: str) -> Cursor | None:
        fields = self._hash.get(name)
        return None if fields is None else Cursor.from_json(name, fields)

    def _all(self) -> list[Cursor]:
        return [Cursor.from_json(name, fields) for name, fields in sorted(self._hash.all().items())]

    def put(
        self,
        name: str,
        position: int,
        owner: str,
        *,
        hold_bytes: int | None = None,
        hold_s: float | None = None,
    ) -> CursorState:
        """Move a cursor forward, or create it; durable when this returns. Arguments that are None keep their
        values.

        A position before the current one comes from a request that was overtaken, and does not move the
        cursor.
        """
        check_name(name, "cursor")
        now_ms = self._store.redis_now()
        end = position_of_time(now_ms + 1)
        if not 0 <= position <= end:
            raise InvalidSetting(f"position {position} is beyond the end of the history, {end}")
        is_other = False  # whether more than the position differs from what the queues know

        def move(fields: object) -> object:
            nonlocal is_other
            if fields is None:
                check_room([each.owner for each in self._all()], owner)
                known = Cursor(name, position, 0, owner, HOLD_BYTES)
            else:
                known = Cursor.from_json(name, fields)
            moved = known.moved(max(position, known.position), now_ms, hold_bytes, hold_s)
            is_idle = (now_ms - known.moved_ms) / 1000 > known.hold_s / 10
            is_other = is_idle or (moved.hold_bytes, moved.hold_s) != (known.hold_bytes, known.hold_s)
            return moved.to_json()

        moved = Cursor.from_json(name, self._hash.update(name, move))
        self._store.refresh()
        if is_other or self._is_update_due():
            self._update_queues()
        self._store.sync()
        return self._states([moved])[0]

    def remove(self, name: str) -> Cursor:
        gone: Cursor | None = None

        def take(fields: object) -> None:
            nonlocal gone
            if fields is not None:
                gone = Cursor.from_json(name, fields)
            elif gone is None:
                raise CursorNotFound(name)

        self._hash.update(name, take)
        assert gone is not None
        self._update_queues()
        self._store.sync()
        return gone

    def states(self) -> list[CursorState]:
        cursors = self._all()
        if not cursors:
            return []
        self._store.refresh()
        return self._states(cursors)

    def _states(self, cursors: list[Cursor]) -> list[CursorState]:
        state = _HistoryState(self._store)
        return [self._state(cursor, state) for cursor in cursors]

    def _state(self, cursor: Cursor, state: _HistoryState) -> CursorState:
        position, now_ms = cursor.position, state.now_ms
        unread = state.unread(position)
        lag_bytes = state.bytes_behind(position, unread)
        # Position 0 means: all the history that is kept.
        if 0 < position < state.lost:
            lost: str | None = f"positions {position} to {state.lost} are not kept any more"
        else:
            lost = cursor.over(lag_bytes, now_ms)
        since_ms = now_ms
        if unread:
            since_ms = time_of(position) or min(state.first_ms(view) for view in unread)
        return CursorState(cursor, lag_bytes, max(0, now_ms - since_ms) / 1000, lost)

    # -- holds of the queues

    def enforce_limits(self) -> None:
        """Called by the process that sweeps all queues: cursors too far behind lose their hold."""
        cursors = self._active()
        if not cursors and not self._holds.may_hold:
            return
        if self._servers.health().disk_full:
            cursors = []  # history is dropped first
        for cursor in self._too_far_behind(cursors) if cursors else ():
            cursors.remove(cursor)
            self._hash.update(cursor.name, _abandon)
        self._set_hold(self._hold(cursors), queues_with_history(self._store.registry), _ROUNDS)
        self._holds.may_hold = bool(cursors)

    def _too_far_behind(self, cursors: list[Cursor]) -> list[Cursor]:
        state = _HistoryState(self._store)
        doubtful = [each for each in cursors if each.hold_bytes < state.bytes]
        return [
            each
            for each in doubtful
            if state.bytes_behind(each.position, state.unread(each.position)) > each.hold_bytes
        ]

    def hold_new_queue(self, view: CachedQueue) -> None:
        """Apply the hold to a queue that was created after the cursors."""
        cursors = self._active()
        if cursors and view.settings.history_ms > 0:
            self._set_hold(self._hold(cursors), [view], 1)

    def _active(self) -> list[Cursor]:
        """Cursors that were not abandoned; moving an abandoned one makes it active again."""
        found = self._hash.all().items()
        return [Cursor.from_json(name, fields) for name, fields in found if not fields.get(_ABANDONED)]

    def _hold(self, cursors: list[Cursor]) -> Hold:
        """The hold for all of them: from the slowest reader on, until the latest expiry."""
        now_ms = self._store.redis_now()
        live = [each for each in cursors if each.over(0, now_ms) is None]
        from_ms = min((time_of(each.position) for each in live), default=_NEVER)
        until_ms = max((each.moved_ms + each.hold_s * 1000 for each in live), default=_NEVER)
        return from_ms, int(min(until_ms, _MAX_MS))

    def _is_update_due(self) -> bool:
        rest_s = max(_UPDATE_S, _UPDATE_EACH_S * len(self._store.registry.queues))
        return time.monotonic() - self._holds.updated_s >= rest_s

    def _update_queues(self) -> None:
        self._holds.updated_s = time.monotonic()
        self._holds.may_hold = True
        self._set_hold(self._hold(self._active()), queues_with_history(self._store.registry), 1)

    def _set_hold(self, hold: Hold, views: list[CachedQueue], rounds: int) -> None:
        """Set the hold of all queues; those that dropped entries are called again, up to `rounds` times."""
        for _ in range(rounds):
            views = self._store.keep_history(views, *hold)


class _HistoryState:
    """The extent of the history at one moment, for all cursors that are inspected."""

    def __init__(self, store: RedisStore) -> None:
        self._calls = store.calls
        self._views = queues_with_history(store.registry)
        self._facts = read_queue_streams(store.calls, self._views)
        self.now_ms = store.redis_now()
        limit = store.address.history
        gone = [
            self._facts[view.number].lost(view.settings.history_ms, limit, events=True)
            for view in self._views
        ]
        self.lost = max(gone, default=0)
        keys = [(view, key) for view in self._views for key in stream_keys(view)]
        sizes = self._ask([(view, ("MEMORY", "USAGE", key)) for view, key in keys])
        self._memory = {key: int(size or 0) for (_, key), size in zip(keys, sizes, strict=True)}
        self.bytes = sum(self._memory.values())

    def _ask(self, commands: list[tuple[CachedQueue, tuple[bytes | str | int, ...]]]) -> list[Any]:
        replies = self._calls.many([(view.key, command) for view, command in commands], idempotent=True)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def unread(self, position: int) -> list[CachedQueue]:
        return [view for view in self._views if self._facts[view.number].end > position]

    def first_ms(self, view: CachedQueue) -> int:
        """The time of the oldest row of a queue."""
        known = self._facts[view.number]
        times = [self.now_ms]
        if known.messages.length:
            times.append(known.messages.first[1])
        if known.events.length:
            times.append(known.events.first[0])
        return min(times)

    def bytes_behind(self, position: int, unread: list[CachedQueue]) -> int:
        """Approximate bytes of memory: Redis counts neither bytes nor entries of a part of a stream."""
        behind = 0.0
        asked = []
        for view in unread:
            messages, events = self._facts[view.number].messages, self._facts[view.number].events
            message_key, event_key = stream_keys(view)
            if messages.length and position_of_message(*messages.last) >= position:
                since = (messages.deleted[0] + 1, time_of(position), _MAX_MS)
                asked.append((view, read_script(RANGES, [message_key], *since)))
            if events.length and events.last[0] >= time_of(position):
                span_ms = events.last[0] - events.first[0] + 1
                share = (events.last[0] - time_of(position) + 1) / span_ms
                behind += self._memory[event_key] * min(1.0, share)
        for (view, _), cuts in zip(asked, self._ask(asked), strict=True):
            count = sum(int(cuts[at + 1]) - int(cuts[at]) + 1 for at in range(0, len(cuts), 2))
            share = count / self._facts[view.number].messages.length
            behind += self._memory[stream_keys(view)[0]] * min(1.0, share)
        return round(behind)


def _abandon(fields: Any) -> Any:
    return None if fields is None else {**fields, _ABANDONED: True}
