"""What a worker loads: an idle process of a service should be small."""

import subprocess
import sys
from pathlib import Path

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


def test_no_module_hides_a_public_name() -> None:
    """A submodule is an attribute of its package once it is imported, whatever `__getattr__` says."""
    import openq.worker

    modules = {path.stem for path in Path(openq.worker.__file__).parent.glob("*.py")}

    assert modules.isdisjoint(openq.worker.__all__)
