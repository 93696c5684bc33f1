"""Key-values in the engine: versions, conditions, TTLs, order, memory; and the same state after a restart."""

from __future__ import annotations

import pytest

from openq.engine.engine import Engine
from openq.engine.key_values import (
    KEY_COST,
    MAX_BATCH,
    MAX_KEY_BYTES,
    MAX_VALUE_BYTES,
    PAGE_BYTES,
    Bucket,
    KeyValueStore,
    KvEntry,
    KvPut,
)
from openq.engine.rebuild import rebuild
from openq.engine.records import KV_DELETE, KV_PUT, decode, encode, index_rows
from openq.engine.replay import apply, checkpoint
from openq.errors import DiskFull, InvalidSetting, KvConflict, KvFull
from tests.engine.support import PREFIX, Tape, from_snapshot, through_snapshot


def engine_on(tape: Tape) -> Engine:
    engine = Engine(PREFIX, log=tape)
    engine.key_values.log = tape
    return engine


def put(engine: Engine, key: str, value: bytes, now_ms: int = 0, **options: int) -> int:
    [result] = engine.key_values.put_many("b", [KvPut(key, value, **options)], now_ms)
    if not isinstance(result, int):
        raise result
    return result


def keys(store: KeyValueStore, now_ms: int = 0, prefix: str = "", after: str = "", limit: int = 100) -> str:
    return "".join(entry.key for entry in store.list("b", prefix, after, limit, now_ms))


def test_versions_grow_over_all_keys_and_none_is_used_twice() -> None:
    engine = Engine(PREFIX)

    first, second = put(engine, "a", b"1"), put(engine, "b", b"2")
    engine.key_values.delete_many("b", ["a"], None, 0)
    third = put(engine, "a", b"3")

    assert first < second < third


def test_a_put_with_a_version_is_refused_unless_the_key_has_it() -> None:
    engine = Engine(PREFIX)
    first = put(engine, "a", b"1", version=0)

    for wrong in (0, first + 1):
        with pytest.raises(KvConflict) as refused:
            put(engine, "a", b"2", version=wrong)
        assert (refused.value.bucket, refused.value.key, refused.value.current) == ("b", "a", first)
    with pytest.raises(KvConflict) as refused:
        put(engine, "other", b"2", version=first)
    assert refused.value.current == 0

    assert put(engine, "a", b"2", version=first) > first


def test_the_second_put_of_a_key_in_a_batch_sees_the_first() -> None:
    store = Engine(PREFIX).key_values

    created, refused, replaced = store.put_many(
        "b", [KvPut("a", b"1", version=0), KvPut("a", b"2", version=0), KvPut("a", b"3")], 0
    )

    assert isinstance(refused, KvConflict)
    assert refused.current == created
    assert store.get("b", "a", 0) == KvEntry("a", b"3", replaced, 0, 0)  # type: ignore[arg-type]
    assert (store.count, store.bytes) == (1, 2)


def test_an_expired_value_is_never_seen_and_its_key_can_be_created() -> None:
    engine = Engine(PREFIX)
    put(engine, "a", b"1", now_ms=1_000, ttl_ms=500)

    assert engine.key_values.get("b", "a", 1_499) is not None
    assert keys(engine.key_values, 1_500) == ""
    assert engine.key_values.get("b", "a", 1_500) is None
    put(engine, "a", b"2", now_ms=1_500, version=0)


@pytest.mark.parametrize("ttl_ms", [1, 900, 70_000, 86_400_000])
def test_an_expired_value_leaves_memory_by_itself(ttl_ms: int) -> None:
    engine = Engine(PREFIX)
    changes: list[tuple[str, str]] = []
    put(engine, "a", b"1", now_ms=5_000, ttl_ms=ttl_ms)
    engine.key_values.observer = lambda bucket, key: changes.append((bucket, key))

    engine.advance(5_000 + ttl_ms - 1)
    assert engine.key_values.count == 1
    engine.advance(5_000 + ttl_ms)

    assert (engine.key_values.count, engine.key_values.bytes, engine.key_values.buckets) == (0, 0, {})
    assert changes == [("b", "a")]


def test_a_later_put_moves_the_deadline_or_removes_it() -> None:
    engine = Engine(PREFIX)
    for key in "abcd":
        put(engine, key, b"1", ttl_ms=100_000)
    put(engine, "a", b"2", now_ms=10, ttl_ms=300_000)
    put(engine, "b", b"2", now_ms=10)
    put(engine, "c", b"2", now_ms=10, ttl_ms=20)

    engine.advance(30)
    assert keys(engine.key_values, 30) == "abd"
    engine.advance(100_000)
    assert keys(engine.key_values, 100_000) == "ab"
    put(engine, "b", b"3", now_ms=100_000, ttl_ms=1_000)
    engine.advance(101_000)
    assert list(engine.key_values.buckets["b"].values) == ["a"]
    engine.advance(300_010)
    assert engine.key_values.count == 0


