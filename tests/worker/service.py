"""A real `openq worker` in processes of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import WAIT_S, until


class WorkerService:
    """A running `openq worker ... --json`. `lines` is what it printed, `log` what it logged."""

    def __init__(
        self, folder: Path, *arguments: str, env: dict[str, str] | None = None, group: bool = False
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self.log: list[str] = []
        environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENQ_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "openq", "worker", *arguments, "--json", "--health-port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=group,
            env={**environment, "PYTHONUNBUFFERED": "1", **(env or {})},
        )
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.raw.append(line.rstrip("\n"))
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                pass  # of a command

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line.rstrip("\n"))

    def wait_ready(self) -> WorkerService:
        until(lambda: self.ready_line is not None or self.process.poll() is not None)
        assert self.ready_line is not None, self.log
        return self

    @property
    def ready_line(self) -> dict[str, Any] | None:
        found = [line for line in self.lines if line.get("event") == "ready"]
        return found[0] if found else None

    @property
    def name(self) -> str:
        assert self.ready_line is not None
        return str(self.ready_line["name"])

    def get(self, path: str) -> tuple[int, str]:
        """From the health port."""
        assert self.ready_line is not None
        try:
            with urllib.request.urlopen(self.ready_line["health_url"] + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        """The sum of all series that begin with a name and labels."""
        lines = self.get("/metrics")[1].splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def logged(self, text: str) -> bool:
        return any(text in line for line in self.log)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        code = self.process.wait(WAIT_S)
        for reader in self._readers:
            reader.join(10)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGTERM)
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for reader in self._readers:
            reader.join(10)
        for reader, stream in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
            assert not reader.is_alive(), "a process that was left behind keeps its output open"
            assert stream is not None
            stream.close()


@contextmanager
def worker(
    folder: Path, *arguments: str, env: dict[str, str] | None = None, group: bool = False
) -> Iterator[WorkerService]:
    service = WorkerService(folder, *arguments, env=env, group=group)
    try:
        yield service.wait_ready()
    finally:
        service.close()


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
