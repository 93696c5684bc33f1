"""One job from its handler to the broker: run, then ack, retry or dead-letter.

Everything here is about one job and may block; which thread runs it is decided elsewhere. The order at the
end of a job matters when the process dies: first what follows from the job (results, continuations), each
written so that writing it twice changes nothing, then the ack. So a job that died in between runs again and
nothing is missing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting, OpenQError
from . import codec, endings
from .active import ActiveJob, interruption, reset_current, set_current
from .endings import Ending
from .errors import InvalidArguments, InvalidResult, JobCancelled, TimeLimitExceeded, WorkerStopped
from .outage import RETRY_PAUSE_S, Outage, is_closed, is_lost

if TYPE_CHECKING:
    from .app import App
    from .slots import Slot

log = logging.getLogger("openq.worker")

Finish = Callable[[], None]


class Execution:
    """How jobs run and end.

    `ack` takes a job that is done, `ended` is called after each handler, `report` with an outcome other than
    done; `owns` says whether the lease still is ours.
    """

    def __init__(
        self,
        app: App,
        ack: Callable[[ActiveJob], None],
        ended: Callable[[ActiveJob], None],
        report: Callable[[ActiveJob, str], None],
        owns: Callable[[ActiveJob], bool],
        outage: Outage,
    ) -> None:
        self._app = app
        self._ack = ack
        self._ended = ended
        self._report = report
        self.owns = owns
        self._outage = outage
        self.is_giving_up = False

    # -- running ------------------------------------------------------------------------------

    def run(self, job: ActiveJob, slot: Slot) -> None:
        """Run a function in this thread and settle its job."""
        token = set_current(job)
        job.started = time.monotonic()
        try:
            if job.started >= job.lease_until and not self.owns(job):
                self.lost(job)  # the process was paused while the job waited
                return
            slot.enter(job)
            if job.is_lost:  # after `enter`: a later loss sees the slot
                slot.leave()
                if job.interrupt is not WorkerStopped:
                    self.lost(job)
                return
            try:
                call, args, kwargs = self.prepare(job)
                result = call(*args, **kwargs)
            finally:
                slot.leave()
                job.write_unreported()
        except BaseException as error:
            slot.leave()  # again: the exception may have come while it was leaving
            self.failed(job, error)
        else:
            self.succeeded(job, result)
        finally:
            job.slot = None
            reset_current(token)

    def prepare(self, job: ActiveJob) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """The handler and its arguments."""
        task = job.task
        for each in self._app.middleware:
            each.before_process(job)
        if task is None:
            consumer = job.source.consumer
            return consumer.function, [job.messages if consumer.is_batch else job.message], {}
        document = job.document = codec.read_body(job.message.body)
        args, kwargs = document.get("args", []), document.get("kwargs", {})
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            raise InvalidArguments("args must be a list and kwargs an object")
        args, kwargs = task.signature.convert(args, kwargs)
        return task.function, args, kwargs

    # -- ending -------------------------------------------------------------------------------

    # The results, exceptions and middleware of users are called and shown here, and may raise anything: that
    # must end the job, and neither its thread nor the extension of its lease for ever.

    def succeeded(self, job: ActiveJob, result: Any) -> None:
        """The handler returned. May block."""
        finish = self.accept(job, result)
        if finish is not None:
            finish()

    def failed(self, job: ActiveJob, error: BaseException) -> None:
        """The handler raised, or was interrupted. May block."""
        finish = self.judge(job, error)
        if finish is not None:
            finish()

    def accept(self, job: ActiveJob, result: Any) -> Finish | None:
        """After a handler that returned. Returns the rest of the work, if it may block."""
        try:
            return self._safe(job, self._accept(job, result))
        except Exception as error:
            return self.judge(job, error)

    def judge(self, job: ActiveJob, error: BaseException) -> Finish | None:
        """After a handler that raised. Returns the rest of the work, if it may block."""
        try:
            return self._safe(job, self._judge(job, error))
        except Exception as problem:
            log.exception("the failure of %s could not be handled: it is not tried again", job.describe())
            reason = InvalidResult(f"{type(error).__name__}, and then {type(problem).__name__}")
            return self._safely(job, lambda: self._reject(job, reason))

    def _safe(self, job: ActiveJob, finish: Finish | None) -> Finish | None:
        return None if finish is None else self._safely(job, finish)

    def _safely(self, job: ActiveJob, finish: Finish) -> Finish:
        def finish_safely() -> None:
            try:
                finish()
            except Exception:
                log.exception("%s could not be settled: it is delivered again", job.describe())
                self._report(job, "lost")

        return finish_safely

    def lost(self, job: ActiveJob) -> None:
        self._report(job, "lost")

    def _accept(self, job: ActiveJob, result: Any) -> Finish | None:
        self._ended(job)
        for each in reversed(self._app.middleware):
            self._call(each.after_process, job, result)
        if job.is_lost:
            if job.interrupt is not WorkerStopped:
                self._report(job, "lost")
            return None
        if job.task is None or (job.task.declared.result_ttl is None and not _has_ending(job)):
            self._ack(job)
            return None
        try:
            ending = Ending.of(self._app, job, endings.done(job, result))
        except InvalidResult as error:
            return self.judge(job, error)
        return self._finish(job, ending)

    def _finish(self, job: ActiveJob, ending: Ending) -> Finish | None:
        """Write what follows from the job, then ack it."""
        if not ending.blocks:
            job.result_put = ending.put  # written with the ack
            self._ack(job)
            return None

        def finish() -> None:
            if self._write(job, ending):
                self._ack(job)

        return finish

    def _write(self, job: ActiveJob, ending: Ending) -> bool:
        """Write an ending, trying again while the broker is unreachable. False if the job is lost."""
        while not job.is_lost and self.owns(job):
            try:
                ending.write()
                self._outage.ended()
                return True
            except InvalidSetting as error:
                # What follows cannot be written, for example because the next message would be too large.
                self.failed(job, InvalidResult(f"{type(error).__name__}: {error}"))
                return False
            except OpenQError as error:
                if is_closed(error) or self.is_giving_up:
                    break
                self._outage.began(error)
                time.sleep(RETRY_PAUSE_S)
        self._report(job, "lost")
        return False

    def _judge(self, job: ActiveJob, error: BaseException) -> Finish | None:
        self._ended(job)
        kind = interruption(job, error)
        if kind is not None or job.is_lost:
            for each in reversed(self._app.middleware):
                self._call(each.after_interruption, job, error)
            if job.interrupt is WorkerStopped:
                return None  # it was given back already
            if job.is_lost:
                self._report(job, "lost")
                return None
            return self.cancelled(job)
        if type(error) is TimeLimitExceeded and not error.args and job.task is not None:
            error.args = (f"longer than {job.task.declared.timeout:g} s",)
        rules = None if job.task is None else job.task.declared.rules
        retry_in = None if rules is None else rules.delay(error, job.attempt)
        for each in reversed(self._app.middleware):
            self._call(each.after_failure, job, error, retry_in)
        if rules is None:
            log.error("%s failed", job.describe(), exc_info=_traceback(error))
            return lambda: self._nack_all(job, None, error)
        if retry_in is None:
            log.error("%s failed for good: %s", job.describe(), _text(error), exc_info=_traceback(error))
            return lambda: self._reject(job, error)
        log.warning("%s failed, next attempt in %.1f s: %s", job.describe(), retry_in, _text(error))
        return lambda: self._retry(job, retry_in, error)

    def cancelled(self, job: ActiveJob) -> Finish:
        """The job was cancelled, before it started or while it ran."""
        log.info("%s was cancelled", job.describe())
        job.interrupt = JobCancelled

        def finish() -> None:
            if job.task is not None:
                _read_document(job)
                if not self._write(job, Ending.of(self._app, job, endings.cancelled())):
                    return
                self._app.store.unflag_cancelled(job.id)
            self._ack(job)

        return self._safely(job, finish)

    def _retry(self, job: ActiveJob, delay: float, error: BaseException) -> None:
        try:
            is_cancelled = bool(self._app.store.cancelled_among([job.id]))
        except OpenQError:
            is_cancelled = False  # the flag stays, and is seen at the next attempt
        if is_cancelled:
            self.cancelled(job)()
        else:
            self._nack_all(job, delay, error)

    def _nack_all(self, job: ActiveJob, delay: float | None, error: BaseException) -> None:
        outcome = self._settle(job, lambda queue, each: queue.nack(each, delay, error))
        self._report(job, {"returned": "retried", "lost": "lost"}.get(outcome, "dead"))

    def _reject(self, job: ActiveJob, error: BaseException) -> None:
        _read_document(job)
        if self._write(job, Ending.of(self._app, job, endings.failed(_text(error)))):
            outcome = self._settle(job, lambda queue, each: queue.reject(each, error))
            self._report(job, "lost" if outcome == "lost" else "dead")

    def _settle(self, job: ActiveJob, act: Callable[[Any, Any], str]) -> str:
        """Settle every message of a job. Returns the outcome of the last one, or "lost"."""
        outcome = "returned" if all(message.settled for message in job.messages) else "lost"
        for message in job.messages:
            while not message.settled:
                try:
                    outcome = act(job.source.queue, message)
                    self._outage.ended()
                    break
                except InvalidSetting as problem:  # for example a delay that is not a number of seconds
                    log.error("%s is dead-lettered: %s", job.describe(), problem)
                    act = _reject_for(problem)
                except OpenQError as problem:
                    if is_lost(problem) or is_closed(problem) or self.is_giving_up:
                        log.warning("%s could not be settled: %s", job.describe(), problem)
                        break
                    self._outage.began(problem)
                    time.sleep(RETRY_PAUSE_S)
        return outcome

    def _call(self, hook: Callable[..., None], *args: Any) -> None:
        try:
            hook(*args)
        except Exception:
            log.exception("middleware %s failed", getattr(hook, "__qualname__", hook))


def _has_ending(job: ActiveJob) -> bool:
    document = job.document
    return document is not None and ("then" in document or "group" in document or "keep" in document)


def _read_document(job: ActiveJob) -> None:
    """The body of a job that did not come to run; an unreadable one has no steps after it."""
    if job.document is None:
        try:
            job.document = codec.read_body(job.message.body)
        except (InvalidArguments, OpenQError):
            job.document = {}


def _reject_for(problem: OpenQError) -> Callable[[Any, Any], str]:
    return lambda queue, message: str(queue.reject(message, str(problem)))


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__} (its text cannot be shown)"


def _traceback(error: BaseException) -> BaseException | None:
    """Wrong arguments have no traceback worth a log entry of 20 lines."""
    return None if isinstance(error, InvalidArguments | JobCancelled) else error
