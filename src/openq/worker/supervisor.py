"""The supervisor of a worker service: starts its processes, replaces them, passes signals on.

One thread, one selector. It imports no application and opens no queue, so nothing of a task can stop it.

    SIGTERM, SIGINT   stop: finish what runs within the grace period, give back the rest at once
    ... a second one  give back everything at once
    ... a third one   kill
    SIGHUP            rolling restart: a new template imports the code; slot by slot a new process starts, and
                      when it is ready the old one stops

A process that is to be replaced (its tasks or memory are used up, a restart) is replaced the same way. An
application with a data directory of its own has one process only, which must stop before the next one starts.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from ..broker.worker_totals import WorkerTotals
from .channel import Event
from .options import EXIT_NOT_LOADED, ServiceOptions
from .processes import ProcessSlot, RestartBackoff, TemplateProcess, WorkerHandle, fate_text
from .reload import Stamps, read_stamps
from .reports import stats_of

log = logging.getLogger("openq.worker")

TICK_S = 0.5
KILL_AFTER_S = 10.0  # for a process to end by itself after its grace period
RELEASE_S = 5.0  # the same after a second signal
MAX_IMPORT_FAILURES = 3  # in a row, of processes that died while they loaded the application
MAX_START_FAILURES = 5  # in a row, of processes that died before the service was ready
HEALTHY_S = 10.0  # a process that ran this long has not failed at its start
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """`run` returns the exit code of the service."""

    def __init__(
        self,
        options: ServiceOptions,
        *,
        on_ready: Callable[[Supervisor], None] = lambda _: None,
        backoff: RestartBackoff | None = None,
    ) -> None:
        self.options = options
        self.slots = [ProcessSlot(number) for number in range(1, options.processes + 1)]
        self.totals = WorkerTotals()  # of processes that have ended
        self._numbers = count(1)
        self.restarts = 0
        self.error: str | None = None
        self._on_ready = on_ready
        self._backoff = backoff or RestartBackoff()
        self._selector = selectors.DefaultSelector()
        self._readers: set[Any] = set()
        self._template: TemplateProcess | None = None
        self._next: TemplateProcess | None = None  # of a rolling restart
        self._old: list[TemplateProcess] = []  # retired, with processes that still finish
        self._handles: set[WorkerHandle] = set()
        self._to_replace: list[ProcessSlot] = []
        self._generation = 0
        self._signals = 0
        self._is_announced = False
        self._exit_code: int | None = None
        self._timers: list[Callable[[float], None]] = []
        self.is_exclusive = options.target.path is not None and options.app is None
        self.where = ""
        self._import_failures = 0
        self._template_at: tuple[float, bool] | None = None  # when the next template starts, and its preload

    # -- the loop -----------------------------------------------------------------------------

    def add_reader(self, fileobj: Any, callback: Callable[[], None]) -> None:
        self._selector.register(fileobj, selectors.EVENT_READ, callback)
        self._readers.add(fileobj)

    def remove_reader(self, fileobj: Any) -> None:
        self._selector.unregister(fileobj)
        self._readers.discard(fileobj)

    def call_readers(self, timeout: float) -> None:
        """Call the callbacks of everything that is readable, waiting up to `timeout` seconds for something.

        A callback may remove a reader that is readable too: its template reports the end of a process, and
        so does the process's own channel.
        """
        for key, _ in self._selector.select(timeout):
            if key.fileobj in self._readers:
                key.data()

    def add_timer(self, callback: Callable[[float], None]) -> None:
        """Called at least every half a second, with the time."""
        self._timers.append(callback)

    def run(self) -> int:
        wakeup, wakeup_end = socket.socketpair()
        wakeup.setblocking(False)
        wakeup_end.setblocking(False)
        previous = {number: signal.signal(number, lambda *_: None) for number in SIGNALS}
        previous_fd = signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        self.add_reader(wakeup, lambda: self._on_signals(wakeup.recv(64)))
        try:
            self._template = self._start_template(self._wants_preload)
            while self._exit_code is None:
                self.call_readers(self._timeout())
                self._tick(time.monotonic())
            return self._exit_code
        finally:
            signal.set_wakeup_fd(previous_fd)
            for number, handler in previous.items():
                signal.signal(number, handler)
            self._end_everything()
            wakeup.close()
            wakeup_end.close()
            self._selector.close()

    def _timeout(self) -> float:
        due = [slot.start_at for slot in self.slots if slot.start_at is not None]
        return max(0.0, min([TICK_S, *(at - time.monotonic() for at in due)]))

    def _tick(self, now: float) -> None:
        for slot in self.slots:
            if slot.start_at is not None and slot.start_at <= now:
                slot.start_at = None
                self._fill(slot)
        if self._template_at is not None and self._template_at[0] <= now and not self.is_stopping:
            preload, self._template_at = self._template_at[1], None
            self._template = self._start_template(preload)
        for handle in list(self._handles):
            self._check(handle, now)
        for timer in self._timers:
            timer(now)
        if self.is_stopping and not self._handles:
            self._exit_code = 0 if self.error is None else 1

    def _check(self, handle: WorkerHandle, now: float) -> None:
        if handle.kill_at is not None and now >= handle.kill_at:
            log.error("process %s has not ended in time; it is killed, its leases will end", handle.name)
            handle.kill_at = None
            handle.kill()
        overdue_at = handle.overdue_at()
        if handle.is_silent(now) and overdue_at is not None and now >= overdue_at:
            log.error(
                "process %s does not respond and is over the hard time limit of its job; it is killed, its "
                "leases will end",
                handle.name,
            )
            handle.last_beat = now
            handle.kill()
        if handle.template.exit_code() is not None and handle.is_gone():
            self._ended(handle, None)  # its template is gone too: no exit code is known

    # -- signals ------------------------------------------------------------------------------

    @property
    def handles(self) -> list[WorkerHandle]:
        """Its worker processes, replaced ones that still finish included."""
        return sorted(self._handles, key=lambda handle: (handle.slot, handle.started))

    def files(self) -> Stamps:
        """The source files of the application as they were imported, for --reload."""
        return {} if self._template is None else self._template.files

    @property
    def queues(self) -> list[str]:
        """The queues that its processes receive from."""
        return sorted({queue for each in self._handles for queue in each.snapshot.get("queues", ())})

    @property
    def is_stopping(self) -> bool:
        return self._signals > 0 or self.error is not None

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self.stop(signal.Signals(number).name)
            elif number == signal.SIGHUP:
                log.info("SIGHUP: rolling restart")
                self.restart()

    def stop(self, why: str) -> None:
        self._signals += 1
        self._stop_processes()  # first: readers of the line rely on it
        if self._signals == 1:
            log.info(
                "%s: jobs that run may finish within %g s, everything else is given back; a second signal "
                "gives back all",
                *(why, self.options.grace_s),
            )
        elif self._signals == 2:
            log.warning("%s again: every job is given back at once", why)
        else:
            log.warning("%s again: the processes are killed", why)

    def _stop_processes(self) -> None:
        for slot in self.slots:
            slot.start_at = None
        self._to_replace.clear()
        self._drop_next()
        for handle in list(self._handles):
            if self._signals > 2:
                handle.kill()
            elif self._signals == 2:
                handle.stop(0.0, RELEASE_S)
            elif handle.state != "stopping":
                handle.stop(self.options.grace_s, KILL_AFTER_S)

    def quiet(self) -> None:
        """Every process finishes what it has and receives nothing more."""
        for handle in self._handles:
            handle.quiet()

    @property
    def _wants_preload(self) -> bool:
        return self.options.preload is not False

    # -- templates ----------------------------------------------------------------------------

    def _start_template(self, preload: bool) -> TemplateProcess:
        self._generation += 1
        template = TemplateProcess(self.options, self._generation, preload)
        self.add_reader(template.channel, lambda: self._on_template(template))
        return template

    def _on_template(self, template: TemplateProcess) -> None:
        for event in template.channel.receive():
            if event["event"] == "imported":
                self._imported(template, event)
            elif event["event"] == "failed":
                self._not_loaded(template, event["error"])
            elif event["event"] == "unsafe":
                self._reimport(template, event["reason"])
            elif event["event"] == "forked":
                for handle in self._handles:
                    if handle.template is template and handle.name == event["name"]:
                        handle.pid = event["pid"]
            elif event["event"] == "exited":
                for handle in list(self._handles):
                    if handle.template is template and handle.pid == event["pid"]:
                        self._ended(handle, event["code"])
        if template.channel.ended:
            self._template_ended(template)

    def _imported(self, template: TemplateProcess, event: Event) -> None:
        template.has_imported = True
        template.files = read_stamps(event.get("files", {}))
        self._describe(event)
        if template is self._next:
            self._to_replace = [slot for slot in self.slots if slot.is_open]
            self._replace_next()
        else:
            for slot in self.slots:
                if slot.current is None and slot.start_at is None and slot.is_open:
                    self._fill(slot)

    def _describe(self, event: Event) -> None:
        """What the application says of itself, once it is imported."""
        self.is_exclusive = event.get("exclusive", self.is_exclusive)
        self.where = event.get("where", self.where)

    def _reimport(self, template: TemplateProcess, reason: str) -> None:
        """Its import cannot be shared: each process imports the application itself."""
        log.info("each process imports %s itself: %s", self.options.app, reason)
        fresh = self._start_template(False)
        if template is self._next:
            self._next = fresh
        else:
            self._template = fresh

    def _not_loaded(self, template: TemplateProcess, error: str) -> None:
        if template is self._next:
            log.error("not restarted, the old processes keep running: %s", error)
            self._drop_next()
        elif not self._is_announced:
            self._fail(error)
        else:
            self._retry_template(template, error)

    def _template_ended(self, template: TemplateProcess) -> None:
        self.remove_reader(template.channel)
        template.channel.close()
        template.wait(KILL_AFTER_S)
        if self.is_stopping or template in self._old:
            return
        if template is self._next:
            log.error("not restarted: the new template process ended (%s)", fate_text(template.exit_code()))
            self._next = None
            self._to_replace.clear()
        elif template is self._template:
            what = (
                "ended unexpectedly"
                if template.has_imported
                else f"ended while it imported {self.options.app}"
            )
            self._retry_template(template, f"the template process {what} ({fate_text(template.exit_code())})")

    def _retry_template(self, template: TemplateProcess, error: str) -> None:
        """Processes that still run need no template: they go on while it is tried again."""
        self._import_failures = 0 if template.has_imported else self._import_failures + 1
        if self._import_failures >= MAX_IMPORT_FAILURES and not self._handles:
            self._fail(error)
            return
        delay = self._backoff.after(self._import_failures + 1)
        log.error("%s; trying again in %g s", error, delay)
        self._template = None
        self._template_at = (time.monotonic() + delay, template.preload)

    def _drop_next(self) -> None:
        if self._next is not None:
            dropped, self._next = self._next, None
            self._old.append(dropped)
            self._forget(dropped)

    def _forget(self, template: TemplateProcess) -> None:
        """No further process is forked from it. Its channel stays: it reports how its processes end."""
        if template.channel.fileno() >= 0 and not any(each.template is template for each in self._handles):
            self.remove_reader(template.channel)
            template.retire()

    def _fail(self, error: str) -> None:
        """The service cannot go on."""
        if self.error is None:
            self.error = error
            self._stop_processes()

    def _usable_template(self) -> TemplateProcess | None:
        """The newest one that has imported the application."""
        for template in (self._next, self._template):
            if template is not None and template.has_imported:
                return template
        return None

    # -- worker processes ---------------------------------------------------------------------

    def _fill(self, slot: ProcessSlot) -> None:
        """Start a process for a slot: in it, or to replace the one that is in it."""
        template = self._usable_template()
        if self.is_stopping or not slot.is_open or template is None:
            return  # a template that is still importing fills the slots when it is done
        name = f"{self.options.unit}.{next(self._numbers)}"
        handle = WorkerHandle(slot.number, name, template, template.fork(name), time.monotonic())
        if slot.current is None:
            slot.current = handle
        else:
            slot.incoming = handle
        self._handles.add(handle)
        self.add_reader(handle.channel, lambda: self._on_process(handle))

    def _on_process(self, handle: WorkerHandle) -> None:
        for event in handle.channel.receive():
            handle.last_beat = time.monotonic()
            if event["event"] == "ready":
                self._ready(handle, event)
            elif event["event"] == "beat":
                handle.snapshot = event["snapshot"]
                handle.waits_for = event.get("waits_for")
            elif event["event"] == "retire":
                self._retire(handle, event["reason"])
            elif event["event"] == "failed":
                handle.failure = event["error"]
            elif event["event"] == "timed_out":
                handle.timed_out = event["what"]
            elif event["event"] == "stopped" and handle.kill_at is not None:
                # Nothing of a job is left; a thread that somebody started may keep it from ending.
                handle.kill_at = min(handle.kill_at, time.monotonic() + RELEASE_S)
            elif event["event"] == "command":
                (handle.commands.add if event["is_running"] else handle.commands.discard)(event["group"])
            elif event["event"] == "operator":
                self._on_operator(handle, event)
        if handle.channel.ended:
            self.remove_reader(handle.channel)

    def _ready(self, handle: WorkerHandle, event: Event) -> None:
        handle.pid = event["pid"]
        handle.hard_limit_s = event.get("hard_limit_s")
        handle.waits_for = None
        self._describe(event)
        handle.snapshot = event["snapshot"]
        handle.template.files = read_stamps(event.get("files", {})) or handle.template.files
        if handle.state == "starting":
            handle.state = "ready"
        slot = self.slots[handle.slot - 1]
        if slot.is_quiet:
            handle.quiet()  # it replaces one that an operator made quiet
        if handle is slot.incoming:
            old, slot.current, slot.incoming = slot.current, handle, None
            if old is not None:
                old.stop(self.options.grace_s, KILL_AFTER_S)
        if handle.template is self._next:
            self._adopt_next()
        if not self._is_announced and all(
            each.current and each.current.state == "ready" for each in self.slots
        ):
            self._is_announced = True
            self._on_ready(self)
        self._replace_next()

    def _adopt_next(self) -> None:
        """The first process of a rolling restart is ready: its template is that of the service now."""
        assert self._next is not None
        old, self._template, self._next = self._template, self._next, None
        if old is not None:
            self._old.append(old)
            self._forget(old)

    def restart(self) -> None:
        """Replace every process by one with the code as it is now."""
        if self.is_stopping:
            return
        self._drop_next()
        self._to_replace.clear()
        for slot in self.slots:
            slot.is_quiet = False
        self._next = self._start_template(self._wants_preload)

    def _replace_next(self) -> None:
        """Go on with a rolling restart: one slot at a time."""
        if any(slot.incoming is not None or slot.start_at is not None for slot in self.slots):
            return
        wanted = self._next or self._template
        while self._to_replace:
            slot = self._to_replace.pop(0)
            if slot.current is None or slot.current.template is not wanted:
                self._replace(slot)
                return

    def _replace(self, slot: ProcessSlot) -> None:
        if slot.current is None or not self.is_exclusive:
            if slot.incoming is None and slot.start_at is None:
                self._fill(slot)
        elif slot.current.state != "stopping":
            slot.current.stop(self.options.grace_s, KILL_AFTER_S)  # the next one starts when it has ended

    def _retire(self, handle: WorkerHandle, reason: str) -> None:
        slot = self.slots[handle.slot - 1]
        if handle is slot.current and handle.state == "ready" and not self.is_stopping:
            log.info("process %s is replaced: %s", handle.name, reason)
            self.restarts += 1
            self._replace(slot)

    def _on_operator(self, handle: WorkerHandle, event: Event) -> None:
        """`openq worker stop` or `quiet`, through the registry of workers."""
        log.info("process %s: an operator asked for %s", handle.name, event["command"])
        slot = self.slots[handle.slot - 1]
        if event["command"] == "quiet":
            slot.is_quiet = True
            handle.quiet()
            return
        slot.is_open, slot.start_at = False, None
        for each in slot.handles:
            each.stop(self.options.grace_s, KILL_AFTER_S)
        if not any(each.is_open for each in self.slots):
            self.stop("all processes are stopped")

    def _ended(self, handle: WorkerHandle, code: int | None) -> None:
        # What it said last. Not to the end of the channel: a process that a task forked may keep it open.
        while not handle.channel.ended and handle.channel.is_readable():
            self._on_process(handle)
        if not handle.channel.ended:
            self.remove_reader(handle.channel)
        handle.channel.close()
        handle.kill_commands()
        self._handles.discard(handle)
        self.totals.add(stats_of(handle.snapshot, handle.name))
        was_stopping, handle.state = handle.state == "stopping", "ended"
        slot = self.slots[handle.slot - 1]
        is_incoming = handle is slot.incoming
        if is_incoming:
            slot.incoming = None
        elif handle is slot.current:
            slot.current = None
        self._finish_templates()
        if was_stopping or self.is_stopping:
            log.info("process %s stopped", handle.name)
            if slot.current is None and slot.incoming is None and slot.is_open:
                self._fill(slot)
            elif slot.current is None and slot.incoming is not None:
                slot.current, slot.incoming = slot.incoming, None
            return
        self._crashed(slot, handle, code)

    def _crashed(self, slot: ProcessSlot, handle: WorkerHandle, code: int | None) -> None:
        now = time.monotonic()
        self.restarts += 1
        if handle.timed_out is not None:
            log.error("process %s is replaced: %s", handle.name, handle.timed_out)
            self._fill(slot)
            return
        slot.failures = 1 if now - handle.started > HEALTHY_S else slot.failures + 1
        if handle.template is self._next and slot.failures >= MAX_IMPORT_FAILURES:
            slot.failures = 0
            log.error("not restarted, the old processes keep running: %s", handle.failure or fate_text(code))
            self._to_replace.clear()
            self._drop_next()
            return
        if not self._is_announced and slot.failures >= MAX_START_FAILURES:
            self._fail(f"{self.options.what}: its processes end while they start ({fate_text(code)})")
            return
        is_early = not self._is_announced or slot.failures >= MAX_IMPORT_FAILURES
        if code == EXIT_NOT_LOADED and handle.failure is not None and is_early:
            self._fail(handle.failure)
            return
        delay = self._backoff.after(slot.failures)
        when = f"in {delay:g} s" if delay else "now"
        log.error(
            "process %s ended (%s); a new one starts %s", handle.name, handle.failure or fate_text(code), when
        )
        slot.start_at = now + delay

    def _finish_templates(self) -> None:
        for template in list(self._old):
            if not any(handle.template is template for handle in self._handles):
                self._forget(template)
            if template.exit_code() is not None:
                self._old.remove(template)

    # -- the end ------------------------------------------------------------------------------

    def _end_everything(self) -> None:
        for handle in self._handles:
            handle.kill()
            handle.channel.close()
        templates = [each for each in (self._template, self._next, *self._old) if each is not None]
        for template in templates:
            template.retire()
        for template in templates:
            if not template.wait(1.0):
                template.kill()
