"""A process of several: its sockets, and its channel to the supervisor. See `process_group.py`."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from ..metrics import Family, QueueColumn
from .ports import Sockets
from .process_messages import (
    Alive,
    Collect,
    Decoder,
    Families,
    Figures,
    GroupState,
    Message,
    Ready,
    Reloaded,
    ReloadOthers,
    Stopped,
    Sums,
    ToOthers,
    UsersChanged,
    View,
    Wanted,
    encode,
)
from .summed_metrics import of_process, with_sums

ALIVE_S = 1.0
ANSWER_S = 10.0  # more than the supervisor waits for the others


class MemberPlace(NamedTuple):
    """What a new process gets from the supervisor."""

    number: int  # from 1
    channel: socket.socket
    sockets: Sockets
    home_path: str  # the socket of the process that keeps what is not in the store
    home: socket.socket | None  # of the first process: it is that process


class Member:
    """The other processes of this server, as this one sees them. Used on the loop, unless said otherwise."""

    def __init__(self, place: MemberPlace) -> None:
        self.place = place
        self.state = GroupState(0, 0, 0)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, tuple[threading.Event, list[Families]]] = {}
        # Set by the server.
        self.page_of: Callable[[View], Families] = lambda view: ()  # called in a thread
        self.in_thread: Callable[[Callable[[], object]], None] = lambda work: None
        self.users_changed: Callable[[], None] = lambda: None

    async def open(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """`ended` is called when the supervisor is gone."""
        self._loop = loop
        channel = self.place.channel
        channel.setblocking(False)
        await loop.create_unix_connection(lambda: _MemberChannel(self, ended), sock=channel)
        self._say_alive()

    def connected(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def close(self) -> None:
        """What was said is sent."""
        if self._transport is not None:
            self._transport.close()

    def _say_alive(self) -> None:
        self.send(Alive())
        assert self._loop is not None
        self._loop.call_later(ALIVE_S, self._say_alive)

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def _send_soon(self, message: Message) -> None:
        """In any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.send, message)

    def ready(self, text: str) -> None:
        self.send(Ready(text))

    def stopped(self, messages: int) -> None:
        self.send(Stopped(messages))

    def reloaded(self) -> None:
        self.send(Reloaded())

    def reload_others(self) -> None:
        self.send(ReloadOthers())

    def announce_users(self) -> None:
        """In any thread: users or sessions were changed by this process."""
        self._send_soon(ToOthers(UsersChanged()))

    # -- metrics

    def summed(self, view: View, families: Families) -> list[Family | QueueColumn]:
        """In a thread: a page of metrics with the figures of all processes."""
        id, done, found = next(self._ids), threading.Event(), list[Families]()
        self._answers[id] = done, found
        self._send_soon(Collect(id, view, of_process(families)))
        done.wait(ANSWER_S)
        self._answers.pop(id, None)
        return with_sums(families, found[0]) if found else list(families)

    def own_families(self) -> Sequence[Family]:
        state = self.state
        return [
            Family(
                "openq_processes",
                "gauge",
                "Processes of the server (processes): those that run, and those that should.",
                [({"state": "running"}, state.running), ({"state": "wanted"}, state.wanted)],
            ),
            Family(
                "openq_process_restarts_total",
                "counter",
                "Processes of the server that ended and were replaced.",
                [({}, state.restarts)],
            ),
        ]

    @property
    def missing(self) -> str:
        """A sentence if processes are missing; empty otherwise."""
        running, wanted, _ = self.state
        return f"{running} of {wanted} processes run" if running < wanted else ""

    def heard(self, message: Message) -> None:
        if isinstance(message, Wanted):
            self.in_thread(lambda: self._answer(message))
        elif isinstance(message, Sums):
            waiting = self._answers.get(message.id)
            if waiting is not None:
                waiting[1].append(message.families)
                waiting[0].set()
        elif isinstance(message, GroupState):
            self.state = message
        elif isinstance(message, UsersChanged):
            self.users_changed()

    def _answer(self, wanted: Wanted) -> None:
        self._send_soon(Figures(wanted.id, of_process(self.page_of(wanted.view))))


class _MemberChannel(asyncio.Protocol):
    def __init__(self, member: Member, ended: Callable[[], None]) -> None:
        self._member = member
        self._ended = ended
        self._decoder = Decoder()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._member.connected(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            self._member.heard(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()
