"""Pending, firing, resolved: the state machine with a clock of the test."""

from __future__ import annotations

from openq.alert_rules.rule import AlertRule
from openq.alerts.evaluator import MAX_OF_RULE, Evaluator, Finding
from openq.alerts.model import Alert
from openq.alerts.service import MAX_CPU_SHARE, pause_s

FINDING = Finding("it is wrong", "do this", "openq doctor", {"value": 3.0})
RULE = AlertRule(name="wrong", expression="queue.ready > 1", summary="x", for_s=10, keep_s=5)


class Clock:
    def __init__(self, rule: AlertRule = RULE) -> None:
        self.evaluator = Evaluator()
        self.rule = rule
        self.now_s = 1000.0

    def holds(self, seconds: float, *subjects: str) -> list[tuple[str, str]]:
        self.now_s += seconds
        found = dict.fromkeys(subjects, FINDING)
        changed = self.evaluator.update(self.rule, "queue", found, int(self.now_s * 1000))
        return [(each.subject, each.state) for each in changed]

    def clear(self, seconds: float) -> list[tuple[str, str]]:
        return self.holds(seconds)

    @property
    def only(self) -> Alert:
        [alert] = self.evaluator.alerts.values()
        return alert


def test_an_alert_fires_after_its_time_and_says_since_when() -> None:
    clock = Clock()

    assert clock.holds(0, "q") == [("q", "pending")]
    assert clock.holds(9, "q") == []
    assert clock.holds(1, "q") == [("q", "firing")]
    assert clock.only.since_ms == 1_000_000
    assert clock.only.command == "openq doctor"
    assert clock.only.figures == {"value": 3.0}


def test_a_condition_that_ends_in_time_leaves_nothing() -> None:
    clock = Clock()
    clock.holds(0, "q")

    assert clock.clear(9) == [("q", "pending")]
    assert clock.evaluator.alerts == {}


def test_a_rule_without_a_time_fires_at_once() -> None:
    clock = Clock(AlertRule(name="wrong", expression="queue.ready > 1", summary="x"))

    assert clock.holds(0, "q") == [("q", "firing")]


def test_an_alert_is_resolved_when_the_condition_stays_away() -> None:
    clock = Clock()
    clock.holds(0, "q")
    clock.holds(10, "q")

    assert clock.clear(1) == []
    assert clock.holds(1, "q") == []  # back within the delay: it is the same alert
    assert clock.clear(1) == []
    assert clock.clear(4) == []
    assert clock.clear(1) == [("q", "resolved")]


def test_an_alert_that_comes_and_goes_is_resolved_later_each_time() -> None:
    clock = Clock(AlertRule(name="wrong", expression="queue.ready > 1", summary="x", keep_s=5))
    delays = []
    for _ in range(4):
        clock.holds(1, "q")
        clock.clear(1)
        waited = 0
        while not clock.clear(1):
            waited += 1
        delays.append(waited + 1)

    assert delays == [5, 10, 20, 40]
    assert clock.only.is_flapping


def test_the_same_alert_has_the_same_id_each_time() -> None:
    clock = Clock(AlertRule(name="wrong", expression="queue.ready > 1", summary="x", keep_s=0))
    clock.holds(1, "q")
    first = clock.only.id
    clock.clear(1)
    clock.holds(1, "q")

    assert clock.only.id == first
    assert Evaluator("other").update(RULE, "queue", {"q": FINDING}, 0)[0].id != first


def test_subjects_beyond_the_limit_are_counted() -> None:
    clock = Clock()
    clock.holds(0, *(f"q{number}" for number in range(MAX_OF_RULE + 7)))

    assert len(clock.evaluator.alerts) == MAX_OF_RULE
    assert {each.omitted for each in clock.evaluator.alerts.values()} == {7}


def test_what_could_not_be_read_resolves_nothing() -> None:
    clock = Clock(AlertRule(name="wrong", expression="queue.ready > 1", summary="x", keep_s=0))
    clock.holds(0, "q")

    assert clock.evaluator.update(clock.rule, "queue", {}, 10**9, is_known=False) == []
    assert clock.only.state == "firing"


def test_a_rule_that_is_gone_ends_its_alerts() -> None:
    clock = Clock()
    clock.holds(0, "q")
    clock.holds(10, "q", "p")

    ended = clock.evaluator.retain({}, 10**9)

    assert [(each.subject, each.state) for each in ended] == [("q", "resolved"), ("p", "pending")]


def test_an_alert_of_an_earlier_process_is_held_while_its_window_is_empty() -> None:
    clock = Clock(AlertRule(name="wrong", expression="queue.ready > 1", summary="x", keep_s=0))
    clock.holds(0, "q")
    clock.only.hold_ms = int((clock.now_s + 60) * 1000)

    assert clock.clear(59) == []
    assert clock.clear(1) == [("q", "resolved")]


def test_evaluations_that_take_long_are_further_apart() -> None:
    assert pause_s(3.0, 0.01) == 3.0
    assert pause_s(3.0, 3.6) == 3.6 / MAX_CPU_SHARE
