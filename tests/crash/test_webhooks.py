"""Killed at any moment, server or endpoint: webhooks lose nothing and send nothing again that was acked."""

from __future__ import annotations

from pathlib import Path

from tests.crash.seeds import chosen_seed, repeat_with
from tests.crash.webhooks import WebhookLoop


def test_every_message_arrives_however_often_server_and_endpoint_are_killed(tmp_path: Path) -> None:
    seed = chosen_seed()
    loop = WebhookLoop(tmp_path, seed)

    complaint = loop.run(lives=3)

    assert not complaint, f"{complaint}; {repeat_with(seed)}"
    assert loop.confirmed > 0
