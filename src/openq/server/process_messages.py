"""What the processes of a server and their supervisor say to each other, over a socket pair each.

All of them were forked from one program, so values are pickled as they are. Nothing that a client sends is
unpickled, and no other program has an end of these sockets.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ..metrics import Family, QueueColumn

_LENGTH = struct.Struct(">I")
_MAX_BYTES = 256 << 20

Families = Sequence[Family | QueueColumn]
View = Hashable  # which page of metrics: its name, whether of all accounts, its query


# -- from a process to the supervisor


class Ready(NamedTuple):
    """It accepts requests. The text is what a server prints then."""

    text: str


class Alive(NamedTuple):
    """Its event loop runs."""


class Stopped(NamedTuple):
    messages: int  # in the store


class Reloaded(NamedTuple):
    """After a SIGHUP, whatever the outcome."""


class ReloadOthers(NamedTuple):
    """It was reloaded by a request."""


class Collect(NamedTuple):
    """It answers a scrape: these are its own figures; it wants those of all."""

    id: int
    view: View
    families: Families


class Figures(NamedTuple):
    id: int
    families: Families


class ToOthers(NamedTuple):
    message: UsersChanged


# -- from the supervisor to a process


class GroupState(NamedTuple):
    """How many processes there are, and how often one was replaced."""

    running: int
    wanted: int
    restarts: int


class Wanted(NamedTuple):
    """Another process answers a scrape."""

    id: int
    view: View


class Sums(NamedTuple):
    id: int
    families: Families


# -- from a process to the others


class UsersChanged(NamedTuple):
    """Users or sessions: read them again."""


Message = (
    Ready
    | Alive
    | Stopped
    | Reloaded
    | ReloadOthers
    | Collect
    | Figures
    | ToOthers
    | GroupState
    | Wanted
    | Sums
    | UsersChanged
)


def encode(message: Message) -> bytes:
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Decoder:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        held = self._held
        held += data
        found: list[Message] = []
        at = 0
        while len(held) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(held, at)
            if size > _MAX_BYTES:
                raise ValueError(f"a message of {size} bytes")
            if len(held) - at - _LENGTH.size < size:
                break
            at += _LENGTH.size
            found.append(pickle.loads(held[at : at + size]))
            at += size
        del held[:at]
        return found
