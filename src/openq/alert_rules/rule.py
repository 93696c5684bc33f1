"""An alert rule: a condition with limits, for how long it must hold, and the text that a person gets.

Texts are templates: `{queue}` is a name, `{age:duration}` a figure in a unit, `{ready:count message}` one
with its noun, singular or plural. A figure is an expression of its own. In a command, names are quoted for
the shell: the names of queues come from clients.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..auth.rules import matches
from ..errors import InvalidSetting
from ..names import DEFAULT_ACCOUNT
from .expression import Expression, SignalSource, Value, parse, read_number

INFO, WARNING, CRITICAL = "info", "warning", "critical"
SEVERITIES = (INFO, WARNING, CRITICAL)
MAX_TEXT = 2_000
MAX_FIGURES = 20
MAX_TIME_S = 7 * 86_400.0
DEFAULT_KEEP_S = 15.0

_NAME = re.compile(r"[a-z][a-z0-9-]{0,62}", re.ASCII)
_LIMIT = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)
_PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)(?::([a-z]+)(?: ([a-z]+))?)?\}", re.ASCII)


class RuleNotFound(InvalidSetting):
    code = "alert_rule_not_found"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(f"alert rule {name[:100]!r} does not exist{suggestion(name, known)}")
        self.name = name


@dataclass(frozen=True, slots=True)
class AlertRule:
    """`for_s`: how long the condition must hold before the alert fires. `keep_s`: how long it must not hold
    before the alert is resolved."""

    name: str
    expression: str
    summary: str
    action: str = ""
    command: str = ""
    severity: str = WARNING
    for_s: float = 0.0
    keep_s: float = DEFAULT_KEEP_S
    limits: Mapping[str, float] = field(default_factory=dict)
    figures: Mapping[str, str] = field(default_factory=dict)
    queues: tuple[str, ...] = ()  # patterns: only these queues; empty: all
    enabled: bool = True
    help: str = ""
    is_builtin: bool = False

    @property
    def runbook(self) -> str:
        return f"RUNBOOK.md#{self.name}" if self.is_builtin else ""


class CompiledRule:
    """A rule that can be evaluated."""

    __slots__ = ("_accepted", "condition", "figures", "rule")

    def __init__(self, rule: AlertRule) -> None:
        """Raises InvalidSetting."""
        check(rule)
        self.rule = rule
        self.condition: Expression = parse(rule.expression, rule.limits)
        self.figures = {name: parse(text, rule.limits) for name, text in rule.figures.items()}
        for name, figure in self.figures.items():
            if figure.kind not in (self.condition.kind, "server", "store", "total"):
                raise InvalidSetting(
                    f"the figure {name!r} of rule {rule.name!r} is about {figure.kind}, not {self.kind}"
                )
        self._accepted: dict[str, bool] = {}

    @property
    def name(self) -> str:
        return self.rule.name

    @property
    def kind(self) -> str:
        return self.condition.kind

    @property
    def is_of_server(self) -> bool:
        return self.kind == "server"

    @property
    def ranges_s(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for each in (self.condition, *self.figures.values()):
            for kind, seconds in each.ranges_s.items():
                found[kind] = max(seconds, found.get(kind, 0.0))
        return found

    @property
    def signals(self) -> frozenset[str]:
        return self.condition.signals.union(*(each.signals for each in self.figures.values()))

    def accepts(self, queue: str) -> bool:
        """Whether the rule is for this queue, by its name without the account."""
        if not self.rule.queues:
            return True
        found = self._accepted.get(queue)
        if found is None:
            if len(self._accepted) > 20_000:
                self._accepted.clear()
            found = any(matches(pattern, queue) for pattern in self.rule.queues)
            self._accepted[queue] = found
        return found

    def holds(self, source: SignalSource) -> bool:
        return bool(self.condition.evaluate(source))

    def measure(self, source: SignalSource) -> dict[str, float]:
        """The figures that are known."""
        found: dict[str, Value] = {"value": self.condition.first_value(source)}
        for name, figure in self.figures.items():
            found[name] = figure.evaluate(source)
        return {name: value for name, value in found.items() if value is not None}


def check(rule: AlertRule) -> None:
    if not _NAME.fullmatch(rule.name):
        raise InvalidSetting(f"{rule.name[:100]!r} is not a name of a rule: a-z, 0-9 and -, up to 63")
    if rule.severity not in SEVERITIES:
        raise InvalidSetting(f"severity must be one of {', '.join(SEVERITIES)}, not {rule.severity!r}")
    for name, seconds in (("for", rule.for_s), ("keep", rule.keep_s)):
        if not 0 <= seconds <= MAX_TIME_S:
            raise InvalidSetting(f"{name} must be 0 seconds to 7 days")
    if not rule.summary:
        raise InvalidSetting(f"rule {rule.name!r} needs a summary: the text of its alerts")
    for text in (rule.summary, rule.action, rule.command):
        if len(text) > MAX_TEXT:
            raise InvalidSetting(f"a text of a rule has at most {MAX_TEXT} characters")
        for _, unit, _ in _PLACE.findall(text):
            if unit and unit not in FORMATS:
                raise InvalidSetting(f"unknown unit {unit!r} in a text; there are {', '.join(FORMATS)}")
    if len(rule.figures) > MAX_FIGURES:
        raise InvalidSetting(f"a rule has at most {MAX_FIGURES} figures")
    for name in (*rule.limits, *rule.figures):
        if not _LIMIT.fullmatch(name):
            raise InvalidSetting(f"{name[:100]!r} is not a name of a limit or a figure: a-z, 0-9 and _")


def read_limit(value: object) -> float:
    """A number, or a text such as 15m, 10% or 2GiB. Raises ValueError."""
    number = read_number(value.strip()) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not abs(number) <= 1e18:
        raise ValueError("a number, or a text such as 15m, 10% or 2GiB")
    return float(number)


def suggestion(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches  # imported late: only for mistakes

    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def changed(
    rule: AlertRule | None, name: str, fields: Mapping[str, Any], known: Iterable[str] = ()
) -> AlertRule:
    """A rule with other fields: those of `AlertRule`, and limits by their names. None: a new rule; `known`
    are the others, one of which may have been meant."""
    values: dict[str, Any] = {key: value for key, value in fields.items() if key != "limits"}
    limits = fields.get("limits", {})
    if rule is None:
        for key in ("expression", "summary"):
            if not values.get(key):
                meant = suggestion(name, known)
                raise InvalidSetting(f"{name!r} is not a built-in rule: a new one needs {key}{meant}")
        return AlertRule(name=name, limits=dict(limits), **values)
    unknown = [key for key in limits if key not in rule.limits]
    if unknown and "expression" not in values:
        known = f"its limits are {', '.join(rule.limits)}" if rule.limits else "it has no limits"
        raise InvalidSetting(f"rule {name!r} has no key {unknown[0][:100]!r}; {known}")
    return replace(rule, **values, limits={**rule.limits, **limits})


# -- texts --------------------------------------------------------------------------------------------


def one_line(text: str) -> str:
    """Names and reasons come from clients: they must not make lines or headers of their own."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def _number(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        return "without bound" if value > 0 else "unknown"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def _duration(value: float) -> str:
    if not abs(value) < 1e12:
        return _number(value)
    if abs(value) < 1:
        return f"{value * 1000:.0f} ms"
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(value) >= 2 * seconds:
            return f"{value / seconds:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.1f}".removesuffix(".0") + " s"


