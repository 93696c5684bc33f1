"""The streams of all queues as one history: the position of each row, and how far it is complete.

A journal has one order of its own. Here every queue has two streams (`m` messages, `h` events), possibly on
several nodes. Their common measure is time, so the position of a row is its millisecond on Redis's clock.
Within a millisecond, published messages come first, then events:

    milliseconds << 12 | 0..2047 (last bits of the sequence of a message) | 2048..4095 (number of an event)

No row is added to a millisecond that has passed on every node: up to there the history is complete. Two rows
of one millisecond may share a position. Where the sequences of a millisecond pass a multiple of 2048, the
later messages come before the earlier ones; queue and sequence tell them apart. Redis's clock must not be set
back: a follower would never read rows before the end that it was given.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .net.calls import Calls
from .registry import CachedQueue, Registry

if TYPE_CHECKING:
    from .store import RedisStore

_MS_BITS = 12
_EVENTS = 1 << (_MS_BITS - 1)  # offset of events within a millisecond
_SETTLE_MS = 50  # how long to wait for the current millisecond to pass
_FULL = 3 * 0.9  # of the limit in `trim` of the functions: then events are dropped by number, not by age
_STRIDE_MS = 60_000  # an idle history still advances, once per stride

# About both streams of a queue, without bodies. The reply: the time; then for each stream its length, the
# number of entries ever added, and three ids: the highest deleted, the first, the last ever added. Then the
# time until which history is held for readers, and the time before which all events dropped meanwhile lie.
STREAM_INFO = """
local now = redis.call('TIME')
local found = {string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))}
for i = 1, 2 do
  local at = #found
  if redis.call('EXISTS', KEYS[i]) == 0 then
    found[at + 1], found[at + 2], found[at + 3], found[at + 4], found[at + 5] = 0, 0, '0-0', '0-0', '0-0'
  else
    local info, fields = redis.call('XINFO', 'STREAM', KEYS[i]), {}
    for j = 1, #info, 2 do fields[info[j]] = info[j + 1] end
    local first = redis.call('XRANGE', KEYS[i], '-', '+', 'COUNT', 1)[1]
    found[at + 1], found[at + 2] = fields['length'], fields['entries-added']
    found[at + 3], found[at + 4] = fields['max-deleted-entry-id'], first and first[1] or '0-0'
    found[at + 5] = fields['last-generated-id']
  end
