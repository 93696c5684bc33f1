"""Records as bytes: nothing is lost, whatever the values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openq.engine import record_values
from openq.engine import records as r
from openq.engine.engine import Engine
from openq.errors import InvalidSetting
from openq.journal.format import FRAME
from openq.model import (
    DeadLetterEvent,
    DeliveryOptions,
    Draft,
    Properties,
    QueueSettings,
    _plain_options,
    plain_options,
)
from tests.budget import examples

from .support import PREFIX, Tape, extra_dump

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
times = st.integers(0, 1 << 61)
encodings = st.integers(0, 255)
bodies = st.binary(max_size=40)
# Any code point, lone halves of surrogate pairs too: an attacker sends them, a log must not choke on them.
texts = st.text(st.characters(codec=None), max_size=12)
maybe_text = st.none() | texts

leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=9)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(texts | st.sampled_from(("$bytes", "$dict", "$")), inner, max_size=3)
    ),
    max_leaves=8,
)
attributes = st.dictionaries(texts | st.sampled_from(("$bytes", "$dict")), values, max_size=4)
all_properties = st.binary(max_size=40)
shared_properties = st.builds(Properties, attributes, maybe_text) | st.builds(
    Properties.from_amqp, all_properties, maybe_text
)

deaths = st.builds(DeadLetterEvent, texts, texts, times, u32, texts, texts, texts, u32, times)
extras = st.builds(
    DeliveryOptions,
    priority=st.integers(0, 255),
    group=maybe_text,
    type=maybe_text,
    due_ms=times,
    expires_ms=times,
    dedup=maybe_text,
    unique=maybe_text,
    id=maybe_text | st.just("x" * 100_000),
    count=u32,
    number=u64,
    first_ms=times,
    born_ms=times,
    reason=maybe_text,
    deaths=st.lists(deaths, max_size=3).map(tuple),
    route=st.none() | st.tuples(texts, texts),
)
maybe_info = st.none() | shared_properties
maybe_extra = st.none() | extras
seqs = st.lists(u64, max_size=5)


def tuples(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.tuples(*parts), max_size=4).map(tuple)


def record(kind: int, *rest: st.SearchStrategy[Any]) -> st.SearchStrategy[r.Record]:
    return st.tuples(st.just(kind), times, u32, u64, *rest)


RECORDS = {
    "publish": record(r.PUBLISH, encodings, bodies, maybe_info, maybe_extra),
    "run": st.tuples(
        st.just(r.RUN),
        times,
        u32,
        st.integers(0, 1 << 60),
        encodings,
        st.lists(bodies, min_size=1, max_size=5).map(tuple),
        maybe_info,
        maybe_extra,
    ),
    "route": record(r.ROUTE, encodings, bodies, maybe_info, extras, tuples(u32, u64)),
    "lend": record(r.DELIVER, times, maybe_text, seqs),
    "ack": record(r.ACK, seqs),
    "return": record(r.RETURN, st.integers(1, 3), maybe_text, tuples(u64, times)),
    "extend": record(r.EXTEND, times, seqs),
    "move": record(r.MOVE, st.integers(1, 6), maybe_text, tuples(u64, u32, u64)),
    "remove": record(r.REMOVE, st.integers(1, 4), seqs),
    "purge": record(r.PURGE),
    "edit": record(r.EDIT, times, encodings, bodies, maybe_info, maybe_extra),
    "reschedule": record(r.RESCHEDULE, times),
    "copy": record(r.COPY, times, encodings, bodies, maybe_info, maybe_extra),
    "queue": record(r.QUEUE, texts, st.dictionaries(texts, values, max_size=3), times),
    "unqueue": record(r.UNQUEUE),
    "exchange": record(r.EXCHANGE, st.dictionaries(texts, values, max_size=3)),
    "checkpoint": record(r.CHECKPOINT, st.dictionaries(texts, values, max_size=3)),
    "mark": record(r.MARK, texts, texts, times, times, st.booleans(), times),
    "event": record(r.EVENT, texts, texts, st.dictionaries(texts, values, max_size=3)),
    "schedule": record(r.SCHEDULE, texts, texts, st.dictionaries(texts, values, max_size=3)),
}
WITH_CONTENT = ("publish", "route", "edit", "copy")


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_comes_back_as_it_was(name: str) -> None:
    @given(RECORDS[name])
    @settings(max_examples=examples(40))
    def check(record: r.Record) -> None:
        assert r.decode(r.encode(record)) == record

    check()


@pytest.mark.parametrize("name", WITH_CONTENT)
def test_form_body_and_info_can_be_read_without_the_rest(name: str) -> None:
    @given(RECORDS[name])
    @settings(max_examples=examples(40))
    def check(record: r.Record) -> None:
        start = 5 if name in ("edit", "copy") else 4

        assert r.content(r.encode(record)) == record[start : start + 3]

    check()


@pytest.mark.parametrize("name", [name for name in RECORDS if name != "run"])
def test_the_index_has_a_row_for_each_message_a_record_touches(name: str) -> None:
    @given(RECORDS[name])
    @settings(max_examples=examples(30))
    def check(record: r.Record) -> None:
        data = r.encode(record)
        rows = list(r.ROW.iter_unpack(r.index_rows(data, 4096)))

        touched = r.touched_messages(record)
        assert [(row[2], row[0]) for row in rows if touched] == touched
        for _, time_ms, _, offset, size, kind, *_ in rows:
            assert (time_ms, offset, size, kind) == (record[1], 4096, len(data), record[0])

    check()


@given(RECORDS["run"])
def test_each_message_of_a_run_can_be_read_by_its_own_location(record: r.Record) -> None:
    data = r.encode(record)
    framed = bytes(64) + FRAME.pack(len(data), 0) + data
    count = len(record[5])

    rows = list(r.ROW.iter_unpack(r.index_rows(data, 64)))

    found = []
    for _, time_ms, _, offset, size, kind, *_ in rows:
        assert (FRAME.unpack_from(framed, offset)[0], time_ms, kind) == (size, record[1], r.RUN)
        start = offset + FRAME.size
        found.append(r.content(framed[start : start + size]))
    assert found == [(record[4], body, record[6]) for body in record[5]]
    assert [(row[2], row[0]) for row in rows] == [(record[2], record[3] + i) for i in range(count)]
    assert r.touched_messages(record) == [(record[2], record[3] + i) for i in range(count)]


@given(RECORDS["run"])
def test_a_message_of_a_run_says_all_that_it_would_say_alone(record: r.Record) -> None:
    data = r.encode(record)
    framed = FRAME.pack(len(data), 0) + data

    rows = list(r.ROW.iter_unpack(r.index_rows(data, 0)))

    items = [framed[row[3] + FRAME.size :][: row[4]] for row in rows]
    assert [r.item_content(each) for each in items] == [(record[4], body, *record[6:]) for body in record[5]]


@given(RECORDS["run"])
def test_the_locations_of_a_run_that_is_read_again_are_those_it_was_written_with(record: r.Record) -> None:
    again = r.decode(r.encode(record))

    assert r.run_step(*again[6:]) == r.run_step(*record[6:])


@pytest.mark.parametrize(
    ("written", "record"),
    [
        (
            "02010000070000006300000000000000d204000000000000"
            "02000000040000002400008012016162040000003000008012016364",
            (r.RUN, 1234, 7, 99, 1, (b"ab", b"cd"), None, None),
        ),
        (
            "02010400070000006300000000000000d204000000000000020000000100000003000000"
            "030000002c00008012016105000000370000801201626364",
            (r.RUN, 1234, 7, 99, 1, (b"a", b"bcd"), None, None),
        ),
        (
            "01010200070000006300000000000000d2040000000000001d000000"
            "5b7b226b223a7b22246279746573223a2264673d3d227d7d2c2270225d78",
            (r.PUBLISH, 1234, 7, 99, 1, b"x", Properties({"k": b"v"}, "p"), None),
        ),
    ],
    ids=["run", "run of many sizes", "attributes"],
)
def test_what_earlier_versions_wrote_can_be_read(written: str, record: r.Record) -> None:
    assert r.decode(bytes.fromhex(written)) == record


def test_what_many_messages_share_is_one_object_when_they_are_read_one_by_one() -> None:
    options, properties = plain_options(("amq.topic", "a.b")), Properties.from_amqp(b"\x00\x00", "someone")
    written = [r.encode((r.PUBLISH, 1, 1, seq, 0, b"x", properties, options)) for seq in (1, 2)]

    one, two = (r.decode(data) for data in written)

    assert one[6:] == (properties, options)
    assert one[6] is two[6]
    assert one[7] is two[7]
    assert one[7].is_plain


def test_what_is_shared_is_bounded() -> None:
    for i in range(3_000):
        data = r.encode(
            (
                r.PUBLISH,
                1,
                1,
                1,
                0,
                b"",
                Properties.from_amqp(b"%d" % i),
                DeliveryOptions(type=f"{i}").mark_plain(),
            )
        )
        r.decode(data)
        plain_options(("", f"{i}"))

    assert (
        max(len(record_values._shared_properties), len(record_values._shared_options), len(_plain_options))
        <= 1024
    )


def test_a_copy_of_a_light_extra_can_become_a_heavy_one() -> None:
    light = plain_options(("", "q"))
    written = record_values.pack_options(light)

    heavy = light.copy()
    heavy.count = 3

    assert light.is_plain
    assert not heavy.is_plain
    assert record_values.unpack_options(record_values.pack_options(heavy)) == heavy
    assert record_values.pack_options(light) == written


@given(extras)
def test_a_light_extra_says_nothing_but_how_it_was_published(options: DeliveryOptions) -> None:
    assert options.mark_plain().is_plain == (
        options == DeliveryOptions(route=options.route, type=options.type)
    )


def test_a_publisher_whose_name_cannot_be_written_is_refused() -> None:
    properties = Properties.from_amqp(b"\x00\x00", "x" * 70_000)

    with pytest.raises(InvalidSetting, match="publisher"):
        r.encode((r.PUBLISH, 1, 1, 1, 0, b"", properties, None))


@given(extras)
def test_extra_comes_back_as_it_was(options: DeliveryOptions) -> None:
    assert extra_dump(record_values.unpack_options(record_values.pack_options(options))) == extra_dump(
        options
    )


@given(values)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert record_values.unpack_value(record_values.pack_value(value)) == value


@pytest.mark.parametrize("bad", [object(), {1, 2}, 1j, 10**5000], ids=["object", "set", "complex", "huge"])
def test_a_value_that_cannot_be_written_is_refused_and_nothing_happens(bad: object) -> None:
    tape = Tape()
    engine = Engine(PREFIX, log=tape)
    queue = engine.create_queue("q", QueueSettings(), 1)

    with pytest.raises(InvalidSetting, match="attributes"):
        engine.publish(queue, Draft(b"x", attributes={"a": bad}), 2)

    assert queue.count == 0
    assert engine.next_seq == 1


def test_attributes_nested_too_deep_are_refused_not_written_and_then_unreadable() -> None:
    deep: list[object] = []
    for _ in range(60):
        deep = [deep]
    assert record_values.unpack_value(record_values.pack_value(deep)) == deep

    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(InvalidSetting, match="nested"):
        record_values.pack_value(deep)


def test_a_record_of_an_unknown_kind_says_so() -> None:
    with pytest.raises(ValueError, match="unknown record kind 99"):
        r.decode(r.HEAD.pack(99, 0, 0, 1, 1, 1))
