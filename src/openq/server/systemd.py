"""The protocol of systemd's `Type=notify`: ready, reloading, stopping, and signs of life for its watchdog.

A message is a datagram to the socket that NOTIFY_SOCKET names. Without that variable nothing is sent. Signs
of life come from the event loop: a server whose loop hangs for `WatchdogSec` is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Mapping

log = logging.getLogger("openq.server")


class Systemd:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        # A name that begins with @ is in the abstract namespace, which the kernel spells with a zero byte.
        self._address = environment.get("NOTIFY_SOCKET", "").replace("@", "\0", 1)
        is_ours = environment.get("WATCHDOG_PID") in (None, str(os.getpid()))
        usec = environment.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(usec) / 1e6 / 2 if is_ours and usec.isdecimal() else 0.0
        self._timer: asyncio.TimerHandle | None = None

    def announce(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def alive(self) -> None:
        """A sign of life, for a caller that has its own timer."""
        self._send("WATCHDOG=1")

    def ready(self, loop: asyncio.AbstractEventLoop, status: str) -> None:
        self.announce(status)
        if self._address and self.watchdog_s and self._timer is None:
            self._sign_of_life(loop)

    def _sign_of_life(self, loop: asyncio.AbstractEventLoop) -> None:
        self.alive()
        self._timer = loop.call_later(self.watchdog_s, self._sign_of_life, loop)

    def reloading(self) -> None:
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        """The watchdog is fed until the process ends: draining may take longer than its time."""
        self._send("STOPPING=1\nSTATUS=finishing running requests")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.connect(self._address)
                sender.send(text.encode())
        except OSError as error:
            log.warning("systemd is not notified: %s", error)
