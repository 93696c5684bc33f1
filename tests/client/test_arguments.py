"""An argument that cannot be is an `InvalidSetting`, in both libraries, and nothing has changed."""

import asyncio
import json
import math
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from openq import Consumer, InvalidSetting, Message, OpenQ, VirtualClock, aio
from tests.client.helpers import Make, bodies, take

pytest_plugins = "tests.client.fixtures"

HALF = "half a pair: \ud800"


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *[(verb, (None,), {}) for verb in ("why", "timeline", "trace", "status", "cancel", "ack")],
    ("edit", (None, "body"), {}),
    ("reschedule", (None,), {"delay": 1}),
    ("reschedule", ("id",), {"at": datetime.min}),
    ("move", ("id", None), {}),
    ("move", (None, "other"), {}),
    ("redrive", (5,), {}),
    *[("redrive", (), {"rate": rate}) for rate in ("x", math.inf, math.nan, 0, -1, True)],
    ("redrive", (), {"progress": 5}),
    ("replay_from", (0,), {"to": 5}),
    ("replay_from", (None,), {}),
    ("replay_from", (HALF,), {}),
    ("search", (5,), {}),
    ("search", (HALF,), {}),
    *[("search", (), {name: 5}) for name in ("json", "attributes", "ids", "reason", "message_type", "state")],
    *[("search", (), {"ids": ids}) for ids in ("one", [5])],
    *[("search", (), {"json": {5: 5}}), ("search", (), {"limit": -1})],
    *[("search", (), {name: "x"}) for name in ("limit", "budget")],
    ("publish_many", (5,), {}),
    ("ack_many", (5,), {}),
    ("ack_many", ([5],), {}),
    ("load", (5,), {}),
    ("save", (b"x",), {}),
    ("save", ("",), {}),
    ("save", ("\0",), {}),
    ("peek_many", (-1,), {}),
    ("peek_many", ("x",), {}),
    ("publish", ("x",), {"at": datetime.min}),
    *[("receive", (0,), {"consumer": value}) for value in (5, b"x", HALF)],
    *[("receive", (0,), {"types": value}) for value in ("one", 5, [5], [HALF])],
    *[("receive_many", (1, 0), {"consumer": 5}), ("receive_many", (1, 0), {"types": "one"})],
    *[("nack", ("id",), {"reason": value}) for value in (5, HALF)],
    *[("reject", ("id",), {"reason": value}) for value in (5, HALF)],
    *[
        ("publish", ("x",), {name: value})
        for name in ("publisher", "group", "message_type", "dedup_id", "unique_key", "id")
        for value in (5, HALF)
    ],
    *[("publish", ("x",), {"attributes": value}) for value in ({"a": HALF}, {HALF: 1}, {"a": [HALF]}, 5)],
    ("publish", ("x",), {"attributes": {"a": nested(200)}}),
    ("publish", ("x",), {"attributes": {"a": 10**5000}}),
    ("publish", (nested(501),), {}),
    ("publish", (nested(100_000),), {}),
    *[("publish", ("x",), {name: 1e12}) for name in ("delay", "ttl", "at")],
    ("publish", ("x",), {"at": "9999-12-31T23:59:59-10:00"}),
    ("receive", (0,), {"visibility_timeout": 1e12}),
    ("extend", ("id", 1e12), {}),
]


