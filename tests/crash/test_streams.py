"""Killed at any moment, server or client: the stream loses nothing and repeats nothing that was acked."""

from __future__ import annotations

from pathlib import Path

from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.streams import StreamLoop


def test_every_message_is_pushed_however_often_server_and_clients_are_killed(tmp_path: Path) -> None:
    seed = chosen_seed()
    loop = StreamLoop(["--data", str(tmp_path / "data")], seed)

    complaint = loop.run(lives=3)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert loop.confirmed > 0
