"""Hostile dialogues by fixed seeds, in a server without sockets and in a real one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.protocols.amqp.connection import Connection
from tests.protocols.amqp.dialogue import METHOD, encode_method, frame
from tests.protocols.amqp.fuzz_dialogues import SEEDS, Dialogues, Indoors, Speaker, broken, handshakes, replay
from tests.protocols.amqp.talk import Talk, raw
from tests.protocols.fuzz import Found, run
from tests.serving import served_amqp

SEED = 20260701


@pytest.fixture
def server() -> Iterator[Indoors]:
    with Indoors() as server:
        yield server


def said(*methods: tuple[str, dict[str, object]]) -> bytes:
    return b"".join(frame(METHOD, 1, encode_method(name, fields)) for name, fields in methods)


def test_whatever_clients_say_in_whatever_order_is_answered_well(server: Indoors) -> None:
    run("said", Dialogues(server, breaks=False).one, SEED, 500)


def test_broken_dialogues_are_answered_well(server: Indoors) -> None:
    run("broken", Dialogues(server, breaks=True).one, SEED, 700)


def test_dialogues_that_wait_for_the_disk_are_answered_well(tmp_path: Path) -> None:
    with Indoors(tmp_path / "d") as server:
        run("durable", Dialogues(server, breaks=True).one, SEED, 300)


def test_broken_handshakes_are_answered_well(server: Indoors) -> None:
    run("handshakes", lambda chance: handshakes(server, chance), SEED, 700)


@pytest.mark.parametrize("seed", sorted(SEEDS.iterdir()), ids=lambda path: path.name)
def test_what_was_kept_as_a_seed_is_answered_well(server: Indoors, seed: Path) -> None:
    replay(server, seed.read_bytes())


@pytest.mark.parametrize(
    "refused",
    [{"exclusive": True}, {"arguments": {"x-priority": "high"}}, {"arguments": {"x-stream-offset": 1}}],
    ids=["exclusive", "priority", "stream offset"],
)
def test_a_consumer_that_was_refused_leaves_nothing_behind(
    server: Indoors, refused: dict[str, object]
) -> None:
    """Once it left behind how its queue was declared, and a later queue of that name was taken for it."""
    single = {"queue": "q", "arguments": {"x-single-active-consumer": True}}

    replay(server, b"\xff" + said(("queue.declare", single), ("basic.consume", {"queue": "q", **refused})))


def test_a_name_with_control_characters_does_not_forge_a_line_of_the_log(server: Indoors) -> None:
    properties = {"connection_name": "me\nERROR forged"}
    start = {"client_properties": properties, "mechanism": "PLAIN", "response": "\0guest\0guest"}
    wire = server.connect()
    server.feed(wire, b"AMQP\0\0\x09\x01" + frame(METHOD, 0, encode_method("connection.start-ok", start)))
    server.feed(wire, frame(METHOD, 0, encode_method("connection.tune-ok", {})))
    server.feed(wire, frame(METHOD, 0, encode_method("connection.open", {"virtual_host": "/"})))
    server.feed(wire, frame(METHOD, 9, encode_method("tx.select", {})))

    [told] = server.finish([wire])

    assert told[-1] == "connection.close"


def test_a_mistake_is_found(server: Indoors, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted one: a fuzzer that finds nothing may be looking at nothing."""
    monkeypatch.setattr(Connection, "release", lambda self: None)

    with pytest.raises(Found):
        run("planted", Dialogues(server, breaks=False).one, SEED, 50)


def test_a_real_server_outlives_them_all(tmp_path: Path) -> None:
    with served_amqp(tmp_path / "d") as (server, port):
        for n in range(60):
            chance = random.Random(f"real {SEED} {n}")
            speaker = Speaker(chance)
            data = speaker.greeting() + b"".join(speaker.says() for _ in range(200))
            with raw(port) as client:
                try:
                    client.sendall(broken(chance, data) if n % 2 else data)
                    client.settimeout(0.05)
                    while client.recv(1 << 16):
                        pass
                except OSError:
                    pass

        with Talk(port).confirming() as healthy:
            healthy.declare("healthy")
            healthy.publish_all("healthy", [b"x"])
        assert server.stop() == 0
        assert not [line for line in server.log if "Traceback" in line or '"error"' in line]
