"""Several processes as one server: a supervisor that starts, watches and stops them.

The supervisor owns the ports (`ports.py`), serves no request, and has one thread and one selector: it can
fork at any time. A process that ends is replaced; its connections end with it, and what it had received
returns to the queues as after the death of any server. The processes and the supervisor talk over socket
pairs (`process_messages.py`); a process whose supervisor is gone finishes its requests and ends.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple, TextIO

from ..config import Config
from ..logs import JsonLines, TextLines, emit
from .announcement import Announcer
from .logs import log_kind
from .ports import SharedPorts, Sockets, close_all
from .process_member import MemberPlace
from .process_messages import (
    Alive,
    Collect,
    Decoder,
    Figures,
    GroupState,
    Message,
    Ready,
    Reloaded,
    ReloadOthers,
    Stopped,
    Sums,
    ToOthers,
    View,
    Wanted,
    encode,
)
from .summed_metrics import ProcessTotals, merged
from .systemd import Systemd

log = logging.getLogger("openq.server")

DELAYS_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # before a process that ended early is replaced
STEADY_S = 20.0  # a process that served so long begins with the first delay again
COLLECT_S = 3.0  # how long a scrape waits for the figures of a process that does not answer
KILL_S = 30.0  # after the time for running requests
ALIVE_S = 1.0  # how often the loop of a process says that it runs
MAX_UNSENT = 4 << 20  # bytes for a process that does not read
MAX_VIEWS = 16  # pages of metrics whose totals are remembered
_TICK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class ProcessOutcome(NamedTuple):
    """What a process of the group is to do: a supervisor ends with its exit code, another one serves."""

    exit_code: int = 0
    place: MemberPlace | None = None


class _Process:
    """One place of the group, and the process that has it now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0  # none
        self.channel: socket.socket | None = None
        self.decoder = Decoder()
        self.unsent = bytearray()
        self.held: dict[type[Message], Message] = {}  # the last one of each kind, behind `unsent`
        self.sockets: Sockets = {}
        self.is_ready = False
        self.started_s = 0.0
        self.alive_s = 0.0
        self.failures = 0
        self.restart_at_s: float | None = None
        self.totals: OrderedDict[View, ProcessTotals] = OrderedDict()

    def of_view(self, view: View) -> ProcessTotals:
        found = self.totals.setdefault(view, ProcessTotals())
        self.totals.move_to_end(view)
        if len(self.totals) > MAX_VIEWS:
            self.totals.popitem(last=False)
        return found


class _Gathering(NamedTuple):
    """A scrape that waits for the figures of other processes."""

    asker: int
    id: int  # as the asker names it
    view: View
    waiting: set[int]
    until_s: float


