"""Key-values: one contract, in memory, on disk and behind a server; tests/redis plays it on Redis too."""

from __future__ import annotations

import threading

import pytest

from openq import KvConflict, KvEntry, KvPut, OpenQ, VirtualClock
from openq.broker.kv import MAX_KEY_BYTES, MAX_VALUE_BYTES
from openq.errors import Closed, InvalidSetting
from tests.client.helpers import Make, ended, in_thread

pytest_plugins = "tests.client.fixtures"


def test_a_value_comes_back_with_its_version_and_times(make: Make, clock: VirtualClock) -> None:
    results = make().kv("results")
    now_ms = clock.now_ms()

    version = results.put("job-1", b"\x00\xffdone")
    entry = results.get("job-1")

    assert entry == KvEntry("job-1", b"\x00\xffdone", version, now_ms, 0)
    assert results.get("job-2") is None
    assert version > 0


def test_text_is_stored_as_utf8(make: Make) -> None:
    results = make().kv("results")

    results.put("é𝄞", "grün")

    assert results.get_many(["é𝄞", "x"]) == [results.get("é𝄞"), None]
    assert results.get("é𝄞").value.decode() == "grün"  # type: ignore[union-attr]


def test_versions_grow_and_are_not_used_again_after_a_delete(make: Make) -> None:
    results = make().kv("results")
    versions = [results.put("k", b"1"), results.put("k", b"2")]
    assert results.delete("k") is True
    assert results.delete("k") is False
    versions.append(results.put("k", b"3"))
    assert results.create("k", b"4") is False
    results.delete("k")
    assert results.create("k", b"5") is True
    entry = results.get("k")
    assert entry is not None
    versions.append(entry.version)

    assert versions == sorted(set(versions))


def test_only_one_of_many_creates_a_key(make: Make) -> None:
    locks = make().kv("locks")
    created: list[bool] = []
    threads = [in_thread(lambda: created.append(locks.create("lock", b"me", ttl=30))) for _ in range(8)]

    assert ended(*threads)
    assert sorted(created) == [False] * 7 + [True]


def test_a_put_with_another_version_is_refused(make: Make) -> None:
    results = make().kv("results")
    version = results.put("k", b"1")

    for wrong in (0, version + 7):
        with pytest.raises(KvConflict) as refused:
            results.put("k", b"2", version=wrong)
        facts = (refused.value.bucket, refused.value.key, refused.value.current)
        assert facts == ("results", "k", version)
    with pytest.raises(KvConflict) as refused:
        results.put("missing", b"2", version=version)
    assert refused.value.current == 0
    assert results.delete("k", version=version + 7) is False

    newer = results.put("k", b"2", version=version)
    assert newer > version
    assert results.delete("k", version=newer) is True


def test_many_values_are_put_read_and_deleted_at_once(make: Make) -> None:
    results = make().kv("results")
    taken = results.put("b", b"taken")

    first, conflict, third = results.put_many(
        [KvPut("a", b"1"), KvPut("b", b"2", version=0), KvPut("c", b"3", ttl_ms=60_000)]
    )
    assert isinstance(conflict, KvConflict)
    assert conflict.current == taken
    assert isinstance(first, int)
    assert isinstance(third, int)
    assert [entry and entry.value for entry in results.get_many(list("abcd"))] == [b"1", b"taken", b"3", None]
    assert all(isinstance(each, int) for each in results.put_many({"a": b"x", "d": b"y"}, ttl=60))
    assert results.delete_many(["a", "b", "x"]) == 2
    assert [entry.key for entry in results.list()] == ["c", "d"]


def test_buckets_are_apart(make: Make) -> None:
    queue = make()
    queue.kv("one").put("k", b"1")
    queue.kv("two").put("k", b"22")

    assert [entry.value for entry in queue.kv("one").list()] == [b"1"]
    queue.kv("one").delete("k")
    assert queue.kv("two").get("k") is not None
    [bucket] = queue.broker.kv.buckets()
    assert (bucket.name, bucket.count, bucket.bytes) == ("two", 1, 3)


def test_a_listing_is_by_key_and_complete_over_many_pages(make: Make) -> None:
    results = make().kv("results")
    names = [f"{kind}/{i:05d}" for kind in ("a", "b") for i in range(5_000)]
    results.put_many({name: name for name in reversed(names)})
    results.put("é", b"")
    results.put("𝄞", b"")
    results.put("z", b"")

    assert [entry.key for entry in results.list()] == [*names, "z", "é", "𝄞"]
    assert [entry.key for entry in results.list("b/")] == names[5_000:]
    assert [entry.value.decode() for entry in results.list("b/0", limit=1_500)] == names[5_000:6_500]
    assert results.list("c") == []
    assert results.list(limit=0) == []


def test_large_values_are_listed_in_several_pages(make: Make) -> None:
    results = make().kv("results")
    for i in range(7):
        results.put(f"k{i}", bytes([i]) * MAX_VALUE_BYTES)

    assert [entry.value[:1] for entry in results.list()] == [bytes([i]) for i in range(7)]
    assert [len(entry.value) for entry in results.get_many([f"k{i}" for i in range(7)]) if entry] == [
        MAX_VALUE_BYTES
    ] * 7


