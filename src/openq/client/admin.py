"""Changing a queue and the messages in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

from ..errors import InvalidSetting, OpenQError
from . import checks
from .backup import read_backup, write_backup
from .core import QueueObject
from .events import listen
from .message import PeekedMessage
from .parts import QueuePart, make_filter
from .publishing import make_draft
from .times import moment_ms, to_ms


class Admin(QueuePart):
    __slots__ = ()

    def purge(self) -> int:
        """Remove every message, those in flight included. Returns their number."""
        removed = self.core.broker.purge(self.core.name)
        self.core.sync()
        self._remove_saved_file()
        return removed

    def cancel(self, message_id: str) -> None:
        """Remove one message that is not in flight."""
        self.core.broker.admin.cancel(self.core.name, checks.message_id(message_id))
        self.core.sync()

    def edit(
        self,
        message_id: str,
        body: Any,
        *,
        message_type: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Replace the body of a message that is not in flight; type and attributes stay unless given."""
        core = self.core
        entry = core.broker.inspect.find(core.name, checks.message_id(message_id))
        before = PeekedMessage(self.queue, entry)
        draft = make_draft(
            core.codec,
            body,
            message_type=before.message_type if message_type is None else message_type,
            attributes=before.attributes if attributes is None else attributes,
            publisher=before.publisher,
        )
        has_amqp_properties = entry.properties is not None and entry.properties.amqp_properties is not None
        if has_amqp_properties and attributes is None and draft.type == before.message_type:
            draft.properties = entry.properties  # keep every property as published
        core.broker.admin.edit(core.name, message_id, draft)
        core.sync()

    def move(self, message_id: str, to: QueueObject | str) -> None:
        """Move a message to the end of another queue on the same target. Its id stays."""
        core = self.core
        [error] = core.broker.admin.move(core.name, [checks.message_id(message_id)], core.name_of(to))
        if error is not None:
            raise error
        core.sync()

    def reschedule(
        self, message_id: str, *, delay: float | None = None, at: datetime | float | str | None = None
    ) -> None:
        """Change when a ready or delayed message may be received."""
        checks.message_id(message_id)
        if (delay is None) == (at is None):
            raise InvalidSetting("give either delay or at")
        if at is not None:
            due_ms = moment_ms(at, "at")
        else:
            due_ms = self.core.broker.now_ms() + to_ms(cast(float, delay), "delay")
        self.core.broker.admin.reschedule(self.core.name, message_id, due_ms)
        self.core.sync()

    def redrive(
        self,
        to: QueueObject | str | None = None,
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
        """Move dead letters back to their source queues, or to `to`: all, or those that match.

        Returns their number. `rate` limits the messages per second; `progress` is called with the number
        so far and stops the redrive by returning False.
        """
        if rate is not None and not checks.number(rate, "rate") > 0:
            raise InvalidSetting(f"rate must be more than 0, not {rate!r}")
        if progress is not None:
            checks.function(progress, "progress")
        wanted = make_filter(text, message_type, attributes, json, reason, ids, "ready")
        target = None if to is None else self.core.name_of(to)
        return self.core.broker.admin.redrive(self.core.name, target, wanted, rate, progress)

    def pause(self) -> None:
        """Deliver nothing until `resume`; publishing goes on."""
        self._change(paused=True)

    def resume(self) -> None:
        """Deliver again after `pause`."""
        self._change(paused=False)

    def _change(self, **changes: object) -> None:
        settings = self.core.broker.settings(self.core.name).with_(**changes)
        self.core.broker.declare(self.core.name, settings, change=True)
        self.core.sync()

    def requeue_expired(self) -> None:
        """Return messages whose leases or delays are over. Happens by itself; calling it is never needed."""
        self.core.broker.tick()

    def subscribe(self, listener: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        """Call `listener` with every event of this queue. Returns a function that ends the subscription.

        Events are dicts with event (published, received, acked, expired, requeued, dead-lettered,
        moved, removed, purged), queue, id, time_ms and detail. In memory and on disk the listener runs in
        the thread that made the change. On a server and in Redis it runs in a thread of its own, and hears
        of the changes of all processes. `events` is the same as an iterator that can be resumed.
        """
        checks.function(listener, "listener")
        name = self.core.name
        if self.core.handle.is_shared_store:
            return listen(self.queue, self.core.broker, name, listener)

        def of_this_queue(event: dict[str, Any]) -> None:
            if event["queue"] == name:
                listener(event)

        return self.core.broker.subscribe(of_this_queue)

    # -- files --------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str] | None = None) -> int:
        """Write the whole queue to a file of JSON lines, atomically. Returns the number of messages.

        Without a path the file is `<name>.json` in the working directory; `purge` removes that file.
        """
        core = self.core
        entries = sorted(core.broker.inspect.entries(core.name), key=lambda entry: entry.seq)
        in_flight = {
            delivery.entry.seq: delivery.count for delivery in core.broker.inspect.deliveries(core.name)
        }
        write_backup(self._file(path), self.queue, entries, in_flight)
        return len(entries)

    def load(self, path: str | os.PathLike[str] | None = None) -> int:
        """Add the messages of a file written by `save`, except those in the queue already.

        Returns the number of messages added. A file that is not valid as a whole changes nothing.
        """
        drafts = read_backup(self._file(path), self.queue)
        results = self.core.broker.publish_many(self.core.name, drafts)
        self.core.sync()
        for result in results:
            if isinstance(result, OpenQError):
                raise result
        return sum(
            isinstance(result, tuple) and draft.id == result[0]
            for draft, result in zip(drafts, results, strict=True)
        )

    def _file(self, path: str | os.PathLike[str] | None) -> str:
        if path is not None:
            return checks.file_path(path)
        self.core.saved_file = os.path.abspath(f"{self.core.name.replace(os.sep, '_')}.json")
        return self.core.saved_file

    def _remove_saved_file(self) -> None:
        if self.core.saved_file is not None:
            try:
                os.unlink(self.core.saved_file)
            except FileNotFoundError:
                pass
