"""The template process of a worker service: imports the application once, and forks the worker processes.

    supervisor --(channel)-- template --(fork)-- worker process
         \\____________________(channel)____________/

Forked processes share the memory of everything that was imported. A rolling restart starts a new template,
so that it imports the new code; the supervisor itself never imports the application. A fork is only safe
while the import has left no thread and no open connection behind: otherwise the supervisor starts a template
that imports nothing, and each worker process imports the application itself.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import stat
import sys
import threading
from typing import Any

from .adapters import describe_target, reason_not_to_run
from .channel import Channel, Event
from .child import run_child
from .loading import AppNotLoaded, load_object, source_files
from .logs import set_up_logging
from .options import ServiceOptions


def main(arguments: list[str]) -> int:
    channel = Channel.of_fd(int(arguments[0]))
    messages: list[Event] = []
    while not messages and not channel.ended:
        messages = channel.receive()
    if not messages:
        return 0
    sys.path += [path for path in messages[0]["path"] if path not in sys.path]
    options = ServiceOptions.from_json(messages[0]["options"])
    return Template(channel, options, bool(messages[0]["preload"])).run(messages[1:])


class Template:
    def __init__(self, channel: Channel, options: ServiceOptions, preload: bool) -> None:
        self._channel = channel
        self._options = options
        self._preload = preload
        self._app: Any = None

    def run(self, messages: list[Event]) -> int:
        # Signals for the process group are for the supervisor. Functions, not SIG_IGN, which the programs
        # that a task starts would inherit.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _ignore)
        set_up_logging(self._options, self._options.name)
        if not self._import():
            return 1
        return self._serve(messages)

    def _import(self) -> bool:
        if self._options.reload:
            # Python takes cached byte code for current if a file has the same size and second of change.
            sys.dont_write_bytecode = True
        sockets = open_sockets()
        details: dict[str, Any] = {}
        if self._preload and self._options.app is not None:
            try:
                self._app = load_object(self._options.app)
            except AppNotLoaded as error:
                self._channel.send({"event": "failed", "error": str(error)})
                return False
            refusal = reason_not_to_run(self._options, self._app)
            if refusal:
                self._channel.send({"event": "failed", "error": refusal})
                return False
            unsafe = reason_not_to_fork(sockets)
            if unsafe:
                self._channel.send({"event": "unsafe", "reason": unsafe})
                return False
            details = {"files": source_files(), **describe_target(self._options, self._app)}
        gc.collect()
        gc.freeze()  # the collector of a worker process must not write to the shared pages
        self._channel.send({"event": "imported", **details})
        return True

    def _serve(self, messages: list[Event]) -> int:
        wakeup, wakeup_end = os.pipe()
        os.set_blocking(wakeup_end, False)
        signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignore)
        while not self._channel.ended:
            for message in messages:
                child = Channel.of_fd(self._channel.fds.pop(0))
                sys.stdout.flush()
                sys.stderr.flush()
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    os.close(wakeup)
                    os.close(wakeup_end)
                    self._channel.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    return run_child(self._options, message["name"], child, self._app)
                child.close()
                self._channel.send({"event": "forked", "name": message["name"], "pid": pid})
            readable = select.select([self._channel.fileno(), wakeup], [], [])[0]
            messages = self._channel.receive() if self._channel.fileno() in readable else []
            if wakeup in readable:
                os.read(wakeup, 4096)
            self._reap(os.WNOHANG)
        # The supervisor is gone, or replaced this template: its worker processes finish by themselves.
        self._reap(0)
        return 0

    def _reap(self, flags: int) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, flags)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._channel.send({"event": "exited", "pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _ignore(number: int, frame: object) -> None:
    pass


def open_sockets() -> set[str]:
    """The sockets of this process."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return set()
    found = set()
    for name in names:
        try:
            if stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def reason_not_to_fork(sockets: set[str]) -> str | None:
    """What the import left behind that does not survive a fork."""
    names = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if names:
        return f"it started the thread {names[0]}"
    try:
        if len(os.listdir("/proc/self/task")) > 1:
            return "it started a thread"
    except OSError:
        pass
    from ..client.handle import open_targets

    targets = open_targets()
    if targets:
        return f"it opened {targets[0]}"
    if open_sockets() - sockets:
        return "it opened a connection"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
