"""The history of messages: their status, their timeline, and replay."""

from __future__ import annotations

from datetime import datetime

from ..broker.interface import TimelineStep
from ..engine.why import Why
from ..errors import InvalidSetting, MessageNotFoundError
from . import checks
from .core import QueueObject
from .message import is_dead
from .parts import QueuePart
from .times import moment_ms


class MessageHistory(QueuePart):
    __slots__ = ()

    def status(self, message_id: str) -> str:
        """unprocessed (ready or delayed), processing, processed, dead; or unknown."""
        broker, name = self.core.broker, self.core.name
        state = broker.inspect.status(name, checks.message_id(message_id))
        if state == "in_flight":
            return "processing"
        if state is not None:
            try:
                dead = is_dead(broker.inspect.find(name, message_id), name)
            except MessageNotFoundError:
                return self.status(message_id)  # it changed state between the two calls
            return "dead" if dead else "unprocessed"
        steps = [step.what for step in broker.inspect.timeline(name, message_id)]
        if "acked" in steps:
            return "processed"
        return "dead" if "dead-lettered" in steps else "unknown"

    def why(self, message_id: str) -> Why:
        """Why a message is not being delivered: `code` for programs, `text` for people.

        A message that has left this queue is looked up in its dead-letter queue (`dead_lettered`).
        """
        return self.core.broker.inspect.why(self.core.name, checks.message_id(message_id))

    def timeline(self, message_id: str) -> list[TimelineStep]:
        """The events of a message, as far as history is kept."""
        return self.core.broker.inspect.timeline(self.core.name, checks.message_id(message_id))

    def trace(self, message_id: str) -> list[str]:
        """The timeline in the terms of the design: publishMsg, onMsgReceived, stored, pullMsg, ..."""
        steps: list[str] = []
        for step in self.timeline(message_id):
            steps += _TRACE.get(step.what, [step.what])
        return steps

    def replay_from(
        self,
        point: datetime | float | str,
        to: QueueObject | str | None = None,
        *,
        include_purged: bool = False,
    ) -> int:
        """Publish again the messages published since `point` that have left the queue. Returns their number.

        A point is a datetime, epoch seconds, ISO-8601 text, or a message id (text that parses as a UUID is
        always an id). Ids are kept, so a replay can be repeated. Messages removed by `purge` are left out
        unless `include_purged` is True.
        """
        since_ms, since_id = _parse_point(point)
        target = None if to is None else self.core.name_of(to)
        return self.core.broker.admin.replay(
            self.core.name, since_ms, since_id, target, include_purged=include_purged
        )


_TRACE = {
    "published": ["publishMsg", "onMsgReceived", "stored"],
    "delivered": ["pullMsg", "retrieved"],
    "acked": ["acknowledged"],
}


def _parse_point(point: datetime | float | str) -> tuple[int | None, str | None]:
    if not isinstance(point, str):
        return moment_ms(point, "point"), None
    checks.utf8(point, "point")
    if _is_uuid(point):
        return None, point
    try:
        return moment_ms(point, "point"), None
    except InvalidSetting:
        return None, point  # an id chosen by the publisher; an unknown one raises HistoryUnavailable


def _is_uuid(text: str) -> bool:
    """8-4-4-4-12 hexadecimal digits. (The module uuid takes 5 ms to import.)"""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(
        character in "0123456789abcdefABCDEF" for part in parts for character in part
    )
