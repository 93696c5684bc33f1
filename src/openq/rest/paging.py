"""Read a queue page by page, without changing it and without blocking it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from ..broker.bulk import CHUNK, split_by_size
from ..broker.filters import matches, needs_body
from ..broker.interface import Broker, Filter
from ..broker.scan_position import ScannedEntry, ScanPosition
from ..errors import InvalidSetting
from ..model import Entry

# Bodies in one reply: more take long to encode, and a client that does not read them holds the memory.
MAX_ANSWER_BYTES = 8 << 20
_MAX_TOKEN = 60


def _read_page_token(after: str) -> ScanPosition | None:
    if not after:
        return None
    try:
        if len(after) > _MAX_TOKEN:
            raise ValueError
        section, rank, seq = (int(part, 36) for part in after.split("."))
    except ValueError:
        raise InvalidSetting(f"after must be the `next` of a page, not {after[:100]!r}") from None
    return section, rank, seq


def _write_page_token(mark: ScanPosition) -> str:
    return ".".join(map(_base36, mark))


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    sign, number, text = "-" if number < 0 else "", abs(number), ""
    while number:
        number, rest = divmod(number, 36)
        text = digits[rest] + text
    return sign + (text or "0")


def page(
    broker: Broker,
    queue: str,
    state: str,
    after: str,
    limit: int,
    keep: Callable[[Entry], bool] | None = None,
) -> tuple[list[tuple[Entry, str]], str | None]:
    """Up to `limit` entries with their bodies, and the start of the next page, if there is one.

    Fewer, though at least one, if their bodies exceed the maximum size of a reply.
    """
    chosen: list[tuple[Entry, str]] = []
    size = 0
    last: ScanPosition | None = None
    following: str | None = None
    for entry, state_of, mark in broker.inspect.walk(queue, state, _read_page_token(after)):
        if keep is not None and not keep(entry):
            continue
        size += entry.size
        if len(chosen) == limit or (size > MAX_ANSWER_BYTES and last is not None):
            assert last is not None
            following = _write_page_token(last)
            break
        chosen.append((entry, state_of))
        last = mark
    states = {entry.seq: state_of for entry, state_of in chosen}
    filled = broker.inspect.with_bodies([entry for entry, _ in chosen])  # unreadable messages are left out
    return [(entry, states[entry.seq]) for entry in filled], following


class FoundPage(NamedTuple):
    entries: list[tuple[Entry, str]]  # with bodies and states
    scanned: int
    following: str | None  # where the search continues
    complete: bool


def search_page(
    broker: Broker, queue: str, filter: Filter, after: str, limit: int, budget_s: float
) -> FoundPage:
    """The matching messages after a position, up to the limit, the size of a reply or the end of the time.

    The time counts from the first message after the position, so that every search gets further.
    """
    inspect = broker.inspect
    walk = inspect.walk(queue, filter.state, _read_page_token(after))
    loads = needs_body(filter)
    found: list[tuple[Entry, str]] = []
    scanned = size = 0
    deadline: float | None = None
    last: ScanPosition | None = None

    def cut() -> FoundPage:
        entries = _filled(broker, found)
        return FoundPage(entries, scanned, None if last is None else _write_page_token(last), False)

    while part := list(islice(walk, CHUNK)):
        now = time.monotonic()
        if deadline is None:
            deadline = now + budget_s
        elif now > deadline:
            return cut()
        candidates = _loaded(broker, part) if loads else part
        for entry, state, mark in candidates:
            if matches(inspect.message_id, entry, filter):
                size += entry.size
                if len(found) == limit or (size > MAX_ANSWER_BYTES and found):
                    return cut()
                found.append((entry, state))
            scanned += 1
            last = mark
    return FoundPage(_filled(broker, found), scanned, None, True)


def _loaded(broker: Broker, part: list[ScannedEntry]) -> Iterator[ScannedEntry]:
    """The same with bodies; unreadable messages are left out."""
    places = {entry.seq: (state, mark) for entry, state, mark in part}
    for loadable in split_by_size([entry for entry, _, _ in part]):
        for entry in broker.inspect.with_bodies(loadable):
            yield entry, *places[entry.seq]


def _filled(broker: Broker, found: list[tuple[Entry, str]]) -> list[tuple[Entry, str]]:
    states = {entry.seq: state for entry, state in found}
    return [(entry, states[entry.seq]) for entry in broker.inspect.with_bodies([e for e, _ in found])]
