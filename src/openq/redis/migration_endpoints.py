"""The two sides of a migration: a broker, and operations beyond its interface.

A local broker imports messages unchanged. Into Redis they are published again, each at the time at which it
was sent: with a virtual clock the functions take the time from the caller. So everything that is counted from
the send time (retention, TTL, the deduplication window) stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..auth.documents import DocumentStore
from ..broker.cursors import Cursor
from ..broker.restoring import draft_of as restored
from ..clock import VirtualClock
from ..errors import OpenQError
from ..model import Draft, Entry
from .stream_positions import position_of_time, time_of

DedupEntry = tuple[str, str, int]  # its key in the window, the id of the message, expiry time


class SteppingClock(VirtualClock):
    """Stands still at `now`, and is set back to the times at which messages were sent."""

    def __init__(self, now_ms: int) -> None:
        super().__init__(now_ms)
        self._present_ms = now_ms

    def set_time(self, time_ms: int) -> None:
        self._now_ms = max(time_ms, 1)  # 0 would mean Redis's own time

    def return_to_present(self) -> None:
        self._now_ms = self._present_ms


@dataclass(slots=True)
class MigrationEndpoint:
    """A broker in this process, which can import complete messages."""

    broker: Any  # with the views that the protocols use
    place: str
    address: str  # the place as `openq migrate` finds it from anywhere; without a password
    load_state: Callable[[], bytes | None]
    save_state: Callable[[bytes], None]
    past: Callable[[str, int, int], Sequence[Any]]  # queue, after which sequence, maximum count
    documents: Mapping[str, DocumentStore]  # users and policies, by name

    def rewind(self) -> None:
        """Called before the first message of a queue is imported; messages then follow in the order of
        time."""

    def return_to_present(self) -> None:
        """Called after the last message."""

    def unread_since(self, cursor: Cursor) -> int | None:
        """The time of the first record that the cursor has not passed; None: it has passed all."""
        found: int | None = self.broker.events.first_ms(cursor.position)
        return found

    def cursor_position(self, since_ms: int | None) -> int:
        """Where a cursor stands here. The journal orders what was imported by queue and not by time, so a
        cursor that had not passed all begins at its beginning."""
        end: int = self.broker.history.tables.end(settle=True)
        return end if since_ms is None else 0

    def import_messages(self, queue: str, entries: Sequence[Entry]) -> None:
        self.broker.importer.import_messages(queue, entries)

    def import_history(self, queue: str, messages: Sequence[Any]) -> None:
        self.broker.importer.import_history(queue, messages)

    def dedup_window(self, queue: str) -> list[DedupEntry]:
        found: list[DedupEntry] = self.broker.importer.dedup_window(queue)
        return found

    def import_dedup_window(self, queue: str, window: Sequence[DedupEntry]) -> None:
        self.broker.importer.import_dedup_window(queue, window)


@dataclass(slots=True)
class RedisEndpoint(MigrationEndpoint):
    clock: SteppingClock

    def unread_since(self, cursor: Cursor) -> int | None:
        [state] = [each for each in self.broker.cursors.states() if each.cursor.name == cursor.name]
        return time_of(cursor.position) if state.lag_bytes else None

    def cursor_position(self, since_ms: int | None) -> int:
        end: int = self.broker.history.tables.end(settle=True)
        return end if since_ms is None else min(position_of_time(since_ms), end)

    def rewind(self) -> None:
        self.clock.set_time(1)

    def return_to_present(self) -> None:
        self.clock.return_to_present()

    def import_messages(self, queue: str, entries: Sequence[Entry]) -> None:
        for sent_ms, group in groupby(entries, key=lambda entry: entry.sent_ms):
            self.clock.set_time(sent_ms)
            self._publish(queue, [draft_of(entry) for entry in group])

    def import_history(self, queue: str, messages: Sequence[Any]) -> None:
        """Publish the messages and cancel them at once: settled messages stay in the stream, to be
        replayed."""
        for time_ms, group in groupby(messages, key=lambda message: message.time_ms):
            self.clock.set_time(time_ms)
            drafts = [_past_draft(message) for message in group]
            self._publish(queue, drafts)
            for draft in drafts:
                self.broker.admin.cancel(queue, draft.id)

    def _publish(self, queue: str, drafts: list[Draft]) -> None:
        for result in self.broker.publish_many(queue, drafts):
            if isinstance(result, OpenQError):
                raise result

    def dedup_window(self, queue: str) -> list[DedupEntry]:
        ids, ends = self._window_keys(queue)
        call = self.broker.calls.call
        flat = call(ids, "HGETALL", ids, idempotent=True)
        known = dict(zip(flat[::2], flat[1::2], strict=True))
        flat = call(ends, "ZRANGE", ends, 0, -1, "WITHSCORES", idempotent=True)
        now_ms = self.broker.now_ms()
        return [
            (key.decode(), self._id(known[key]), int(until_ms))
            for key, until_ms in zip(flat[::2], flat[1::2], strict=True)
            if key in known and int(until_ms) > now_ms
        ]

    def import_dedup_window(self, queue: str, window: Sequence[DedupEntry]) -> None:
        ids, ends = self._window_keys(queue)
        calls: list[tuple[bytes, tuple[bytes | str | int, ...]]] = []
        for key, id, until_ms in window:
            calls.append((ids, ("HSET", ids, key, f"i{id}")))
            calls.append((ends, ("ZADD", ends, until_ms, key)))
        for reply in self.broker.calls.many(calls, idempotent=True):
            if isinstance(reply, Exception):
                raise reply

    def _window_keys(self, queue: str) -> tuple[bytes, bytes]:
        stem = self.broker.get_queue(queue).key[:-1]
        return stem + b"k", stem + b"kz"

    def _id(self, stored: bytes) -> str:
        """Parse `i` and an id, or `s` and the sequence from which the id is derived."""
        text = stored.decode()
        return text[1:] if text[0] == "i" else str(self.broker.inspect.id_of(int(text[1:])))


def draft_of(entry: Entry) -> Draft:
    """A draft to be published at the time at which the message was sent."""
    assert entry.options is not None
    return restored(entry, entry.options.id)


def _past_draft(message: Any) -> Draft:
    options = message.options
    return Draft(
        message.body,
        message.encoding,
        delay_ms=0,
        priority=options.priority,
        group=options.group,
        type=options.type,
        id=options.id,
        route=options.route,
        properties=message.properties,
    )
