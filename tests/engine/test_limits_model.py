"""The engine against the model where limits matter most: few queues, all with limits, and much handed out."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from openq.model import Draft, QueueSettings, RetryPolicy
from tests.budget import examples

from .strategies import few, index
from .test_model import LEASES, EngineAndModel, small_pages  # noqa: F401  # a fixture of the module

NAMES = st.sampled_from("ab")
GROUPS = st.sampled_from((None, "g", "g", "h", "i"))
RATES = st.sampled_from((None, None, "500/s", "250/s burst 2", "125/s burst 1"))
LIMITS: dict[str, st.SearchStrategy[Any]] = {
    "concurrency": st.sampled_from((None, None, 2, 4)),
    "key_concurrency": st.sampled_from((None, 1, 2)),
    "rate": RATES,
    "key_rate": RATES,
    "key_limits": st.sampled_from(
        ({}, {"g": {"concurrency": 3, "rate": None}, "h": {"rate": "500/s burst 3"}})
    ),
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


class LimitedLives(EngineAndModel):
    @initialize(stored=st.booleans(), wanted=st.lists(LIMITED, min_size=2, max_size=2))
    def begin(self, stored: bool, wanted: list[QueueSettings]) -> None:
        super().begin(stored, wanted)

    @rule(name=NAMES, limits=st.fixed_dictionaries(LIMITS))
    def limit(self, name: str, limits: dict[str, Any]) -> None:
        queue = self.model.queues.get(name)
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
    @rule(which=index, how=st.sampled_from(("ack", "nack", "release", "reject")))
    def settle(self, which: int, how: str) -> None:
        """One of the last deliveries."""
        which %= 4
        if how == "ack":
            self.ack(which)
        elif how == "nack":
            self.nack(which, 0, None)
        elif how == "release":
            self.release(which)
        else:
            self.reject(which, None)


LimitedLives.TestCase.settings = settings(
    max_examples=examples(40),
    stateful_step_count=60,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    report_multiple_bugs=False,
)
TestLimitedLives = LimitedLives.TestCase


def test_a_purge_finds_the_tokens_that_came_back_meanwhile() -> None:
    life = LimitedLives()
    life.begin(False, [QueueSettings(visibility_ms=3, retry=RetryPolicy(), key_rate="125/s burst 1")])
    life.work("a", [(None, 0), (None, 0), ("g", 0)], 1, None)
    life.receive_more("a", 1)
    life.tick(8)

    life.purge("a", False)

    assert life.engine.queue("a").limits.blocked == {} == life.model.queues["a"].limits.blocked  # type: ignore[union-attr]


def test_a_late_extension_takes_a_message_as_a_receive_does() -> None:
    life = LimitedLives()
    life.begin(False, [QueueSettings(visibility_ms=3, retry=RetryPolicy(), key_rate="125/s burst 1")])
    life.work("a", [(None, 0), (None, 0), ("g", 0)], 1, None)
    life.receive_more("a", 1)
    life.tick(8)

    life.extend_late(lease_ms=1, which=1)

    life.agree()
