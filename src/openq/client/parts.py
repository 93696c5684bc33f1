"""What every part of `Queue` may count on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..broker.interface import Filter
from ..errors import InvalidSetting
from ..model import Entry
from . import checks
from .codecs import Codec
from .interface import LibraryBroker
from .message import PeekedMessage

if TYPE_CHECKING:
    from .queues import Queue


class QueuePart:
    name: str
    codec: Codec
    _broker: LibraryBroker
    _syncs: bool  # on disk, and an answer waits for it
    _id_of: Callable[[Entry], str]

    def _sync(self) -> None:
        if self._syncs or self._broker.observed:
            self._broker.sync()

    def _peeked(self, entries: Iterable[Entry]) -> list[PeekedMessage]:
        queue = cast("Queue", self)
        return [PeekedMessage(queue, entry) for entry in entries]

    def _shares_broker(self, other: QueuePart) -> bool:
        return other._broker is self._broker

    def _name_of(self, other: Queue | str) -> str:
        if isinstance(other, str):
            return checks.utf8(other, "the name of a queue")
        if not isinstance(other, QueuePart):
            raise InvalidSetting(f"a queue or the name of one is needed, not {other!r}")
        if not self._shares_broker(other):
            raise InvalidSetting(f"queue {other.name!r} is in another place than {self.name!r}")
        return other.name


def make_filter(
    text: str | None,
    message_type: str | None,
    attributes: Mapping[str, Any] | None,
    json: Mapping[str, Any] | None,
    reason: str | None,
    ids: Sequence[str] | None,
    state: str,
) -> Filter:
    return Filter(
        ids=None if ids is None else checks.text_list(ids, "ids"),
        type=checks.text_or_none(message_type, "message_type"),
        text=checks.text_or_none(text, "text"),
        attributes=checks.mapping(attributes, "attributes"),
        json=checks.mapping(json, "json"),
        reason=checks.text_or_none(reason, "reason"),
        state=checks.text(state, "state"),
    )
