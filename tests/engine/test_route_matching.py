"""Which bindings match a message: topic patterns and headers."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openq.engine.routing import Binding, Exchange, ExchangeRouter
from openq.errors import InvalidSetting
from tests.budget import examples

from .routers import router_with, topic_with


def headers_match(arguments: Mapping[str, object], headers: Mapping[str, object] | None) -> bool:
    router = router_with(Exchange("h", "headers"))
    router.bind(Binding("h", "q", arguments=arguments))
    return router.route("h", "", headers) == ["q"]


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [""], ["a", ".", " "]),
        ("a", ["a"], ["", "b", "a.", ".a", "a.a", "A"]),
        ("*", ["a", "*", "#", "é"], ["", ".", "a.b"]),
        ("#", ["", ".", "a", "a.b", "...", "*", "#.#"], []),
        ("#.#", ["", "a", "a.b", "a.b.c"], []),
        ("*.#", ["a", "a.b", ".", "..", "a.b.c"], [""]),
        ("#.*", ["a", "a.b", ".", "a.b.c"], [""]),
        ("a.#", ["a", "a.b", "a.", "a.b.c"], ["", "b", "b.a", "ab"]),
        ("#.a", ["a", "b.a", ".a", "a.a", "c.b.a"], ["", "a.b", "ba"]),
        (
            "a.#.b",
            ["a.b", "a.b.b", "a.x.b", "a.x.y.b", "a..b", "a.b.a.b"],
            ["a", "b", "ab", "a.b.c", "b.a.b"],
        ),
        ("a.*.b", ["a.x.b", "a..b", "a.*.b"], ["a.b", "a.x.y.b"]),
        ("#.a.#", ["a", "x.a", "a.x", "x.a.x", "a.a", "x.y.a.z"], ["", "x", "x.y", "xa"]),
        ("#.a.#.b.#", ["a.b", "x.a.y.b.z", "b.a.b", "a.a.b.b"], ["a", "b", "b.a"]),
        ("#.*.#", ["a", "a.b", "."], [""]),
        (".", ["."], ["", "a", ".."]),
        ("..", [".."], ["", ".", "a.."]),
        ("a..b", ["a..b"], ["a.b", "a.x.b", "a...b"]),
        ("*.*", [".", "a.b", "a.", ".b"], ["", "a", "a.b.c"]),
        ("a*", ["a*"], ["a", "ab", "a.b"]),
        ("a#.b", ["a#.b"], ["a.b", "ax.b"]),
        ("straße.*.日本", ["straße.x.日本", "straße..日本"], ["strasse.x.日本", "straße.日本"]),
        ("é", ["é"], ["e\u0301", "É"]),
    ],
)
def test_a_topic_pattern_matches_word_by_word(pattern: str, matching: list[str], others: list[str]) -> None:
    router = topic_with(pattern)

    assert [key for key in matching + others if router.route("t", key)] == matching


def test_topic_answers_come_in_the_order_of_binding_not_of_the_trie() -> None:
    router = topic_with("a.b", "#", "a.*", "*.b", "a.#", "#.b")

    assert router.route("t", "a.b") == ["a.b", "#", "a.*", "*.b", "a.#", "#.b"]

    router.unbind(Binding("t", "#", key="#"))
    router.bind(Binding("t", "#", key="#"))
    assert router.route("t", "a.b") == ["a.b", "a.*", "*.b", "a.#", "#.b", "#"]


def test_many_wildcards_do_not_make_a_long_key_expensive() -> None:
    # Trying one way after another would take longer than the universe is old.
    router = topic_with(".".join(["#", "a"] * 60), ".".join(["#"] * 100 + ["b"]), ".".join(["#", "*"] * 60))

    assert router.route("t", ".".join(["a"] * 200 + ["c"])) == [".".join(["#", "*"] * 60)]


def matches(pattern: list[str], key: list[str]) -> bool:
    """The rules as one would say them."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(matches(pattern[1:], key[skip:]) for skip in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and matches(pattern[1:], key[1:])


def words(text: str) -> list[str]:
    return text.split(".") if text else []


topic_keys = st.lists(st.sampled_from(["a", "b", "", "*", "#", "é"]), max_size=5).map(".".join)


