"""Messages on disk are readable for the user of the broker only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from openq.local.broker import LocalBroker
from openq.model import ENCODING_TEXT, QueueSettings


def test_only_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        for _ in range(2):
            broker = LocalBroker(tmp_path / "data")
            broker.declare("jobs", QueueSettings())
            broker.publish_body("jobs", b"secret", ENCODING_TEXT)
            broker.close()
    finally:
        os.umask(mask)

    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file() and path.name != "LOCK"]
    assert files
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