def test_keys_with_a_ttl_that_are_deleted_early_leave_no_timers_behind() -> None:
    engine = Engine(PREFIX)
    put(engine, "stays", b"", ttl_ms=86_400_000)
    for i in range(30_000):
        put(engine, f"lock-{i}", b"", ttl_ms=3_600_000)
        engine.key_values.delete_many("b", [f"lock-{i}"], None, 0)
        put(engine, f"short-{i}", b"", ttl_ms=100)
        engine.key_values.delete_many("b", [f"short-{i}"], None, 0)
        if i % 1_000 == 0:
            engine.advance(1)

    assert engine.timers.size < 10_000
    assert sum(map(len, engine.key_values.buckets["b"].far.values())) == 1


def test_a_listing_is_sorted_by_utf8_and_read_in_pages() -> None:
    engine = Engine(PREFIX)
    for key in ("é", "b", "a", "bb", "𝄞", "ba", "c"):
        put(engine, key, b"")
    engine.key_values.delete_many("b", ["a", "b"], None, 0)
    put(engine, "b", b"")
    store = engine.key_values

    assert keys(store) == "bbabbcé𝄞"
    assert keys(store, prefix="b") == "bbabb"
    assert keys(store, limit=2) == "bba"
    assert keys(store, after="ba", limit=2) == "bbc"
    assert keys(store, prefix="b", after="bb") == ""
    assert keys(store, prefix="b", after="a") == "bbabb"
    assert store.list("unknown", "", "", 10, 0) == []


