"""JSON lines between the processes of a worker service, over a socket pair.

A message is one JSON object; file descriptors may travel with it. The end of the other process ends the
channel: that is how a process learns of it, whatever killed the other one.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from typing import Any

_CHUNK = 65536
MAX_FDS = 4
Event = dict[str, Any]


class Channel:
    """One end of a socket pair. Any thread may send, one receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""
        self._lock = threading.Lock()
        self.fds: list[int] = []  # received and not yet taken, in order
        self.ended = False

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), cls(theirs)

    @classmethod
    def of_fd(cls, fd: int) -> Channel:
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        return self._sock.fileno()

    def send(self, message: Event, fds: tuple[int, ...] = ()) -> bool:
        """False if the other end is gone."""
        data = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                sent = socket.send_fds(self._sock, [data], fds) if fds else self._sock.send(data)
                if sent < len(data):
                    self._sock.sendall(data[sent:])
            except OSError:
                return False
        return True

    def is_readable(self) -> bool:
        return bool(select.select([self._sock], [], [], 0)[0])

    def receive(self) -> list[Event]:
        """The messages that one read brings; empty if there is no whole one, or if the channel has ended.

        Blocks if nothing has arrived: call it when the socket is readable.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._sock, _CHUNK, MAX_FDS)
        except (ConnectionError, OSError):
            data, fds = b"", []
        self.fds += fds
        if not data:
            self.ended = True
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        self._sock.close()
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()
