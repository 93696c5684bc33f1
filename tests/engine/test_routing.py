from __future__ import annotations

import json
from enum import IntEnum, StrEnum
from itertools import pairwise
from math import inf, isnan, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openq.engine.routing import Binding, Exchange, ExchangeRouter, Removed
from openq.errors import ExchangeInUse, ExchangeNotFound, InvalidSetting

from .routers import router_with, topic_with

# Exchanges


def test_the_standard_exchanges_are_there_from_the_start() -> None:
    router = ExchangeRouter()

    assert [(x.name, x.kind) for x in router.exchanges()] == [
        ("", "direct"),
        ("amq.direct", "direct"),
        ("amq.fanout", "fanout"),
        ("amq.topic", "topic"),
        ("amq.headers", "headers"),
        ("amq.match", "headers"),
        ("openq.events", "topic"),
    ]
    assert all(x.durable for x in router.exchanges())


def test_declaring_the_same_again_changes_nothing() -> None:
    router = ExchangeRouter()

    assert router.declare(Exchange("logs", "fanout", arguments={"a": [1], "b": 2}))
    assert not router.declare(Exchange("logs", "fanout", arguments={"b": 2, "a": [1]}))
    assert not router.declare(Exchange("amq.direct", "direct"))
    assert not router.declare(Exchange("", "direct"))

    assert len(router.exchanges()) == 8


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"kind": "topic"}, "kind='fanout', not 'topic'"),
        ({"durable": False}, "durable=True, not False"),
        ({"auto_delete": True}, "auto_delete=False, not True"),
        ({"internal": True}, "internal=False, not True"),
        ({"alternate": "rest"}, "alternate=None, not 'rest'"),
        ({"arguments": {"a": True}}, "arguments={'a': 1}, not {'a': True}"),
        ({"kind": "topic", "durable": False}, "kind='fanout', not 'topic', durable=True, not False"),
    ],
)
def test_declaring_otherwise_says_what_differs(other: dict[str, Any], text: str) -> None:
    was: dict[str, Any] = {"kind": "fanout", "arguments": {"a": 1}}
    router = router_with(Exchange("logs", **was))

    with pytest.raises(InvalidSetting) as error:
        router.declare(Exchange("logs", **was | other))

    assert str(error.value) == f"exchange 'logs' exists with {text}"
    assert router.get("logs") == Exchange("logs", **was)


def test_reserved_names_cannot_be_taken() -> None:
    with pytest.raises(InvalidSetting, match="reserved"):
        ExchangeRouter().declare(Exchange("amq.mine", "direct"))


def test_an_unknown_kind_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(InvalidSetting, match="direct, fanout, topic, headers, not 'x-random'"):
        Exchange("x", "x-random")  # type: ignore[arg-type]


def test_an_exchange_is_found_by_name() -> None:
    router = router_with(Exchange("logs", "fanout"))

    assert router.get("logs") == Exchange("logs", "fanout")
    assert "logs" in router
    assert "other" not in router
    with pytest.raises(ExchangeNotFound):
        router.get("other")


def test_a_deleted_exchange_takes_the_bindings_from_it_and_to_it_along() -> None:
    router = router_with(Exchange("a", "fanout"), Exchange("b", "fanout"))
    into, out = Binding("a", "b", to_exchange=True), Binding("b", "q")
    stays = Binding("a", "b")  # to a queue that is also called b
    for binding in (into, out, stays):
        router.bind(binding)

    removed = router.delete("b")

    assert removed.exchanges == [Exchange("b", "fanout")]
    assert removed.bindings == [out, into]
    assert router.bindings() == [stays]
    with pytest.raises(ExchangeNotFound):
        router.delete("b")