@pytest.mark.parametrize(("verb", "args", "options"), CALLS)
def test_a_wrong_argument_is_refused(
    make: Make, verb: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    queue = make()
    queue.publish("there")

    with pytest.raises(InvalidSetting):
        getattr(queue, verb)(*args, **options)

    assert bodies(queue) == ["there"]
    assert queue.stats().in_flight == queue.stats().delayed == 0


@pytest.mark.parametrize(("verb", "args", "options"), CALLS)
def test_a_wrong_argument_is_refused_by_asyncio_too(
    verb: str, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    async def main() -> None:
        async with aio.OpenQ("jobs", storage="memory") as queue:
            await queue.publish("there")
            with pytest.raises(InvalidSetting):
                await getattr(queue, verb)(*args, **options)
            assert [message.body for message in queue.queue] == ["there"]

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        *[{"path": path} for path in (5, b"x", "", "\0")],
        *[{"maxsize": value} for value in ("x", 1.5, None)],
        {"broker": 5},
        {"clock": 5},
        {"dlq": 5},
        {"dlq": HALF},
        {"name": None},
        {"name": HALF},
        {"name": b"x"},
        {"dead_letter_expired": "yes"},
        {"message_ttl": 1e12},
        {"visibility_timeout": 1e12},
    ],
)
def test_a_queue_that_cannot_be_is_not_opened(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        OpenQ(**options)
    with pytest.raises(InvalidSetting):
        aio.OpenQ(**options)


@pytest.mark.parametrize(
    "act",
    [
        lambda queue: queue.subscribe(5),
        lambda queue: queue.processing(consumer=5),
        lambda queue: queue.processing(types="one"),
        lambda queue: queue.get(timeout="x"),
        lambda queue: queue.put("x", timeout="x"),
        lambda queue: Consumer(queue, types="one"),
        lambda queue: Consumer(queue, batch=0),
        lambda queue: Consumer(queue, 5),
        lambda queue: Consumer(queue, idle_timeout="x"),
        lambda queue: Consumer(queue, idle_timeout=-1),
        lambda queue: Consumer(queue, visibility_timeout="x"),
        lambda queue: Message.from_json(5),  # type: ignore[arg-type]
        lambda queue: Message.from_json("[" * 100_000),
    ],
)
def test_other_wrong_arguments_are_refused(make: Make, act: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidSetting):
        act(make())


def test_the_last_times_that_can_be_published_can_be_saved(make: Make, tmp_path: Path) -> None:
    queue = make(dlq="dead")
    queue.publish("at", at="9999-12-31T23:59:59Z", ttl=200e9)
    queue.publish("delay", delay=200e9, ttl=200e9)
    queue.publish(nested(500))
    queue.publish("attributes", attributes={"a": nested(60), "b": {"$base64": "no"}, "c": {"$dict": b"x"}})
    assert take(queue, visibility_timeout=200e9).deadline is not None

    assert queue.save(tmp_path / "all") == 4

    copy = make("copy")
    assert copy.load(tmp_path / "all") == 4
    assert {message.body if isinstance(message.body, str) else "deep" for message in copy.messages} == {
        *("at", "delay", "attributes", "deep")
    }
    [kept] = [message for message in copy.messages if message.body == "attributes"]
    assert kept.attributes == {"a": nested(60), "b": {"$base64": "no"}, "c": {"$dict": b"x"}}


def test_a_loaded_message_expires_when_it_would_have(make: Make, tmp_path: Path, clock: VirtualClock) -> None:
    queue = make()
    queue.publish("x", delay=100, ttl=50)
    queue.save(tmp_path / "all")
    queue.purge()
    queue.load(tmp_path / "all")

    clock.advance(149)
    assert bodies(queue) == ["x"]
    clock.advance(2)
    assert queue.messages == []


@pytest.mark.parametrize(
    "change",
    [
        {"reason": 5},
        {"reason": HALF},
        {"unique_key": ["x"]},
        {"publisher": 5},
        {"publisher": ""},
        {"deaths": 5},
        {"deaths": [5]},
        {"deaths": [{}]},
        {"deaths": [{"queue": 5, "reason": "r", "time": "2026-01-01T00:00:00Z", "receive_count": 1}]},
        {"deaths": [{"queue": "q", "reason": None, "time": "2026-01-01T00:00:00Z", "receive_count": 1}]},
        {"deaths": [{"queue": "q", "reason": "r", "time": "yesterday", "receive_count": 1}]},
        {"deaths": [{"queue": "q", "reason": "r", "time": "2026-01-01T00:00:00Z", "receive_count": -1}]},
        {"receive_count": 1 << 40},
        {"receive_count": -1},
        {"timestamp": "1066-10-14T09:00:00Z"},
        {"timestamp": "0001-01-01T00:00:00+10:00"},
        {"due_at": None},
        {"due_at": 1e300},
        {"expires_at": "1066-10-14T09:00:00Z"},
        {"id": HALF},
        {"id": ""},
        {"group": HALF},
        {"payload": HALF},
        {"payload": math.nan},
        {"payload_encoding": ["base64"]},
        {"attributes": {"a": HALF}},
        {"priority": 256},
    ],
)
def test_one_bad_line_of_a_backup_keeps_all_of_it_out(
    make: Make, tmp_path: Path, change: dict[str, Any]
) -> None:
    queue = make()
    queue.publish_many(["a", "b"])
    file = tmp_path / "backup.json"
    queue.save(file)
    queue.purge()
    head, first, second = file.read_text().splitlines()
    file.write_text("\n".join([head, first, json.dumps({**json.loads(second), **change})]) + "\n")

    with pytest.raises(InvalidSetting, match="line 3"):
        queue.load(file)

    assert queue.messages == []
    assert queue.stats().counters["published"] == 2


def test_a_backup_that_is_nested_too_deeply_keeps_out(make: Make, tmp_path: Path) -> None:
    queue = make()
    file = tmp_path / "backup.json"
    queue.publish("a")
    queue.save(file)
    queue.purge()
    for depth in (501, 100_000):
        text = file.read_text()
        (tmp_path / "deep").write_text(text.replace('"a"', "[" * depth + "]" * depth))
        with pytest.raises(InvalidSetting):
            queue.load(tmp_path / "deep")
    assert queue.messages == []


def test_a_body_too_large_for_the_queue_keeps_the_backup_out(make: Make, tmp_path: Path) -> None:
    queue, small = make(), make("small", max_body=3)
    queue.publish_many(["a", "long"])
    queue.save(tmp_path / "backup")

    with pytest.raises(InvalidSetting):
        small.load(tmp_path / "backup")

    assert small.messages == []


def test_a_save_goes_through_a_link_and_leaves_it(make: Make, tmp_path: Path) -> None:
    queue = make()
    queue.publish("x")
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)

    queue.save(link)

    assert link.is_symlink()
    assert "openq_backup" in target.read_text()


def test_saving_onto_something_other_than_a_file_is_refused(make: Make, tmp_path: Path) -> None:
    queue = make()
    queue.publish("x")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for name in ("pipe", "link", "folder"):
        with pytest.raises(InvalidSetting):
            queue.save(tmp_path / name)

    assert (tmp_path / "pipe").is_fifo()
    assert list((tmp_path / "folder").iterdir()) == []


def test_expired_messages_are_dead_lettered_where_configured(
    make: Make, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = make("dead")
    by_keyword = make("jobs", dlq=dead, dead_letter_expired=True)
    monkeypatch.setenv("OPENQ_DEAD_LETTER_EXPIRED", "yes")
    by_environment = make("others", dlq=dead)
    for queue in (by_keyword, by_environment):
        queue.publish(queue.name, ttl=1)

    clock.advance(2)

    assert sorted(bodies(dead)) == ["jobs", "others"]


def test_a_search_says_whether_it_found_everything(make: Make) -> None:
    queue = make()
    queue.publish_many(["a", "a", "b"])

    assert queue.search("a").complete
    assert not queue.search("a", limit=1).complete
    assert [message.body for message in queue.search("a", limit=1)] == ["a"]
