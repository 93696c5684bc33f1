"""Webhooks reach public addresses, and others only if the configuration says so."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from openq.errors import InvalidSetting
from openq.webhooks.addresses import AddressRefused, AddressRules, check_allow, literal_address, refusal_of
from openq.webhooks.endpoint import check_headers, fixed_head, read_url


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "shared by carriers"),
        ("169.254.169.254", "link-local"),
        ("224.0.0.1", "multicast"),
        ("255.255.255.255", "reserved"),
        ("198.18.0.1", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("fc00::1", "private"),
        ("fd12:3456::1", "private"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "reserved"),
        ("2001::1", "reserved"),
        ("::127.0.0.1", "reserved"),
        ("::ffff:10.0.0.1", "private"),
        ("::ffff:7f00:1", "loopback"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("64:ff9b:1::1", "reserved"),
        ("2002:7f00:1::", "loopback"),
        ("2002:a00:1::1", "private"),
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str, what: str) -> None:
    assert refusal_of(ip_address(address)) == what
    with pytest.raises(AddressRefused, match="webhook_allow"):
        AddressRules().check("example.com", ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"],
)
def test_public_addresses_are_allowed(address: str) -> None:
    AddressRules().check("example.com", ip_address(address))


def test_the_configuration_allows_networks_addresses_and_names() -> None:
    rules = AddressRules(check_allow(["10.0.0.0/8", "127.0.0.1", "Inside.example.", "fd00::/8"]))
    rules.check("a", ip_address("10.200.0.1"))
    rules.check("a", ip_address("::ffff:10.0.0.1"))
    rules.check("a", ip_address("127.0.0.1"))
    rules.check("a", ip_address("fd00::1"))
    rules.check("inside.example", ip_address("192.168.0.1"))
    for host, address in (("a", "192.168.0.1"), ("a", "127.0.0.2"), ("x.inside.example", "192.168.0.1")):
        with pytest.raises(AddressRefused):
            rules.check(host, ip_address(address))
    with pytest.raises(InvalidSetting, match="not a network"):
        check_allow(["10.0.0.0/33"])


def test_of_several_addresses_only_the_allowed_ones_are_used() -> None:
    assert AddressRules().allowed("a", ["10.0.0.1", "1.1.1.1"]) == ["1.1.1.1"]
    with pytest.raises(AddressRefused, match=r"a is 10\.0\.0\.1, which is a private address"):
        AddressRules().allowed("a", ["10.0.0.1", "127.0.0.1"])


@pytest.mark.parametrize(
    "host", ["2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1", "::ffff:127.0.0.1"]
)
def test_every_spelling_of_an_address_is_that_address(host: str) -> None:
    address = literal_address(host)
    assert address is not None
    assert refusal_of(address) == "loopback"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http://",
        "http:///path",
        "http://example.com:0/",
        "http://example.com:99999/",
        "http://exa mple.com/",
        "http://example.com/\r\nX: y",
        "http://example.com/\tx",
        "http://example.com\\@10.0.0.1/",
        "http://example.com/#fragment",
        "http://[::1/",
        "http://ex\u00e4mple.com/",
        "https://example.com/" + "a" * 3000,
    ],
)
def test_urls_that_are_not_plain_http_are_refused(url: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        read_url(url)
    assert "URL" in str(raised.value)


def test_a_url_may_have_a_user_a_port_and_a_query() -> None:
    endpoint = read_url("https://joe:p%40ss@[2606:4700::1111]:8443/a/b?c=d")
    head = fixed_head(endpoint, {"X-A": "b"}).decode()

    assert (endpoint.is_tls, endpoint.host, endpoint.port) == (True, "2606:4700::1111", 8443)
    assert head.startswith("POST /a/b?c=d HTTP/1.1\r\nHost: [2606:4700::1111]:8443\r\n")
    assert "Authorization: Basic am9lOnBAc3M=\r\n" in head
    assert "p%40ss" not in head
    assert fixed_head(read_url("http://example.com"), {}).startswith(
        b"POST / HTTP/1.1\r\nHost: example.com\r\n"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Host", "other"),
        ("Content-Length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("Connection", "close"),
        ("webhook-signature", "v1,x"),
        ("ce-id", "1"),
        ("X A", "b"),
        ("X:A", "b"),
        ("", "b"),
        ("X-A", "b\r\nEvil: 1"),
        ("X-A", "b\nEvil: 1"),
        ("X-A", "b\0"),
        ("X-A", "\u00fc"),
        ("X-A", "x" * 9000),
    ],
)
def test_headers_that_would_change_the_request_are_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidSetting) as raised:
        check_headers({name: value})
    assert "Evil" not in str(raised.value)
