"""Patterns that clients give: they mean what they mean to `re`, and none of them takes long."""

from __future__ import annotations

import json
import random
import re
import warnings
from pathlib import Path

import pytest

from openq.amqp.patterns import MAX_LENGTH, Pattern, UnsupportedPattern
from openq.amqp.permissions import globs_of
from openq.amqp.policies import FILE, InvalidAmqpPolicy, Policies, Policy
from openq.auth.rules import matches
from openq.history.selection import matches_pattern as matches_glob
from tests.server.raw_http import RawHttpClient
from tests.serving import served

LONG = "a" * 250 + "!"
# With `re` each of these takes longer than anybody waits.
HOSTILE = [
    "^(a+)+$",
    "^(a|a)*$",
    "^(a|aa)+$",
    "(a*)*b",
    "(.*a){30}$",
    "(a?){40}a{40}$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(x+x+)+y|(a+a+)+b",
    "(a|b)*a(a|b){200}c",
    "(?i)^(A+)+$",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_backtracking_pattern_is_matched_in_linear_time(text: str) -> None:
    assert not Pattern(text).finds(LONG)


@pytest.mark.parametrize(
    ("text", "name", "is_found"),
    [
        ("", "anything", True),
        ("^amq\\.", "amq.gen-1", True),
        ("^amq\\.", "xamq.gen", False),
        ("orders", "my-orders-1", True),
        ("^orders$", "orders", True),
        ("^orders$", "orders2", False),
        ("^(eu|us)\\.orders\\..*$", "us.orders.new", True),
        ("^(eu|us)\\.orders\\..*$", "uk.orders.new", False),
        ("^([a-z]+\\.)*orders$", "a.bc.orders", True),
        ("^([a-z]+\\.)*orders$", "a.B.orders", False),
        ("^(?i:ABC)d$", "abcd", True),
        ("^(?i:ABC)d$", "abcD", False),
        ("^.{3,5}$", "four", True),
        ("^.{3,5}$", "sixsix", False),
        ("\\bnew\\b", "a new one", True),
        ("\\bnew\\b", "renewed", False),
        ("^[^.]+$", "no-dot", True),
        ("^[^.]+$", "a.dot", False),
        ("^\\d+$", "123", True),
        ("^é+$", "éé", True),
    ],
)
def test_a_pattern_finds_what_re_finds(text: str, name: str, is_found: bool) -> None:
    assert (re.search(text, name) is not None) is is_found
    assert Pattern(text).finds(name) is is_found


def test_random_patterns_find_what_re_finds() -> None:
    chooser = random.Random(12)
    atoms = [
        "a",
        "b",
        ".",
        "\\.",
        "[ab]",
        "[^a]",
        "\\d",
        "\\w",
        "\\s",
        "\\b",
        "\\B",
        "^",
        "$",
        "\\A",
        "\\Z",
        "1",
    ]
    repeats = ["", "", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,3}", "*?", "+?", "{2,}"]

    def part(depth: int) -> str:
        text = ""
        for _ in range(chooser.randrange(1, 4)):
            kind = chooser.random()
            if kind < 0.6 or depth > 2:
                text += chooser.choice(atoms)
            elif kind < 0.8:
                text += f"({chooser.choice(['', '?:', '?i:'])}{part(depth + 1)})"
            else:
                text += f"(?:{part(depth + 1)}|{part(depth + 1)})"
            text += chooser.choice(repeats)
        return text

    compared = 0
    while compared < 1000:
        text = chooser.choice(["", "", "", "(?m)", "(?s)"]) + part(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                wanted = re.compile(text)
                ours = Pattern(text)
        except (re.error, UnsupportedPattern):
            continue
        name = "".join(chooser.choice("abAB1 .\n_") for _ in range(chooser.randrange(7)))
        assert ours.finds(name) == (wanted.search(name) is not None), (text, name)
        compared += 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(a)\\1", "back-reference"),
        ("(?=a)b", "look-ahead"),
        ("(?!a)b", "negative look-ahead"),
        ("(?<=a)b", "look-behind"),
        ("(a)?(?(1)b|c)", "condition"),
        ("(", "not a regular expression"),
        ("a{1000}", "too large"),
        ("((((a{9}){9}){9}){9}){9}", "too large"),
        ("(){100000}", "too large"),
        ("a" * (MAX_LENGTH + 1), "characters"),
        ("(" * 900 + ")" * 900, "characters"),
    ],
)
def test_patterns_without_a_linear_match_are_refused(text: str, reason: str) -> None:
    with pytest.raises(UnsupportedPattern, match=reason):
        Pattern(text)
    with pytest.raises(InvalidAmqpPolicy, match="cannot be used"):
        Policy("/", "p", text, {"max-length": 1})


def test_deep_nesting_is_parsed_or_refused() -> None:
    text = "(" * 480 + "a" + ")" * 480
    try:
        assert Pattern(text).finds("a")
    except UnsupportedPattern:
        pass


STORED = [
    {"vhost": "/", "name": "old", "pattern": "(?=a)b", "definition": {"max-length": 1}},
    {"vhost": "/", "name": "slow", "pattern": "^(a+)+$", "definition": {"max-length": 2}},
]


def test_an_unusable_stored_pattern_is_logged_and_matches_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text(json.dumps(STORED))

    policies = Policies(str(tmp_path))

    assert "'old' of vhost '/' applies to nothing" in caplog.text
    assert len(policies.all()) == 2
    assert policies.matching("/", "classic", "ab") is None
    found = policies.matching("/", "classic", "aaa")
    assert found is not None
    assert found.name == "slow"


def test_a_server_starts_with_such_policies_and_answers_400_for_new_ones(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / FILE).write_text(json.dumps(STORED))
    with served(tmp_path / "d") as server, RawHttpClient(server.port) as wire:
        for text, status in (("^(a+)+$", 204), ("(a)\\1", 400), ("(?!a)b", 400), ("a{9999}", 400)):
            body = json.dumps({"pattern": text, "definition": {"max-length": 5}}).encode()
            answer = wire.ask(_put("/api/policies/%2F/new", body))
            assert answer.status in (status, 201 if status == 204 else status), (text, answer.body)
        assert any("'old'" in line for line in server.log)


def _put(path: str, body: bytes) -> bytes:
    from tests.server.raw_http import request_bytes

    return request_bytes("PUT", path, body, {"Content-Type": "application/json"})


# -- patterns with stars


@pytest.mark.parametrize("match", [matches, matches_glob], ids=["policies and rules", "history"])
def test_patterns_with_many_stars_are_not_slow(match: object) -> None:
    pattern = "*a" * 120 + "b"
    assert not match(pattern, "a" * 1000)  # type: ignore[operator]
    assert match("*a" * 120, "a" * 1000)  # type: ignore[operator]
    assert not match("?" * 500 + "*" * 500 + "b", "a" * 1000)  # type: ignore[operator]


def test_permissions_of_rabbitmq_are_read_in_one_pass() -> None:
    assert globs_of("^(a+)+$") is None
    assert globs_of(".*" * 10_000) is not None
    assert globs_of("(" * 10_000) is None
