"""Regular expressions of clients, matched in linear time.

Python's `re` backtracks: `^(a+)+$` takes exponential time on thirty letters, and blocks the loop. Here all
alternatives are followed at once (a Thompson automaton), so the time is bounded by the length of the name
times the size of the pattern. Patterns are parsed by Python's own parser and mean the same as in `re.search`.
Back-references, look-around and conditions, which no automaton can match, are refused.

    states   `tests`   consume one character and go `after`
             `checks`  consume nothing and go `after`, if they hold between two characters
             `empty`   consume nothing and go to any of these
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

MAX_LENGTH = 1_000  # characters of a pattern
MAX_STATES = 500
_MAX_STEPS = 10_000  # cached transitions
_UNKNOWN: frozenset[int] = frozenset((-1,))  # no state has this number

Test = Callable[[str], bool]
Check = Callable[[str, str, bool], bool]  # the character before, the one after, and whether that is the last


class UnsupportedPattern(ValueError):
    """Not a regular expression, or not matchable in linear time."""


@lru_cache(maxsize=1024)
def compile_pattern(text: str) -> Pattern:
    """Raises UnsupportedPattern."""
    return Pattern(text)


class Pattern:
    def __init__(self, text: str) -> None:
        builder = _Builder()
        self._start, self._accept = builder.build(_parse(text))
        self._tests, self._checks = builder.tests, builder.checks
        self._after, self._empty = builder.after, builder.empty
        self._steps: dict[tuple[frozenset[int], str, str, bool], frozenset[int] | None] = {}

    def finds(self, text: str) -> bool:
        """Whether `re.search` would."""
        states = frozenset((self._start,))
        before = ""
        for at in range(len(text) + 1):
            char = text[at : at + 1]
            key = states, before, char, at + 1 == len(text)
            found = self._steps.get(key, _UNKNOWN)
            if found is _UNKNOWN:
                if len(self._steps) >= _MAX_STEPS:
                    self._steps.clear()
                found = self._steps[key] = self._step(*key)
            if found is None:
                return True
            states, before = found, char
        return False

    def _step(self, states: frozenset[int], before: str, char: str, is_last: bool) -> frozenset[int] | None:
        """The states after `char`; None if the pattern matches before it."""
        reached = set(states)
        pending = list(states)
        while pending:
            state = pending.pop()
            following: Iterable[int] = self._empty.get(state, ())
            check = self._checks.get(state)
            if check is not None and check(before, char, is_last):
                following = (self._after[state],)
            for each in following:
                if each not in reached:
                    reached.add(each)
                    pending.append(each)
        if self._accept in reached:
            return None
        found = {self._start}  # a match may begin at every position
        if char:
            for state in reached:
                test = self._tests.get(state)
                if test is not None and test(char):
                    found.add(self._after[state])
        return frozenset(found)


def _parse(text: str) -> Any:
    if len(text) > MAX_LENGTH:
        raise UnsupportedPattern(f"{len(text)} characters; the maximum is {MAX_LENGTH}")
    try:
        return re._parser.parse(text)  # type: ignore[attr-defined]
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedPattern(f"not a regular expression: {error}") from None


_UNBOUNDED = re._constants.MAXREPEAT  # type: ignore[attr-defined]
_REFUSED = {
    "GROUPREF": "a back-reference",
    "GROUPREF_EXISTS": "a condition on a group",
    "GROUPREF_IGNORE": "a back-reference",
    "ASSERT": "look-ahead or look-behind",
    "ASSERT_NOT": "negative look-ahead or look-behind",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive quantifier",
}


class _Builder:
    """Builds states from the parser's tree, each part from its end, where the next state is known."""

    def __init__(self) -> None:
        self.tests: dict[int, Test] = {}
        self.checks: dict[int, Check] = {}
        self.after: dict[int, int] = {}
        self.empty: dict[int, list[int]] = {}
        self._count = 0

    def build(self, tree: Any) -> tuple[int, int]:
        """The first state and the last."""
        accept = self._new()
        return self._sequence(tree, tree.state.flags, accept), accept

    def _new(self) -> int:
        self._count += 1
        if self._count > MAX_STATES:
            raise UnsupportedPattern("too large: repeat less, or split it into several policies")
        return self._count

    def _sequence(self, items: Sequence[Any], flags: int, after: int) -> int:
        for item in reversed(items):
            after = self._item(item, flags, after)
        return after

    def _item(self, item: Any, flags: int, after: int) -> int:
        kind, value = str(item[0]), item[1]
        if kind in _REFUSED:
            raise UnsupportedPattern(f"{_REFUSED[kind]} cannot be matched in linear time")
        if kind == "SUBPATTERN":
            _, added, removed, inner = value
            return self._sequence(inner, (flags | added) & ~removed, after)
        if kind == "BRANCH":
            state = self._new()
            self.empty[state] = [self._sequence(each, flags, after) for each in value[1]]
            return state
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, inner = value
            return self._repeat(int(least), int(most), inner, flags, after)
        state = self._new()
        self.after[state] = after
        if kind == "AT":
            self.checks[state] = _check(str(value), flags)
        else:
            self.tests[state] = _test(kind, value, flags)
        return state

    def _repeat(self, least: int, most: int, inner: Any, flags: int, after: int) -> int:
        if most == int(_UNBOUNDED):
            state = self._new()  # any number more
            self.empty[state] = [after]
            self.empty[state].append(self._sequence(inner, flags, state))
            after = state
            count = 0
        else:
            count = most - least
        end = after
        for _ in range(count):
            state = self._new()
            self.empty[state] = [end, self._sequence(inner, flags, after)]
            after = state
        for _ in range(least):
            self._new()  # counts empty repeated parts towards MAX_STATES
            after = self._sequence(inner, flags, after)
        return after


