"""The expressions of alert rules: a small language over signals. No names of Python are reachable.

    expression  = and-part, { "or", and-part }
    and-part    = not-part, { "and", not-part }
    not-part    = "not", not-part | comparison
    comparison  = sum, [ ( "<" | "<=" | ">" | ">=" | "==" | "!=" ), sum ]
    sum         = product, { ( "+" | "-" ), product }
    product     = factor, { ( "*" | "/" ), factor }
    factor      = "-", factor | number | limit | signal | call | "(", expression, ")"
    number      = digits, [ ".", digits ], [ unit ]        unit: ms s m h d w, KiB MiB GiB TiB, %
    limit       = name                                     a limit of the rule, such as `age`
    signal      = kind, ".", name | metric                 queue.ready, openq_kv_bytes
    call        = function, "(", signal, "[", time, "]", [ ",", expression ], ")"
    time        = number | limit

A value that is unknown makes a sum unknown and a comparison false. Truth is 1 and 0. A division by zero is
unknown. A parsed expression is a tree of closures: evaluation is one call of each node.

Functions over a time: increase and rate of counters; avg, min, max, slope (per second),
forecast(signal[time], ahead) and time_until(signal[time], value) of gauges. Trends are unknown until half of
the time is covered.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..errors import InvalidSetting
from .signals import SUBJECT_SIGNALS, all_names, find_signal, kind_of

MAX_LENGTH = 2_000
MAX_DEPTH = 40
MIN_RANGE_S, MAX_RANGE_S = 1.0, 6 * 3600.0

Value = float | None
Sample = tuple[float, float]  # time in seconds, value
POINTS = 20  # of a trend
AGE = "queue.oldest_age"  # the only signal of queues that changes while nothing happens


class SignalSource(Protocol):
    """The values of one subject at one moment."""

    def value(self, signal: str) -> Value: ...

    def first_last(self, signal: str, window_s: float) -> tuple[Sample, Sample] | None:
        """The value when the time began (or the first that is known), and the value now."""

    def points(self, signal: str, window_s: float, count: int) -> tuple[list[float], float]:
        """Values at `count` moments of the time, as far as it is covered, and the seconds between them."""


Node = Callable[[SignalSource], Value]


class InvalidExpression(InvalidSetting):
    code = "invalid_expression"

    def __init__(self, text: str, position: int, what: str) -> None:
        shown = text if len(text) <= 200 else text[:197] + "..."
        super().__init__(f"the expression {shown!r} is invalid at character {position + 1}: {what}")
        self.position = position


class Expression(NamedTuple):
    text: str
    evaluate: Node
    first_value: Node  # the left side of the first comparison: what a rule without figures shows
    kind: str  # of its subjects: queue, cursor, webhook, schedule, worker; store, server or total: one
    signals: frozenset[str]
    ranges_s: Mapping[str, float]  # kind of subject -> the longest time
    # What `queue.oldest_age` is compared with: between these ages the result cannot change by time alone.
    # None: the age has another part in the expression.
    ages_s: frozenset[float] | None

    @property
    def window_s(self) -> float:
        return max(self.ranges_s.values(), default=0.0)


class _Token(NamedTuple):
    kind: str  # number | name | operator | end
    text: str
    position: int


_LEXER = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?(?:[A-Za-z]+|%)?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?)"
    r"|(?P<operator><=|>=|==|!=|[-+*/<>()\[\],]))",
    re.ASCII,
)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z]+|%)?", re.ASCII)
UNITS = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
    "%": 0.01,
    "KiB": 1024.0,
    "MiB": 1024.0**2,
    "GiB": 1024.0**3,
    "TiB": 1024.0**4,
}
_WORDS = {"and", "or", "not"}
COUNTER_FUNCTIONS = ("increase", "rate")
GAUGE_FUNCTIONS = ("avg", "min", "max", "slope", "forecast", "time_until")
_WITH_ARGUMENT = ("forecast", "time_until")


def parse(text: str, limits: Mapping[str, float] | None = None) -> Expression:
    """Raises InvalidExpression, with the position."""
    if len(text) > MAX_LENGTH:
        raise InvalidExpression(text, MAX_LENGTH, f"at most {MAX_LENGTH} characters")
    return _Parser(text, limits or {}).parse()


def ages_of(expressions: Iterable[Expression]) -> list[float] | None:
    """The ages of the oldest message at which one of the results may change, in order; None: at any age."""
    found: set[float] = set()
    for expression in expressions:
        if expression.ages_s is None:
            return None
        found |= expression.ages_s
    return sorted(found)


def read_number(text: str) -> float | None:
    """A number with an optional unit; None if it is none."""
    found = _NUMBER.fullmatch(text)
    if found is None or (found[2] is not None and found[2] not in UNITS):
        return None
    return float(found[1]) * UNITS.get(found[2] or "", 1.0)


class _Parser:
    def __init__(self, text: str, limits: Mapping[str, float]) -> None:
        self._text = text
        self._limits = limits
        self._tokens = list(self._lex())
        self._at = 0
        self._depth = 0
        self._signals: dict[str, int] = {}  # name -> position
        self._ranges: dict[str, float] = {}
        self._first: Node | None = None
        self._constants: dict[Node, float] = {}
        self._ages: set[Node] = set()  # each place where the age stands
        self._compared_ages: dict[Node, float] = {}
        self._is_age_over_time = False

    def parse(self) -> Expression:
        node = self._or()
        if self._peek.kind != "end":
            raise self._error(f"unexpected {self._peek.text!r}")
        kinds = {kind_of(name): position for name, position in self._signals.items()}
        subjects = [kind for kind in kinds if kind in SUBJECT_SIGNALS]
        if len(subjects) > 1:
            raise InvalidExpression(
                self._text,
                kinds[subjects[1]],
                f"one rule is about {subjects[0]} or {subjects[1]}, not about both",
            )
        if not kinds:
            raise InvalidExpression(self._text, 0, "no signal in it, such as queue.ready")
        # Metrics and signals of a server differ from server to server, so such a rule belongs to each.
        order = (*subjects, "server", "store", "total")
        kind = next(each for each in order if each in kinds)
        ages_s = frozenset(self._compared_ages.values())
        return Expression(
            self._text,
            node,
            self._first or node,
            kind,
            frozenset(self._signals),
            dict(self._ranges),
            ages_s if self._ages == self._compared_ages.keys() and not self._is_age_over_time else None,
        )

    # -- tokens ---------------------------------------------------------------------------------

    def _lex(self) -> list[_Token]:
        text, at = self._text, 0
        tokens: list[_Token] = []
        while text[at:].strip():
            found = _LEXER.match(text, at)
            if found is None or found.lastgroup is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                raise InvalidExpression(text, start, f"unexpected {text[start]!r}")
            tokens.append(_Token(found.lastgroup, found[found.lastgroup], found.start(found.lastgroup)))
            at = found.end()
        return [*tokens, _Token("end", "end of the expression", len(text))]

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._tokens[self._at]
        if token.kind != "end":
            self._at += 1
        return token

    def _take(self, *texts: str) -> str | None:
        token = self._peek
        if token.text in texts and token.kind in ("operator", "name"):
            self._at += 1
            return token.text
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._error(f"expected {text!r}, found {self._peek.text!r}")

    def _error(self, what: str) -> InvalidExpression:
        return InvalidExpression(self._text, self._peek.position, what)

    # -- grammar --------------------------------------------------------------------------------

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested deeper than {MAX_DEPTH}")
        parts = [self._and()]
        while self._take("or"):
            parts.append(self._and())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _any(parts)

    def _and(self) -> Node:
        parts = [self._not()]
        while self._take("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else _all(parts)

    def _not(self) -> Node:
        count = 0
        while self._take("not"):
            count += 1
        node = self._comparison()
        return _not(node) if count % 2 else node

    def _comparison(self) -> Node:
        left = self._sum()
        operator = self._take("<", "<=", ">", ">=", "==", "!=")
        if operator is None:
            return left
        if self._first is None:
            self._first = left
        right = self._sum()
        for age, other in ((left, right), (right, left)):
            if age in self._ages and other in self._constants:
                self._compared_ages[age] = self._constants[other]
        if right in self._constants:
            return _compared_with(operator, left, self._constants[right])
        return _compared(operator, left, right)

    def _sum(self) -> Node:
        node = self._product()
        while operator := self._take("+", "-"):
            node = _computed(operator, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._factor()
        while operator := self._take("*", "/"):
            node = _computed(operator, node, self._factor())
        return node

    def _factor(self) -> Node:
        negative = False
        while self._take("-"):
            negative = not negative
        node = self._primary()
        return _negated(node) if negative else node

    def _primary(self) -> Node:
        token = self._next()
        if token.kind == "number":
            return self._constant(self._number(token))
        if token.text == "(" and token.kind == "operator":
            node = self._or()
            self._expect(")")
            return node
        if token.kind != "name" or token.text in _WORDS:
            self._at -= token.kind != "end"
            raise self._error(f"expected a number, a signal or '(', found {token.text!r}")
        if token.text in (*COUNTER_FUNCTIONS, *GAUGE_FUNCTIONS) and self._peek.text == "(":
            return self._call(token)
        if token.text in self._limits:
            return self._constant(self._limits[token.text])
        name = self._signal(token)
        found = find_signal(name)
        if found is not None and found.is_counter:
            raise InvalidExpression(
                self._text, token.position, f"{name} is a counter: write increase({name}[5m]) or rate(...)"
            )
        node = _current(name)
        if name == AGE:
            self._ages.add(node)
        return node

    def _constant(self, number: float) -> Node:
        node = _constant(number)
        self._constants[node] = number
        return node

    def _call(self, function: _Token) -> Node:
        self._expect("(")
        token = self._next()
        if token.kind != "name":
            raise InvalidExpression(
                self._text, token.position, f"{function.text}() takes a signal with a time: queue.ready[5m]"
            )
        name = self._signal(token)
        found = find_signal(name)
        is_counter = found is not None and found.is_counter
        if is_counter != (function.text in COUNTER_FUNCTIONS):
            wanted = ", ".join(COUNTER_FUNCTIONS if is_counter else GAUGE_FUNCTIONS)
            what = "counter" if is_counter else "gauge"
            raise InvalidExpression(self._text, function.position, f"{name} is a {what}: use {wanted}")
        self._expect("[")
        window_s = self._time()
        self._expect("]")
        kind = kind_of(name)
        self._ranges[kind] = max(window_s, self._ranges.get(kind, 0.0))
        argument: Node | None = None
        if function.text in _WITH_ARGUMENT:
            self._expect(",")
            argument = self._or()
        self._expect(")")
        self._is_age_over_time |= name == AGE
        return _over_time(function.text, name, window_s, argument)

    def _time(self) -> float:
        token = self._next()
        if token.kind == "number":
            seconds = self._number(token)
        elif token.text in self._limits:
            seconds = self._limits[token.text]
        else:
            raise InvalidExpression(self._text, token.position, "expected a time such as 5m")
        if not MIN_RANGE_S <= seconds <= MAX_RANGE_S:
            raise InvalidExpression(self._text, token.position, "a time is from 1s to 6h")
        return seconds

    def _number(self, token: _Token) -> float:
        number = read_number(token.text)
        if number is None:
            raise InvalidExpression(
                self._text, token.position, f"unknown unit in {token.text!r}; there are {', '.join(UNITS)}"
            )
        return number

    def _signal(self, token: _Token) -> str:
        name = token.text
        if find_signal(name) is None:
            from difflib import get_close_matches

            near = get_close_matches(name, [*all_names(), *self._limits], 1, 0.6)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InvalidExpression(self._text, token.position, f"unknown signal {name!r}{hint}")
        self._signals.setdefault(name, token.position)
        return name


# -- nodes --------------------------------------------------------------------------------------------


def _constant(number: float) -> Node:
    return lambda _: number


def _current(name: str) -> Node:
    return lambda source: source.value(name)


def _negated(node: Node) -> Node:
    def evaluate(source: SignalSource) -> Value:
        value = node(source)
        return None if value is None else -value

    return evaluate


def _any(parts: Sequence[Node]) -> Node:
    return lambda source: float(any(part(source) for part in parts))


def _all(parts: Sequence[Node]) -> Node:
    return lambda source: float(all(part(source) for part in parts))


def _not(node: Node) -> Node:
    def evaluate(source: SignalSource) -> Value:
        value = node(source)
        return None if value is None else float(not value)  # what is unknown does not hold, either way

    return evaluate


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}


def _compared_with(operator: str, left: Node, constant: float) -> Node:
    compare = _COMPARE[operator]

    def evaluate(source: SignalSource) -> Value:
        value = left(source)
        return None if value is None else float(compare(value, constant))

    return evaluate


def _compared(operator: str, left: Node, right: Node) -> Node:
    compare = _COMPARE[operator]

    def evaluate(source: SignalSource) -> Value:
        one = left(source)
        if one is None:
            return None
        other = right(source)
        return None if other is None else float(compare(one, other))

    return evaluate


def _divided(one: float, other: float) -> Value:
    return one / other if other else None


_COMPUTE: dict[str, Callable[[float, float], Value]] = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": _divided,
}


def _computed(operator: str, left: Node, right: Node) -> Node:
    compute = _COMPUTE[operator]

    def evaluate(source: SignalSource) -> Value:
        one, other = left(source), right(source)
        return None if one is None or other is None else compute(one, other)

    return evaluate


def _over_time(function: str, name: str, window_s: float, argument: Node | None) -> Node:
    if function in COUNTER_FUNCTIONS:
        return _increase(name, window_s, function == "rate")
    if argument is not None:
        return _trend(function, name, window_s, argument)
    if function == "slope":

        def slope(source: SignalSource) -> Value:
            line = fit(source.points(name, window_s, POINTS), window_s)
            return None if line is None else line[0]

        return slope

    def summary(source: SignalSource) -> Value:
        values, _ = source.points(name, window_s, POINTS)
        if not values:
            return None
        return sum(values) / len(values) if function == "avg" else (min if function == "min" else max)(values)

    return summary


def _increase(name: str, window_s: float, is_rate: bool) -> Node:
    def evaluate(source: SignalSource) -> Value:
        found = source.first_last(name, window_s)
        if found is None:
            return None
        (from_s, first), (to_s, last) = found
        grown = last - first if last >= first else last  # it began anew
        if not is_rate:
            return grown
        return grown / (to_s - from_s) if to_s > from_s else 0.0

    return evaluate


def _trend(function: str, name: str, window_s: float, argument: Node) -> Node:
    def evaluate(source: SignalSource) -> Value:
        line = fit(source.points(name, window_s, POINTS), window_s)
        given = argument(source)
        if line is None or given is None:
            return None
        slope, now = line
        if function == "forecast":
            return now + slope * given
        missing = given - now
        if not slope or (missing > 0) != (slope > 0):
            return 0.0 if not missing else None  # it does not get there
        return missing / slope

    return evaluate


def fit(points: tuple[list[float], float], window_s: float) -> tuple[float, float] | None:
    """Least squares: the slope per second and the value of the line now; None if too little is known."""
    values, step_s = points
    count = len(values)
    if count < 3 or step_s * (count - 1) < window_s / 2 - step_s:
        return None
    middle = (count - 1) / 2
    mean = sum(values) / count
    spread = sum((at - middle) ** 2 for at in range(count))
    slope = sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread
    return slope / step_s, mean + slope * middle
