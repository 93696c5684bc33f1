"""For which queues rules hold now. Of many queues only those are evaluated whose result may differ."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from ..alert_rules.expression import ages_of
from ..alert_rules.rule import CompiledRule
from ..names import split_name
from .history import SubjectSource, Track, Tracks

SLICE = 500  # queues after which other threads get their turn
REEVALUATED = 1_000  # queues whose windows move on without a new count, in one evaluation


class QueueRules:
    def __init__(self) -> None:
        self._unsettled = 0
        self._turn = 0

    def holding(
        self, rules: Sequence[CompiledRule], tracks: Tracks, singles: Mapping[str, Track], now_s: float
    ) -> dict[str, list[str]]:
        """The names of queues by the name of the rule.

        Of an idle queue the last result is used again, until an age reaches a limit. While a change of it is
        in a window it is evaluated each time, or in turn if there are very many of these.
        """
        source = SubjectSource(now_s, singles, tracks)
        plain = [each for each in rules if all(name.startswith("queue.") for name in each.condition.signals)]
        others = [each for each in rules if each not in plain]
        quiet_s = now_s - tracks.window_s - 1
        ages_s = ages_of(each.condition for each in plain)
        for_all = [(each.name, each.condition.evaluate) for each in plain if not each.rule.queues]
        for_some = [each for each in plain if each.rule.queues]
        turns = 1 + self._unsettled // REEVALUATED
        self._turn = (self._turn + 1) % turns
        self._unsettled = 0
        found: dict[str, list[str]] = {}
        for count, (name, track) in enumerate(tracks.tracks.items()):
            if count % SLICE == SLICE - 1:
                time.sleep(0)  # the event loop gets the interpreter
            source.track = track
            self._unsettled += not track.settled
            is_in_turn = not track.settled and (count % turns == self._turn or track.changed_s == now_s)
            if is_in_turn or now_s >= track.due_s:
                held = [rule for rule, evaluate in for_all if evaluate(source)]
                held += [each.name for each in for_some if _holds(each, name, source)]
                track.held = tuple(held)
                track.settled = track.changed_s < quiet_s
                track.due_s = tracks.due_s(track, ages_s, now_s)
            for rule_name in track.held:
                found.setdefault(rule_name, []).append(name)
            for rule in others:
                if _holds(rule, name, source):
                    found.setdefault(rule.name, []).append(name)
        return found


def _holds(rule: CompiledRule, queue: str, source: SubjectSource) -> bool:
    if rule.rule.queues and not rule.accepts(split_name(queue)[1]):
        return False
    return rule.holds(source)