# -- one character ------------------------------------------------------------------------------


def _test(kind: str, value: Any, flags: int) -> Test:
    if kind == "ANY":
        return _always if flags & re.DOTALL else _no_newline
    if kind == "IN":
        test = _of_set(value, flags)
    elif kind in ("LITERAL", "NOT_LITERAL"):
        test = chr(value).__eq__
    else:
        raise UnsupportedPattern(f"{kind.lower()} is not supported")
    if flags & re.IGNORECASE:
        test = _in_any_case(test)
    return _not(test) if kind == "NOT_LITERAL" or (kind == "IN" and str(value[0][0]) == "NEGATE") else test


def _of_set(items: Sequence[Any], flags: int) -> Test:
    """Without its negation."""
    tests: list[Test] = []
    for item in items:
        kind, value = str(item[0]), item[1]
        if kind == "LITERAL":
            tests.append(chr(value).__eq__)
        elif kind == "RANGE":
            tests.append(_between(*map(chr, value)))
        elif kind == "CATEGORY":
            tests.append(_category(str(value), flags))
    return lambda char: any(test(char) for test in tests)


def _always(char: str) -> bool:
    return True


def _no_newline(char: str) -> bool:
    return char != "\n"


def _between(first: str, last: str) -> Test:
    return lambda char: first <= char <= last


def _not(test: Test) -> Test:
    return lambda char: not test(char)


def _in_any_case(test: Test) -> Test:
    return lambda char: test(char) or test(char.lower()) or test(char.upper())


def _category(name: str, flags: int) -> Test:
    """`\\d`, `\\s`, `\\w` and their opposites, as `re` knows them."""
    word = name.removeprefix("CATEGORY_")
    letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[word.removeprefix("NOT_")]
    pattern = re.compile(f"\\{letter.upper() if word.startswith('NOT_') else letter}", flags & re.ASCII)
    return lambda char: pattern.match(char) is not None


# -- between two characters -----------------------------------------------------------------------


def _check(name: str, flags: int) -> Check:
    lines = bool(flags & re.MULTILINE)
    is_word = _category("CATEGORY_WORD", flags)
    if name in ("AT_BEGINNING", "AT_BEGINNING_STRING", "AT_BEGINNING_LINE"):
        by_line = name == "AT_BEGINNING_LINE" or (lines and name == "AT_BEGINNING")
        return lambda before, char, is_last: not before or (by_line and before == "\n")
    if name in ("AT_END", "AT_END_LINE"):
        by_line = name == "AT_END_LINE" or lines
        return lambda before, char, is_last: not char or (char == "\n" and (by_line or is_last))
    if name == "AT_END_STRING":
        return lambda before, char, is_last: not char
    if name in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
        wanted = name == "AT_BOUNDARY"

        def holds(before: str, char: str, is_last: bool) -> bool:
            differs = bool(before and is_word(before)) != bool(char and is_word(char))
            return differs is wanted and bool(before or char or wanted)

        return holds
    raise UnsupportedPattern(f"{name.lower()} is not supported")
