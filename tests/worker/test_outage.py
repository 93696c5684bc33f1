"""Which errors a worker waits for, instead of ending."""

from __future__ import annotations

import pytest

from openq import OpenQ
from openq.errors import OpenQError
from openq.worker.outage import is_transient
from tests.redis.servers import fake_server
from tests.serving import free_port


def test_a_redis_that_is_down_while_a_process_starts_is_waited_for() -> None:
    with pytest.raises(OpenQError, match="does not answer") as down:
        OpenQ("jobs", url=f"redis://127.0.0.1:{free_port()}", reconnect=0)

    assert is_transient(down.value)


def test_a_server_that_is_no_redis_is_not_waited_for() -> None:
    with fake_server() as port, pytest.raises(OpenQError) as wrong:
        OpenQ("jobs", url=f"redis://127.0.0.1:{port}", reconnect=0)

    assert not is_transient(wrong.value)
