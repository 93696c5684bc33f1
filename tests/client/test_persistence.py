"""What is on disk, what comes back, and who may have it."""

import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from openq import (
    Closed,
    DirectoryInUse,
    InvalidSetting,
    OpenQ,
    RetryPolicy,
    VirtualClock,
    VisibilityTimeoutExpired,
)
from openq.client import handle
from tests.client.helpers import Make, bodies, ended, in_thread, take
from tests.waiting import until

pytest_plugins = "tests.client.fixtures"


def test_two_queue_objects_of_one_path_are_one_queue(tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path) as first, OpenQ("jobs", path=str(tmp_path)) as second:
        first.publish("x")

        take(second).ack()

        assert first.messages == []
        assert first.broker is second.broker


def test_another_spelling_of_the_path_is_the_same_target(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with OpenQ("a", path=tmp_path / "data") as first, OpenQ("b", path=tmp_path / "link") as second:
        assert first.broker is second.broker


def test_the_broker_closes_with_its_last_queue(tmp_path: Path) -> None:
    first, second = OpenQ("a", path=tmp_path), OpenQ("b", path=tmp_path)
    first.close()
    second.publish("still open")
    with pytest.raises(Closed):
        first.publish("x")
    second.close()
    second.close()

    program = f"from openq import OpenQ; OpenQ('a', path={str(tmp_path)!r}).close()"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_a_garbage_collected_queue_releases_its_directory(tmp_path: Path) -> None:
    OpenQ("jobs", path=tmp_path).publish("x")

    program = f"from openq import OpenQ; print(len(OpenQ('jobs', path={str(tmp_path)!r})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "1"


def test_another_process_gets_an_error_that_names_the_holder(tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path):
        program = (
            "from openq import OpenQ, DirectoryInUse\n"
            f"try: OpenQ('jobs', path={str(tmp_path)!r})\n"
            "except DirectoryInUse as error: print(error.pid)\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == str(os.getpid())
    assert issubclass(DirectoryInUse, Exception)


def test_stored_settings_stay_unless_others_are_named(tmp_path: Path) -> None:
    retry = RetryPolicy("fixed", base_ms=500)
    with OpenQ("jobs", 7, path=tmp_path, delay=3, max_length=10, retry=retry):
        pass
    with OpenQ("jobs", path=tmp_path) as queue:
        settings = queue.settings
        assert (settings.visibility_ms, settings.delay_ms, settings.max_length) == (7000, 3000, 10)
        assert settings.retry == retry
    with OpenQ("jobs", path=tmp_path, delay=0, max_length=None):
        pass
    with OpenQ("jobs", path=tmp_path) as queue:
        settings = queue.settings
        assert (settings.visibility_ms, settings.delay_ms, settings.max_length) == (7000, 0, None)


def test_the_environment_does_not_change_a_stored_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OpenQ("jobs", 7, path=tmp_path).close()
    monkeypatch.setenv("OPENQ_VISIBILITY_TIMEOUT", "1")

    with OpenQ("jobs", path=tmp_path) as queue:
        assert queue.visibility_timeout == 7


def test_fifo_cannot_be_changed(tmp_path: Path) -> None:
    OpenQ("jobs", path=tmp_path, fifo=True).close()

    with pytest.raises(InvalidSetting, match="fifo"):
        OpenQ("jobs", path=tmp_path, fifo=False)
    with OpenQ("jobs", path=tmp_path) as queue:
        assert queue.settings.fifo


def test_every_kind_of_body_comes_back_as_it_was(tmp_path: Path) -> None:
    sent: list[Any] = ["text", b"\x00\xff", {"a": [1, {"b": None}]}, 3.5, "", b"", "x" * 100_000]
    with OpenQ("jobs", path=tmp_path) as queue:
        for body in sent:
            queue.publish(body, attributes={"n": 1, "raw": b"\x00"}, publisher="me")
    with OpenQ("jobs", path=tmp_path) as queue:
        messages = [take(queue) for _ in sent]

    assert [message.body for message in messages] == sent
    assert {str(message.attributes) for message in messages} == {str({"n": 1, "raw": b"\x00"})}
    assert {message.publisher for message in messages} == {"me"}


def test_an_item_that_was_got_and_not_done_is_there_after_a_restart(tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path) as queue:
        queue.put("x")
        queue.get()
    with OpenQ("jobs", path=tmp_path) as queue:
        assert queue.get(timeout=10) == "x"


def test_a_receipt_from_before_a_crash_never_fits_a_delivery_after_it(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from openq import OpenQ\n"
        "queue = OpenQ('jobs', 0.001, path=sys.argv[1])\n"
        "queue.publish('x')\n"
        "print(queue.receive().receipt_id, flush=True)\n"
        "os._exit(1)  # before the loan can be on disk\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    with OpenQ("jobs", 60, path=tmp_path) as queue:
        message = queue.receive(timeout=10)
        assert message is not None

        with pytest.raises(VisibilityTimeoutExpired):
            queue.ack(done.stdout.strip())
        message.ack()


def test_a_dead_letter_survives_with_its_story(tmp_path: Path) -> None:
    with OpenQ("dead", path=tmp_path) as dlq, OpenQ("jobs", dlq=dlq, max_receives=1) as queue:
        message_id = queue.publish("x")
        take(queue).nack(reason="no address")
    with OpenQ("jobs", path=tmp_path) as queue, OpenQ("dead", path=tmp_path) as dlq:
        dead = take(dlq)
        assert (dead.id, dead.deaths[0]["queue"], dead.deaths[0]["reason"]) == (
            message_id,
            "jobs",
            "no address",
        )
        assert [step.what for step in queue.timeline(message_id)][:3] == [
            "published",
            "delivered",
            "dead-lettered",
        ]


def test_relaxed_is_a_setting_of_the_queue(tmp_path: Path) -> None:
    with OpenQ("jobs", path=tmp_path, relaxed=True) as queue:
        queue.publish("x")
    with OpenQ("jobs", path=tmp_path) as queue:
        assert queue.settings.relaxed
        assert bodies(queue) == ["x"]


# -- save and load ----------------------------------------------------------------------------


def test_a_backup_moves_between_memory_and_disk(tmp_path: Path, clock: VirtualClock) -> None:
    memory = OpenQ("jobs", clock=clock)
    memory.publish("a", unique_key="k")
    memory.publish("b", at=clock.now_ms() / 1000 + 60)
    memory.publish("c", ttl=120)
    memory.save(tmp_path / "backup.json")

    with OpenQ("other", path=tmp_path / "data", clock=clock) as queue:
        assert queue.load(tmp_path / "backup.json") == 3
        assert queue.load(tmp_path / "backup.json") == 0, "what is there already is left alone"
        assert bodies(queue) == ["a", "c"]
        assert queue.publish("again", unique_key="k") == queue.queue[0].id
        clock.advance(60)
        assert bodies(queue) == ["a", "b", "c"]
        clock.advance(60)
        assert bodies(queue) == ["a", "b"]


def test_dead_letters_keep_their_story_in_a_backup(make: Make, tmp_path: Path) -> None:
    dlq = make("dead")
    queue = make("jobs", dlq=dlq, max_receives=1)
    queue.publish("x")
    take(queue).nack(reason="no address")
    dlq.save(tmp_path / "backup.json")
    dlq.purge()

    dlq.load(tmp_path / "backup.json")

    [dead] = dlq.queue
    assert dead.status == "dead"
    assert dlq.redrive() == 1
    assert bodies(queue) == ["x"]


def test_a_backup_keeps_how_often_a_message_was_dead_lettered(make: Make, tmp_path: Path) -> None:
    dlq = make("dead")
    queue = make("jobs", dlq=dlq, max_receives=1)
    queue.publish("x")
    for _ in range(2):
        take(queue).nack(reason="no address")
        reported = dlq.queue[0].deaths
        dlq.save(tmp_path / "backup.json")
        dlq.purge()
        dlq.load(tmp_path / "backup.json")
        assert dlq.queue[0].deaths == reported
        assert dlq.redrive() == 1

    [death] = queue.queue[0].deaths
    assert (death["times"], death["kind"], death["reason"]) == (2, "max_receives", "no address")
    assert death["first_time"] <= death["time"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: "{}\n",
        lambda text: "no json\n",
        lambda text: text[: len(text) // 2],
        lambda text: text.rsplit("\n", 2)[0] + "\n",
        lambda text: text.replace('"payload": "b"', '"nothing": "b"'),
        lambda text: text.replace('"priority": 0', '"priority": "high"'),
        lambda text: text.replace('"attributes": {}', '"attributes": 5'),
        lambda text: text.replace('"status": "unprocessed"', '"status": "lost"'),
        lambda text: text.replace('"openq_backup": 1', '"openq_backup": 99'),
    ],
)
def test_a_bad_backup_is_an_error_and_changes_nothing(make: Make, tmp_path: Path, damage: Any) -> None:
    queue = make()
    queue.publish_many(["a", "b"])
    file = tmp_path / "backup.json"
    queue.save(file)
    queue.purge()
    text = file.read_text()
    assert damage(text) != text
    file.write_text(damage(text))

    with pytest.raises(InvalidSetting, match=r"backup\.json"):
        queue.load(file)

    assert queue.messages == []


def test_a_backup_that_is_not_there_or_not_text_is_an_error(make: Make, tmp_path: Path) -> None:
    queue = make()
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing", tmp_path / "binary", tmp_path):
        with pytest.raises(InvalidSetting):
            queue.load(path)
    with pytest.raises(InvalidSetting):
        queue.save(tmp_path / "no" / "such" / "folder")


def test_a_save_that_fails_leaves_the_old_file_alone(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make()
    queue.publish("a")
    file = tmp_path / "backup.json"
    queue.save(file)
    before = file.read_text()
    queue.publish("b")

    def fail(handle: int) -> None:
        raise OSError(5, "no luck")

    with monkeypatch.context() as patch:
        patch.setattr("openq.client.backup.os.fsync", fail)
        with pytest.raises(OSError, match="no luck"):
            queue.save(file)

    assert file.read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_backup_is_lines_of_json(make: Make, tmp_path: Path) -> None:
    queue = make()
    queue.publish("é")
    queue.publish(b"\xff")
    queue.save(tmp_path / "backup.json")

    head, first, second = map(json.loads, (tmp_path / "backup.json").read_text().splitlines())

    assert head == {"openq_backup": 1, "queue": "jobs", "dlq": None, "messages": 2}
    assert (first["payload"], first["status"], first["position"] > 0) == ("é", "unprocessed", True)
    assert (second["payload"], second["payload_encoding"]) == ("/w==", "base64")


@pytest.mark.parametrize("durable", [False, True])
def test_a_garbage_collected_queue_does_not_wait_for_another_being_opened(
    durable: bool, tmp_path: Path
) -> None:
    """The collector may run in a thread that the one who opens is waiting for."""
    queue = OpenQ("jobs", path=tmp_path if durable else None)
    broker = queue.broker
    held, done = threading.Event(), threading.Event()

    def open_slowly() -> None:
        with handle._lock:
            held.set()
            done.wait()

    opening = in_thread(open_slowly)
    assert held.wait(60)

    del queue
    gc.collect()

    done.set()
    assert ended(opening)
    until(lambda: not broker.health().ok, "it is closed")
    with OpenQ("jobs", path=tmp_path) as again:
        assert again.messages == []
