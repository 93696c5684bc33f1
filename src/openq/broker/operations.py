"""What an operator asks of a broker: look, search, mend, redrive, replay, wire exchanges.

Long work goes over frozen references without the lock, and takes it only for each small batch of changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from ..engine import admin
from ..engine.admin import Why
from ..engine.engine import make_info
from ..engine.queue import Queue
from ..engine.routing import Binding, Exchange, Removed
from ..errors import InvalidSetting, OpenQError
from ..model import Delivery, Draft, Entry, Extra
from . import filters
from .base import Filter, Found, Step
from .history import PastMessage, Span
from .views import Views

_CHUNK = 256
MIN_RATE = 0.01  # messages a second: slower than that nobody waits for
_PAUSE_S = 0.1  # how long a slow redrive or replay does not notice that it is to stop


def check_rate(rate: float | None) -> None:
    if rate is not None and not MIN_RATE <= rate < math.inf:
        raise InvalidSetting(f"rate must be at least {MIN_RATE} messages a second, not {rate!r}")


class Operations(Views):
    def peek(self, queue: str, limit: int = 1, rear: bool = False) -> list[Entry]:
        with self._lock, self._watch:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            entries = admin.peek(self.engine, found, limit, rear)
        return self.filled(entries)

    def entries(self, queue: str, state: str = "all") -> list[Entry]:
        """All of them, in hand-out order, with their bodies: for export and small queues."""
        with self._lock, self._watch:
            self.engine.advance(self._now())
            self._after()
            entries = list(admin.browse(self.engine, self._queue(queue), state))
        return self.filled(entries)

    def deliveries(self, queue: str) -> list[Delivery]:
        """What is out on loan, with holder and deadline."""
        with self._lock, self._watch:
            self.engine.advance(self._now())
            self._after()
            deliveries = list(self._queue(queue).leases.values())
        self.fill([delivery.entry for delivery in deliveries])
        return deliveries

    def find(self, queue: str, message_id: str) -> Entry:
        with self._lock, self._watch:
            entry = self.engine.locate(self._queue(queue), message_id)
        return self.filled([entry])[0]

    def lease_of(self, queue: str, message_id: str) -> Delivery | None:
        """The live delivery of a message, for callers that know only its id."""
        with self._lock, self._watch:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            return found.leases.get(self.engine.seq_of(found, message_id))

    def status(self, queue: str, message_id: str) -> str | None:
        with self._lock, self._watch:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            seq = self.engine.seq_of(found, message_id)
            return admin.status(found, seq) if seq else None

    def search(self, queue: str, filter: Filter, limit: int = 100, budget_s: float = 1.0) -> Found:
        """By priority and sequence; stops at the limit or when the time is up, and says which."""
        deadline = time.monotonic() + budget_s
        matching: list[Entry] = []
        scanned = 0
        complete = True
        for part in self._chunks(queue, filter):
            if len(matching) > limit or time.monotonic() > deadline:
                complete = False
                break
            scanned += len(part)
            matching += [entry for entry in part if filters.matches(self.engine.id_of, entry, filter)]
        complete = complete and len(matching) <= limit
        matching = matching[:limit]
        return Found(self.filled(matching), complete, scanned)

    def _chunks(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """Candidates for a filter, some hundred at a time, with bodies if it needs them."""
        with self._lock, self._watch:
            found = self._queue(queue)
            self.engine.advance(self._now())
            self._after()
            if filter.ids is not None:
                seqs = [self.engine.seq_of(found, message_id) for message_id in filter.ids]
                if filter.state != "all":
                    seqs = [seq for seq in seqs if admin.status(found, seq) == filter.state]
                known = [found.find(seq) for seq in seqs if seq]
                candidates = iter([entry for entry in known if entry is not None])
            else:
                candidates = admin.survey(found, filter.state)
        loads = filters.needs_body(filter)
        while part := list(islice(candidates, _CHUNK)):
            yield self.filled(part) if loads else part

    def matching(self, queue: str, filter: Filter) -> Iterator[list[Entry]]:
        """What a filter is about, as of now, some hundred at a time; with bodies only if it needs them."""
        for part in self._chunks(queue, filter):
            yield [entry for entry in part if filters.matches(self.engine.id_of, entry, filter)]

    def why(self, queue: str, message_id: str) -> Why:
        with self._lock, self._watch:
            found = self._queue(queue)
            now_ms = self._now()
            self.engine.advance(now_ms)
            self._after()
            return admin.why(self.engine, found, message_id, now_ms, self._waiters.count(queue))

    def past(self, queue: str, span: Span) -> list[PastMessage]:
        """What was published to a queue, as it was published, as far as history is kept."""
        with self._lock, self._watch:
            number = self._queue(queue).number
        return self._history.past(number, span)

    def timeline(self, queue: str, message_id: str) -> list[Step]:
        with self._lock, self._watch:
            found = self._queue(queue)
        self.flush()
        return self._history.timeline(self.engine, found, message_id)

    def cancel(self, queue: str, message_id: str) -> None:
        with self._lock, self._watch:
            admin.cancel(self.engine, self._queue(queue), message_id, self._now())
            self._after()

    def edit(self, queue: str, message_id: str, draft: Draft) -> None:
        with self._lock, self._watch:
            found = self._queue(queue)
            self._room(len(draft.body))
            if self._journal is None:
                self._weigh(len(draft.body))
            admin.edit(self.engine, found, message_id, self._now(), draft)
            self._after()

    def move(self, queue: str, message_ids: Sequence[str], to: str) -> list[OpenQError | None]:
        with self._lock, self._watch:
            source, target = self._queue(queue), self._queue(to)
            errors = admin.move(self.engine, source, message_ids, target, self._now())
            self._after()
            return errors

    def reschedule(self, queue: str, message_id: str, due_ms: int) -> None:
        with self._lock, self._watch:
            admin.reschedule(self.engine, self._queue(queue), message_id, due_ms, self._now())
            self._after()

    def redrive(
        self,
        queue: str,
        to: str | None = None,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        allowed: Callable[[str], bool] | None = None,
    ) -> int:
        """Dead letters back to where they died, or to `to`. At most `rate` a second.

        `progress` is called with the number so far, also while nothing happens; returning False stops.
        Without `to`, letters of queues that are not `allowed` stay; asked under the lock.
        """
        check_rate(rate)
        if to is not None:
            with self._lock, self._watch:
                self._queue(to)
        filter = filter or Filter(state="ready")
        step = _CHUNK if rate is None else max(1, min(_CHUNK, int(rate / 10)))
        done = 0
        started = time.monotonic()
        for part in self._chunks(queue, filter):
            chosen = [entry for entry in part if filters.matches(self.engine.id_of, entry, filter)]
            for start in range(0, len(chosen), step):
                with self._lock, self._watch:
                    found = self._queue(queue)
                    live = [each for each in chosen[start : start + step] if found.find(each.seq) is not None]
                    if allowed is not None and to is None:
                        live = [each for each in live if self._may_return(found, each, allowed)]
                    done += admin.redrive(self.engine, found, live, to, self._now())
                    self._after()
                self.sync()
                if progress is not None and not progress(done):
                    return done
                if rate is not None and not pace(done, rate, started, progress):
                    return done
        return done

    def _may_return(self, queue: Queue, entry: Entry, allowed: Callable[[str], bool]) -> bool:
        target = admin.redrive_target(self.engine, queue, entry, None)
        return target is not None and allowed(target.name)

    def replay(
        self,
        queue: str,
        since_ms: int | None,
        since_id: str | None,
        to: str | None = None,
        *,
        filter: Filter | None = None,
        rate: float | None = None,
        progress: Callable[[int], bool] | None = None,
        dry_run: bool = False,
    ) -> int:
        """Publish again what was published to `queue` from a point on and is no longer in it.

        What is still waiting or with a consumer is not doubled; ids stay, so a replay can be repeated.
        `progress` is called with the number so far; returning False stops. A dry run only counts.
        """
        check_rate(rate)
        with self._lock, self._watch:
            source = self._queue(queue)
            target = source if to is None else self._queue(to)
            now_ms = self._now()
        self.sync()
        act = self._count_missing if dry_run else self._replay_batch
        step = 100 if rate is None else max(1, min(100, int(rate / 10)))
        count = 0
        started = time.monotonic()
        batch: list[Draft] = []
        for draft in self._history.published(self.engine, source, since_ms, since_id, now_ms):
            if filter is not None and not filters.matches(self.engine.id_of, _as_entry(draft), filter):
                continue
            batch.append(draft)
            if len(batch) == step:
                count += act(target, batch)
                batch = []
                if progress is not None and not progress(count):
                    break
                if rate is not None and not dry_run and not pace(count, rate, started, progress):
                    break
        count += act(target, batch)
        self.sync()
        return count

    def _count_missing(self, target: Queue, drafts: Sequence[Draft]) -> int:
        with self._lock, self._watch:
            seqs = [self.engine.seq_of(target, draft.id or "") for draft in drafts]
            return sum(not seq or target.find(seq) is None for seq in seqs)

    def _replay_batch(self, target: Queue, drafts: Sequence[Draft]) -> int:
        count = 0
        with self._lock, self._watch:
            for draft in drafts:
                self._room(len(draft.body))
                if self._journal is None:
                    self._weigh(len(draft.body))
                count += not self.engine.publish(target, draft, self._now(), again=True)[1]
            self._after()
        return count

    def declare_exchange(self, exchange: Exchange) -> bool:
        with self._lock, self._watch:
            return admin.declare_exchange(self.engine, exchange, self._now())

    def change_exchange(self, exchange: Exchange) -> None:
        """Another alternate or other arguments; what is bound to it stays."""
        with self._lock, self._watch:
            admin.change_exchange(self.engine, exchange, self._now())

    def delete_exchange(self, name: str, if_unused: bool = False) -> Removed:
        """With what went with it, down to auto-delete exchanges that lost their last binding."""
        with self._lock, self._watch:
            return admin.delete_exchange(self.engine, name, self._now(), if_unused)

    def bind(self, binding: Binding) -> bool:
        with self._lock, self._watch:
            return admin.bind(self.engine, binding, self._now())

    def unbind(self, binding: Binding) -> Removed:
        """What went; nothing (false) if there was no such binding."""
        with self._lock, self._watch:
            return admin.unbind(self.engine, binding, self._now())


def pace(done: int, rate: float, started: float, progress: Callable[[int], bool] | None) -> bool:
    """Wait until it is time for the next one; False if it is to stop meanwhile."""
    while (left := done / rate - (time.monotonic() - started)) > 0:
        if progress is not None and not progress(done):
            return False
        time.sleep(min(left, _PAUSE_S))
    return True


def _as_entry(draft: Draft) -> Entry:
    """A past message in the shape that filters know."""
    info = make_info(draft)
    extra = Extra(id=draft.id, type=draft.type, group=draft.group, priority=draft.priority)
    return Entry(0, 0, 0, len(draft.body), draft.form, draft.body, info, extra)
