"""Records as bytes: nothing is lost, whatever the values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openq.engine import records as r
from openq.engine.engine import Engine
from openq.errors import InvalidSetting
from openq.model import Draft, Extra, Info, QueueSettings
from openq.storage.segment import FRAME

from .support import PREFIX, Tape, examples, extra_dump

u32 = st.integers(0, (1 << 32) - 1)
u64 = st.integers(0, (1 << 64) - 1)
times = st.integers(0, 1 << 61)
forms = st.integers(0, 255)
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
infos = st.builds(Info, attributes, maybe_text)

deaths = st.tuples(texts, texts, times, u32)
extras = st.builds(
    Extra,
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
maybe_info = st.none() | infos
maybe_extra = st.none() | extras
seqs = st.lists(u64, max_size=5)


def tuples(*parts: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(st.tuples(*parts), max_size=4).map(tuple)


def record(kind: int, *rest: st.SearchStrategy[Any]) -> st.SearchStrategy[r.Record]:
    return st.tuples(st.just(kind), times, u32, u64, *rest)


RECORDS = {
    "publish": record(r.PUBLISH, forms, bodies, maybe_info, maybe_extra),
    "run": st.tuples(
        st.just(r.RUN),
        times,
        u32,
        st.integers(0, 1 << 60),
        forms,
        st.lists(bodies, min_size=1, max_size=5).map(tuple),
    ),
    "route": record(r.ROUTE, forms, bodies, maybe_info, extras, tuples(u32, u64)),
    "lend": record(r.LEND, times, maybe_text, seqs),
    "ack": record(r.ACK, seqs),
    "return": record(r.RETURN, st.integers(1, 3), maybe_text, tuples(u64, times)),
    "extend": record(r.EXTEND, times, seqs),
    "move": record(r.MOVE, st.integers(1, 6), maybe_text, tuples(u64, u32, u64)),
    "remove": record(r.REMOVE, st.integers(1, 4), seqs),
    "purge": record(r.PURGE),
    "edit": record(r.EDIT, times, forms, bodies, maybe_info, maybe_extra),
    "reschedule": record(r.RESCHEDULE, times),
    "copy": record(r.COPY, times, forms, bodies, maybe_info, maybe_extra),
    "queue": record(r.QUEUE, texts, st.dictionaries(texts, values, max_size=3), times),
    "unqueue": record(r.UNQUEUE),
    "exchange": record(r.EXCHANGE, st.dictionaries(texts, values, max_size=3)),
    "checkpoint": record(r.CHECKPOINT, st.dictionaries(texts, values, max_size=3)),
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

        touched = r.touched(record)
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
    assert found == [(record[4], body, None) for body in record[5]]
    assert [(row[2], row[0]) for row in rows] == [(record[2], record[3] + i) for i in range(count)]
    assert r.touched(record) == [(record[2], record[3] + i) for i in range(count)]


@given(extras)
def test_extra_comes_back_as_it_was(extra: Extra) -> None:
    assert extra_dump(r.unpack_extra(r.pack_extra(extra))) == extra_dump(extra)


@given(values)
def test_a_value_comes_back_as_it_was(value: object) -> None:
    assert r.unpack_value(r.pack_value(value)) == value


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
    assert r.unpack_value(r.pack_value(deep)) == deep

    for _ in range(2_000):
        deep = [deep]
    with pytest.raises(InvalidSetting, match="nested"):
        r.pack_value(deep)


def test_a_record_of_an_unknown_kind_says_so() -> None:
    with pytest.raises(ValueError, match="unknown record kind 99"):
        r.decode(r.HEAD.pack(99, 0, 0, 1, 1, 1))
