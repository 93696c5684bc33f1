"""Replay: the past once more, in its order, once for each plan, whatever happens in between."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from openq import OpenQ
from openq.errors import HistoryUnavailable, InvalidSetting, OpenQError
from openq.pipeline import resend_plan as plans
from openq.pipeline.replay import choose, cut_slices, replay
from openq.pipeline.replay_run import steps
from openq.pipeline.resend import ResendContext
from openq.pipeline.resend_plan import PlanBusy, RateLimiter, batch_size, load_plan, make_plan
from openq.pipeline.spark_errors import spark_sentence
from tests.serving import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

replaying = import_module("openq.pipeline.replay")  # the file; the package has the function


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Served]:
    """With forty orders, each with another total; one of them is a dear one of the south."""
    with served(data) as started:
        with OpenQ("orders", url=started.url, codec="raw") as orders:
            for n in range(40):
                shop = "south" if n % 4 == 0 else "north"
                body = json.dumps({"n": n, "total": n * 10}).encode()
                orders.publish(
                    body, priority=n % 3, message_type="order", attributes={"shop": shop, "weight": 5}
                )
            for message in orders.receive_many(40):
                orders.ack(message)
        yield started


def waiting(server: Served, queue: str) -> list[Any]:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        return opened.peek_many(1000)


def numbers(server: Served, queue: str) -> list[int]:
    """In the order of their publishing, not by priority."""
    messages = sorted(waiting(server, queue), key=lambda message: message.id)
    return [json.loads(message.body)["n"] for message in messages]


def make_queue(server: Served, name: str, **settings: Any) -> None:
    with OpenQ(name, url=server.url, **settings):
        pass


def test_a_plan_is_executed_once_and_copies_name_their_originals(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path
) -> None:
    make_queue(server, "again")
    file = tmp_path / "again.json"
    reported: list[tuple[int, int]] = []

    def run() -> Any:
        return replay(
            spark,
            "ord*",
            "again",
            path=data,
            url=server.url,
            since="1h",
            where="body_json:total::int >= 200 AND attributes['shop'].string = 'north'",
            plan=file,
            progress=lambda done, total: reported.append((done, total)),
        )

    wanted = [n for n in range(20, 40) if n % 4]
    done = run()

    assert (done.sent, done.repeated) == (15, 0)
    assert reported[-1] == (15, 15)
    assert numbers(server, "again") == wanted
    message = waiting(server, "again")[0]
    originals = spark.read.format("openq").options(path=str(data), queues="orders").load()
    [original] = originals.where(originals["body"] == message.body).collect()
    assert message.id != original["message_id"]
    assert (message.message_type, message.priority) == ("order", original["priority"])
    assert message.attributes["openq.replay_of"] == original["message_id"]
    assert message.attributes["openq.replay_count"] == 1
    assert (message.attributes["shop"], message.attributes["weight"]) == ("north", 5)

    again = run()
    assert (again.sent, again.repeated) == (0, 0)
    found = load_plan(file, "replay")
    assert found is not None
    found.done = 0  # a crash after the server had it all, before the plan said so
    found.save()
    cut_off = run()
    assert (cut_off.sent, cut_off.repeated) == (0, 15)
    assert numbers(server, "again") == wanted

    # A copy of a copy names the original.
    make_queue(server, "third")
    replay(spark, "again", "third", path=data, url=server.url, ids=[message.id], plan=tmp_path / "third.json")
    [third] = waiting(server, "third")
    assert third.attributes["openq.replay_of"] == original["message_id"]
    assert third.attributes["openq.replay_count"] == 2


def test_purged_messages_are_not_replayed_by_default(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path
) -> None:
    with OpenQ("swept", url=server.url, codec="raw") as swept:
        for n in range(6):
            swept.publish(json.dumps({"n": n}).encode())
        for message in swept.receive_many(2):
            swept.ack(message)
        swept.purge()
        swept.publish(json.dumps({"n": 6}).encode())
    make_queue(server, "kept")
    make_queue(server, "everything")

    places = {"path": data, "url": server.url}
    replay(spark, "swept", "kept", plan=tmp_path / "kept.json", **places)
    replay(spark, "swept", "everything", plan=tmp_path / "all.json", include_purged=True, **places)

    assert numbers(server, "kept") == [0, 1, 6]
    assert numbers(server, "everything") == list(range(7))


def test_a_paced_replay_resumes_within_a_slice(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path
) -> None:
    make_queue(server, "slow.fifo", fifo=True)
    file = tmp_path / "slow.json"
    words: dict[str, Any] = {"url": server.url, "rate": 40.0, "plan": file}

    class Cut(Exception):
        pass

    def cut(done: int, total: int) -> None:
        if done >= 20:
            raise Cut

    # Over HTTP alone; the same bodies to a FIFO queue are no repetitions of one another.
    with pytest.raises(Cut):
        replay(spark, "orders", "slow.fifo", **words, progress=cut)
    done = replay(spark, plan=file, url=server.url)

    assert (done.sent, done.repeated) == (20, 20)
    assert numbers(server, "slow.fifo") == list(range(40))

    make_queue(server, "fast")
    sped = replay(spark, "orders", "fast", path=data, url=server.url, speed=1000, plan=tmp_path / "fast.json")
    assert sped.sent == 40
    assert numbers(server, "fast") == list(range(40))


def test_an_invalid_replay_is_refused_before_anything_is_sent(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make_queue(server, "none")
    context = ResendContext(data, server.url)

    def refused(*words: Any, **named: Any) -> str:
        with pytest.raises(OpenQError) as caught:
            choose(spark, context, *words, **named)
        return str(caught.value)

    assert "such_column" in refused("orders", "none", where="such_column = 1")
    assert "message_id" in refused("orders", "none", where="such_column = 1")  # says what there is
    assert "where: " in refused("orders", "none", where="total >")
    assert "does not exist" in refused("orders", "nowhere")
    assert "does not exist" in refused("misspelled", "none")
    assert "since must be before until" in refused("orders", "none", since="1h", until="2h")
    assert "contradict" in refused("orders", "none", rate=1.0, speed=2.0)
    assert "to which queue" in refused("orders", None)
    assert "from which queue" in refused(None, "none")
    assert choose(spark, context, "orders", "none", ids=["unknown"]).plan.total == 0
    chance = choose(spark, context, "orders", "none", where="seq > 0", plan=tmp_path / "chance.json").plan
    chance.asked["where"] = "seq > 9"
    chance.slices = [(first, end, rows + 1) for first, end, rows in chance.slices]
    with pytest.raises(HistoryUnavailable, match="none of them was sent"):
        replaying.run(spark, context, chance)
    with pytest.raises(InvalidSetting, match="leave it out"):
        replay(spark, "orders", "other", path=data, url=server.url, plan=tmp_path / "chance.json")

    assert capfd.readouterr() == ("", "")  # not one of Spark's stack traces
    assert waiting(server, "none") == []
    _, stages = server.get("/api/v1/pipeline/stages")
    assert json.loads(stages)["stages"] == []


# -- without Spark ---------------------------------------------------------------------------------------


def test_a_plan_file_is_read_back_and_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "plan.json"
    plan = make_plan("replay", file, asked={"to": "q"}, journal="ab", end_position=7, total=3)
    plan.slices = [(1, 5, 2), (5, 7, 1)]
    with plan.locked():
        plan.save()
        with pytest.raises(PlanBusy), replace(plan).locked():
            pass
    assert load_plan(file, "replay") == plan
    assert os.stat(file).st_mode & 0o077 == 0
    assert load_plan(tmp_path / "none.json", "replay") is None

    with pytest.raises(InvalidSetting, match="plan of a replay"):
        load_plan(file, "redrive")
    reported = json.loads(file.read_text())
    for damage, why in (
        ({"openq": "other"}, "not a plan"),
        ({"version": 2}, "newer"),
        ({"id": "../../x"}, "damaged"),
        ({"slices": [[1]]}, "damaged"),
        ({"done": -1}, "damaged"),
        ({"done": 1, "touched": time.time() - plans.RESUMABLE_S - 60}, "for a month"),
    ):
        file.write_text(json.dumps({**reported, **damage}))
        with pytest.raises(InvalidSetting, match=why):
            load_plan(file, "replay")
    file.write_bytes(b"\xff\x00")
    with pytest.raises(InvalidSetting, match="not a plan"):
        load_plan(file, "replay")


def test_slices_join_adjacent_buckets_up_to_a_limit() -> None:
    buckets = [(0, 10, 5, 100), (20, 25, 5, 100), (30, 31, 50, 100), (40, 41, 1, 900)]

    assert cut_slices(buckets, 10, 1000) == [(0, 25, 10), (30, 31, 50), (40, 41, 1)]
    assert cut_slices(buckets, 1000, 150) == [(0, 10, 5), (20, 25, 5), (30, 31, 50), (40, 41, 1)]
    assert cut_slices(buckets, 1000, 10_000) == [(0, 41, 61)]
    assert cut_slices([], 10, 10) == []


def test_steps_follow_the_number_of_messages_and_the_original_time() -> None:
    plan = make_plan("replay", None, asked={"speed": None}, journal="", end_position=0, total=0, step=2)
    times = pa.chunked_array([pa.array([0, 100, 200, 300, 2_000_000], pa.timestamp("us", "UTC"))])
    assert list(steps(plan, times)) == [(0, 2), (2, 4), (4, 5)]

    plan.asked["speed"], plan.step, plan.state = 1.0, 100, {"first_us": 0}
    assert list(steps(plan, times)) == [(0, 4), (4, 5)]
    plan.asked["speed"] = 10.0
    assert list(steps(plan, times)) == [(0, 5)]

    assert (batch_size(None, 1000), batch_size(1.5, 1000), batch_size(400, 1000), batch_size(1e6, 1000)) == (
        1000,
        1,
        100,
        1000,
    )


def test_a_rate_limiter_makes_up_for_at_most_a_second() -> None:
    pace = RateLimiter(1000.0)
    pace._next -= 3600  # nothing happened for an hour

    pace.wait(1)

    assert pace._next > time.monotonic() - 2


def test_an_error_of_spark_becomes_one_sentence() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` is not there. SQLSTATE: 42703; line 1 pos 0;\n"
        "'Filter ('x = 1)\n+- Relation"
    )
    assert spark_sentence(text) == "A column `x` is not there."


def test_a_job_needs_a_history_and_sending_needs_a_server(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="where the history is"):
        ResendContext()
    with pytest.raises(InvalidSetting, match="running server"):
        _ = ResendContext(tmp_path).link