def test_deleting_if_unused_refuses_while_there_are_bindings_from_it() -> None:
    router = router_with(Exchange("a", "fanout"), Exchange("b", "fanout"))
    router.bind(Binding("a", "b", to_exchange=True))

    with pytest.raises(ExchangeInUse):
        router.delete("a", if_unused=True)
    router.delete("b", if_unused=True)  # bindings to it are no use of it
    router.delete("a", if_unused=True)

    assert "a" not in router


@pytest.mark.parametrize("name", ["", "amq.direct", "amq.match"])
def test_the_standard_exchanges_cannot_be_deleted(name: str) -> None:
    with pytest.raises(InvalidSetting, match="cannot be deleted"):
        ExchangeRouter().delete(name)


# Bindings


def test_binding_twice_is_one_binding() -> None:
    router = ExchangeRouter()
    binding = Binding("amq.direct", "q", key="k", arguments={"a": {"b": [1, None]}})

    assert router.bind(binding)
    assert not router.bind(Binding("amq.direct", "q", key="k", arguments={"a": {"b": (1, None)}}))

    assert router.bindings() == [binding]
    assert router.unbind(binding)
    assert not router.unbind(binding)
    assert router.bindings() == []


def test_bindings_that_differ_only_in_arguments_are_two() -> None:
    values = [None, 1, 1.0, True, "1", b"1", [1], {"1": 1}, nan, inf, -inf, "inf", {"float": "inf"}, [[1]]]
    router = ExchangeRouter()

    for value in values:
        assert router.bind(Binding("amq.direct", "q", key="k", arguments={"a": value}))

    assert len(router.bindings()) == len(values)
    assert router.route("amq.direct", "k") == ["q"]
    for value in values:
        assert router.unbind(Binding("amq.direct", "q", key="k", arguments={"a": value}))
    assert router.route("amq.direct", "k") == []


def test_arguments_are_our_own_copy() -> None:
    inner = [1]
    binding = Binding("amq.direct", "q", arguments={"a": inner})
    inner.append(2)

    assert binding.arguments == {"a": [1]}
    assert binding == Binding("amq.direct", "q", arguments={"a": [1]})


def test_an_enum_counts_as_its_plain_value() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Size(IntEnum):
        BIG = 3

    binding = Binding("amq.match", "q", arguments={"c": Colour.RED, "s": Size.BIG})

    assert binding == Binding("amq.match", "q", arguments={"c": "red", "s": 3})
    assert [type(value) for value in binding.arguments.values()] == [str, int]
    router = router_with(Exchange("h", "headers"))
    router.bind(Binding("h", "q", arguments={"c": "red", "s": 3}))
    assert router.route("h", "", {"c": Colour.RED, "s": Size.BIG}) == ["q"]


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": {1, 2}}, "not set"),
        ({"a": [object()]}, "not object"),
        ({1: "a"}, "named by text, not by 1"),
        ({"a": {b"b": 1}}, "named by text, not by b'b'"),
        ({"a": 2**64}, "64 bits"),
        ({"a": -(2**63) - 1}, "64 bits"),
        ({"a": nested(33)}, "32 deep"),
    ],
)
def test_arguments_that_could_not_be_kept_are_refused_at_once(arguments: Any, text: str) -> None:
    with pytest.raises(InvalidSetting, match=text):
        Binding("amq.direct", "q", arguments=arguments)
    with pytest.raises(InvalidSetting, match=text):
        Exchange("x", "direct", arguments=arguments)


def test_binding_needs_its_exchanges() -> None:
    router = router_with(Exchange("a", "direct"))

    with pytest.raises(ExchangeNotFound, match="'none'"):
        router.bind(Binding("none", "q"))
    with pytest.raises(ExchangeNotFound, match="'none'"):
        router.bind(Binding("a", "none", to_exchange=True))

    assert not router.unbind(Binding("none", "q"))
    assert router.bindings() == []


@pytest.mark.parametrize("binding", [Binding("", "q", key="k"), Binding("amq.direct", "", to_exchange=True)])
def test_the_default_exchange_takes_no_bindings(binding: Binding) -> None:
    with pytest.raises(InvalidSetting, match="takes no bindings"):
        ExchangeRouter().bind(binding)


