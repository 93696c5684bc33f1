"""Read a queue page by page, without changing it and without blocking it."""

from __future__ import annotations

from collections.abc import Callable

from ..broker.interface import Broker
from ..broker.scan_position import ScanPosition
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