@settings(max_examples=examples(150))
@given(
    bound=st.lists(topic_keys, max_size=12),
    unbound=st.lists(topic_keys, max_size=6),
    keys=st.lists(topic_keys, min_size=1, max_size=6),
)
def test_the_trie_agrees_with_the_rules(bound: list[str], unbound: list[str], keys: list[str]) -> None:
    router = topic_with(*bound)
    for key in keys:
        router.route("t", key)  # so that answers from before the change are known
    for pattern in unbound:
        router.unbind(Binding("t", pattern, key=pattern))

    remaining = [pattern for pattern in dict.fromkeys(bound) if pattern not in unbound]
    for key in keys * 2:
        assert router.route("t", key) == [p for p in remaining if matches(words(p), words(key))]


# Headers


@pytest.mark.parametrize(
    ("arguments", "headers", "expected"),
    [
        # all, which is also the default
        ({"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 0}, True),
        ({"a": 1, "b": "x"}, {"a": 1}, False),
        ({"a": 1, "b": "x"}, {"a": 1, "b": "y"}, False),
        ({"x-match": "all", "a": 1}, {"a": 1}, True),
        ({"x-match": "all", "a": 1}, None, False),
        # any
        ({"x-match": "any", "a": 1, "b": 2}, {"b": 2}, True),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2, "b": 1}, False),
        ({"x-match": "any", "a": 1, "b": 2}, {}, False),
        # nothing asked: all of it is there, any of it is not
        ({}, {}, True),
        ({}, None, True),
        ({"x-match": "all"}, {"a": 1}, True),
        ({"x-match": "any"}, {"a": 1}, False),
        ({"x-match": "all-with-x"}, {"a": 1}, True),
        ({"x-match": "any-with-x"}, {"a": 1}, False),
        # x- does not count, unless asked for; x-match never does
        ({"x-a": 1, "b": 2}, {"b": 2}, True),
        ({"x-a": 1}, {}, True),
        ({"x-match": "any", "x-a": 1, "b": 2}, {"x-a": 1}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2}, False),
        ({"x-match": "all-with-x", "x-a": 1, "b": 2}, {"b": 2, "x-a": 1}, True),
        ({"x-match": "any-with-x", "x-a": 1, "b": 2}, {"x-a": 1}, True),
        ({"x-match": "any-with-x"}, {"x-match": "any-with-x"}, False),
        # None asks that the header is there
        ({"a": None}, {"a": 1}, True),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {"a": {1, 2}}, True),
        ({"a": None}, {"b": 1}, False),
        ({"a": 1}, {"a": None}, False),
        # values
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": True}, {"a": True}, True),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": "True"}, {"a": True}, False),
        ({"a": "é"}, {"a": "é".encode()}, True),
        ({"a": b"\xff"}, {"a": bytearray(b"\xff")}, True),
        ({"a": "\ud800"}, {"a": "\ud800"}, True),
        ({"a": [1, {"b": None}]}, {"a": (1, {"b": None})}, True),
        ({"a": [1, {"b": None}]}, {"a": [1, {"b": 0}]}, False),
        ({"a": 1}, {"a": {1}}, False),
        ({"A": 1}, {"a": 1}, False),
    ],
)
def test_headers_are_matched(
    arguments: dict[str, object], headers: dict[str, object] | None, expected: bool
) -> None:
    assert headers_match(arguments, headers) is expected


@pytest.mark.parametrize("how", ["some", "", "ALL", 1, None, ["all"]])
def test_another_way_to_match_is_refused_and_leaves_nothing_behind(how: object) -> None:
    router = ExchangeRouter()

    with pytest.raises(InvalidSetting, match="x-match is all, any, all-with-x or any-with-x"):
        router.bind(Binding("amq.headers", "q", arguments={"x-match": how}))

    assert router.bindings() == router.bindings(destination="q") == []
    assert router.route("amq.headers", "") == []
    assert router.bind(Binding("amq.direct", "q", arguments={"x-match": how}))  # where it has no meaning


def test_headers_are_read_for_each_message_anew() -> None:
    router = router_with(Exchange("d", "direct"), Exchange("h", "headers"), Exchange("h2", "headers"))
    router.bind(Binding("d", "h", to_exchange=True, key="k"))
    router.bind(Binding("h", "h2", to_exchange=True))
    router.bind(Binding("h", "q1", arguments={"a": 1}))
    router.bind(Binding("h2", "q2", arguments={"a": 2}))

    assert router.route("d", "k", {"a": 1}) == ["q1"]
    assert router.route("d", "k", {"a": 2}) == ["q2"]
    assert router.route("d", "k") == []

    router.unbind(Binding("h", "q1", arguments={"a": 1}))
    assert router.route("d", "k", {"a": 1}) == []
