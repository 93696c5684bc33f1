"""What an operator does to a queue and the messages in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from ..errors import InvalidSetting, OpenQError
from . import checks
from .backup import read_backup, write_backup
from .message import PeekedMessage
from .parts import QueuePart, make_filter
from .publishing import make_draft
from .times import moment_ms, to_ms

if TYPE_CHECKING:
    from .queues import Queue


class Admin(QueuePart):
    def purge(self) -> int:
        """Everything out, messages with consumers too. Returns how many."""
        removed = self._broker.purge(self.name)
        self._sync()
        self._remove_own_file()
        return removed

    def cancel(self, message_id: str) -> None:
        """Remove one message that nobody has taken yet."""
        self._broker.cancel(self.name, checks.message_id(message_id))
        self._sync()

    def edit(
        self,
        message_id: str,
        body: Any,
        *,
        message_type: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Another body for a message that waits; type and attributes stay unless they are given."""
        entry = self._broker.find(self.name, checks.message_id(message_id))
        before = PeekedMessage(cast("Queue", self), entry)
        draft = make_draft(
            self.codec,
            body,
            message_type=before.message_type if message_type is None else message_type,
            attributes=before.attributes if attributes is None else attributes,
            publisher=before.publisher,
        )
        has_amqp_properties = entry.properties is not None and entry.properties.amqp_properties is not None
        if has_amqp_properties and attributes is None and draft.type == before.message_type:
            draft.properties = entry.properties  # every property as it came
        self._broker.edit(self.name, message_id, draft)
        self._sync()

    def move(self, message_id: str, to: Queue | str) -> None:
        """To the end of another queue in the same place; the id stays."""
        [error] = self._broker.move(self.name, [checks.message_id(message_id)], self._name_of(to))
        if error is not None:
            raise error
        self._sync()

    def reschedule(
        self, message_id: str, *, delay: float | None = None, at: datetime | float | str | None = None
    ) -> None:
        """Another time for a message that waits or is delayed."""
        checks.message_id(message_id)
        if (delay is None) == (at is None):
            raise InvalidSetting("give either delay or at")
        if at is not None:
            due_ms = moment_ms(at, "at")
        else:
            due_ms = self._broker.now_ms() + to_ms(cast(float, delay), "delay")
        self._broker.reschedule(self.name, message_id, due_ms)
        self._sync()

    def redrive(
        self,
        to: Queue | str | None = None,
        *,
        ids: Sequence[str] | None = None,
        text: str | None = None,
        message_type: str | None = None,
        attributes: Mapping[str, Any] | None = None,
        json: Mapping[str, Any] | None = None,
        reason: str | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
    ) -> int:
        """Dead letters back to where they died, or to `to`; all, or those that match. Returns how many.

        `rate` is the most per second; `progress` is told how many so far, and stops by returning False.
        """
        if rate is not None and not checks.number(rate, "rate") > 0:
            raise InvalidSetting(f"rate must be more than 0, not {rate!r}")
        if progress is not None:
            checks.function(progress, "progress")
        wanted = make_filter(text, message_type, attributes, json, reason, ids, "ready")
        target = None if to is None else self._name_of(to)
        return self._broker.redrive(self.name, target, wanted, rate, progress)

    def replay_from(
        self,
        point: datetime | float | str,
        to: Queue | str | None = None,
        *,
        include_purged: bool = False,
    ) -> int:
        """Publish again what was published from `point` on and is no longer in the queue.

        A point is a datetime, epoch seconds, ISO-8601 text, or the id of a message (text that
        parses as a UUID always is one). Ids stay, so a replay can be repeated. Returns how many.
        Messages that `purge` removed are left out; `include_purged=True` brings them back too.
        """
        since_ms, since_id = self._parse_point(point)
        target = None if to is None else self._name_of(to)
        return self._broker.replay(self.name, since_ms, since_id, target, include_purged=include_purged)

    replayFrom = replay_from

    def _parse_point(self, point: datetime | float | str) -> tuple[int | None, str | None]:
        if not isinstance(point, str):
            return moment_ms(point, "point"), None
        checks.utf8(point, "point")
        if _is_uuid(point):
            return None, point
        try:
            return moment_ms(point, "point"), None
        except InvalidSetting:
            return None, point  # an id of the publisher's own; unknown ones raise HistoryUnavailable

    def pause(self) -> None:
        """Hand out nothing until `resume`; publishing goes on."""
        self._change(paused=True)

    def resume(self) -> None:
        self._change(paused=False)

    def _change(self, **changes: object) -> None:
        settings = self._broker.settings(self.name).with_(**changes)
        self._broker.declare(self.name, settings, change=True)
        self._sync()

    def requeue_expired(self) -> None:
        """Bring leases and delays up to the present. Happens by itself; never needed, never wrong."""
        self._broker.tick()

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Tell `listener` of every change in this queue; returns the way to stop it.

        Events are dicts with event (published, received, acked, expired, requeued, dead-lettered,
        moved, removed, purged), queue, id, time_ms and detail.
        """
        checks.function(listener, "listener")
        name = self.name

        def of_this_queue(event: dict[str, Any]) -> None:
            if event["queue"] == name:
                listener(event)

        return self._broker.subscribe(of_this_queue)

    # -- files --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str] | None = None) -> int:
        """Everything in the queue as a file of JSON lines, replaced as a whole. Returns how many messages.

        Without a path the file is `<name>.json` in the working directory; `purge` removes that one again.
        """
        entries = sorted(self._broker.entries(self.name), key=lambda entry: entry.seq)
        in_flight = {delivery.entry.seq: delivery.count for delivery in self._broker.deliveries(self.name)}
        write_backup(self._file(path), cast("Queue", self), entries, in_flight)
        return len(entries)

    def load(self, path: str | os.PathLike[str] | None = None) -> int:
        """Add what `save` wrote; messages that are here already are left alone. Returns how many came.

        A file that cannot be read as a whole changes nothing.
        """
        drafts = read_backup(self._file(path), cast("Queue", self))
        results = self._broker.publish_many(self.name, drafts)
        self._sync()
        for result in results:
            if isinstance(result, OpenQError):
                raise result
        return sum(draft.id == result for draft, result in zip(drafts, results, strict=True))

    _save_to_disk = save
    _load_from_disk = load
    _purge = purge

    def _file(self, path: str | os.PathLike[str] | None) -> str:
        if path is not None:
            return checks.file_path(path)
        self._own_file = os.path.abspath(f"{self.name.replace(os.sep, '_')}.json")
        return self._own_file

    def _remove_own_file(self) -> None:
        if self._own_file is not None:
            try:
                os.unlink(self._own_file)
            except FileNotFoundError:
                pass

    _own_file: str | None = None


def _is_uuid(text: str) -> bool:
    """8-4-4-4-12 hexadecimal digits. (The module uuid takes 5 ms to import.)"""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        character in "0123456789abcdefABCDEF" for part in parts for character in part
    )