def test_a_page_ends_after_some_megabytes_of_values() -> None:
    engine = Engine(PREFIX)
    for i in range(8):
        put(engine, str(i), bytes(MAX_VALUE_BYTES))

    assert keys(engine.key_values) == "".join(map(str, range(PAGE_BYTES // MAX_VALUE_BYTES)))
    assert keys(engine.key_values, after="3") == "4567"


@pytest.mark.parametrize(
    "wrong",
    [
        KvPut("", b""),
        KvPut("k" * (MAX_KEY_BYTES + 1), b""),
        KvPut("é" * (MAX_KEY_BYTES // 2 + 1), b""),
        KvPut("\ud800", b""),
        KvPut(b"k", b""),  # type: ignore[arg-type]
        KvPut("k", "text"),  # type: ignore[arg-type]
        KvPut("k", bytes(MAX_VALUE_BYTES + 1)),
        KvPut("k", b"", ttl_ms=0),
        KvPut("k", b"", ttl_ms=-1),
        KvPut("k", b"", ttl_ms=1.5),  # type: ignore[arg-type]
        KvPut("k", b"", version=-1),
        KvPut("k", b"", version=True),
    ],
)
def test_a_wrong_put_is_refused_and_the_others_are_stored(wrong: KvPut) -> None:
    store = Engine(PREFIX).key_values

    before, refused, after = store.put_many("b", [KvPut("a", b"1"), wrong, KvPut("z", b"2")], 0)

    assert isinstance(refused, InvalidSetting)
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert keys(store) == "az"


def test_limits_of_a_batch_and_of_names() -> None:
    store = Engine(PREFIX).key_values

    with pytest.raises(InvalidSetting):
        store.put_many("b", [KvPut("k", b"")] * (MAX_BATCH + 1), 0)
    with pytest.raises(InvalidSetting):
        store.put_many("b", [KvPut("k", bytes(MAX_VALUE_BYTES))] * 17, 0)
    with pytest.raises(InvalidSetting):
        store.put_many("", [KvPut("k", b"")], 0)
    with pytest.raises(InvalidSetting):
        store.delete_many("b", ["a", "b"], [1], 0)
    longest = "k" * MAX_KEY_BYTES
    assert isinstance(store.put_many("b", [KvPut(longest, bytes(MAX_VALUE_BYTES))], 0)[0], int)


def test_memory_is_bounded_and_a_delete_or_a_shorter_value_makes_room() -> None:
    engine = Engine(PREFIX)
    store = engine.key_values
    store.max_bytes = 2 * (KEY_COST + 101)
    put(engine, "a", bytes(100))
    put(engine, "b", bytes(100))

    with pytest.raises(KvFull, match="max_kv_bytes"):
        put(engine, "c", b"")
    with pytest.raises(KvFull):
        put(engine, "a", bytes(101))
    put(engine, "a", bytes(100))
    put(engine, "b", bytes(10))
    put(engine, "a", bytes(190))
    store.delete_many("b", ["a"], None, 0)
    put(engine, "c", bytes(100))


def test_a_delete_with_a_version_needs_that_version() -> None:
    engine = Engine(PREFIX)
    version = put(engine, "a", b"1")
    store = engine.key_values

    assert store.delete_many("b", ["a", "x"], [version + 1, 1], 0) == [False, False]
    assert store.delete_many("b", ["a", "a"], [version, 0], 0) == [True, False]
    assert store.buckets == {}


def test_a_refused_record_leaves_everything_as_it_was() -> None:
    tape = Tape()
    engine = engine_on(tape)
    put(engine, "a", b"1")
    tape.refuse_from = 1

    with pytest.raises(DiskFull):
        put(engine, "a", b"2")
    with pytest.raises(DiskFull):
        engine.key_values.delete_many("b", ["a"], None, 0)

    assert [entry.value for entry in engine.key_values.list("b", "", "", 9, 0)] == [b"1"]


def test_a_batch_is_one_record_whose_bytes_say_everything() -> None:
    tape = Tape()
    engine = engine_on(tape)
    engine.key_values.put_many("b", [KvPut("é", b"\0\xff", 5), KvPut("k", b"", None, 0)], 7)
    engine.key_values.delete_many("b", ["é", "k"], None, 8)

    found = [decode(data) for _, data in tape.records]
    assert found == [
        (KV_PUT, 7, 0, 0, "b", (("é", 1, 7, 12, b"\0\xff"), ("k", 2, 7, 0, b""))),
        (KV_DELETE, 8, 0, 0, "b", ("é", "k")),
    ]
    assert [encode(record) for record in found] == [data for _, data in tape.records]
    assert all(len(index_rows(data, 64)) == 32 for _, data in tape.records)


def test_values_survive_a_replay_and_a_snapshot() -> None:
    tape = Tape()
    engine = engine_on(tape)
    put(engine, "a", b"1", now_ms=1, ttl_ms=100_000)
    put(engine, "a", b"2", now_ms=2, ttl_ms=100_000)
    put(engine, "gone", b"", now_ms=2)
    put(engine, "b", b"3", now_ms=3)
    engine.key_values.delete_many("b", ["gone"], None, 3)
    restored = from_snapshot(through_snapshot(engine, 4))
    for _, key, stored in restored.key_values.unloaded():
        stored.value = next(row[4] for row in decode(tape.read(stored.location))[5] if row[0] == key)

    for found in (tape.rebuilt(), restored):
        store = found.key_values
        assert store.list("b", "", "", 9, 4) == engine.key_values.list("b", "", "", 9, 4)
        assert (store.count, store.bytes) == (engine.key_values.count, engine.key_values.bytes)
        assert put(found, "new", b"") == engine.key_values.next_version
        found.advance(100_002)
        assert keys(store, 100_002) == "bnew"


def test_a_checkpoint_keeps_versions_from_being_used_again() -> None:
    engine = Engine(PREFIX)
    last = [put(engine, "a", b"") for _ in range(5)][-1]
    engine.key_values.delete_many("b", ["a"], None, 0)
    restarted = Engine(PREFIX)

    apply(restarted, decode(encode(checkpoint(engine, 0))), 0)

    assert put(restarted, "a", b"") > last


def test_copied_values_keep_version_and_times_and_replaced_ones_are_not_copied() -> None:
    tape = Tape()
    engine = engine_on(tape)
    put(engine, "a", b"1", now_ms=1, ttl_ms=1_000)
    put(engine, "b", b"1", now_ms=1)
    [(_, frozen)] = engine.key_values.freeze()
    put(engine, "b", b"2", now_ms=2)

    assert engine.key_values.copy_forward("b", frozen, 0, 3) == 1

    assert decode(tape.records[-1][1]) == (KV_PUT, 3, 0, 0, "b", (("a", 1, 1, 1_001, b"1"),))
    assert engine.key_values.buckets["b"].values["a"].location == tape.records[-1][0]
    assert tape.rebuilt().key_values.list("b", "", "", 9, 3) == engine.key_values.list("b", "", "", 9, 3)


def test_after_an_interrupt_counts_and_order_are_worked_out_again() -> None:
    engine = Engine(PREFIX)
    for key in "cab":
        put(engine, key, b"12", ttl_ms=100_000)
    store = engine.key_values
    bucket = store.buckets["b"]
    bucket.values.pop("a")  # as a delete that was cut off
    store.buckets["empty"] = Bucket("empty")

    rebuild(engine)

    assert (keys(store), store.count, store.bytes, bucket.bytes) == ("bc", 2, 6, 6)
    assert list(store.buckets) == ["b"]
    engine.advance(100_000)
    assert store.count == 0
