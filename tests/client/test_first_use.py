"""Small mistakes, and what the library says to them: what is wrong and what to do, in the caller's words."""

import asyncio
import dataclasses
import enum
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from openq import CannotOpen, InvalidSetting, JournalFailed, Message, OpenQ, Producer, QueueExists, aio
from openq.local.broker import LocalBroker
from openq.model import QueueSettings
from tests.client.helpers import Make, take

pytest_plugins = "tests.client.fixtures"

ROOT = Path(__file__).parent.parent.parent


# -- keywords -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "publish",
    [
        lambda queue: queue.publish("x", dely=3),
        lambda queue: queue.enqueue("x", dely=3),
        lambda queue: queue.publishMsg("x", dely=3),
        lambda queue: Producer(queue).publish_msg("x", dely=3),
        lambda queue: asyncio.run(aio.OpenQ("jobs").publish("x", dely=3)),  # type: ignore[call-arg]
    ],
)
def test_a_keyword_that_is_not_one_is_answered_with_the_one_that_was_meant(
    publish: Callable[[OpenQ], object],
) -> None:
    with OpenQ("jobs") as queue, pytest.raises(TypeError) as refused:
        publish(queue)

    text = "publish() got an unexpected keyword argument 'dely'; did you mean 'delay'?"
    assert str(refused.value) == text


@pytest.mark.parametrize("kind", [OpenQ, aio.OpenQ])
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("visibility_timout", "visibility_timeout"), ("pth", "path"), ("max_recieves", "max_receives")],
)
def test_the_constructor_does_the_same(kind: Any, wrong: str, meant: str) -> None:
    with pytest.raises(TypeError, match=rf"OpenQ\(\) got .* {wrong!r}; did you mean {meant!r}\?"):
        kind("jobs", **{wrong: 3})


def test_a_keyword_like_none_is_answered_with_all() -> None:
    with (
        OpenQ("jobs") as queue,
        pytest.raises(TypeError, match=r"'colour'\. It takes at, attributes, dedup_id"),
    ):
        queue.publish("x", colour="red")  # type: ignore[call-arg]


def test_no_verb_names_an_inner_function(make: Make) -> None:
    queue = make()
    for name in dir(OpenQ):
        verb = getattr(OpenQ, name)
        if name.startswith("_") or not callable(verb) or name in ("close", "on_msg_received"):
            continue
        with pytest.raises(TypeError) as refused:
            getattr(queue, name)(no_such_keyword=1)
        assert "unexpected keyword argument 'no_such_keyword'" in str(refused.value) or "missing" in str(
            refused.value
        ), name
        assert "make_draft" not in str(refused.value)
        assert "._" not in str(refused.value)


