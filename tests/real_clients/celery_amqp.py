"""What the Celery tests over AMQP share: the application with its workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.real_clients.environments import CELERY, python_with, run_program
from tests.serving import Served
from tests.waiting import until

PROGRAMS = Path(__file__).parent / "programs"
NO_RESULTS = "disabled://"


class Application:
    """One Celery application: its queue, the place where its tasks leave notes, its workers."""

    def __init__(self, amqp_port: int, place: Path, backend: str = NO_RESULTS, kind: str = "plain") -> None:
        self.queue = f"celery-{uuid4().hex[:8]}"
        self.place = place
        self._python = python_with(*CELERY)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")}
        self._environment = {
            **kept,
            "CELERY_BROKER": f"amqp://guest:guest@127.0.0.1:{amqp_port}//",
            "CELERY_BACKEND": backend,
            "CELERY_PLACE": str(place),
            "CELERY_QUEUE": self.queue,
            "CELERY_KIND": kind,
            "PYTHONPATH": str(PROGRAMS),
        }
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Application:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            self.kill(worker)

    def start_worker(self, *options: str, concurrency: int = 2) -> subprocess.Popen[bytes]:
        number = len(self._workers)
        log = self.log_of(number)
        command = [str(self._python), "-m", "celery", "-A", "celery_amqp_app", "worker"]
        named = ["--hostname", f"{number}@{self.queue}", "--concurrency", str(concurrency)]
        with log.open("wb") as file:
            worker = subprocess.Popen(
                [*command, *named, "--loglevel", "info", *options],
                env=self._environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._workers.append(worker)

        def is_ready() -> bool:
            assert worker.poll() is None, log.read_text()
            return " ready." in log.read_text()

        until(is_ready)
        return worker

    def log_of(self, number: int) -> Path:
        return self.place / f"worker-{number}.log"

    def kill(self, worker: subprocess.Popen[bytes]) -> None:
        """With its pool, which belongs to its session."""
        try:
            os.killpg(worker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        worker.wait(30)

    def stop(self, worker: subprocess.Popen[bytes]) -> None:
        """As an operator would: it finishes what it runs and gives back what it holds."""
        worker.terminate()
        assert worker.wait(60) == 0

    def command(self, scenario: str, *arguments: str) -> list[str]:
        return [str(self._python), str(PROGRAMS / "celery_amqp_app.py"), scenario, *arguments]

    def play(self, scenario: str, *arguments: str) -> Any:
        return json.loads(
            run_program(self.command(scenario, *arguments), self._environment, where=self.place)
        )

    def start(self, scenario: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(scenario),
            env=self._environment,
            cwd=self.place,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def notes(self, name: str) -> list[str]:
        path = self.place / name
        return path.read_text().splitlines() if path.exists() else []


def counts_of(server: Served, queue: str) -> tuple[int, int]:
    """How many messages wait in a queue, and how many are out."""
    status, answer = server.get(f"/api/v1/queues/{queue}")
    assert status == 200, answer
    stats = json.loads(answer)["stats"]
    return stats["ready"], stats["in_flight"]
