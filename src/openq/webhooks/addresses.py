"""Which addresses a webhook may be sent to.

A URL comes from a user, and the server may reach what that user cannot: its own machine, the private network,
the metadata service of a cloud. So only public addresses are allowed, unless the configuration names others
(`webhook_allow`). The address is checked, not the name, and the connection is made to the checked address:
a name that resolves differently the next time gains nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ..errors import InvalidSetting

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_REFUSED_V4 = [
    (IPv4Network(network), what)
    for network, what in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by carriers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "reserved"),
        ("192.88.99.0/24", "reserved"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "reserved"),
        ("198.51.100.0/24", "reserved"),
        ("203.0.113.0/24", "reserved"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
]
_REFUSED_V6 = [
    (IPv6Network(network), what)
    for network, what in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "reserved"),
        ("3fff::/20", "reserved"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
]
_PUBLIC_V6 = IPv6Network("2000::/3")
_NAT64 = IPv6Network("64:ff9b::/96")
_6TO4 = IPv6Network("2002::/16")


def embedded_v4(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that packets to this address reach: mapped, through NAT64 or through 6to4."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.sixtofour if address in _6TO4 else None


def refusal_of(address: Address) -> str | None:
    """What kind of address it is, if it is not a public one."""
    if isinstance(address, IPv6Address):
        inner = embedded_v4(address)
        if inner is not None:
            return refusal_of(inner)
        for network, what in _REFUSED_V6:
            if address in network:
                return what
        return None if address in _PUBLIC_V6 else "reserved"
    return next((what for network, what in _REFUSED_V4 if address in network), None)


class AddressRefused(InvalidSetting):
    code = "address_refused"

    def __init__(self, host: str, address: Address, what: str) -> None:
        shown = f"{address}" if str(address) == host else f"{host[:200]} is {address}, which"
        super().__init__(
            f"{shown} is {'an' if what[0] in 'aeiou' else 'a'} {what} address: webhooks are sent to public "
            "addresses only; the configuration of the server can allow others (webhook_allow)"
        )


class AddressRules:
    """The addresses and host names that the configuration allows besides public addresses."""

    def __init__(self, allow: Sequence[str] = ()) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for text in allow:
            network = _network(text)
            if network is not None:
                self._networks.append(network)
            else:
                self._names.add(text.lower().rstrip("."))

    def check(self, host: str, address: Address) -> None:
        """Raises AddressRefused."""
        what = refusal_of(address)
        if what is None or host.lower().rstrip(".") in self._names:
            return
        inner = embedded_v4(address) if isinstance(address, IPv6Address) else None
        if not any(each in network for network in self._networks for each in (address, inner) if each):
            raise AddressRefused(host, address, what)

    def allowed(self, host: str, found: Sequence[str]) -> list[str]:
        """Those of the addresses of a host that may be used. Raises AddressRefused if there are none."""
        allowed: list[str] = []
        refused: AddressRefused | None = None
        for text in found:
            try:
                self.check(host, ip_address(text.partition("%")[0]))
                allowed.append(text)
            except AddressRefused as error:
                refused = refused or error
        if not allowed and refused is not None:
            raise refused
        return allowed


def literal_address(host: str) -> Address | None:
    """The address that a host in a URL denotes by itself; None for a name.

    Also in the forms that the C library accepts: 2130706433, 0x7f.1, 0177.0.0.1.
    """
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        pass
    try:
        return IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError, UnicodeEncodeError):
        return None


def _network(text: str) -> Network | None:
    try:
        return ip_network(text)
    except ValueError:
        if "/" in text:
            raise InvalidSetting(f"{text!r} is not a network such as 10.0.0.0/8 or fd00::/8") from None
        return None


def check_allow(names: Sequence[str]) -> tuple[str, ...]:
    """The setting `webhook_allow`: networks, addresses and host names. Raises InvalidSetting."""
    AddressRules(names)
    return tuple(names)