def _bytes(value: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(value) >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.0f} bytes"


FORMATS: dict[str, Callable[[float], str]] = {
    "count": lambda value: _number(float(round(value))) if abs(value) < 1e18 else _number(value),
    "duration": _duration,
    "bytes": _bytes,
    "percent": lambda value: f"{value * 100:.1f}".removesuffix(".0") + " %",
    "rate": lambda value: f"{_number(value)}/s",
}


def render(template: str, names: Mapping[str, str], figures: Mapping[str, float]) -> str:
    """A text for people. What is not known is a question mark."""

    def place(found: re.Match[str]) -> str:
        name, unit, noun = found[1], found[2], found[3]
        if name not in figures:
            return names.get(name, "?")  # an empty one is known: there is nothing to add
        text = FORMATS[unit](figures[name]) if unit in FORMATS else _number(figures[name])
        return text if noun is None else f"{text} {noun}" if text == "1" else f"{text} {noun}s"

    return one_line(_PLACE.sub(place, template))


# What a sample of an alert says: it looks like a real one, and is marked as a test.
SAMPLE_NAMES = {
    "queue": "orders",
    "dead_letter": "orders-dead",
    "visibility": "30",
    "largest_queue": "orders",
    "largest_size": "1.2 GiB",
    "full_place": "the disk of ./openq-data",
    "data": "./openq-data",
    "cursor": "reader",
    "webhook": "shop",
    "schedule": "report",
    "reason": "",
    "detail": "",
    "worker": "worker-1",
    "pid": "4711",
    "host": "this machine",
    "runs": "MODULE:APP",
    "peers": "",
    "certificate": "server.pem",
    "store_flag": "",
    "server": "this server",
}
_SAMPLE_FIGURES = {"percent": 0.25, "duration": 600.0, "bytes": float(1 << 30), "rate": 2.5}


def sample_figures(rule: AlertRule) -> dict[str, float]:
    """A value for each figure in the texts of a rule."""
    places = _PLACE.findall(f"{rule.summary} {rule.action}")
    return {name: _SAMPLE_FIGURES.get(unit, 12.0) for name, unit, _ in places if name not in SAMPLE_NAMES}


def render_command(template: str, names: Mapping[str, str]) -> str:
    """A line for a shell: every name is one word, except flags that the server itself makes."""

    def place(found: re.Match[str]) -> str:
        if found[1].endswith("_flag"):
            return names.get(found[1], "")
        return shlex.quote(one_line(names.get(found[1]) or found[1].upper()))

    command = _PLACE.sub(place, template).strip()
    account = names.get("account", DEFAULT_ACCOUNT)
    if account != DEFAULT_ACCOUNT and command.startswith("openq "):
        command += f" --account {shlex.quote(account)}"
    return command
