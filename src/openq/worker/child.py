"""One worker process of a service: runs a worker, reports to the supervisor, obeys it.

Events to the supervisor: `ready`, `beat` (every second, with a snapshot), `retire` (a limit is reached),
`failed` (the application cannot be loaded), `operator` (a command from the registry of workers).
Commands from the supervisor: `stop` with a grace period, `quiet`. The end of the channel means that the
supervisor is gone; the process then finishes as if it had been told to stop.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from queue import SimpleQueue
from typing import Any

from ..errors import Closed, OpenQError
from .adapters import Runner, describe_target, make_runner
from .channel import Channel, Event
from .loading import load_object, source_files
from .logs import set_up_logging
from .options import EXIT_NOT_LOADED, EXIT_OK, EXIT_TIMED_OUT, ServiceOptions
from .outage import is_transient
from .registry import Registration
from .reload import Stamps
from .reports import jobs_run

log = logging.getLogger("openq.worker")

BEAT_S = 1.0
COUNT_S = 0.1  # between looks at the number of tasks, with --max-tasks
MIN_PAUSE_S, MAX_PAUSE_S = 0.5, 10.0  # between attempts to reach the broker at the start


def run_child(options: ServiceOptions, name: str, channel: Channel, app: Any) -> int:
    """The exit code of the process. `app` is None if the template has not imported it."""
    return WorkerProcess(options, name, channel).run(app)


class WorkerProcess:
    def __init__(self, options: ServiceOptions, name: str, channel: Channel) -> None:
        self._options = options
        self._name = name
        self._channel = channel
        self._commands: SimpleQueue[Event] = SimpleQueue()
        self._stopping = threading.Event()
        self._exit_code = EXIT_OK
        self._runner: Runner | None = None
        self._registration: Registration | None = None
        self._files: Stamps = {}
        self._target: dict[str, Any] = {}
        self._is_retiring = False
        self._is_quiet = False

    def run(self, app: Any) -> int:
        # `put` of a SimpleQueue is safe in a signal handler.
        signal.signal(
            signal.SIGTERM, lambda *_: self._commands.put({"command": "stop", "grace": self._options.grace_s})
        )
        set_up_logging(self._options, self._name)
        try:
            runner = self._make_runner(app)
        except OpenQError as error:
            self._channel.send({"event": "failed", "error": str(error)})
            return EXIT_NOT_LOADED
        threading.Thread(target=self._read, name="openq-control", daemon=True).start()
        if self._start(runner):
            self._runner = runner
            self._send_ready(runner)
            self._register(runner)
            threading.Thread(target=self._beat, name="openq-beat", daemon=True).start()
            self._obey(runner)
        return self._leave(runner)

    def _make_runner(self, app: Any) -> Runner:
        if app is None and self._options.app is not None:
            app = load_object(self._options.app)
            self._files = source_files()  # the template has not imported them
        runner = make_runner(self._options, self._name, app, self._on_hard_timeout, self._on_command)
        self._target = describe_target(self._options, app)
        return runner

    def _send_ready(self, runner: Runner) -> None:
        self._channel.send(
            {
                "event": "ready",
                "pid": os.getpid(),
                "snapshot": self._snapshot(runner),
                "hard_limit_s": runner.hard_limit_s,
                "files": self._files,
                **self._target,
            }
        )

    def _register(self, runner: Runner) -> None:
        if self._target["exclusive"]:
            return  # nobody else can read the registry of a data directory in use
        self._registration = Registration(
            self._options,
            self._name,
            runner.new_queue,
            lambda: self._snapshot(runner),
            self._ask_supervisor,
        )
        self._registration.start()

    # -- starting -----------------------------------------------------------------------------

    def _start(self, runner: Runner) -> bool:
        """Try until the broker answers. False if a stop came first."""
        pause = MIN_PAUSE_S
        while True:
            try:
                runner.start()
                return True
            except OpenQError as error:
                if not is_transient(error):
                    self._channel.send({"event": "failed", "error": str(error)})
                    self._exit_code = EXIT_NOT_LOADED
                    return False
                log.warning("cannot start: %s; trying again in %g s", error, pause)
                self._channel.send({"event": "beat", "snapshot": {}, "waits_for": str(error)})
            if self._take_stop(pause):
                return False
            pause = min(2 * pause, MAX_PAUSE_S)

    def _take_stop(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                command = self._commands.get(timeout=left)
            except Exception:  # queue.Empty
                return False
            if command["command"] == "stop":
                return True
        return False

    # -- obeying ------------------------------------------------------------------------------

    def _read(self) -> None:
        while not self._channel.ended:
            for command in self._channel.receive():
                self._commands.put(command)
        # The supervisor is gone: nobody would start this process again, nor stop it.
        self._commands.put({"command": "stop", "grace": self._options.grace_s, "orphaned": True})

    def _obey(self, runner: Runner) -> None:
        while True:
            command = self._commands.get()
            if command["command"] == "finished":
                return
            if command["command"] == "quiet":
                self._is_quiet = True
                runner.quiet()
            elif command["command"] == "stop":
                self._stop(runner, float(command["grace"]))

    def _stop(self, runner: Runner, grace_s: float) -> None:
        """A second stop with a shorter grace gives everything back at once."""
        if self._stopping.is_set() and grace_s > 0:
            return  # SIGTERM came from the system and from the supervisor
        self._stopping.set()

        def stop() -> None:
            try:
                runner.stop(grace_s)
            except Exception:
                log.exception("the worker did not stop cleanly")
            self._commands.put({"command": "finished"})

        threading.Thread(target=stop, name="openq-stop", daemon=True).start()

    def _on_command(self, group: int, is_running: bool) -> None:
        """So that the supervisor can kill a command whose process died."""
        self._channel.send({"event": "command", "group": group, "is_running": is_running})

    def _ask_supervisor(self, command: str) -> None:
        """A command of an operator. The supervisor decides: it must not replace what an operator stopped."""
        self._channel.send({"event": "operator", "command": command})

    def _on_hard_timeout(self, what: str) -> None:
        """The worker has returned its jobs and nacked the one over its limit: only this process is left."""
        self._channel.send({"event": "timed_out", "what": what})
        self._exit_code = EXIT_TIMED_OUT
        self._stop_at_once()

    def _stop_at_once(self) -> None:
        self._commands.put({"command": "stop", "grace": 0})

    def _leave(self, runner: Runner) -> int:
        """A job that was given back may still run in its thread: the process does not wait for it."""
        if self._runner is not None:
            self._send_beat(runner)
        if self._registration is not None:
            self._registration.end()
        try:
            runner.close()
        except Closed:
            pass
        except OpenQError as error:
            log.warning("the worker did not close cleanly: %s", error)
        self._channel.send({"event": "stopped"})
        snapshot = runner.snapshot() if self._runner is not None else {}
        if snapshot.get("running"):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self._exit_code)
        return self._exit_code

    # -- reporting ----------------------------------------------------------------------------

    def _beat(self) -> None:
        assert self._runner is not None
        next_beat = 0.0
        while not self._channel.ended:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + BEAT_S
                self._send_beat(self._runner)
            self._check_limits(self._runner)
            time.sleep(BEAT_S if self._options.max_tasks is None else COUNT_S)

    def _send_beat(self, runner: Runner) -> None:
        self._channel.send({"event": "beat", "snapshot": self._snapshot(runner)})

    def _snapshot(self, runner: Runner) -> dict[str, Any]:
        state = "stopping" if self._stopping.is_set() else "quiet" if self._is_quiet else "running"
        return {**runner.snapshot(), "memory": resident_bytes(), "state": state}

    def _check_limits(self, runner: Runner) -> None:
        options = self._options
        if self._is_retiring or self._stopping.is_set():
            return
        reason = None
        done = jobs_run(runner.snapshot())
        if options.max_tasks is not None and done >= options.max_tasks:
            runner.quiet()
            reason = f"it has run {done} tasks"
        elif options.max_memory is not None and done and (size := resident_bytes()) > options.max_memory:
            # Not before its first job: a limit below what an idle process needs would replace it for ever.
            reason = f"it uses {size >> 20} MiB of memory"
        if reason is not None:
            self._is_retiring = True
            self._channel.send({"event": "retire", "reason": reason})


def resident_bytes() -> int:
    """The memory of this process."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
