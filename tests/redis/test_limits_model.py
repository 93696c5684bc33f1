"""The broker on Redis against the model where limits matter most; see `tests/engine/test_limits_model.py`.

Concurrency only: Redis unblocks keys whose token is due in every call, the engine when something is received,
so the order of their turns may differ.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from openq.model import Draft, QueueSettings, RetryPolicy
from tests.budget import examples
from tests.engine.strategies import few, index
from tests.redis.model_machine import LEASES
from tests.redis.servers import Server
from tests.redis.test_model import RedisAndModel

NAMES = st.sampled_from("ab")
GROUPS = st.sampled_from((None, "g", "g", "h", "i"))
LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "concurrency": st.sampled_from((None, None, 2, 4)),
    "key_concurrency": st.sampled_from((None, 1, 2)),
    "key_limits": st.sampled_from(({}, {"g": {"concurrency": 3}, "h": {"concurrency": None}})),
}
LIMITED = st.builds(
    QueueSettings,
    fifo=st.booleans(),
    visibility_ms=st.integers(3, 20),
    max_receives=st.sampled_from((None, 2)),
    exhausted=st.sampled_from(("keep", "drop")),
    retry=st.just(RetryPolicy()),
    **LIMITS,
)


class LimitedLives(RedisAndModel):
    @initialize(seed=st.integers(0, 50), wanted=st.lists(LIMITED, min_size=2, max_size=2))
    def begin(self, seed: int, wanted: list[QueueSettings]) -> None:
        super().begin(seed, wanted)

    @rule(name=NAMES, wanted=LIMITED)
    def create(self, name: str, wanted: QueueSettings) -> None:
        super().create(name, wanted)

    def change(self, name: str, wanted: QueueSettings) -> None:
        """Not by a rule of its own: only the limits change."""
        super().change(name, wanted)

    @rule(name=NAMES, limits=st.fixed_dictionaries(LIMITS))
    def limit(self, name: str, limits: dict[str, Any]) -> None:
        queue = self.queue(name)
        if queue is not None:
            self.change(name, queue.settings.with_(**limits))

    @rule(
        name=NAMES,
        groups=st.lists(st.tuples(GROUPS, st.sampled_from((0, 0, 0, 1))), min_size=1, max_size=6),
        limit=few,
        lease_ms=st.sampled_from(LEASES),
    )
    def work(self, name: str, groups: list[tuple[str | None, int]], limit: int, lease_ms: int | None) -> None:
        for group, priority in groups:
            self.publish(name, Draft(b"x", group=group, priority=priority))
        self.receive(name, limit, lease_ms, None, None)

    @rule(name=NAMES, limit=st.integers(1, 9))
    def receive_more(self, name: str, limit: int) -> None:
        self.receive(name, limit, None, None, None)

    @precondition(lambda self: self.receipts)
    @rule(which=index, how=st.sampled_from(("ack", "nack", "reject")))
    def settle_one(self, which: int, how: str) -> None:
        """One of the last deliveries."""
        which %= 4
        if how == "ack":
            self.ack(which)
        elif how == "nack":
            self.nack(which, 0, None)
        else:
            self.reject(which, None)


def test_limits_hold_on_redis_as_in_the_model(redis_server: Server) -> None:
    class Here(LimitedLives):
        server = redis_server

    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples(12),
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
            deadline=None,
            report_multiple_bugs=False,
        ),
    )
