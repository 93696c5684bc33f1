"""Kill a process that runs schedules at any moment, many times; then look for due times missed or doubled.

`python -m tests.crash.schedules DIR` is that process. Its segments are small, so that runs are also at the
end of one and the beginning of the next.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from openq.broker.schedules import Schedule
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.isolation import with_tests

SCHEDULES = 8
EVERY_MS = 100
SEGMENT_BYTES = 1 << 16
LONGEST_S = 0.25
QUEUE = "q"


def open_broker(path: Path, runs: bool = True) -> LocalBroker:
    return LocalBroker(path, segment_bytes=SEGMENT_BYTES, runs_schedules=runs)


def run_until_killed(path: Path) -> None:
    broker = open_broker(path)
    broker.declare(QUEUE, QueueSettings())
    for n in range(SCHEDULES):
        broker.schedules.put(
            Schedule(f"s{n}", QUEUE, b"x" * 500, every_ms=EVERY_MS, jitter_ms=n * 5, misfire="all")
        )
    broker.sync()
    print("ready", flush=True)
    time.sleep(3600)


class ScheduleLoop:
    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = random.Random(seed)
        self.runs = 0

    def run(self, lives: int) -> str:
        """What is wrong afterwards; empty if nothing is."""
        for _ in range(lives):
            self._live()
        return self._complaint()

    def _live(self) -> None:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.schedules", str(self._path)],
            stdout=subprocess.PIPE,
            env=with_tests(),
        )
        assert child.stdout is not None
        with child.stdout:
            assert child.stdout.readline() == b"ready\n", "it did not start"
            time.sleep(self._random.random() * LONGEST_S)  # the moment of death, not a wait for anything
            child.kill()
            child.wait()

    def _complaint(self) -> str:
        broker = open_broker(self._path, runs=False)
        try:
            found: Counter[tuple[str, int]] = Counter()
            while deliveries := broker.load(broker.receive(QUEUE, 500)):
                for each in deliveries:
                    assert each.entry.properties is not None
                    attributes = each.entry.properties.attributes
                    due = datetime.fromisoformat(str(attributes["openq-due"]))
                    found[str(attributes["openq-schedule"]), round(due.timestamp() * 1000)] += 1
            problems = [
                f"{name} at {due_ms}: {count} times" for (name, due_ms), count in found.items() if count > 1
            ]
            for schedule in broker.schedules.list():
                assert schedule.next_ms is not None
                wanted = range(schedule.created_ms + EVERY_MS, schedule.next_ms, EVERY_MS)
                lost = [due_ms for due_ms in wanted if (schedule.name, due_ms) not in found]
                early = [
                    due_ms for name, due_ms in found if name == schedule.name and due_ms >= schedule.next_ms
                ]
                problems += [f"{schedule.name} at {due_ms}: missing" for due_ms in lost]
                problems += [f"{schedule.name} at {due_ms}: published, and due again" for due_ms in early]
                if schedule.runs + schedule.missed != len(wanted) or schedule.missed:
                    problems.append(
                        f"{schedule.name}: {schedule.runs} runs, {schedule.missed} missed of {len(wanted)}"
                    )
            self.runs = sum(found.values())
            return "; ".join(problems[:10])
        finally:
            broker.close()


if __name__ == "__main__":
    run_until_killed(Path(sys.argv[1]))
