"""Hostile requests: those that once found a mistake, and some thousands more by fixed seeds."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from openq.server.http_request import HttpRequest
from tests.server.fuzz import (
    FuzzServer,
    ProtocolFuzzer,
    SignIns,
    Streams,
    request_of,
    run,
    sqs,
)
from tests.server.fuzz_connection import FuzzFailure
from tests.server.fuzz_framing import Framing

SEED = 20260701


@pytest.fixture
def server() -> Iterator[FuzzServer]:
    with FuzzServer() as server:
        yield server


@pytest.fixture
def framing() -> Iterator[Framing]:
    framing = Framing()
    yield framing
    framing.close()


# -- what once went wrong


@pytest.mark.parametrize("host", ["[", "[::1", "\xff", "a@[", "]"])
def test_a_host_that_is_no_name_is_a_host_we_are_not_known_by(server: FuzzServer, host: str) -> None:
    [(status, body)] = server.feed([request_of("GET", "/livez", b"", host=host)])

    assert status == 421
    assert b"--hosts" in body


@pytest.mark.parametrize("url", ["http://[", "http://[::1/0/q", "//[", "http://]/000000000000/q"])
def test_a_queue_url_that_is_none_is_a_queue_that_does_not_exist(server: FuzzServer, url: str) -> None:
    [(status, body)] = server.feed([sqs("GetQueueAttributes", json.dumps({"QueueUrl": url}).encode())])

    assert status == 400
    assert b"QueueDoesNotExist" in body


def test_an_offer_to_upgrade_does_not_excuse_the_version(framing: Framing) -> None:
    for line in (b'OPTIONS *"HTTP/1.1\r\n', b"GET / HTTP/2.0\r\n", b"GET / HTTP/1.3\r\n"):
        data = line + b"Host: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nok"

        seen, statuses = framing.see([data])

        assert seen == []
        assert statuses == [505] or statuses == [400]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_the_body_after_an_offer_to_upgrade_is_no_request(framing: Framing, version: bytes) -> None:
    inner = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
    head = b"POST /x HTTP/%b\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" % version
    data = head + b"Content-Length: %d\r\n\r\n" % len(inner) + inner

    for pieces in ([data], [data[n : n + 1] for n in range(len(data))]):
        seen, _ = framing.see(pieces)

        assert seen == [("POST", b"/x", inner)]


def test_many_offers_to_upgrade_in_one_piece_are_all_ignored(framing: Framing) -> None:
    offer = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"

    seen, statuses = framing.see([offer * 3_000])

    assert seen == [("GET", b"/", b"")] * 3_000
    assert statuses == [200] * 3_000


def test_a_head_in_two_pieces_does_not_make_a_large_body_part_of_it(framing: Framing) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 200000\r\n\r\n"
    body = b"x" * 200_000

    for cut in range(1, len(head)):
        seen, _ = framing.see([head[:cut], head[cut:] + body])

        assert seen == [("POST", b"/x", body)]


def test_a_stream_of_requests_may_be_cut_anywhere(framing: Framing) -> None:
    stream = b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello" * 3_000

    for cut in (10, 70_001, 70_010, 70_030):
        seen, _ = framing.see([stream[:cut], stream[cut:]])

        assert seen == [("POST", b"/x", b"hello")] * 3_000


def test_a_head_without_end_is_refused_in_whatever_pieces_it_comes(framing: Framing) -> None:
    for size in (1_000, 60_000, 200_000):
        endless = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300_000

        seen, statuses = framing.see([endless[n : n + size] for n in range(0, len(endless), size)])

        assert seen == []
        assert statuses == [431]


@pytest.mark.parametrize(
    "tail", [b"0\r\nT: " + b"y" * 500_000, b"1;" + b"y" * 500_000], ids=["trailer", "chunk"]
)
def test_what_stands_around_chunks_is_limited_too(framing: Framing, tail: bytes) -> None:
    data = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + tail

    seen, statuses = framing.see([data[n : n + 5_000] for n in range(0, len(data), 5_000)])

    assert seen == []
    assert statuses == [431]


def test_small_chunks_of_a_large_body_are_fine(framing: Framing) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    data = head + b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"

    seen, _ = framing.see([data[n : n + 5_000] for n in range(0, len(data), 5_000)])

    assert seen == [("POST", b"/", b"x" * 100_000)]


def test_names_that_are_too_long_to_be_any_are_not_remembered(server: FuzzServer) -> None:
    for n in range(50):
        url = f"http://localhost/000000000000/{n}" + "x" * 50_000
        server.feed([sqs("GetQueueAttributes", json.dumps({"QueueUrl": url}).encode())])
        server.feed([request_of("GET", "/livez", b"", host=f"h{n}" + "x" * 5_000)])

    handler = server.server.router._fallback.__self__  # type: ignore[attr-defined]
    assert sum(map(len, handler.resolver._urls)) < 10_000
    assert sum(map(len, server.server.router._accepted_hosts)) < 10_000


# -- what may still go wrong


def test_the_parser_never_sees_a_request_where_a_strict_one_sees_none(framing: Framing) -> None:
    run("framing", framing.one, SEED, 6_000)


def test_requests_that_are_nearly_right_are_answered_well(server: FuzzServer) -> None:
    run("protocols", ProtocolFuzzer(server).one, SEED, 4_000)


def test_broken_streams_of_requests_are_answered_well(server: FuzzServer) -> None:
    run("streams", Streams(ProtocolFuzzer(server)).one, SEED, 2_000)


def test_nobody_gets_in_without_credentials() -> None:
    sign_ins = SignIns()
    try:
        run("sign-ins", sign_ins.one, SEED, 2_000)
    finally:
        sign_ins.close()


def test_nothing_piles_up(server: FuzzServer) -> None:
    fuzzer = ProtocolFuzzer(server)
    run("protocols", fuzzer.one, SEED, 500)
    server.tidy()

    context, router = server.server.context, server.server.router
    assert not context.long_polls
    assert not server.listener.connections
    assert len(router._accepted_hosts) < 100
    assert not server.broker.queues()


def test_a_mistake_is_found() -> None:
    """A planted one: a fuzzer that finds nothing may be looking at nothing."""
    with FuzzServer() as server:
        handle = server.server.router.handle

        def fail(request: HttpRequest) -> None:
            if request.path == "/livez":
                raise RuntimeError("planted")
            handle(request)

        server.server.router.handle = fail  # type: ignore[method-assign]

        with pytest.raises(FuzzFailure):
            server.feed([request_of("GET", "/livez", b"")])
