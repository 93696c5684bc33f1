"""Readers of events survive kills of the server: every event once, in order, as the journal has it."""

from __future__ import annotations

from pathlib import Path

from tests.crash.events import EventsLoop
from tests.crash.seeds import chosen_seed, repeat_with


def test_readers_get_every_event_once_while_the_server_is_killed(tmp_path: Path) -> None:
    seed = chosen_seed()
    loop = EventsLoop(tmp_path / "d", seed)

    complaint = loop.run(kills=4)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert loop.events > 100
    assert loop.connections > 6
