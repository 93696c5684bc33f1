"""The processes of a service as its supervisor sees them: templates, and the worker processes they fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from .channel import Channel
from .options import ServiceOptions
from .reload import Stamps

STUCK_AFTER_S = 5.0  # a process reports every second


class TemplateProcess:
    """A running template: it imports the application, and forks worker processes on request."""

    def __init__(self, options: ServiceOptions, generation: int, preload: bool) -> None:
        self.generation = generation
        self.preload = preload
        self.has_imported = False
        self.files: Stamps = {}
        self.channel, other = Channel.pair()
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "openq.worker.template", str(other.fileno())],
            pass_fds=[other.fileno()],
        )
        other.close()
        # Not as PYTHONPATH: the programs that tasks start would inherit it.
        self.channel.send({"options": options.to_json(), "preload": preload, "path": sys.path})

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, name: str) -> Channel:
        """Ask for a worker process; its end of the returned channel is passed on to it."""
        ours, theirs = Channel.pair()
        self.channel.send({"name": name}, (theirs.fileno(),))
        theirs.close()
        return ours

    def retire(self) -> None:
        """It ends with the last of its worker processes."""
        self.channel.close()

    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


@dataclass(eq=False)
class WorkerHandle:
    """One worker process. `state`: starting, ready, stopping or ended."""

    slot: int
    name: str
    template: TemplateProcess
    channel: Channel
    started: float
    state: str = "starting"
    pid: int | None = None
    is_quiet: bool = False
    snapshot: dict[str, Any] = field(default_factory=dict)
    last_beat: float = 0.0
    waits_for: str | None = None  # why it is not ready
    failure: str | None = None  # why the application could not be loaded
    timed_out: str | None = None
    kill_at: float | None = None
    hard_limit_s: float | None = None  # the longest hard time limit of a task
    commands: set[int] = field(default_factory=set)  # process groups of --exec that run

    @property
    def is_connected(self) -> bool:
        return self.state == "ready" and bool(self.snapshot.get("connected", True))

    def is_gone(self) -> bool:
        return self.channel.ended if self.pid is None else not is_alive(self.pid)

    def is_silent(self, now: float) -> bool:
        return self.state == "ready" and now - self.last_beat > STUCK_AFTER_S

    def overdue_at(self) -> float | None:
        """When a process that no longer reports has certainly passed a hard time limit."""
        if self.hard_limit_s is None:
            return None
        deadline: float | None = self.snapshot.get("hard_deadline_s")
        latest = self.last_beat + self.hard_limit_s
        if deadline is not None:
            latest = min(latest, self.last_beat + max(0.0, deadline))
        return latest + STUCK_AFTER_S

    def stop(self, grace_s: float, kill_after_s: float) -> None:
        self.state = "stopping"
        kill_at = time.monotonic() + grace_s + kill_after_s
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)
        self.channel.send({"command": "stop", "grace": grace_s})

    def quiet(self) -> None:
        self.is_quiet = True
        self.channel.send({"command": "quiet"})

    def kill_commands(self) -> None:
        """After its death: its messages return, and another process will run these commands again."""
        for group in self.commands:
            try:
                os.killpg(group, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self.commands.clear()

    def kill(self) -> None:
        if self.pid is not None:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


@dataclass(eq=False)
class ProcessSlot:
    """One of the --processes places: the process in it, and the one that will replace it."""

    number: int
    current: WorkerHandle | None = None
    incoming: WorkerHandle | None = None
    failures: int = 0  # in a row
    start_at: float | None = None  # when the next process is started
    is_open: bool = True  # False: an operator stopped it
    is_quiet: bool = False  # True: an operator made it quiet, until the next restart of the service

    @property
    def handles(self) -> list[WorkerHandle]:
        return [each for each in (self.current, self.incoming) if each is not None]


@dataclass(frozen=True, slots=True)
class RestartBackoff:
    """How long a crashed process is waited for: at once the first time, then longer and longer."""

    first_s: float = 0.5
    max_s: float = 30.0

    def after(self, failures: int) -> float:
        return 0.0 if failures <= 1 else min(self.first_s * 2.0 ** (failures - 2), self.max_s)


def fate_text(code: int | None) -> str:
    """An exit code, for people."""
    if code is None:
        return "unknown exit code"
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
