"""The service of every test that needs no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sqs.service import Service, serving


@pytest.fixture
def sqs() -> Iterator[Service]:
    with serving() as service:
        yield service
