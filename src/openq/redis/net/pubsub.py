"""A connection that only listens to the channels of a store, in a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from ...errors import StoreError
from .connection import open_socket
from .resp import INCOMPLETE, handshake, new_reader, pack
from .url import Address, Host

log = logging.getLogger("openq.redis")

_CHANNELS = ("wake", "due", "topology", "kv", "schedules", "events")
_IDLE_S = 2.0  # then the server is pinged
_PAUSE_S = 0.2


class PubSubListener:
    def __init__(
        self,
        address: Address,
        find_host: Callable[[], Host | None],
        on_message: Callable[[bytes, bytes], None],
        on_subscribed: Callable[[], None],
    ) -> None:
        """`find_host` returns the location of a server; `on_subscribed` is called each time that the
        subscription is established."""
        self._find_host = find_host
        self._is_subscribed = False
        self._was_subscribed = False
        self._address = address
        self._on_message = on_message
        self._on_subscribed = on_subscribed
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
            if self._is_subscribed and not self._stopping.is_set():
                self._is_subscribed = False
                log.warning("%s is unreachable: %s; calls wait for it", self._address, why)
            self._stopping.wait(_PAUSE_S)

    def _listen(self) -> None:
        address = self._address
        connection = open_socket(address, self._find_host(), address.ssl_context())
        try:
            self._socket = connection
            reader = new_reader()
            commands = handshake(address, "openq-listener")
            names = [f"{address.prefix}:{channel}" for channel in _CHANNELS]
            commands.append(("SUBSCRIBE", *names))
            connection.settimeout(_IDLE_S)
            connection.sendall(b"".join([pack(command) for command in commands]))
            waiting = len(commands) - 1 + len(names)
            asked = False
            while not self._stopping.is_set():
                reply = reader.gets()
                if reply is INCOMPLETE:
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
                        if not self._is_subscribed and self._was_subscribed:
                            log.warning("%s is reachable again", self._address)
                        self._is_subscribed = self._was_subscribed = True
                        self._on_subscribed()
                elif isinstance(reply, list) and reply[0] == b"message":
                    self._on_message(reply[1], reply[2])
        finally:
            self._socket = None
            connection.close()
