"""Redrive: dead letters go back to their source queues, as they are, or changed and with care."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ..broker.bulk import Pace, check_rate
from ..broker.interface import Broker, Filter
from ..documents.transform import NotTransformed, Transform
from ..errors import MessageNotFoundError, QueueInUse
from ..model import Entry
from ..server.tasks import LongOperation, RedriveAuthorizer
from .call import RestCall
from .message_schemas import Redrive, TaskView
from .messages import EDIT_ACTIONS, edited_draft
from .redrive_breaker import RedriveBreaker, RedriveStopped
from .routes import route
from .task_answers import answer_task, bulk_filter, dry_run_view

SAMPLES = 5
MAX_SAMPLE = 4_000  # characters of a body
_CHUNK = 256
_LOOK_S = 0.2  # between two looks at the messages that are open


@route(
    "POST",
    "queues/{queue}/redrive",
    permission="manage",
    sqs_actions=("StartMessageMoveTask",),
    summary="Redrive dead letters to their source queues",
    request=Redrive,
    reply=TaskView,
    status=(202, 200),
)
def redrive(call: RestCall) -> None:
    body, broker, queue = call.body, call.broker, call.queue
    broker.settings(queue)
    to = None
    if body.to is not None:
        call.require_target(body.to)
        to = call.qualified(body.to)
        broker.settings(to)
    check_rate(body.rate)
    transform = None
    if body.set or body.remove:
        # Changing a body needs what editing the message needs.
        call.require("manage", call.args[0], EDIT_ACTIONS)
        transform = Transform(body.set or {}, body.remove or [])
    # With an explicit target all waiting messages are moved.
    filter = bulk_filter(call, only_dead=body.to is None)
    back = RedriveAuthorizer(call.may_fill)
    if body.dry_run:
        call.seek(lambda: _dry_run(call, to, filter, back, transform))
        return
    details: dict[str, Any] = {"to": body.to, "rate": body.rate}
    if transform is not None:
        details |= {"set": body.set or {}, "remove": body.remove or []}
    if body.stop_after is not None:
        details["stop_after"] = body.stop_after

    def work(task: LongOperation) -> int:
        if transform is None and body.stop_after is None:
            done = broker.admin.redrive(queue, to, filter, body.rate, task.progress, back.allowed)
        else:
            done = CarefulRedrive(call, to, filter, back, transform, task).run()
        if back.refused and not task.cancelling.is_set():
            task.progress(done)
            raise back.refusal(call.principal.user)
        return done

    answer_task(call, call.context.tasks.start("redrive", call.account, call.args[0], work, details=details))


def _targets(
    broker: Broker, queue: str, entries: list[Entry], to: str | None, back: RedriveAuthorizer
) -> Iterator[tuple[Entry, str]]:
    """The entries that have a target which the caller may fill."""
    for entry, target in zip(entries, broker.admin.redrive_targets(queue, entries, to), strict=True):
        if target is not None and target != queue and (to is not None or back.allowed(target)):
            yield entry, target


# -- the dry run --------------------------------------------------------------------------------


def _dry_run(
    call: RestCall, to: str | None, filter: Filter, back: RedriveAuthorizer, transform: Transform | None
) -> TaskView:
    broker, queue, count = call.broker, call.queue, 0
    chosen: list[tuple[Entry, str]] = []
    for part in broker.inspect.matching(queue, filter):
        for found in _targets(broker, queue, part, to, back):
            count += 1
            if len(chosen) < SAMPLES:
                chosen.append(found)
    view = dry_run_view(call, "redrive", count)
    bodies = broker.inspect.with_bodies([entry for entry, _ in chosen])
    view.result["samples"] = [
        _sample(call, entry, target, transform)
        for entry, (_, target) in zip(bodies, chosen, strict=True)
        if call.may("peek", call.args[0])
    ]
    return view


def _sample(call: RestCall, entry: Entry, target: str, transform: Transform | None) -> dict[str, object]:
    body = entry.body or b""
    sample: dict[str, object] = {
        "id": call.broker.inspect.message_id(entry),
        "to": call.short_name(target),
        "before": _text(body),
    }
    if transform is not None:
        try:
            sample["after"] = _text(transform.apply(body))
        except NotTransformed as error:
            sample["error"] = f"{error}: it stays"
    return sample


def _text(body: bytes) -> str:
    return body[:MAX_SAMPLE].decode("utf-8", "replace")


# -- a redrive that changes messages, or watches what becomes of them ----------------------------


class CarefulRedrive:
    """In a thread of its own. What it does to one message is two records: the edit, and the move. A crash
    between them leaves a changed dead letter, which the next redrive changes to the same and moves."""

    def __init__(
        self,
        call: RestCall,
        to: str | None,
        filter: Filter,
        back: RedriveAuthorizer,
        transform: Transform | None,
        task: LongOperation,
    ) -> None:
        body = call.body
        self._call, self._task = call, task
        self._broker, self._queue = call.broker, call.queue
        self._to, self._filter, self._back, self._transform = to, filter, back, transform
        self._rate: float | None = body.rate
        self._breaker = (
            None if body.stop_after is None else RedriveBreaker(call.broker, call.queue, body.stop_after)
        )
        self._pace = Pace(body.rate, task.progress)
        self._done = self._unchanged = self._waits_for = 0

    def run(self) -> int:
        # All candidates first: messages that fail again while this runs are not redriven again.
        ids = [
            self._broker.inspect.message_id(entry)
            for part in self._broker.inspect.matching(self._queue, self._filter)
            for entry, _ in _targets(self._broker, self._queue, part, self._to, self._back)
        ]
        self._task.total = len(ids)
        start = 0
        while start < len(ids) and (room := self._room()):
            self._send(ids[start : start + room])
            start += room
        self._waits_for = 0
        # The last ones may still fail: the result of the task reports it.
        self._report()
        return self._done

    def _room(self) -> int:
        """How many messages may go out now. Waits for the rate and for the breaker; 0: cancelled."""
        looked = 0.0
        while self._pace.reports(self._done):
            now = time.monotonic()
            room = _CHUNK
            if self._breaker is not None and self._task.is_watched:
                if now - looked >= _LOOK_S:
                    looked = now
                    if not self._breaker.check():
                        self._waits_for = 0
                        self._report()
                        raise RedriveStopped(self._breaker.failed, self._done)
                    self._report()
                room = min(room, self._breaker.room)
                self._waits_for = 0 if room > 0 else self._breaker.open
            else:
                self._waits_for = 0
            if self._rate is not None:
                room = min(room, int(self._pace.due()) + 1 - self._done - self._unchanged)
            if room > 0:
                return room
            self._report()
            self._task.cancelling.wait(_LOOK_S if self._rate is None else min(_LOOK_S, 1 / self._rate))
        return 0

    def _send(self, ids: list[str]) -> None:
        broker, queue = self._broker, self._queue
        chosen = replace(self._filter, ids=ids)
        targets: dict[str, list[str]] = {}
        for part in list(broker.inspect.matching(queue, chosen)):
            for entry, target in _targets(broker, queue, part, self._to, self._back):
                if self._transform is None or self._change(entry):
                    targets.setdefault(target, []).append(broker.inspect.message_id(entry))
        for target, found in targets.items():
            # By id alone: a changed body may not match the filter any more.
            moving = Filter(ids=found, state=chosen.state, dead_in=chosen.dead_in)
            if self._breaker is not None:
                # Before they go: a fast consumer settles them at once.
                self._breaker.add(found, target)
            self._done += broker.admin.redrive(queue, self._to, moving, None, None, self._back.allowed)

    def _change(self, entry: Entry) -> bool:
        """Edit a dead letter in its place. False if it cannot be changed: it stays as it is."""
        assert self._transform is not None
        broker = self._broker
        try:
            [loaded] = broker.inspect.with_bodies([entry])
            body = self._transform.apply(loaded.body or b"")
            if body != loaded.body:
                draft = edited_draft(loaded, body, loaded.encoding)
                broker.admin.edit(self._queue, broker.inspect.message_id(entry), draft)
        except NotTransformed:
            self._unchanged += 1
            return False
        except (MessageNotFoundError, QueueInUse):
            return False  # removed or received meanwhile
        return True

    def _report(self) -> None:
        result: dict[str, object] = {}
        if self._transform is not None:
            result["not_transformed"] = self._unchanged
        if self._breaker is not None:
            result["failed_again"] = self._breaker.failed
        if self._waits_for:
            result["waits_for"] = self._waits_for
        self._task.result = result
        self._task.done = self._done
