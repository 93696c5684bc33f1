"""A connection that only listens to the channels of a store, in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from ..errors import StoreError
from .link import open_socket
from .url import Address, Host
from .wire import NOTHING_YET, greeting, new_reader, pack

log = logging.getLogger("openq.redis")

_CHANNELS = ("wake", "due", "topology")
_QUIET_S = 2.0  # then the other side is asked whether it is still there
_PAUSE_S = 0.2


class Listening:
    def __init__(
        self,
        address: Address,
        find: Callable[[], Host | None],
        heard: Callable[[bytes, bytes], None],
        listens: Callable[[], None],
    ) -> None:
        """`find` says where a server is; `listens` is called each time that it begins to hear again."""
        self._find = find
        self._hears = False
        self._was_heard = False
        self._address = address
        self._heard = heard
        self._listens = listens
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="openq-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        while not self._stopping.is_set():
            why = "the connection ended"
            try:
                self._listen()
            except (OSError, StoreError) as error:
                why = str(error)
            except Exception:
                log.exception("the listener failed; it begins anew")
            if self._hears and not self._stopping.is_set():
                self._hears = False
                log.warning("%s is away: %s; calls wait for it", self._address, why)
            self._stopping.wait(_PAUSE_S)

    def _listen(self) -> None:
        address = self._address
        connection = open_socket(address, self._find(), address.ssl_context())
        try:
            self._socket = connection
            reader = new_reader()
            commands = greeting(address, "openq-listener")
            names = [f"{address.prefix}:{channel}" for channel in _CHANNELS]
            commands.append(("SUBSCRIBE", *names))
            connection.settimeout(_QUIET_S)
            connection.sendall(b"".join([pack(command) for command in commands]))
            waiting = len(commands) - 1 + len(names)
            asked = False
            while not self._stopping.is_set():
                reply = reader.gets()
                if reply is NOTHING_YET:
                    try:
                        received = connection.recv(65536)
                    except TimeoutError:
                        if asked:
                            raise
                        asked = True
                        connection.sendall(pack(("PING",)))
                        continue
                    if not received:
                        return
                    asked = False
                    reader.feed(received)
                    continue
                if isinstance(reply, Exception):
                    raise reply
                if waiting:
                    waiting -= 1
                    if not waiting:
                        if not self._hears and self._was_heard:
                            log.warning("%s is back", self._address)
                        self._hears = self._was_heard = True
                        self._listens()
                elif isinstance(reply, list) and reply[0] == b"message":
                    self._heard(reply[1], reply[2])
        finally:
            self._socket = None
            connection.close()