# -- units ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"visibility_timeout": -1}, "visibility_timeout must be a number of seconds, 0 or more, not -1"),
        ({"retention": float("nan")}, "retention must be a number of seconds, 0 or more, not nan"),
        ({"retry": {"base": -1}}, "retry['base'] must be a number of seconds, 0 or more, not -1"),
    ],
)
def test_an_error_names_a_setting_as_it_was_given(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        OpenQ("jobs", **wrong)

    assert str(refused.value) == text


def test_no_error_speaks_of_milliseconds() -> None:
    with pytest.raises(InvalidSetting) as refused:
        QueueSettings(visibility_ms=-500)
    assert str(refused.value).startswith("visibility_timeout must be from 0 to ")
    assert str(refused.value).endswith(" seconds, not -0.5 seconds")
    broker = LocalBroker()
    broker.declare("jobs", QueueSettings(dead_letter="dead"))
    with pytest.raises(QueueExists) as exists:
        broker.declare("jobs", QueueSettings(visibility_ms=500, retry=openq_retry("none")))
    assert "visibility_timeout is 30 seconds, not 0.5 seconds, dlq is 'dead', not None" in str(exists.value)
    assert "retry is 'default', not 'none'" in str(exists.value)


def openq_retry(kind: str) -> Any:
    from openq import RetryPolicy

    return RetryPolicy(kind)


# -- places ---------------------------------------------------------------------------------------


def test_a_path_that_is_a_file_is_called_one(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a queue")

    for path in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "data"):
        with pytest.raises(CannotOpen) as refused:
            OpenQ("jobs", path=path)
        assert f"{tmp_path / 'notes.txt'} is a file; give a directory" in str(refused.value)
        assert "check the disk" not in str(refused.value)
        assert isinstance(refused.value, JournalFailed)
    assert (tmp_path / "notes.txt").read_text() == "not a queue"


def test_a_path_that_cannot_be_made_is_named() -> None:
    with pytest.raises(CannotOpen, match="cannot open /proc/openq/data: No such file or directory"):
        OpenQ("jobs", path="/proc/openq/data")


def test_a_path_without_permission_names_the_user(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    program = (
        "import os, sys\n"
        "from openq import OpenQ, CannotOpen\n"
        "import openq.local.broker, openq.client.queues\n"  # before there is no permission to read those
        "if os.getuid() == 0: os.setuid(65534)\n"
        "try: OpenQ('jobs', path=sys.argv[1])\n"
        "except CannotOpen as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(locked / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )

    assert f"cannot open {locked}/data: no permission to write" in done.stdout, done.stderr
    assert "must be writable for the user who runs this" in done.stdout


def test_a_forked_child_gets_an_error_that_says_so(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, sys, warnings\n"
        "warnings.simplefilter('ignore')\n"  # newer versions warn of every fork beside threads
        "from openq import Consumer, OpenQ, Forked, aio\n"
        "tasks = aio.OpenQ('jobs', path=sys.argv[1])\n"
        "kept, here = OpenQ('jobs', path=sys.argv[1]), OpenQ('here')\n"
        "kept.publish('x'); here.publish('x')\n"
        "one = here.receive()\n"
        "if not os.fork():\n"
        "    for act in (lambda: kept.publish('y'), kept.stats, lambda: here.receive(timeout=0), one.ack):\n"
        "        try: print('done', act())\n"
        "        except Forked as error: print(error)\n"
        "    for act in (Consumer(kept).start, lambda: asyncio.run(aio.Consumer(tasks, print).run())):\n"
        "        try: print('done', act())\n"
        "        except Forked as error: print(error)\n"
        "    Consumer(kept).run()\n"
        "    kept.close(); here.close()\n"
        "    with OpenQ('here') as own: own.publish('z'); print(len(own), 'own', flush=True)\n"
        "    os._exit(0)\n"
        "os.wait()\n"
        "one.ack()\n"
        "print(len(kept), 'kept')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )

    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert [
        line.startswith("queue 'jobs' was opened before this process was forked") for line in lines[:2]
    ] == [
        True,
        True,
    ]
    assert "openq serve --data" in lines[0]
    assert ["memory is not shared with a child" in line for line in lines[2:4]] == [True, True]
    assert lines[4:6] == lines[:1] * 2
    assert f"the consumer of queue 'jobs' stopped: {lines[0]}" in done.stderr
    assert lines[6:] == ["1 own", "1 kept"]


def test_two_queues_in_memory_are_two_unless_they_share_a_broker() -> None:
    with OpenQ("same") as first, OpenQ("same") as other, OpenQ("same", broker=first.broker) as shared:
        first.publish("x")

        assert (len(first), len(other), len(shared)) == (1, 0, 1)
    assert OpenQ.__doc__ is not None
    assert "is another queue" in OpenQ.__doc__


# -- bodies ---------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    item: str
    price: Decimal


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: uuid.UUID
    lines: list[Line]
    at: datetime


class Parcel(msgspec.Struct):
    id: uuid.UUID
    weight: Decimal


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
FORMS = [
    (NOON, "2026-11-17T12:00:00+00:00"),
    (date(2026, 11, 17), "2026-11-17"),
    (time_of_day(12, 30), "12:30:00"),
    (timedelta(minutes=1.5), 90.0),
    (ID, str(ID)),
    (Decimal("12.30"), "12.30"),
    (Colour.RED, "red"),
    (Line("bolt", Decimal("0.10")), {"item": "bolt", "price": "0.10"}),
    (
        {"order": Order(ID, [Line("bolt", Decimal("0.10"))], NOON)},
        {
            "order": {
                "id": str(ID),
                "lines": [{"item": "bolt", "price": "0.10"}],
                "at": "2026-11-17T12:00:00+00:00",
            }
        },
    ),
    (Parcel(ID, Decimal("1.5")), {"id": str(ID), "weight": "1.5"}),
]


@pytest.mark.parametrize(("body", "form"), FORMS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("codec", ["auto", "json"])
def test_everyday_values_have_a_form_in_json(body: Any, form: Any, codec: str) -> None:
    with OpenQ("jobs", codec=codec) as queue:
        queue.publish(body)
        queue.publish_many([body])

        assert [take(queue).body for _ in range(2)] == [form, form]


def test_msgpack_is_recommended_only_for_what_it_can_write() -> None:
    with OpenQ("jobs") as queue, OpenQ("packed", codec="msgpack") as packed:
        for body in (Path("x"), 1j, print, [Path("x")]):
            with pytest.raises(InvalidSetting, match="codec='pickle' or an object"):
                queue.publish(body)
            with pytest.raises(InvalidSetting):
                packed.publish(body)
        for body in ({1, 2}, {(1, 2): 3}, {"data": b"x"}):
            with pytest.raises(InvalidSetting, match="codec='msgpack', 'pickle' or an object"):
                queue.publish(body)
            packed.publish(body)


@pytest.mark.parametrize(("body", "form"), FORMS, ids=lambda each: type(each).__name__)
def test_everyday_values_can_be_written_as_msgpack(body: Any, form: Any) -> None:
    with OpenQ("jobs", codec="msgpack") as queue:
        queue.publish(body)

        assert take(queue).body is not None


@pytest.mark.parametrize("codec", ["auto", "json"])
@pytest.mark.parametrize("body", [object(), {1, 2}, {"a": 1j}, lambda: None, {ID: 1}])
def test_an_unsupported_body_error_names_the_codec_and_the_remedy(body: Any, codec: str) -> None:
    with OpenQ("jobs", codec=codec) as queue, pytest.raises(InvalidSetting) as refused:
        queue.publish(body)

    assert f"codec {codec!r} cannot write this body as JSON" in str(refused.value)
    assert "'pickle' or an object that has encode and decode" in str(refused.value)


def test_a_deep_tree_of_dataclasses_is_refused_as_a_deep_tree_of_lists_is() -> None:
    @dataclasses.dataclass
    class Node:
        child: Any

    tree = None
    for _ in range(600):
        tree = Node(tree)
    with OpenQ("jobs") as queue, pytest.raises(InvalidSetting, match="nested too deeply"):
        queue.publish(tree)


# -- messages -------------------------------------------------------------------------------------


def test_a_message_that_was_not_received_cannot_be_settled(make: Make) -> None:
    queue = make()
    queue.publish("x")
    seen = queue.peek()
    assert seen is not None
    for message in (seen, Message("1", "x")):
        for settle in (message.ack, message.nack, message.reject, partial(message.extend, 5)):
            with pytest.raises(InvalidSetting, match=r"only one that `receive` returned"):
                settle()
    assert len(queue) == 1


TYPED_PROGRAM = """
import asyncio
from datetime import datetime

from openq import Consumer, Message, OpenQ, Producer, aio


def handle(message: Message) -> None:
    if message.body is None:
        message.nack(delay=5, reason=ValueError("empty"))
        return
    until: datetime | None = message.extend(30)
    print(until, message.attributes)
    message.ack()


def main() -> None:
    with OpenQ("dead") as dead, OpenQ("jobs", visibility_timeout=30, dlq=dead, max_receives=3) as queue:
        sent: str = queue.publish({"n": 1}, delay=0, priority=3, attributes={"a": 1})
        message: Message | None = queue.receive(timeout=0)
        if message is not None:
            message.ack()
        for each in queue.receive_many(10, timeout=0):
            each.reject("no")
        with queue.processing(timeout=0) as again:
            if again is not None:
                handle(again)
        consumer = Consumer(queue, handle, idle_timeout=0.01, heartbeat=False)
        producer = Producer(queue, num_tasks=1)
        for thread in (producer, consumer):
            thread.start()
        for thread in (producer, consumer):
            thread.join()
        print(sent, consumer.processed, queue.why(sent).code, queue.stats().ready, len(dead))


async def handle_soon(message: aio.Message) -> None:
    await message.extend(30)
    if message.receive_count > 3:
        await message.nack(0, "later")
    else:
        await message.ack()


async def work() -> None:
    async with aio.OpenQ("jobs") as queue:
        sent: str = await queue.publish("x", delay=0)
        async with aio.Consumer(queue, handle_soon, concurrency=2) as consumer:
            await queue.join()
        message: aio.Message | None = await queue.receive(timeout=0)
        if message is not None:
            await message.ack()
        print(sent, consumer.processed)


main()
asyncio.run(work())
"""


def test_a_typed_program_passes_the_strictest_check_and_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(TYPED_PROGRAM)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "MYPYPATH": str(ROOT / "src")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words, str(program)],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=tmp_path,
            env=environment,
        )

    ran = run("-W", "error")
    # The package's own sources are checked elsewhere: here only their signatures count.
    checked = run("-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"))

    assert (ran.returncode, ran.stderr) == (0, "")
    assert checked.returncode == 0, checked.stdout + checked.stderr


# -- why and peek ---------------------------------------------------------------------------------


def test_why_says_where_a_dead_letter_is(make: Make) -> None:
    dead = make("dead")
    queue = make("jobs", dlq=dead, max_receives=1)
    sent = queue.publish("x")
    with pytest.raises(ValueError, match="broken"), take(queue):
        raise ValueError("broken")

    why = queue.why(sent)

    assert why.code == "dead_lettered"
    assert why.text.startswith("dead-lettered: it is in queue 'dead' since ")
    assert "after 1 delivery (ValueError: broken); redrive it" in why.text