def test_bindings_are_listed_by_either_end_in_the_order_of_binding() -> None:
    router = router_with(Exchange("a", "direct"), Exchange("b", "topic"), Exchange("c", "fanout"))
    one, two = Binding("b", "c", to_exchange=True, key="1"), Binding("a", "c", key="2")
    three, four = Binding("b", "c", key="3"), Binding("b", "d", key="4")
    for binding in (one, two, three, four):
        router.bind(binding)

    assert router.bindings() == [one, two, three, four]
    assert router.bindings(source="b") == [one, three, four]
    assert router.bindings(destination="c") == [one, two, three]
    assert router.bindings(source="b", destination="c") == [one, three]
    assert router.bindings(source="none") == []
    assert router.bindings(destination="none") == []


# Routing


def test_the_default_exchange_leads_to_the_queue_named_by_the_key() -> None:
    assert ExchangeRouter().route("", "orders") == ["orders"]
    assert ExchangeRouter().route("", "") == [""]


def test_publishing_to_an_exchange_that_is_not_there_fails() -> None:
    with pytest.raises(ExchangeNotFound, match="'none'"):
        ExchangeRouter().route("none", "k")


def test_a_direct_exchange_compares_the_whole_key() -> None:
    router = router_with(Exchange("d", "direct"))
    for queue, key in [("q1", "a"), ("q2", "b"), ("q3", "a"), ("q4", "a.*"), ("q5", "")]:
        router.bind(Binding("d", queue, key=key))

    assert router.route("d", "a") == ["q1", "q3"]
    assert router.route("d", "b") == ["q2"]
    assert router.route("d", "a.b") == []
    assert router.route("d", "") == ["q5"]

    router.unbind(Binding("d", "q1", key="a"))
    assert router.route("d", "a") == ["q3"]


def test_a_fanout_exchange_ignores_the_key() -> None:
    router = router_with(Exchange("f", "fanout"))
    for queue in ("q2", "q1", "q3"):
        router.bind(Binding("f", queue, key=queue))

    assert router.route("f", "anything") == ["q2", "q1", "q3"]


def test_a_queue_gets_a_message_once_however_many_bindings_match() -> None:
    router = topic_with("#", "a.*")
    router.bind(Binding("t", "#", key="a.b"))

    assert router.route("t", "a.b") == ["#", "a.*"]


def test_an_answer_is_the_callers_own_to_change() -> None:
    router = topic_with("a")

    router.route("t", "a").append("x")
    router.route("t", "a").append("y")

    assert router.route("t", "a") == ["a"]


# Exchange to exchange


def test_a_message_passes_from_exchange_to_exchange_with_the_same_key() -> None:
    router = router_with(Exchange("t", "topic"), Exchange("d", "direct", internal=True))
    router.bind(Binding("t", "d", to_exchange=True, key="a.#"))
    router.bind(Binding("d", "far", key="a.b"))
    router.bind(Binding("d", "never", key="a.#"))
    router.bind(Binding("t", "near", key="#"))

    assert router.route("t", "a.b") == ["near", "far"]
    assert router.route("t", "b") == ["near"]


def test_cycles_end_and_diamonds_deliver_once() -> None:
    router = router_with(*(Exchange(name, "fanout") for name in "abcd"))
    for edge in ("ab", "ac", "bd", "cd", "da", "dd"):
        router.bind(Binding(edge[0], edge[1], to_exchange=True))
    for name in "dcba":
        router.bind(Binding(name, f"q{name}"))
        router.bind(Binding(name, "shared"))

    assert router.route("a", "") == ["qa", "shared", "qb", "qc", "qd"]
    assert router.route("d", "") == ["qd", "shared", "qa", "qb", "qc"]


