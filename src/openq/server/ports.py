"""Ports that cannot be listened on, in words; and the sockets that the processes of a server share.

Every process has a socket of its own at the same address (`SO_REUSEPORT`): the kernel spreads connections
over them by their addresses. The supervisor keeps all of them open, so connections that arrive while a
process is replaced wait for it in its backlog.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping, Sequence

from ..config import DEFAULT_AMQP_PORT, Config, flag_of
from ..errors import InvalidSetting

BACKLOG = 4096
WHAT_FOR = {"port": "", "amqp_port": " for AMQP", "amqps_port": " for AMQP"}

Sockets = Mapping[str, Sequence[socket.socket]]  # by the key of the configuration


class PortTaken(InvalidSetting):
    code = "port_taken"

    def __init__(self, text: str, port: int, advice: str) -> None:
        super().__init__(f"{text}; stop the other program, or {advice}")
        self.port = port
        self.advice = advice  # how to choose another port


def cannot_listen(config: Config, key: str, port: int, error: OSError) -> InvalidSetting:
    text = f"cannot listen on {config.host} port {port}{WHAT_FOR[key]}: {error.strerror or error}"
    if error.errno != errno.EADDRINUSE:
        return InvalidSetting(f"{text}; choose --host, an address of this machine")
    choices = "auto or 0 picks a free one, off serves none" if key == "amqp_port" else "0 picks a free one"
    return PortTaken(text, port, f"choose another with {flag_of(key)} ({choices})")


class SharedPorts:
    """The addresses that all processes of a server listen on."""

    def __init__(self, config: Config) -> None:
        """Raises PortTaken or InvalidSetting."""
        self._addresses: dict[str, list[tuple[socket.AddressFamily, tuple[object, ...]]]] = {}
        for key, wanted in (
            ("port", config.port),
            ("amqp_port", config.amqp_port),
            ("amqps_port", config.amqps_port),
        ):
            if wanted is None:
                continue
            port = DEFAULT_AMQP_PORT if wanted == "auto" else int(wanted)
            try:
                self._addresses[key] = _free_addresses(config.host, port)
            except OSError as error:
                if wanted != "auto" or error.errno != errno.EADDRINUSE:
                    raise cannot_listen(config, key, port, error) from error
                self._addresses[key] = _free_addresses(config.host, 0)

    def open(self) -> dict[str, list[socket.socket]]:
        """The sockets of one process, listening."""
        found: dict[str, list[socket.socket]] = {}
        try:
            for key, addresses in self._addresses.items():
                found[key] = []
                for family, address in addresses:
                    found[key].append(_bound(family, address, is_shared=True))
                    found[key][-1].listen(BACKLOG)
        except OSError:
            close_all(found)
            raise
        return found


def _free_addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """The addresses of a host, each with its port. A port that another program listens on is an error, even
    if that program shares it too.
    """
    name = host.strip("[]")
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses: list[tuple[socket.AddressFamily, tuple[object, ...]]] = []
    for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
        with _bound(family, (address[0], port, *address[2:]), is_shared=False) as probe:
            bound: tuple[object, ...] = probe.getsockname()
            port = int(bound[1])  # type: ignore[call-overload]  # several addresses have the same free port
            addresses.append((family, bound))
    return addresses


def _bound(family: socket.AddressFamily, address: tuple[object, ...], *, is_shared: bool) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.bind(address)
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def close_all(sockets: Sockets) -> None:
    for each in sockets.values():
        for opened in each:
            opened.close()


def client_address(host: str, listening: asyncio.AbstractServer) -> str:
    """The address as a client on this machine reaches it."""
    port = listening.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    host = host.strip("[]")
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{f'[{shown}]' if ':' in shown else shown}:{port}"
