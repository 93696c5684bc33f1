"""The threads of the library on every interpreter of the machine that OpenQ supports."""

import glob
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent.parent.parent / "src"
SAMPLE = """
from OpenQ import OpenQ, Producer, Consumer

dlq = OpenQ(name="dlq", visibility_timeout=100)
queue = OpenQ(name="main-queue", visibility_timeout=100, dlq=dlq)
producer = Producer(queue, num_tasks=10)
consumer = Consumer(queue, idle_timeout=1)
producer.start()
consumer.start()
producer.join()
consumer.join()
print(len(producer.ids), consumer.processed, consumer.failed, queue.stats().ready, len(dlq))
"""


def interpreters() -> list[str]:
    """One of each supported version that is installed here."""
    roots = [os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv"), "/opt/python"]
    found = {sys.version_info[:2]: sys.executable}
    for root in roots:
        for minor in range(11, 15):
            for each in sorted(glob.glob(f"{root}/versions/3.{minor}.*/bin/python")):
                found.setdefault((3, minor), each)
    return list(found.values())


@pytest.mark.parametrize("python", interpreters())
def test_the_first_program_consumes_every_message(python: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")}
    done = subprocess.run(
        [python, "-c", SAMPLE],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["10", "10", "0", "0", "0"], done.stderr