def test_a_very_long_chain_of_exchanges_is_no_problem() -> None:
    names = [str(n) for n in range(3_000)]
    router = router_with(*(Exchange(name, "fanout", auto_delete=True) for name in names))
    for source, destination in pairwise(names):
        router.bind(Binding(source, destination, to_exchange=True))
    router.bind(Binding(names[-1], "q"))

    assert router.route("0", "") == ["q"]
    assert len(router.drop_queue("q").exchanges) == 3_000


@given(
    edges=st.lists(st.tuples(st.sampled_from("abcde"), st.sampled_from("abcde"), st.booleans()), max_size=20)
)
def test_exactly_the_queues_that_can_be_reached_are_reached(edges: list[tuple[str, str, bool]]) -> None:
    router = router_with(*(Exchange(name, "fanout") for name in "abcde"))
    for source, destination, to_exchange in edges:
        router.bind(Binding(source, destination, to_exchange))

    reached = {"a"}
    for _ in range(5):
        reached |= {d for s, d, to_exchange in edges if to_exchange and s in reached}
    queues = router.route("a", "")

    assert len(queues) == len(set(queues))
    assert set(queues) == {d for s, d, to_exchange in edges if not to_exchange and s in reached}


# Alternates


def test_what_nothing_matches_goes_to_the_alternate_and_on_to_the_next() -> None:
    router = router_with(
        Exchange("a", "direct", alternate="b"),
        Exchange("b", "direct", alternate="c"),
        Exchange("c", "fanout"),
    )
    router.bind(Binding("a", "qa", key="a"))
    router.bind(Binding("b", "qb", key="b"))
    router.bind(Binding("c", "qc"))

    assert router.route("a", "a") == ["qa"]
    assert router.route("a", "b") == ["qb"]
    assert router.route("a", "x") == ["qc"]


def test_alternates_in_a_circle_end() -> None:
    router = router_with(
        Exchange("a", "direct", alternate="b"),
        Exchange("b", "direct", alternate="a"),
        Exchange("c", "direct", alternate="c"),
    )

    assert router.route("a", "x") == []
    assert router.route("c", "x") == []


def test_the_default_exchange_can_be_an_alternate() -> None:
    router = router_with(Exchange("a", "direct", alternate=""))

    assert router.route("a", "orders") == ["orders"]


def test_an_alternate_counts_from_when_it_is_declared() -> None:
    router = router_with(Exchange("a", "direct", alternate="late"))
    assert router.route("a", "x") == []

    router.declare(Exchange("late", "fanout", alternate=""))
    assert router.route("a", "x") == ["x"]
    router.bind(Binding("late", "q"))
    assert router.route("a", "x") == ["q"]
    router.delete("late")
    assert router.route("a", "x") == []


def test_a_match_that_leads_nowhere_is_still_a_match() -> None:
    router = router_with(
        Exchange("a", "fanout", alternate="rest"), Exchange("empty", "fanout"), Exchange("rest", "fanout")
    )
    router.bind(Binding("rest", "q"))
    router.bind(Binding("a", "empty", to_exchange=True))

    assert router.route("a", "") == []


def test_each_exchange_on_the_way_has_its_own_alternate() -> None:
    router = router_with(
        Exchange("a", "fanout"), Exchange("b", "direct", alternate="rest"), Exchange("rest", "fanout")
    )
    router.bind(Binding("rest", "left-over"))
    router.bind(Binding("a", "b", to_exchange=True))
    router.bind(Binding("a", "q"))

    assert router.route("a", "x") == ["q", "left-over"]


# Going away


def test_a_deleted_queue_takes_all_its_bindings_along() -> None:
    router = topic_with("a", "b")
    other = Binding("amq.fanout", "a")
    router.bind(other)

    removed = router.drop_queue("a")

    assert removed.bindings == [Binding("t", "a", key="a"), other]
    assert removed.exchanges == []
    assert router.bindings() == [Binding("t", "b", key="b")]
    assert router.route("t", "a") == []
    assert router.drop_queue("a") == Removed()


