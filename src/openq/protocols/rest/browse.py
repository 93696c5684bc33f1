"""Walking through a queue page by page, without changing it and without holding it up."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...broker.local import LocalBroker
from ...engine import admin
from ...errors import InvalidSetting
from ...model import Entry

_SECTIONS = ("ready", "delayed", "in_flight")
_CHUNK = 256

Mark = tuple[int, int, int]  # section, rank within it (priority or due time), sequence


def _mark(section: int, entry: Entry, max_priority: int) -> Mark:
    if section == 0:
        return (0, -min(entry.priority, max_priority), entry.seq)
    if section == 1:
        return (1, 0 if entry.extra is None else entry.extra.due_ms, entry.seq)
    return (2, 0, entry.seq)


def _read_mark(after: str) -> Mark | None:
    if not after:
        return None
    try:
        section, rank, seq = (int(part, 36) for part in after.split("."))
    except ValueError:
        raise InvalidSetting(f"after must be what `next` of a page said, not {after[:100]!r}") from None
    return section, rank, seq


def _write_mark(mark: Mark) -> str:
    return ".".join(map(_base36, mark))


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    sign, number, text = "-" if number < 0 else "", abs(number), ""
    while number:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return sign + (text or "0")


def walk(broker: LocalBroker, queue: str, state: str, after: str = "") -> Iterator[tuple[Entry, str, Mark]]:
    """Every entry with its state, in hand-out order, as of now; bodies may be on disk only."""
    mark = _read_mark(after)
    broker.stats(queue)  # brings delays and leases up to the present
    with broker.lock:
        found = broker.engine.queue(queue)
        parts = [
            (number, section, admin.survey(found, section))
            for number, section in enumerate(_SECTIONS)
            if state in (section, "all")
        ]
        max_priority = 0 if found.fifo else found.ready.max_priority
    for number, section, entries in parts:
        for entry in entries:
            here = _mark(number, entry, max_priority)
            if mark is None or here > mark:
                yield entry, section, here


def page(
    broker: LocalBroker,
    queue: str,
    state: str,
    after: str,
    limit: int,
    keep: Callable[[Entry], bool] | None = None,
) -> tuple[list[tuple[Entry, str]], str | None]:
    """Up to `limit` entries with their bodies, and where the next page begins, if there is one."""
    chosen: list[tuple[Entry, str]] = []
    last: Mark | None = None
    following: str | None = None
    for entry, state_of, mark in walk(broker, queue, state, after):
        if keep is not None and not keep(entry):
            continue
        if len(chosen) == limit:
            assert last is not None
            following = _write_mark(last)
            break
        chosen.append((entry, state_of))
        last = mark
    filled = broker.filled([entry for entry, _ in chosen])
    return [(entry, state_of) for entry, (_, state_of) in zip(filled, chosen, strict=True)], following
