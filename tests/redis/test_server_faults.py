"""Servers killed and frozen under load, frozen consumers, a full memory: what was promised is kept."""

from __future__ import annotations

import importlib.util

import pytest

from tests.crash import redis as faults
from tests.crash.seeds import chosen_seed, repeat_with
from tests.redis.servers import ServerKind, versions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("openq.redis.broker") is None, reason="openq.redis.broker cannot be imported"
)


@pytest.mark.parametrize("kind", versions(), ids=str)
@pytest.mark.parametrize("scenario", ["restarts", "frozen", "full"])
def test_one_server(scenario: str, kind: ServerKind) -> None:
    succeed(scenario, kind)


# One on each kind where there are two: a failover takes its time.
@pytest.mark.parametrize(("scenario", "which"), [("cluster", 0), ("partition", -1), ("sentinel", 0)])
def test_a_cluster(scenario: str, which: int) -> None:
    succeed(scenario, versions()[which])


def succeed(scenario: str, kind: ServerKind) -> None:
    seed = chosen_seed()
    outcome = faults.SCENARIOS[scenario](seed, program=kind.path)

    assert outcome.verdict.clean, f"{outcome.done}: {outcome.verdict}; {repeat_with(seed)}"
    assert outcome.confirmed > 50  # it did work, however slow the machine


def test_a_server_that_syncs_each_second_loses_nothing_by_a_kill() -> None:
    """What was handed to the system outlives the process; only a power cut takes it."""
    seed = chosen_seed()
    outcome = faults.restarts(seed, options=("--appendonly", "yes", "--appendfsync", "everysec"))

    assert outcome.verdict.clean, f"{outcome.done}: {outcome.verdict}; {repeat_with(seed)}"


def test_a_server_that_keeps_nothing_is_caught() -> None:
    """A judge who never convicts is no judge."""
    outcome = faults.restarts(1, 1, **faults.FORGETFUL)

    assert outcome.verdict.lost