end
local held = redis.call('HMGET', KEYS[3], 'hu', 'hl')
found[12], found[13] = held[1] or '0', held[2] or '0'
return found
"""

Id = tuple[int, int]


def position_of_message(seq: int, sent_ms: int) -> int:
    return sent_ms << _MS_BITS | (seq & (_EVENTS - 1))


def position_of_event(ms: int, number: int) -> int:
    return ms << _MS_BITS | _EVENTS | min(number, _EVENTS - 1)


def position_of_time(ms: int) -> int:
    """The position of the first row that a millisecond may have."""
    return ms << _MS_BITS


def time_of(position: int) -> int:
    return position >> _MS_BITS


def read_id(text: bytes) -> Id:
    left, _, right = text.partition(b"-")
    return int(left), int(right)


class StreamInfo(NamedTuple):
    """One stream at one moment; ids are (0, 0) where there are none."""

    length: int
    added: int
    deleted: Id
    first: Id
    last: Id


class QueueStreams(NamedTuple):
    """One queue: the time on its node, its messages by (sequence, time), its events by (time, number)."""

    now_ms: int
    messages: StreamInfo
    events: StreamInfo
    dropped_ms: int | None  # every dropped event is older, where that is tracked

    def lost(self, history_ms: int, limit: int, *, events: bool) -> int:
        """The position after the last dropped row, as far as known; 0 if none was dropped. `limit` is the
        number of messages that a queue keeps."""
        seq, sent_ms = self.messages.deleted
        lost = position_of_message(seq, sent_ms) + 1 if seq else 0
        return max(lost, position_of_time(self.dropped_events_ms(history_ms, limit))) if events else lost

    def dropped_events_ms(self, history_ms: int, limit: int) -> int:
        """Every event that was dropped is older than this; 0 if none was."""
        stream = self.events
        if stream.added <= stream.length:
            return 0
        # Redis does not report which entry was dropped last: it came before the first, and was too old or
        # over the limit.
        first_ms = stream.first[0] if stream.length else stream.last[0] + 1
        if self.dropped_ms is not None:
            first_ms = min(first_ms, self.dropped_ms)
        elif stream.length <= _FULL * limit:
            first_ms = min(first_ms, self.now_ms - history_ms)
        return max(0, first_ms)

    @property
    def end(self) -> int:
        """The position after all rows."""
        seq, sent_ms = self.messages.last
        ms, number = self.events.last
        # The bits of a sequence wrap around within a millisecond: an earlier message may come after the last
        # one.
        found = [position_of_time(sent_ms) | _EVENTS] if seq else []
        return max([0, *found, *([position_of_event(ms, number) + 1] if ms else [])])


def stream_keys(view: CachedQueue) -> tuple[bytes, bytes]:
    return view.key[:-1] + b"m", view.key[:-1] + b"h"


def read_script(text: str, keys: Iterable[bytes], *args: bytes | str | int) -> tuple[bytes | str | int, ...]:
    """A read-only call; Redis caches the script text after the first call."""
    keys = tuple(keys)
    return ("EVAL_RO", text, len(keys), *keys, *args)


def read_queue_streams(calls: Calls, views: Iterable[CachedQueue]) -> dict[int, QueueStreams]:
    """The streams by queue number. Raises OpenQError."""
    views = list(views)
    replies = calls.many(
        [(view.key, read_script(STREAM_INFO, (*stream_keys(view), view.key))) for view in views],
        idempotent=True,
    )
    found: dict[int, QueueStreams] = {}
    for view, reply in zip(views, replies, strict=True):
        if isinstance(reply, Exception):
            raise reply
        now_ms, held_ms, dropped_ms = int(reply[0]), int(reply[11]), int(reply[12])
        found[view.number] = QueueStreams(
            now_ms,
            _parse_stream(reply[1:6]),
            _parse_stream(reply[6:11]),
            dropped_ms if held_ms > now_ms else None,
        )
    return found


def _parse_stream(reply: list[Any]) -> StreamInfo:
    return StreamInfo(int(reply[0]), int(reply[1]), read_id(reply[2]), read_id(reply[3]), read_id(reply[4]))


def queues_with_history(registry: Registry) -> list[CachedQueue]:
    """The queues that keep a history."""
    return [view for view in list(registry.queues.values()) if view.settings.history_ms > 0]


class StreamHistoryEnd:
    """How far the history of a store is complete, as known to one server. Used by several threads."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._end = 0

    def now(self, settle: bool = False) -> int:
        """The end: every later row has at least this position. It stands still while nothing happens.

        With `settle`, every row that existed before the call lies before the end.
        """
        facts, now_ms = self._look()
        if settle:
            awaited = max((time_of(each.end) for each in facts.values()), default=0)
            until = time.monotonic() + _SETTLE_MS / 1000
            is_late = False
            while now_ms <= awaited and not self._is_virtual and not is_late:
                time.sleep(min(awaited - now_ms + 1, _SETTLE_MS) / 1000)
                is_late = time.monotonic() >= until
                _, now_ms = self._look()
        last = max((each.end for each in facts.values()), default=0)
        idle = (now_ms // _STRIDE_MS - 1) * _STRIDE_MS
        found = max(min(last, position_of_time(now_ms)), position_of_time(max(0, idle)))
        self._end = max(self._end, found)
        return self._end

    @property
    def _is_virtual(self) -> bool:
        return self._store.state.is_virtual

    def _look(self) -> tuple[Mapping[int, QueueStreams], int]:
        store = self._store
        store.refresh()
        facts = read_queue_streams(store.calls, queues_with_history(store.registry))
        times = [each.now_ms for each in facts.values()]
        # The slowest clock decides: that node may still add rows.
        now_ms = store.now_ms() if self._is_virtual or not times else min(times)
        return facts, now_ms