class GroupSupervisor:
    def __init__(self, config: Config, out: TextIO, *, as_json: bool) -> None:
        self._config = config
        self._out = out
        self._as_json = as_json
        self._announcer = Announcer(out, config, as_json=as_json)
        self._processes = {number: _Process(number) for number in range(1, config.processes + 1)}
        self._selector = selectors.DefaultSelector()
        self._wake, self._wake_end = socket.socketpair()
        self._gatherings: dict[int, _Gathering] = {}
        self._last_id = 0
        self._restarts = 0
        self._stopping = ""  # the signal
        self._kill_at_s = 0.0
        self._exit_code = 0
        self._count = 0  # messages, as the last process that stopped saw them
        self._started_s = time.monotonic()
        self._is_announced = False
        self._first_text = ""  # what the first process printed
        self._reloading: set[int] = set()
        self._was_reloaded = False
        self._systemd = Systemd()
        self._fed_s = 0.0
        self._folder = ""
        self._home: socket.socket | None = None
        self._ports: SharedPorts

    def run(self) -> ProcessOutcome:
        """Returns in the supervisor when all have ended, and in each process to serve."""
        _log_to_stderr(self._config)
        self._ports = SharedPorts(self._config)
        self._folder = tempfile.mkdtemp(prefix="openq-")  # for this user alone
        try:
            self._home = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._home.bind(os.path.join(self._folder, "home"))
            self._home.listen(128)
            self._home.setblocking(False)
            for process in self._processes.values():
                process.sockets = self._ports.open()
            handlers = self._take_signals()
            place = self._start(self._processes[1])
            while place is None and (
                any(each.pid for each in self._processes.values()) or not self._stopping
            ):
                place = self._turn()
            if place is not None:
                return ProcessOutcome(place=place)
            self._end(handlers)
        finally:
            if self._folder:  # a process of the group has none
                shutil.rmtree(self._folder, ignore_errors=True)
        return ProcessOutcome(self._exit_code)

    def _take_signals(self) -> dict[signal.Signals, object]:
        for end in (self._wake, self._wake_end):
            end.setblocking(False)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._wake_end.fileno(), warn_on_full_buffer=False)
        return {number: signal.signal(number, _noticed) for number in _SIGNALS}

    def _end(self, handlers: Mapping[signal.Signals, object]) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        for process in self._processes.values():
            close_all(process.sockets)
        for each in (self._wake, self._wake_end, self._home):
            if each is not None:
                each.close()
        self._selector.close()
        if self._is_announced:
            self._announcer.stopped(self._count, time.monotonic() - self._started_s)

    # -- the loop

    def _turn(self) -> MemberPlace | None:
        """Something has happened, or half a second has passed. Returns a place in a new process."""
        for key, mask in self._selector.select(_TICK_S):
            process: _Process | None = key.data
            if process is None:
                self._signalled()
                continue
            if mask & selectors.EVENT_WRITE:
                self._write(process)
            if mask & selectors.EVENT_READ:
                self._read(process)
        self._reap()
        now_s = time.monotonic()
        for number, gathering in list(self._gatherings.items()):
            if now_s >= gathering.until_s:
                self._gathered(number)
        self._feed_watchdog(now_s)
        if self._stopping:
            if now_s >= self._kill_at_s:
                self._signal_all(signal.SIGKILL)
            return None
        for process in self._processes.values():
            if process.restart_at_s is not None and now_s >= process.restart_at_s:
                place = self._start(process)
                if place is not None:
                    return place
        return None

    def _signalled(self) -> None:
        with suppress(BlockingIOError):
            for number in self._wake.recv(1024):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._stop(signal.Signals(number).name)
                elif number == signal.SIGHUP:
                    self._reload()

    def _stop(self, reason: str) -> None:
        """New connections are refused from now on; those that are open may finish their requests."""
        if self._stopping:
            return
        self._stopping = reason
        self._kill_at_s = time.monotonic() + self._config.drain_timeout_s + KILL_S
        self._systemd.stopping()
        if self._is_announced:
            self._announcer.stopping(reason)
        for process in self._processes.values():
            close_all(process.sockets)
        self._signal_all(signal.SIGTERM)

    def _reload(self) -> None:
        self._was_reloaded = True
        self._reloading = {each.number for each in self._processes.values() if each.is_ready}
        if self._reloading:
            self._systemd.reloading()
        self._signal_all(signal.SIGHUP)

    def _signal_all(self, number: signal.Signals, *, but: _Process | None = None) -> None:
        for process in self._processes.values():
            if process is not but:
                self._signal(process, number)

    def _signal(self, process: _Process, number: signal.Signals) -> None:
        if process.pid:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)

    def _feed_watchdog(self, now_s: float) -> None:
        """A process whose loop hangs is not fed for: systemd restarts the service then."""
        period_s = self._systemd.watchdog_s
        if not period_s or not self._is_announced or now_s - self._fed_s < period_s / 2:
            return
        hanging = [
            each
            for each in self._processes.values()
            if each.is_ready and now_s - each.alive_s > max(period_s, 3 * ALIVE_S)
        ]
        if not hanging:
            self._fed_s = now_s
            self._systemd.alive()

    # -- processes

    def _start(self, process: _Process) -> MemberPlace | None:
        """Fork. Returns the place in the new process, None in the supervisor."""
        process.restart_at_s = None
        if not process.sockets:
            try:
                process.sockets = self._ports.open()
            except OSError as error:
                self._retry(process, f"cannot listen: {error.strerror or error}")
                return None
        ours, theirs = socket.socketpair()
        # A signal between the fork and the child's own handlers must not reach ours: they share a socket.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            ours.close()
            theirs.close()
            self._retry(process, f"cannot start a process: {error.strerror or error}")
            return None
        if pid == 0:
            return self._become(process, ours, theirs)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        theirs.close()
        ours.setblocking(False)
        process.pid, process.channel = pid, ours
        process.decoder, process.unsent, process.is_ready = Decoder(), bytearray(), False
        process.held.clear()
        process.started_s = process.alive_s = time.monotonic()
        self._selector.register(ours, selectors.EVENT_READ, process)
        return None

    def _become(self, process: _Process, ours: socket.socket, theirs: socket.socket) -> MemberPlace:
        """In the new process: give up what belongs to the supervisor."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the loop handles it
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        self._selector.close()
        ours.close()
        for end in (self._wake, self._wake_end):
            end.close()
        for each in self._processes.values():
            if each is not process:
                close_all(each.sockets)
                if each.channel is not None:
                    each.channel.close()
        is_home, home = process.number == 1, self._home
        assert home is not None
        if not is_home:
            home.close()
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
            os.environ.pop(name, None)
        path, self._folder = os.path.join(self._folder, "home"), ""
        return MemberPlace(process.number, theirs, process.sockets, path, home if is_home else None)

    def _reap(self) -> None:
        for process in self._processes.values():
            if not process.pid:
                continue
            try:
                pid, status = os.waitpid(process.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = process.pid, 0
            if pid:
                self._ended(process, os.waitstatus_to_exitcode(status))

    def _ended(self, process: _Process, code: int) -> None:
        pid, was_ready = process.pid, process.is_ready
        process.pid = 0  # from now on it may be the number of another process
        if process.channel is not None:
            self._read(process)  # what it said last
            if process.channel is not None:
                self._close_channel(process)
        process.is_ready = False
        self._reload_ended(process)
        for totals in process.totals.values():
            totals.end()
        for number, gathering in list(self._gatherings.items()):
            if gathering.asker == process.number:
                del self._gatherings[number]  # the next process of this place has the same ids
                continue
            gathering.waiting.discard(process.number)
            if not gathering.waiting:
                self._gathered(number)
        if self._stopping:
            was_stopped_early = code == -signal.SIGTERM  # before its loop handled signals
            if code and not was_stopped_early and not self._exit_code:
                self._exit_code = code if code > 0 else 1
            return
        if not self._is_announced:
            # It has said why: with the exit code of a server that cannot start, all of them end.
            self._exit_code = code if code > 0 else 1
            self._stop("a process did not start")
            return
        how = {"signal": signal.Signals(-code).name} if code < 0 else {"exit_code": str(code)}
        emit(log, logging.ERROR, "process_ended", process=process.number, process_pid=pid, **how)
        if was_ready and time.monotonic() - process.started_s >= STEADY_S:
            process.failures = 0
        self._retry(process, "")

    def _retry(self, process: _Process, reason: str) -> None:
        delay_s = DELAYS_S[min(process.failures, len(DELAYS_S) - 1)]
        process.failures += 1
        process.restart_at_s = time.monotonic() + delay_s
        self._restarts += 1
        if reason:
            emit(log, logging.ERROR, "process_not_started", process=process.number, reason=reason)
        if delay_s >= 1:
            # The kernel gives its share of the connections to the others.
            close_all(process.sockets)
            process.sockets = {}
        self._send_state()

    # -- messages

    def _read(self, process: _Process) -> None:
        channel = process.channel
        if channel is None:
            return
        while True:
            try:
                data = channel.recv(1 << 18)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                data = b""
            if not data:
                self._close_channel(process)
                return
            for message in process.decoder.feed(data):
                self._heard(process, message)

    def _close_channel(self, process: _Process) -> None:
        assert process.channel is not None
        self._selector.unregister(process.channel)
        process.channel.close()
        process.channel = None

    def _send(self, process: _Process, message: Message) -> None:
        if process.channel is None:
            return
        # It asked for sums, so it reads; their size says nothing.
        if len(process.unsent) > MAX_UNSENT and not isinstance(message, Sums):
            process.held[type(message)] = message
            return
        process.unsent += encode(message)
        self._write(process)

    def _write(self, process: _Process) -> None:
        channel = process.channel
        if channel is None:
            return
        try:
            while process.unsent:
                del process.unsent[: channel.send(process.unsent)]
                if not process.unsent:
                    process.unsent += b"".join(map(encode, process.held.values()))
                    process.held.clear()
        except BlockingIOError:
            pass
        except OSError:
            process.unsent.clear()  # it has ended: `_reap` finds it
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if process.unsent else 0)
        self._selector.modify(channel, wanted, process)

    def _heard(self, process: _Process, message: Message) -> None:
        if isinstance(message, Alive):
            process.alive_s = time.monotonic()
        elif isinstance(message, Collect):
            self._collect(process, message)
        elif isinstance(message, Figures):
            gathering = self._gatherings.get(message.id)
            if gathering is not None:
                process.of_view(gathering.view).show(message.families)
                gathering.waiting.discard(process.number)
                if not gathering.waiting:
                    self._gathered(message.id)
        elif isinstance(message, ToOthers):
            for each in self._processes.values():
                if each is not process and each.is_ready:
                    self._send(each, message.message)
        elif isinstance(message, Ready):
            if process.pid:
                self._is_ready(process, message.text)
        elif isinstance(message, ReloadOthers):
            self._was_reloaded = True
            self._signal_all(signal.SIGHUP, but=process)
        elif isinstance(message, Reloaded):
            self._reload_ended(process)
        elif isinstance(message, Stopped):
            self._count = message.messages

    def _is_ready(self, process: _Process, text: str) -> None:
        process.is_ready = True
        process.alive_s = time.monotonic()
        if self._was_reloaded:
            self._signal(process, signal.SIGHUP)  # it has the configuration that this process began with
        if self._is_announced:
            emit(log, logging.INFO, "process_replaced", process=process.number, process_pid=process.pid)
        elif process.number == 1:
            self._first_text = text
            # The first one declares what is configured, and makes the first key: the others find it.
            for each in self._processes.values():
                if each is not process and not each.pid:
                    each.restart_at_s = 0.0
        if not self._is_announced and all(each.is_ready for each in self._processes.values()):
            self._announce()
        self._send_state()

    def _announce(self) -> None:
        self._is_announced = True
        text = self._first_text
        if self._as_json:
            line = {**json.loads(text), "pid": os.getpid(), "processes": self._config.processes}
            text = json.dumps(line, ensure_ascii=False) + "\n"
        print(text, end="", file=self._out, flush=True)
        self._systemd.announce(f"serving in {self._config.processes} processes")

    def _reload_ended(self, process: _Process) -> None:
        """Or has ended: it is not waited for any more."""
        if process.number in self._reloading:
            self._reloading.discard(process.number)
            if not self._reloading:
                self._systemd.reloaded()

    def _send_state(self) -> None:
        running = sum(each.is_ready for each in self._processes.values())
        for each in self._processes.values():
            if each.is_ready:
                self._send(each, GroupState(running, len(self._processes), self._restarts))

    def _collect(self, asker: _Process, message: Collect) -> None:
        asker.of_view(message.view).show(message.families)
        others = [each for each in self._processes.values() if each is not asker and each.is_ready]
        self._last_id += 1
        until_s = time.monotonic() + COLLECT_S
        waiting = {each.number for each in others}
        self._gatherings[self._last_id] = _Gathering(asker.number, message.id, message.view, waiting, until_s)
        for each in others:
            self._send(each, Wanted(self._last_id, message.view))
        if not waiting:
            self._gathered(self._last_id)

    def _gathered(self, number: int) -> None:
        """Answer, with the last known figures of a process that has not answered."""
        gathering = self._gatherings.pop(number)
        pages = [page for each in self._processes.values() for page in each.of_view(gathering.view).pages]
        self._send(self._processes[gathering.asker], Sums(gathering.id, merged(pages)))


def _noticed(number: int, frame: object) -> None:
    """The number is in the wake-up socket."""


class _NowOrNever(logging.Handler):
    """Lines of the supervisor. It has no thread that could wait for a slow reader: then they are dropped."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError):
            if select.select([], [sys.stderr], [], 0)[1]:
                sys.stderr.write(self.format(record) + "\n")
                sys.stderr.flush()


def _log_to_stderr(config: Config) -> None:
    """Until a process sets up its own log. No thread: they do not survive a fork."""
    handler = _NowOrNever()
    handler.setFormatter(JsonLines() if log_kind(config) == "json" else TextLines())
    ours = logging.getLogger("openq")
    ours.handlers[:] = [handler]
    ours.propagate = False
    ours.setLevel(config.log_level.upper())
