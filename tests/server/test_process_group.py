"""What the supervisor of several processes does with one that hangs, and with one that has ended."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from openq.config import Config
from openq.server import process_group
from openq.server.process_group import GroupSupervisor
from openq.server.process_messages import (
    Decoder,
    GroupState,
    Message,
    Ready,
    ToOthers,
    UsersChanged,
    Wanted,
    encode,
)

CONFIG = Config(store="redis://localhost", processes=2)


class Group:
    """A supervisor whose processes are sockets of the test."""

    def __init__(self) -> None:
        self.supervisor = GroupSupervisor(CONFIG, io.StringIO(), as_json=False)
        self.ends: dict[int, socket.socket] = {}
        for number, process in self.supervisor._processes.items():
            process.channel, self.ends[number] = socket.socketpair()
            process.channel.setblocking(False)
            process.is_ready = True
            self.supervisor._selector.register(process.channel, 1, process)

    def close(self) -> None:
        supervisor = self.supervisor
        channels = [each.channel for each in supervisor._processes.values() if each.channel is not None]
        for each in (*self.ends.values(), *channels, supervisor._wake, supervisor._wake_end):
            each.close()
        supervisor._selector.close()

    def received(self, number: int) -> list[Message]:
        """All that is for this process, which reads again."""
        process, end, decoder = self.supervisor._processes[number], self.ends[number], Decoder()
        end.setblocking(False)
        found: list[Message] = []
        while True:
            self.supervisor._write(process)
            try:
                found += decoder.feed(end.recv(1 << 20))
            except BlockingIOError:
                return found


@pytest.fixture
def group() -> Iterator[Group]:
    found = Group()
    yield found
    found.close()


def test_for_a_process_that_hangs_a_bounded_number_of_bytes_waits(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "MAX_UNSENT", 10_000)
    hanging, other = (group.supervisor._processes[number] for number in (1, 2))
    for number in range(20_000):
        group.supervisor._send(hanging, Wanted(number, "metrics"))
    assert len(hanging.unsent) < 10_200

    group.supervisor._heard(other, ToOthers(UsersChanged()))
    group.supervisor._send(hanging, GroupState(1, 2, 1))
    group.supervisor._send(hanging, GroupState(2, 2, 1))
    assert len(hanging.unsent) < 10_200

    found = group.received(1)
    assert UsersChanged() in found
    assert [each for each in found if isinstance(each, GroupState)] == [GroupState(2, 2, 1)]
    assert [each.id for each in found if isinstance(each, Wanted)][-1] == 19_999


def test_what_a_process_said_before_it_ended_signals_no_process_that_has_its_number_now(group: Group) -> None:
    ended = group.supervisor._processes[1]
    ended.is_ready = False
    group.supervisor._was_reloaded = True
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        ended.pid = stranger.pid
        group.ends[1].sendall(encode(Ready("serving")))

        group.supervisor._ended(ended, 1)

        stranger.send_signal(signal.SIGTERM)
        # Of two signals that wait the kernel delivers the one with the lower number, SIGHUP, first.
        assert stranger.wait(30) == -signal.SIGTERM
    assert not ended.is_ready
    assert not ended.pid