def test_an_auto_delete_exchange_goes_with_its_last_binding() -> None:
    fleeting = Exchange("x", "direct", auto_delete=True)
    router = router_with(fleeting)
    assert "x" in router  # one that never had a binding waits for its first

    router.bind(Binding("x", "q", key="1"))
    router.bind(Binding("x", "q", key="2"))
    router.unbind(Binding("x", "q", key="1"))
    assert "x" in router
    router.unbind(Binding("x", "q", key="2"))
    assert "x" not in router

    assert router.declare(fleeting)
    router.bind(Binding("x", "q"))
    assert router.drop_queue("q").exchanges == [fleeting]


def test_auto_delete_goes_up_the_chain() -> None:
    first, second = Exchange("1", "fanout", auto_delete=True), Exchange("2", "fanout", auto_delete=True)
    router = router_with(Exchange("0", "fanout"), first, second)
    up = Binding("0", "1", to_exchange=True)
    middle, down = Binding("1", "2", to_exchange=True), Binding("2", "q")
    for binding in (up, middle, down):
        router.bind(binding)

    removed = router.drop_queue("q")

    assert removed.bindings == [down, middle, up]
    assert removed.exchanges == [second, first]
    assert "0" in router


def test_an_auto_delete_exchange_bound_to_itself_can_be_deleted() -> None:
    router = router_with(Exchange("x", "fanout", auto_delete=True))
    loop = Binding("x", "x", to_exchange=True)
    router.bind(loop)

    assert router.delete("x").bindings == [loop]
    assert router.bindings() == []


# Remembered routes


def test_routes_are_remembered_within_bounds() -> None:
    router = ExchangeRouter(cache_bytes=10_000)
    router.bind(Binding("amq.topic", "#", key="#"))
    router.bind(Binding("amq.topic", "*.7", key="*.7"))

    for n in range(500):
        expected = ["#", "*.7"] if n == 7 else ["#"]
        assert router.route("amq.topic", f"key.{n}") == expected
        assert router.route("amq.topic", f"key.{n}") == expected

    assert 0 < len(router._known["amq.topic"]) < 50


# Snapshots


def restored(router: ExchangeRouter) -> ExchangeRouter:
    copy = ExchangeRouter()
    copy.declare(Exchange("forgotten", "fanout"))
    copy.bind(Binding("forgotten", "q"))
    copy.load(json.loads(json.dumps(router.dump(), allow_nan=False)))
    return copy


def test_a_snapshot_brings_everything_back_in_the_same_order() -> None:
    router = router_with(
        Exchange("b", "topic", durable=False, auto_delete=True),
        Exchange("a", "fanout", internal=True, alternate="b", arguments={"x": {"y": [b"\x00\xff", None]}}),
    )
    router.bind(Binding("b", "q2", key="#"))
    router.bind(Binding("amq.match", "q", arguments={"x-match": "any", "n": 1.0, "m": 1}))
    router.bind(Binding("b", "a", to_exchange=True, key="é.*"))
    router.bind(Binding("b", "q1", key="#"))

    copy = restored(router)

    assert copy.exchanges() == router.exchanges()
    assert copy.bindings() == router.bindings()
    assert copy.dump() == router.dump()
    assert copy.get("a").arguments == {"x": {"y": [b"\x00\xff", None]}}
    assert copy.route("b", "x") == ["q2", "q1"]
    assert copy.unbind(Binding("amq.match", "q", arguments={"x-match": "any", "n": 1.0, "m": 1}))


def test_a_fresh_router_has_an_empty_snapshot() -> None:
    assert ExchangeRouter().dump() == {"exchanges": [], "bindings": []}
    assert restored(ExchangeRouter()).exchanges() == ExchangeRouter().exchanges()


