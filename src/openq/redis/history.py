"""What was: past messages from the stream of a queue, timelines from its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..broker import timelines
from ..broker.base import Step
from ..broker.history import PastMessage, Span, kept_drafts, purged_messages
from ..engine.records import EXPIRED
from ..engine.routing import is_default
from ..model import Draft
from .records import MALFORMED, is_from_elsewhere, unpack_record
from .registry import QueueView

if TYPE_CHECKING:
    from .operations import Operations

_PAGE = 500


class Past:
    def __init__(self, broker: Operations) -> None:
        self._broker = broker

    def _stream(self, view: QueueView, name: str, start: str) -> Iterator[tuple[bytes, bytes]]:
        """Ids and values of a stream, oldest first."""
        key = view.key[:-1] + name.encode()
        call = self._broker.calls.call
        while True:
            page = call(key, "XRANGE", key, start, "+", "COUNT", _PAGE, idempotent=True)
            for id, fields in page:
                yield id, fields[1]
            if len(page) < _PAGE:
                return
            start = "(" + page[-1][0].decode()

    def messages(self, view: QueueView, after_seq: int = 0) -> Iterator[PastMessage]:
        """What was published to the queue, as it was published, as far as history is kept."""
        for id, record in self._stream(view, "m", str(after_seq + 1)):
            if not is_from_elsewhere(record):
                seq, _, sent_ms = id.partition(b"-")
                try:
                    form, body, info, extra = unpack_record(record)
                except MALFORMED:
                    continue  # other hands were on it
                yield PastMessage(int(seq), int(sent_ms), form, body, info, extra)

    def past(self, view: QueueView, span: Span) -> list[PastMessage]:
        found: list[PastMessage] = []
        size = 0
        for message in self.messages(view, span.after_seq):
            if span.until_ms is not None and message.time_ms >= span.until_ms:
                break
            if message.time_ms >= span.since_ms:
                found.append(message)
                size += len(message.body)
                if len(found) >= span.limit or (span.max_bytes is not None and size >= span.max_bytes):
                    break
        return found

    def published(
        self, view: QueueView, since_ms: int | None, since_id: str | None, include_purged: bool = False
    ) -> Iterator[Draft]:
        broker = self._broker
        oldest_ms = max(since_ms or 0, broker.now_ms() - view.settings.history_ms)
        purges = [] if include_purged else self._purges(view)
        left_out = None
        if purges:
            past = self.messages(view)
            left_out = purged_messages(past, broker.id_prefix, lambda seq: _is_purged(seq, purges))
        past, settings = self.messages(view), view.settings
        return kept_drafts(past, view.name, settings, broker.id_prefix, oldest_ms, since_id, left_out)

    def _purges(self, view: QueueView) -> list[_Purge]:
        """The purges of a queue, each with those it spared: settled before, or in flight where it says so."""
        found: list[_Purge] = []
        settled: set[int] = set()
        lent: set[int] = set()
        for _, value in self._stream(view, "h", "-"):
            kind, _, rest = value.partition(b"\x1f")
            if kind == b"P":
                spares, _, last = rest.partition(b"\x1f")
                spared = settled | lent if spares == b"1" else set(settled)
                found.append(_Purge(int(last or 0), spared))
            elif kind in _ABOUT:
                seqs = _about(kind, value)
                (settled if kind in b"AMD" else lent).update(seqs)
                if kind == b"R":
                    lent.difference_update(seqs)
        return found

    def expired_leases(self, view: QueueView) -> list[int]:
        """Sequences whose lease ran out since this was last asked."""
        seen = self._broker._shared.heard
        start = seen.get(view.number)
        if start is None:
            start = str(self._broker.now_ms())
        found = []
        for id, value in self._stream(view, "h", start):
            seen[view.number] = "(" + id.decode()
            parts = value.split(b"\x1f")
            if parts[0] == b"R" and int(parts[1]) == EXPIRED:
                found.append(int(parts[3]))
        seen.setdefault(view.number, start)
        return found

    # -- timelines ------------------------------------------------------------------------------

    def timeline(self, view: QueueView, message_id: str) -> list[Step]:
        """Followed through the queues it was moved to and from."""
        broker = self._broker
        seqs = {
            broker._own_seq(message_id),
            *broker._seqs(view, [message_id]),
            *self._known_as(view, message_id),
        }
        wanted = [(view, seq, 0) for seq in sorted(seqs) if seq]
        looked: set[tuple[int, int]] = set()
        steps: list[tuple[int, int, int, Step]] = []
        while wanted:
            queue, seq, life = wanted.pop()
            if (queue.number, seq) in looked:
                continue
            looked.add((queue.number, seq))
            wanted += self._collect(queue, seq, life, steps)
        # Within one moment: first what happened where it came from.
        steps.sort(key=lambda each: each[:3])
        return [step for *_, step in steps]

    def _known_as(self, view: QueueView, message_id: str) -> list[int]:
        """Sequences in this queue of a message whose id does not follow from them."""
        found = []
        for _, value in self._stream(view, "h", "-"):
            if value[:1] == b"I":
                _, _, seq, id = value.split(b"\x1f", 3)
                if id.decode() == message_id:
                    found.append(int(seq))
        for message in self.messages(view):
            if message.extra is not None and message.extra.id == message_id:
                found.append(message.seq)
        return found

    def _collect(
        self, view: QueueView, seq: int, life: int, steps: list[tuple[int, int, int, Step]]
    ) -> list[tuple[QueueView, int, int]]:
        """The steps of one message in one queue; where it came from and went to.

        Each queue it was in is one of its lives; `life` counts them.
        """
        relatives: list[tuple[QueueView, int, int]] = []
        key = view.key[:-1] + b"m"
        found = self._broker.calls.call(key, "XRANGE", key, seq, seq, idempotent=True)
        since = "-"
        if found:
            id, fields = found[0]
            sent_ms = int(id.partition(b"-")[2])
            since = str(sent_ms)
            if not is_from_elsewhere(fields[1]):
                steps.append((sent_ms, life, 0, Step(sent_ms, "published", view.name, _by(fields[1]))))
        own = str(seq).encode()
        numbered = self._broker._registry.numbered
        is_here, is_lent = True, False
        for place, (id, value) in enumerate(self._stream(view, "h", since), 1):
            if value[:2] == b"P\x1f":
                _, spares, *last = value.split(b"\x1f")
                was_there = bool(last) and int(last[0]) >= seq
                if is_here and was_there and not (is_lent and spares == b"1"):
                    is_here = False
                    time_ms = int(id.partition(b"-")[0])
                    steps.append((time_ms, life, place, Step(time_ms, "purged", view.name)))
                continue
            if own not in value:
                continue
            time_ms = int(id.partition(b"-")[0])
            parts = value.decode().split("\x1f")
            if parts[0] == "I":
                if parts[2] == str(seq):
                    number, _, old = parts[1].partition(":")
                    if int(number) in numbered and int(old):
                        relatives.append((numbered[int(number)], int(old), life - 1))
                continue
            step = _step(view, seq, time_ms, parts)
            if step is not None:
                is_lent = parts[0] in ("L", "X")
                is_here = is_here and parts[0] not in ("A", "M", "D")
                steps.append((time_ms, life, place, step))
                if parts[0] == "M":
                    went = self._went_to(view, seq, parts[4], id)
                    relatives += [(target, new, life + 1) for target, new in went]
        return relatives

    def _went_to(self, view: QueueView, seq: int, names: str, since: bytes) -> list[tuple[QueueView, int]]:
        found = []
        origin = f"{view.number}:{seq}"
        for name in names.split("\x1e"):
            target = self._broker._registry.queues.get(name)
            if target is None:
                continue
            # Entered there before the limbo was cleared, on a clock that may be another one.
            start = max(0, int(since.partition(b"-")[0]) - 60_000)
            for _, value in self._stream(target, "h", str(start)):
                parts = value.decode().split("\x1f")
                if parts[0] == "I" and parts[1] == origin:
                    found.append((target, int(parts[2])))
        return found


@dataclass(frozen=True, slots=True)
class _Purge:
    last_seq: int  # of what was in the queue then
    spared: set[int]


_ABOUT = (b"L", b"A", b"R", b"M", b"D")


def _about(kind: bytes, value: bytes) -> list[int]:
    """The messages that an event is about. Texts of strangers stand between parts that cannot hold them."""
    parts = value.split(b"\x1f")
    if kind == b"R":
        return [int(parts[-2])]
    if kind == b"M":
        return [int(parts[-2])]
    return [int(each) for each in parts[-1].split(b",")]


def _is_purged(seq: int, purges: list[_Purge]) -> bool:
    return any(seq <= purge.last_seq and seq not in purge.spared for purge in purges)


def _step(view: QueueView, seq: int, time_ms: int, parts: list[str]) -> Step | None:
    """One line of a timeline from one event; None if it is about others."""
    kind, name, own = parts[0], view.name, str(seq)
    if kind == "L":
        if own not in parts[4].split(","):
            return None
        return timelines.delivered(time_ms, name, parts[3], int(parts[2]))
    if kind == "A":
        return Step(time_ms, "acked", name) if own in parts[1].split(",") else None
    if kind == "R":
        if parts[3] != own:
            return None
        return timelines.returned(time_ms, name, int(parts[1]), parts[2], int(parts[4]))
    if kind == "X":
        if own not in parts[2].split(","):
            return None
        return timelines.extended(time_ms, name, int(parts[1]))
    if kind == "M" and parts[3] == own:
        where = ", ".join(parts[4].split("\x1e"))
        return timelines.moved(time_ms, name, int(parts[1]), parts[2], where)
    if kind == "D" and own in parts[2].split(","):
        return timelines.removed(time_ms, name, int(parts[1]))
    if kind == "S" and parts[2] == own:
        return timelines.rescheduled(time_ms, name, int(parts[1]))
    if kind == "E" and parts[1] == own:
        return Step(time_ms, "edited", name)
    return None


def _by(record: bytes) -> str:
    _, _, info, extra = unpack_record(record)
    parts = []
    if info is not None and info.publisher:
        parts.append(f"by {info.publisher}")
    if extra is not None and extra.route is not None and not is_default(extra.route[0]):
        parts.append(f"through {extra.route[0]}")
    return ", ".join(parts)
