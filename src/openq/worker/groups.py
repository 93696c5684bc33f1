"""Groups: which members are done, and what follows when all are.

The state of a group is one bitmap in a bucket, changed by compare-and-set. Setting a bit twice changes
nothing, so a member that runs again does no harm; and because a member is acked after its bit is set and
after the next step is sent, a worker that dies anywhere in between leaves a message behind that repeats the
rest.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import KvConflict
from . import codec
from .calls import KEPT_S, Chain, Step
from .errors import InvalidTask, ResultTimeout
from .job import Job, in_thread
from .store import GROUPS, RESULTS, JobOutcome, read_outcome

if TYPE_CHECKING:
    from .app import App

R = TypeVar("R")

MAX_MEMBERS = 20_000
_GOING, _FAILED = 0, 1  # the first byte of the state
_WAIT_SLICE_S = 60.0  # one wait; then the next


def send_group(app: App, members: list[Chain[R]], steps: list[Step]) -> GroupJob[R]:
    """Write the group down, then send its members."""
    if len(members) > MAX_MEMBERS:
        raise InvalidTask(f"a group has at most {MAX_MEMBERS} members, not {len(members)}")
    group_id = str(uuid.uuid4())
    chains = [member.fresh() for member in members]
    jobs: list[Job[R]] = [app.flows.last_job(chain.steps, is_member=True) for chain in chains]
    then = [step.document() for step in steps]
    if then:
        then[-1]["keep"] = steps[-1].task.declared.result_ttl or KEPT_S
    document = {"members": [job.id for job in jobs], "then": then}
    kv = app.store.bucket(GROUPS)
    kv.put(group_id, codec.to_json(document), KEPT_S)
    kv.put(_state_key(group_id), bytes([_GOING]) + bytes((len(jobs) + 7) // 8), KEPT_S)
    app.publish_all(
        [
            app.flows.first(chain.steps, {"id": group_id, "index": index, "size": len(jobs)})
            for index, chain in enumerate(chains)
        ]
    )
    return GroupJob(app, group_id, jobs)


def member_ended(app: App, group: dict[str, Any], outcome: JobOutcome) -> None:
    """Record the end of a member. After the last one the next step is sent; a failure ends the group."""
    group_id, index, size = str(group["id"]), int(group["index"]), int(group["size"])
    is_done = outcome.state == "done"
    state = _change_state(app, group_id, index, is_done)
    if state is None or (is_done and _done_count(state) < size):
        return
    entry = app.store.bucket(GROUPS).get(group_id)
    document = {} if entry is None else codec.read_json(entry.value)
    if not document.get("then"):
        return
    if not is_done:  # if the member is redriven and done later, the next step runs after all
        app.flows.end_rest(document["then"], outcome)
    else:
        outcomes = app.store.bucket(RESULTS).get_many(document["members"])
        results = [None if each is None else read_outcome(each.value).result for each in outcomes]
        app.flows.send_next(document["then"], results)


def _change_state(app: App, group_id: str, index: int, is_done: bool) -> bytes | None:
    """The state after the change; None if the group has expired."""
    kv = app.store.bucket(GROUPS)
    while True:
        entry = kv.get(_state_key(group_id))
        if entry is None:
            return None
        state = bytearray(entry.value)
        if is_done:
            state[1 + index // 8] |= 1 << index % 8
        else:
            state[0] = _FAILED
        if state == entry.value:
            return bytes(state)
        try:
            kv.put(_state_key(group_id), bytes(state), KEPT_S, entry.version)
        except KvConflict:
            continue
        return bytes(state)


def _state_key(group_id: str) -> str:
    return f"{group_id}/state"


def _done_count(state: bytes) -> int:
    return sum(byte.bit_count() for byte in state[1:])


class GroupJob(Generic[R]):
    """A group that was sent. `jobs` are its members, in order."""

    def __init__(self, app: App, id: str, jobs: list[Job[R]]) -> None:
        self.app = app
        self.id = id
        self.jobs = jobs

    def result(self, timeout: float | None = None) -> list[R]:
        """The results of all members, in order. Raises JobFailed as soon as one has failed for good."""
        deadline = None if timeout is None else time.monotonic() + timeout
        kv = self.app.store.bucket(GROUPS)
        version = 0
        while True:
            entry = kv.wait(_state_key(self.id), self._left(timeout, deadline), version)
            if entry is not None:
                version = entry.version
                results = self._results(entry.value)
                if results is not None:
                    return results

    async def aresult(self, timeout: float | None = None) -> list[R]:
        """`result` for coroutines."""
        deadline = None if timeout is None else time.monotonic() + timeout
        kv = (await self.app.queues.open_async(self.jobs[0].queue)).kv(GROUPS)
        version = 0
        while True:
            entry = await kv.wait(_state_key(self.id), self._left(timeout, deadline), version)
            if entry is not None:
                version, state = entry.version, entry.value
                results = await in_thread(lambda state=state: self._results(state))  # type: ignore[misc]
                if results is not None:
                    return results

    def _left(self, timeout: float | None, deadline: float | None) -> float:
        left = _WAIT_SLICE_S if deadline is None else min(deadline - time.monotonic(), _WAIT_SLICE_S)
        if left <= 0:
            raise ResultTimeout(self.id, timeout or 0)
        return left

    def _results(self, state: bytes) -> list[R] | None:
        """The results, if all are there. Raises JobFailed or JobWasCancelled for one that has none."""
        if _done_count(state) < len(self.jobs) and state[0] != _FAILED:
            return None
        found = self.app.store.bucket(RESULTS).get_many([job.id for job in self.jobs])
        ended = zip(self.jobs, found, strict=True)
        results = [job.read(read_outcome(each.value)) for job, each in ended if each is not None]
        return results if len(results) == len(self.jobs) else None

    def done(self) -> int:
        """The number of members that are done."""
        entry = self.app.store.bucket(GROUPS).get(_state_key(self.id))
        return 0 if entry is None else _done_count(entry.value)

    def cancel(self) -> int:
        """Cancel all members; returns how many had not ended."""
        return sum(job.cancel() for job in self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        return f"<GroupJob {self.id} of {len(self.jobs)} jobs>"
