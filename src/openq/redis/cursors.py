"""Named cursors on Redis: how far readers of the streams have come, and what is kept for them.

A cursor is one text that all servers share. What it holds is known to every queue as two times: from when on
its history is kept, and until when that lasts by Redis's clock. So a queue needs nobody to let go of what a
dead reader held. The process that looks after all queues also sees to the limit in bytes, and a Redis without
memory keeps nothing for anybody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ..broker.cursors import Cursor, CursorNotFound, CursorState, check_room
from ..errors import InvalidSetting
from ..model import check_name
from .column_scripts import RANGES
from .registry import QueueView
from .shelf import Shelf
from .streams import facts_of, kept, keys_of, position_of_message, position_of_time, script, time_of

if TYPE_CHECKING:
    from .broker import RedisBroker

HOLD_BYTES = 1 << 30  # of memory, which is dearer than the disk of a journal
_SPREAD_S = 1.0  # holds that only move on may come to the queues so much later
_SPREAD_EACH_S = 0.001  # and later where there are many queues
_ROUNDS = 100  # of dropping what nobody holds, in one look after a queue
_NEVER = 0
_GIVEN_UP = "given_up"  # a field beside those of the cursor: it is too far behind
_MOST_MS = 1 << 52

Hold = tuple[int, int]  # from which millisecond on, until when


class Holds:
    """What this process knows of what it told the queues."""

    def __init__(self) -> None:
        self.spread_s = float("-inf")
        self.is_any = True  # something may be held: before the first look nobody knows


class StreamCursors:
    holds_all = False

    def __init__(self, broker: RedisBroker, holds: Holds) -> None:
        self._broker = broker
        self._holds = holds
        self._shelf = Shelf(broker, "cursors")

    def get(self, name: str) -> Cursor | None:
        fields = self._shelf.get(name)
        return None if fields is None else Cursor.from_json(name, fields)

    def _all(self) -> list[Cursor]:
        return [Cursor.from_json(name, fields) for name, fields in sorted(self._shelf.all().items())]

    def put(
        self,
        name: str,
        position: int,
        owner: str,
        *,
        hold_bytes: int | None = None,
        hold_s: float | None = None,
    ) -> CursorState:
        """Move a cursor forward, or make it; safe when this returns. What is None stays as it was.

        A position before the one that it has is that of a message which was overtaken, and moves nothing.
        """
        check_name(name, "cursor")
        now_ms = self._broker.redis_now()
        end = position_of_time(now_ms + 1)
        if not 0 <= position <= end:
            raise InvalidSetting(f"position {position} is beyond the end of the history, {end}")
        is_other = False  # than what the queues know of it, but for its place

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

        moved = Cursor.from_json(name, self._shelf.change(name, move))
        self._broker.registry.refresh(self._broker.calls)
        if is_other or self._is_time():
            self._spread()
        self._broker.sync()
        return self._states([moved])[0]

    def remove(self, name: str) -> Cursor:
        gone: Cursor | None = None

        def take(fields: object) -> None:
            nonlocal gone
            if fields is not None:
                gone = Cursor.from_json(name, fields)
            elif gone is None:
                raise CursorNotFound(name)

        self._shelf.change(name, take)
        assert gone is not None
        self._spread()
        self._broker.sync()
        return gone

    def states(self) -> list[CursorState]:
        cursors = self._all()
        if not cursors:
            return []
        self._broker.registry.refresh(self._broker.calls)
        return self._states(cursors)

    def _states(self, cursors: list[Cursor]) -> list[CursorState]:
        look = _Look(self._broker)
        return [self._state(cursor, look) for cursor in cursors]

    def _state(self, cursor: Cursor, look: _Look) -> CursorState:
        position, now_ms = cursor.position, look.now_ms
        unread = look.unread(position)
        lag_bytes = look.bytes_behind(position, unread)
        # From 0 on means: whatever there is.
        if 0 < position < look.lost:
            lost: str | None = f"positions {position} to {look.lost} are not kept any more"
        else:
            lost = cursor.over(lag_bytes, now_ms)
        since_ms = now_ms
        if unread:
            since_ms = time_of(position) or min(look.first_ms(view) for view in unread)
        return CursorState(cursor, lag_bytes, max(0, now_ms - since_ms) / 1000, lost)

    # -- what queues know of it

    def keep(self) -> None:
        """By the process that looks after all queues: those too far behind lose their hold."""
        cursors = self._waited_for()
        if not cursors and not self._holds.is_any:
            return
        if self._broker.health().disk_full:
            cursors = []  # the past gives way
        for cursor in self._too_far_behind(cursors) if cursors else ():
            cursors.remove(cursor)
            self._shelf.change(cursor.name, _given_up)
        self._tell(self._hold(cursors), kept(self._broker.registry), _ROUNDS)
        self._holds.is_any = bool(cursors)

    def _too_far_behind(self, cursors: list[Cursor]) -> list[Cursor]:
        look = _Look(self._broker)
        doubtful = [each for each in cursors if each.hold_bytes < look.bytes]
        return [
            each
            for each in doubtful
            if look.bytes_behind(each.position, look.unread(each.position)) > each.hold_bytes
        ]

    def keep_new(self, view: QueueView) -> None:
        """A queue made after the cursors were."""
        cursors = self._waited_for()
        if cursors and view.settings.history_ms > 0:
            self._tell(self._hold(cursors), [view], 1)

    def _waited_for(self) -> list[Cursor]:
        """Those that nobody has given up: one that is moved again is waited for again."""
        found = self._shelf.all().items()
        return [Cursor.from_json(name, fields) for name, fields in found if not fields.get(_GIVEN_UP)]

    def _hold(self, cursors: list[Cursor]) -> Hold:
        """For all of them: the slowest reader counts, and the one that is waited for longest."""
        now_ms = self._broker.redis_now()
        live = [each for each in cursors if each.over(0, now_ms) is None]
        from_ms = min((time_of(each.position) for each in live), default=_NEVER)
        until_ms = max((each.moved_ms + each.hold_s * 1000 for each in live), default=_NEVER)
        return from_ms, int(min(until_ms, _MOST_MS))

    def _is_time(self) -> bool:
        rest_s = max(_SPREAD_S, _SPREAD_EACH_S * len(self._broker.registry.queues))
        return time.monotonic() - self._holds.spread_s >= rest_s

    def _spread(self) -> None:
        self._holds.spread_s = time.monotonic()
        self._holds.is_any = True
        self._tell(self._hold(self._waited_for()), kept(self._broker.registry), 1)

    def _tell(self, hold: Hold, views: list[QueueView], rounds: int) -> None:
        """All of them; those that drop what nobody holds any more again, for so many rounds."""
        for _ in range(rounds):
            views = self._broker.keep_history(views, *hold)


class _Look:
    """What there is of a history at one moment, for all cursors that are looked at."""

    def __init__(self, broker: RedisBroker) -> None:
        self._calls = broker.calls
        self._views = kept(broker.registry)
        self._facts = facts_of(broker.calls, self._views)
        self.now_ms = broker.redis_now()
        limit = broker.address.history
        gone = [
            self._facts[view.number].lost(view.settings.history_ms, limit, events=True)
            for view in self._views
        ]
        self.lost = max(gone, default=0)
        keys = [(view, key) for view in self._views for key in keys_of(view)]
        sizes = self._ask([(view, ("MEMORY", "USAGE", key)) for view, key in keys])
        self._memory = {key: int(size or 0) for (_, key), size in zip(keys, sizes, strict=True)}
        self.bytes = sum(self._memory.values())

    def _ask(self, commands: list[tuple[QueueView, tuple[bytes | str | int, ...]]]) -> list[Any]:
        replies = self._calls.many([(view.key, command) for view, command in commands], idempotent=True)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def unread(self, position: int) -> list[QueueView]:
        return [view for view in self._views if self._facts[view.number].end > position]

    def first_ms(self, view: QueueView) -> int:
        """When the oldest row of a queue came."""
        known = self._facts[view.number]
        times = [self.now_ms]
        if known.messages.length:
            times.append(known.messages.first[1])
        if known.events.length:
            times.append(known.events.first[0])
        return min(times)

    def bytes_behind(self, position: int, unread: list[QueueView]) -> int:
        """Of memory, about: Redis counts neither bytes nor entries of a part of a stream."""
        behind = 0.0
        asked = []
        for view in unread:
            messages, events = self._facts[view.number].messages, self._facts[view.number].events
            message_key, event_key = keys_of(view)
            if messages.length and position_of_message(*messages.last) >= position:
                since = (messages.deleted[0] + 1, time_of(position), _MOST_MS)
                asked.append((view, script(RANGES, [message_key], *since)))
            if events.length and events.last[0] >= time_of(position):
                span_ms = events.last[0] - events.first[0] + 1
                share = (events.last[0] - time_of(position) + 1) / span_ms
                behind += self._memory[event_key] * min(1.0, share)
        for (view, _), cuts in zip(asked, self._ask(asked), strict=True):
            count = sum(int(cuts[at + 1]) - int(cuts[at]) + 1 for at in range(0, len(cuts), 2))
            share = count / self._facts[view.number].messages.length
            behind += self._memory[keys_of(view)[0]] * min(1.0, share)
        return round(behind)


def _given_up(fields: Any) -> Any:
    return None if fields is None else {**fields, _GIVEN_UP: True}
