"""Publishes and acks of one turn of the event loop, as one record for each queue.

Each is from a caller of its own, such as a request. Many connections with one message each are nearly as
cheap as one connection with a batch: one call of the engine, one record, one callback after the commit. Every
caller is answered when its own change is on disk, and has a result of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..errors import OpenQError
from ..model import Properties

if TYPE_CHECKING:
    from ..broker.interface import Receipt
    from .broker import LocalBroker
    from .commits import CommitNotifier

log = logging.getLogger("openq")

MAX_BODY = 4096  # a larger body costs so much by itself that sharing a record saves nothing
MAX_RUN = 1_000  # messages

# Gets the sequence of the message, or 0: nothing was published, because of the error, or because the queue
# needs `publish_many`.
Published = Callable[[int, Exception | None], None]
Acked = Callable[[Exception | None], None]  # gets the error if the ack was refused


class PublishRuns:
    """The publishes of this turn. Used on the loop only."""

    def __init__(self, broker: LocalBroker, notifier: CommitNotifier) -> None:
        self._broker = broker
        self._notifier = notifier
        self._runs: dict[tuple[str, int, int], tuple[Properties | None, list[bytes], list[Published]]] = {}

    def add(
        self, queue: str, body: bytes, encoding: int, properties: Properties | None, then: Published
    ) -> bool:
        """Publish at the end of this turn, and call `then` on the loop once that is on disk, or failed.

        False: nothing will happen, and the caller publishes by itself.
        """
        if self._notifier.is_idle and not self._runs:
            return False  # the first one, which may stay alone, takes the short way
        found = self._broker.find_queue(queue)
        if found is None or not found.is_plain or len(body) > MAX_BODY:
            return False
        # By the identity of the properties, which the run keeps alive: their values need no comparison.
        key = (queue, encoding, id(properties))
        run = self._runs.get(key)
        if run is None:
            if not self._runs:
                self._notifier.at_end_of_turn(self._publish)
            run = self._runs[key] = (properties, [], [])
        elif len(run[1]) >= MAX_RUN:
            self._publish_run(queue, encoding, *self._runs.pop(key))
            return self.add(queue, body, encoding, properties, then)
        run[1].append(body)
        run[2].append(then)
        return True

    def _publish(self) -> None:
        runs, self._runs = self._runs, {}
        for (queue, encoding, _), run in runs.items():
            self._publish_run(queue, encoding, *run)

    def _publish_run(
        self,
        queue: str,
        encoding: int,
        properties: Properties | None,
        bodies: list[bytes],
        callers: list[Published],
    ) -> None:
        if len(bodies) > 1:
            try:
                seqs = self._broker.publish_bodies(queue, bodies, encoding, properties)
            except OpenQError:
                seqs = None  # it changed nothing: each caller gets its own result
            except Exception as error:
                log.exception("publishing %d messages failed", len(bodies))
                for then in callers:
                    _call(then, 0, error)
                return
            if seqs is not None:
                self._answer(callers, seqs)
                return
        for body, then in zip(bodies, callers, strict=True):
            try:
                seq = self._broker.publish_body(queue, body, encoding, properties)
            except OpenQError as error:
                _call(then, 0, error)
            except Exception as error:
                log.exception("publishing a message failed")
                _call(then, 0, error)
            else:
                if seq:
                    self._answer([then], range(seq, seq + 1))
                else:
                    _call(then, 0, None)

    def _answer(self, callers: list[Published], seqs: range) -> None:
        """After the commit."""

        def committed(error: OpenQError | None) -> None:
            for then, seq in zip(callers, seqs, strict=True):
                _call(then, 0 if error is not None else seq, error)

        _await_commit(self._notifier, committed, len(callers))


class AckRuns:
    """The acks of this turn. Used on the loop only."""

    def __init__(self, broker: LocalBroker, notifier: CommitNotifier) -> None:
        self._broker = broker
        self._notifier = notifier
        self._runs: dict[tuple[str, Callable[[], None]], tuple[list[Receipt], list[Acked]]] = {}

    def add(self, queue: str, receipt: Receipt, begin: Callable[[], None], then: Acked) -> bool:
        """Ack at the end of this turn, and call `then` on the loop once that is on disk, or refused.

        `begin` is called before the acks that came with it: it says who they are from. False: nothing will
        happen, and the caller acks by itself.
        """
        if self._notifier.is_idle and not self._runs:
            return False
        run = self._runs.get((queue, begin))
        if run is None:
            if not self._runs:
                self._notifier.at_end_of_turn(self._ack)
            run = self._runs[queue, begin] = ([], [])
        run[0].append(receipt)
        run[1].append(then)
        return True

    def _ack(self) -> None:
        runs, self._runs = self._runs, {}
        for (queue, begin), (receipts, callers) in runs.items():
            begin()
            results: Sequence[Exception | None]
            try:
                results = self._broker.ack(queue, receipts)
            except Exception as problem:
                if not isinstance(problem, OpenQError):
                    log.exception("%d acks failed", len(receipts))
                results = [problem] * len(receipts)
            done: list[Acked] = []
            for then, refusal in zip(callers, results, strict=True):
                if refusal is None:
                    done.append(then)
                else:
                    _call(then, refusal)
            if done:
                _await_commit(self._notifier, partial(_answer_acks, done), len(done))


def _await_commit(
    notifier: CommitNotifier, committed: Callable[[OpenQError | None], None], callers: int
) -> None:
    try:
        notifier.after_commit(committed, callers=callers)
    except OpenQError as error:  # the journal is being closed
        committed(error)


def _answer_acks(callers: list[Acked], error: OpenQError | None) -> None:
    for then in callers:
        _call(then, error)


def _call(then: Callable[..., None], *arguments: object) -> None:
    try:
        then(*arguments)
    except Exception:
        log.exception("a callback after a commit failed")  # the others must run all the same
