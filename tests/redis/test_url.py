from __future__ import annotations

from pathlib import Path

import pytest

from openq.errors import InvalidSetting
from openq.redis.net.url import Address, is_redis_url, parse
from tests.certificates import make_certificate


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "db"),
    [
        ("redis://", "single", (("localhost", 6379),), 0),
        ("redis://box", "single", (("box", 6379),), 0),
        ("redis://box:7000/3", "single", (("box", 7000),), 3),
        ("valkey://box?db=4", "single", (("box", 6379),), 4),
        ("REDIS://[::1]:7000", "single", (("::1", 7000),), 0),
        ("redis+unix:///run/redis.sock?db=2", "single", (), 2),
        ("redis+sentinel://a,b:1/mymaster/5", "sentinel", (("a", 26379), ("b", 1)), 5),
        ("redis+cluster://a:7000,b:7001", "cluster", (("a", 7000), ("b", 7001)), 0),
    ],
)
def test_a_url_says_where_redis_is(url: str, kind: str, hosts: tuple[tuple[str, int], ...], db: int) -> None:
    address = parse(url)

    assert (address.kind, address.hosts, address.db) == (kind, hosts, db)
    assert is_redis_url(url)


def test_a_name_and_a_password_may_hold_any_character() -> None:
    address = parse("redis://al%3Aice:p%40ss%2Fword@box")

    assert (address.user, address.password) == ("al:ice", "p@ss/word")
    assert parse("redis://:secret@box").user is None
    assert parse("redis://box").password is None


def test_a_password_is_never_shown() -> None:
    address = parse("redis+sentinel://u:secret@a,b/main/2?sentinel_password=secret")

    assert "secret" not in repr(address)
    assert str(address) == "redis+sentinel://u:***@a:26379,b:26379/main/2"
    with pytest.raises(InvalidSetting) as refused:
        parse("http://u:secret@box")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://box:7000/3",
        "rediss://box:6379",
        "redis://[::1]:7000",
        "redis+unix:///run/redis.sock?db=2",
        "redis+cluster://a:7000,b:7001",
    ],
)
def test_an_address_is_shown_as_its_url(url: str) -> None:
    assert str(parse(url)) == url


def test_options() -> None:
    address = parse(
        "redis://box?profile=fast&prefix=jobs&timeout=2.5&reconnect=0&replicas=2&history=70&heartbeat=5"
    )

    assert (address.profile, address.prefix, address.timeout_s) == ("fast", "jobs", 2.5)
    assert (address.reconnect_s, address.replicas) == (0.0, 2)
    assert (address.history, address.heartbeat_s) == (70, 5.0)


def test_what_is_given_elsewhere_wins() -> None:
    assert parse("redis://box?profile=fast", profile="safe").profile == "safe"


def test_defaults() -> None:
    address = parse("redis://box")

    assert (address.profile, address.prefix, address.tls, address.replicas) == ("safe", "oq", False, None)
    assert (address.timeout_s, address.reconnect_s) == (10.0, 30.0)
    assert address.ssl_context() is None


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://box", "begins with one of redis, "),
        ("redis:box", "not a Redis URL"),
        ("redis://a,b", "redis+cluster://"),
        ("redis://box/x", "whole number"),
        ("redis://box/1/2", "too many parts"),
        ("redis://box:70000", "65535"),
        ("redis://box:x", "host:port"),
        ("redis://box?colour=red", "unknown option 'colour'"),
        ("redis://box?profile=quick", "'safe' or 'fast'"),
        ("redis://box?prefix={x}", "prefix"),
        ("redis://box?timeout=0", "seconds"),
        ("redis://box?reconnect=nan", "seconds"),
        ("redis://box?insecure=maybe", "yes or no"),
        ("redis+sentinel://box", "names its service"),
        ("redis+cluster://box/1", "only database 0"),
        ("redis+unix://run/redis.sock", "three slashes"),
    ],
)
def test_a_mistake_is_named(url: str, says: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        parse(url)

    assert says in str(refused.value)


def test_tls_trusts_the_given_authority(tmp_path: Path) -> None:
    _, _, authority = make_certificate(tmp_path)

    context = parse(f"rediss://box?ca={authority}").ssl_context()
    assert context is not None
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    insecure = parse("redis+cluster://box?tls=yes&insecure=yes").ssl_context()
    assert insecure is not None
    assert not insecure.check_hostname


def test_an_address_needs_no_url() -> None:
    assert Address(kind="single", hosts=(("box", 6379),)) == parse("redis://box")
