"""Brokers that a test leaves open are closed after it: their threads would outlive their directories."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openq.local.broker import LocalBroker


@pytest.fixture(autouse=True)
def _close_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It takes `tmp_path` to end before that is removed."""
    opened: list[LocalBroker] = []
    begin = LocalBroker.__init__

    def tracked(self: LocalBroker, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(LocalBroker, "__init__", tracked)
    yield
    for broker in opened:
        broker.close()
