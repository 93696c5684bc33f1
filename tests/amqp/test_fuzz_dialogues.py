"""Hostile dialogues by fixed seeds, in a server without sockets and in a real one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.amqp.connection import AmqpConnection
from tests.amqp.dialogue_codec import METHOD, encode_method, frame
from tests.amqp.fuzz_dialogues import SEEDS, Dialogues, FuzzServer, RandomClient, corrupt, handshakes, replay
from tests.amqp.raw_client import RawClient, raw_socket
from tests.server.fuzz import run
from tests.server.fuzz_connection import FuzzFailure
from tests.serving import served_amqp

SEED = 20260701


@pytest.fixture
def server() -> Iterator[FuzzServer]:
    with FuzzServer() as server:
        yield server


def said(*methods: tuple[str, dict[str, object]]) -> bytes:
    return b"".join(frame(METHOD, 1, encode_method(name, fields)) for name, fields in methods)


def test_random_dialogues_keep_the_invariants(server: FuzzServer) -> None:
    run("said", Dialogues(server, breaks=False).one, SEED, 500)


def test_corrupted_dialogues_keep_the_invariants(server: FuzzServer) -> None:
    run("broken", Dialogues(server, breaks=True).one, SEED, 700)


def test_durable_dialogues_keep_the_invariants(tmp_path: Path) -> None:
    with FuzzServer(tmp_path / "d") as server:
        run("durable", Dialogues(server, breaks=True).one, SEED, 300)


def test_corrupted_handshakes_keep_the_invariants(server: FuzzServer) -> None:
    run("handshakes", lambda chance: handshakes(server, chance), SEED, 700)


@pytest.mark.parametrize("seed", sorted(SEEDS.iterdir()), ids=lambda path: path.name)
def test_stored_seeds_keep_the_invariants(server: FuzzServer, seed: Path) -> None:
    replay(server, seed.read_bytes())


@pytest.mark.parametrize(
    "refused",
    [{"exclusive": True}, {"arguments": {"x-priority": "high"}}, {"arguments": {"x-stream-offset": 1}}],
    ids=["exclusive", "priority", "stream offset"],
)
def test_a_consumer_that_was_refused_leaves_nothing_behind(
    server: FuzzServer, refused: dict[str, object]
) -> None:
    """Once it left behind how its queue was declared, and a later queue of that name was taken for it."""
    single = {"queue": "q", "arguments": {"x-single-active-consumer": True}}

    replay(server, b"\xff" + said(("queue.declare", single), ("basic.consume", {"queue": "q", **refused})))


def test_a_name_with_control_characters_does_not_forge_a_line_of_the_log(server: FuzzServer) -> None:
    properties = {"connection_name": "me\nERROR forged"}
    start = {"client_properties": properties, "mechanism": "PLAIN", "response": "\0guest\0guest"}
    wire = server.connect()
    server.feed(wire, b"AMQP\0\0\x09\x01" + frame(METHOD, 0, encode_method("connection.start-ok", start)))
    server.feed(wire, frame(METHOD, 0, encode_method("connection.tune-ok", {})))
    server.feed(wire, frame(METHOD, 0, encode_method("connection.open", {"virtual_host": "/"})))
    server.feed(wire, frame(METHOD, 9, encode_method("tx.select", {})))

    [reported] = server.finish([wire])

    assert reported[-1] == "connection.close"


def test_a_planted_bug_is_found(server: FuzzServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted one: a fuzzer that finds nothing may be looking at nothing."""
    monkeypatch.setattr(AmqpConnection, "release", lambda self: None)

    with pytest.raises(FuzzFailure):
        run("planted", Dialogues(server, breaks=False).one, SEED, 50)


def test_a_real_server_survives_random_dialogues(tmp_path: Path) -> None:
    with served_amqp(tmp_path / "d") as (server, port):
        for n in range(60):
            chance = random.Random(f"real {SEED} {n}")
            speaker = RandomClient(chance)
            data = speaker.greeting() + b"".join(speaker.next_bytes() for _ in range(200))
            with raw_socket(port) as client:
                try:
                    client.sendall(corrupt(chance, data) if n % 2 else data)
                    client.settimeout(0.05)
                    while client.recv(1 << 16):
                        pass
                except OSError:
                    pass

        with RawClient(port).confirming() as healthy:
            healthy.declare("healthy")
            healthy.publish_all("healthy", [b"x"])
        assert server.stop() == 0
        assert not [line for line in server.log if "Traceback" in line or '"error"' in line]