def test_numbers_that_json_lacks_come_back() -> None:
    router = ExchangeRouter()
    router.bind(Binding("amq.fanout", "q", arguments={"a": nan, "b": inf, "c": -inf, "d": -0.0}))

    [binding] = restored(router).bindings()

    assert isinstance(binding.arguments["a"], float)
    assert isnan(binding.arguments["a"])
    assert [binding.arguments[name] for name in "bc"] == [inf, -inf]
    assert str(binding.arguments["d"]) == "-0.0"
    assert router.bindings() == [binding]


arguments = st.dictionaries(
    st.text(max_size=4) | st.sampled_from(["bytes", "map", "float"]),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.floats(allow_nan=False)
        | st.text(max_size=4)
        | st.binary(max_size=4),
        lambda values: (
            st.lists(values, max_size=3)
            | st.dictionaries(st.sampled_from(["bytes", "map", "float", "", "a"]), values, max_size=3)
        ),
        max_leaves=6,
    ),
    max_size=3,
)


@given(values=st.lists(arguments, max_size=4))
def test_any_arguments_survive_a_snapshot_exactly(values: list[dict[str, object]]) -> None:
    router = ExchangeRouter()
    for number, value in enumerate(values):
        router.declare(Exchange(str(number), "fanout", arguments=value))
        router.bind(Binding("amq.fanout", str(number), arguments=value))

    copy = restored(router)

    assert copy.exchanges() == router.exchanges()
    assert copy.bindings() == router.bindings()
    assert copy.dump() == router.dump()
    assert [binding.arguments for binding in copy.bindings()] == values


# The default exchanges of accounts


def test_the_default_exchange_of_an_account_leads_to_its_own_queues() -> None:
    router = ExchangeRouter()

    assert router.route("@v/", "orders") == ["@v/orders"]
    assert router.route("@v/", "@w/orders") == ["@v/@w/orders"]
    assert router.route("", "@v/orders") == ["@/@v/orders"]


def test_the_default_exchange_of_an_account_is_always_there() -> None:
    router = ExchangeRouter()

    assert "@v/" in router
    assert router.get("@v/") == Exchange("@v/", "direct")
    assert router.declare(Exchange("@v/", "direct")) is False
    assert [each.name for each in router.exchanges() if each.name.startswith("@")] == []
    with pytest.raises(InvalidSetting, match="exists with kind"):
        router.declare(Exchange("@v/", "fanout"))
    with pytest.raises(InvalidSetting, match="always there"):
        router.delete("@v/")


def test_the_default_exchange_of_an_account_takes_no_bindings() -> None:
    router = router_with(Exchange("x", "fanout"))

    for binding in (Binding("@v/", "q"), Binding("x", "@v/", to_exchange=True)):
        with pytest.raises(InvalidSetting, match="takes no bindings"):
            router.bind(binding)
    assert router.bindings(source="@v/") == []


def test_the_default_exchange_of_an_account_can_be_an_alternate() -> None:
    router = router_with(Exchange("@v/x", "direct", alternate="@v/"))

    assert router.route("@v/x", "orders") == ["@v/orders"]


@pytest.mark.parametrize("name", ["@/", "@", "/", "x/", "@v", "@v/x", "@v/x/"])
def test_other_names_are_no_default_exchanges(name: str) -> None:
    router = ExchangeRouter()

    assert name not in router
    with pytest.raises(ExchangeNotFound):
        router.route(name, "k")


def test_unbinding_returns_what_was_removed_with_the_binding() -> None:
    chain = [Exchange("a", "fanout", auto_delete=True), Exchange("b", "fanout", auto_delete=True)]
    router = router_with(*chain)
    first, last = Binding("a", "b", to_exchange=True), Binding("b", "q")
    router.bind(first)
    router.bind(last)

    removed = router.unbind(last)

    assert (removed.bindings, [each.name for each in removed.exchanges]) == ([last, first], ["b", "a"])
    assert not router.unbind(last)
