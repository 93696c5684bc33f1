"""An engine that logs to memory."""

from __future__ import annotations

import pytest

from openq.engine.engine import Engine

from .support import PREFIX, Tape


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
def engine(tape: Tape) -> Engine:
    return Engine(PREFIX, log=tape)
