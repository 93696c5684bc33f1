"""What a worker loads: an idle process of a service should be small."""

import subprocess
import sys

import pytest

ASYNCIO = ("asyncio", "ssl")
LOCAL = ("openq.local", "openq.engine.engine", "openq.journal.writer")


@pytest.mark.parametrize(
    ("target", "unwanted"),
    [
        ("openq.client.server_target", (*ASYNCIO, *LOCAL, "hashlib", "openq.redis")),
        ("openq.redis.broker", (*ASYNCIO, *LOCAL)),
    ],
)
def test_a_worker_of_functions_loads_neither_asyncio_nor_the_broker_of_another_target(
    target: str, unwanted: tuple[str, ...]
) -> None:
    program = f"import sys, openq.worker.runner, {target}; print(*sys.modules)"

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert set(done.stdout.split()).isdisjoint(unwanted)