def test_a_value_ends_with_its_ttl(make: Make, clock: VirtualClock) -> None:
    results = make().kv("results")
    results.put("k", b"1", ttl=10)
    results.put("stays", b"1", ttl=10)
    results.put("stays", b"2")
    results.put("longer", b"1", ttl=10)
    results.put("longer", b"2", ttl=100_000)
    entry = results.get("k")
    assert entry is not None
    assert entry.expires_ms == clock.now_ms() + 10_000

    clock.advance(9.999)
    assert results.get("k") is not None
    clock.advance(0.001)
    assert results.get("k") is None
    assert results.get_many(["k", "stays"])[0] is None
    assert [entry.key for entry in results.list()] == ["longer", "stays"]
    assert results.delete("k") is False
    assert results.create("k", b"2", ttl=0.5) is True
    clock.advance(100_000)
    assert [entry.key for entry in results.list()] == ["stays"]


def test_a_wait_returns_what_is_there(make: Make) -> None:
    results = make().kv("results")
    version = results.put("k", b"1")

    assert results.wait("k", timeout=0).value == b"1"  # type: ignore[union-attr]
    assert results.wait("k", timeout=0, version=version) is None
    assert results.wait("k", timeout=0.01, version=version) is None
    assert results.wait("other", timeout=0) is None


def test_a_put_wakes_the_threads_that_wait_for_it(make: Make) -> None:
    queue = make()
    results = queue.kv("results")
    version = results.put("k", b"1")
    results.put("other", b"1")
    seen: list[bytes] = []
    began = threading.Barrier(4)

    def wait() -> None:
        began.wait()
        entry = results.wait("k", timeout=60, version=version)
        assert entry is not None
        seen.append(entry.value)

    threads = [in_thread(wait) for _ in range(3)]
    began.wait()
    results.put("other", b"2")
    results.delete("k")
    results.put("k", b"2")

    assert ended(*threads)
    assert seen == [b"2"] * 3


def test_closing_the_queue_ends_a_wait(make: Make) -> None:
    queue = make()
    results = queue.kv("results")
    answers: list[object] = []
    began = threading.Event()

    def wait() -> None:
        began.set()
        try:
            answers.append(results.wait("k", timeout=60))
        except Closed:
            answers.append(None)

    thread = in_thread(wait)
    began.wait()
    queue.close()

    assert ended(thread)
    assert answers == [None]
    with pytest.raises(Closed):
        queue.kv("results").get("k")


@pytest.mark.parametrize(
    ("key", "value", "options"),
    [
        ("", b"", {}),
        ("k" * (MAX_KEY_BYTES + 1), b"", {}),
        ("é" * (MAX_KEY_BYTES // 2 + 1), b"", {}),
        ("\ud800", b"", {}),
        (7, b"", {}),
        (b"k", b"", {}),
        ("k", 7, {}),
        ("k", {"a": 1}, {}),
        ("k", None, {}),
        ("k", "\ud800", {}),
        ("k", bytes(MAX_VALUE_BYTES + 1), {}),
        ("k", b"", {"ttl": 0}),
        ("k", b"", {"ttl": -1}),
        ("k", b"", {"ttl": float("nan")}),
        ("k", b"", {"ttl": "10"}),
        ("k", b"", {"version": -1}),
        ("k", b"", {"version": "1"}),
        ("k", b"", {"version": True}),
    ],
)
def test_wrong_arguments_are_refused(make: Make, key: object, value: object, options: object) -> None:
    results = make().kv("results")

    with pytest.raises(InvalidSetting):
        results.put(key, value, **options)  # type: ignore
    assert results.list() == []


def test_wrong_names_and_arguments_of_other_calls_are_refused(make: Make) -> None:
    queue = make()
    for bucket in ("", "a\n", "b" * 256, 7):
        with pytest.raises(InvalidSetting):
            queue.kv(bucket)  # type: ignore[arg-type]
    results = queue.kv("results")
    with pytest.raises(InvalidSetting):
        results.get("")
    with pytest.raises(InvalidSetting):
        results.get_many("k" * 600 for _ in range(2))
    with pytest.raises(InvalidSetting):
        results.wait("k", timeout="1")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting):
        results.wait("k", 0, version=-1)
    with pytest.raises(InvalidSetting):
        results.put_many(["k"])  # type: ignore[list-item]
    with pytest.raises(InvalidSetting):
        results.list(limit=-1)


def test_keys_of_any_letters_and_the_longest_are_kept(make: Make) -> None:
    results = make().kv("a/b?c d%20")
    names = ["/", "..", "a/b", "%2F", "?x=1", "#", " ", "\n", "\0", "é" * (MAX_KEY_BYTES // 2), "+"]

    for name in names:
        results.put(name, name)

    for name in names:
        assert results.get(name).value.decode() == name  # type: ignore[union-attr]
        assert results.wait(name, timeout=0) is not None
    assert [entry.key for entry in results.list()] == sorted(names)
    assert [results.delete(name) for name in names] == [True] * len(names)


def test_a_batch_with_a_wrong_value_stores_the_others(make: Make) -> None:
    results = make().kv("results")

    with pytest.raises(InvalidSetting):
        results.put_many([KvPut("a", b"1"), KvPut("b", b"", ttl_ms=-5), KvPut("c", b"3")])

    assert [entry.key for entry in results.list()] == ["a", "c"]


def test_values_on_disk_are_there_after_a_restart(tmp_path: object, clock: VirtualClock) -> None:
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:  # type: ignore[arg-type]
        version = queue.kv("results").put("k", b"1", ttl=100)
        last = queue.kv("results").put("gone", b"1")
        queue.kv("results").delete("gone")
    with OpenQ("jobs", path=tmp_path, clock=clock) as queue:  # type: ignore[arg-type]
        entry = queue.kv("results").get("k")
        assert entry == KvEntry("k", b"1", version, clock.now_ms(), clock.now_ms() + 100_000)
        assert queue.kv("results").put("gone", b"2") > last
        clock.advance(100)
        assert [each.key for each in queue.kv("results").list()] == ["gone"]
