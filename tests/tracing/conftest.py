from __future__ import annotations

from collections.abc import Iterator

import pytest

from openq import tracing
from tests.otlp_receiver import Receiver, http_receiver
from tests.protocol_clients import Protocols, opened


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with http_receiver() as found:
        yield found


@pytest.fixture
def spans(receiver: Receiver) -> Iterator[Receiver]:
    """The library records spans, and this collector gets them."""
    tracing.enable(endpoint=receiver.url, service_name="shop")
    try:
        yield receiver
    finally:
        tracing.disable()


@pytest.fixture(scope="module")
def collected() -> Iterator[Receiver]:
    with http_receiver() as found:
        yield found


@pytest.fixture(scope="module")
def traced(collected: Receiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Protocols]:
    """A durable server that records every publish, and its clients by each protocol."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        flags = ["--tracing", "--otlp-endpoint", collected.url, "--trace-sample", "1"]
        with opened(tmp_path_factory.mktemp("traced"), *flags) as found:
            yield found
            assert [line for line in found.server.log if "Traceback" in line] == []
