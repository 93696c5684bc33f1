"""Redrive by SQL: the right letters, each once, changed or not, and a line in the audit for every one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from openq import OpenQ
from openq.errors import HistoryUnavailable, InvalidSetting, OpenQError
from openq.packed import pack
from openq.pipeline.redrive import choose, redrive
from openq.pipeline.resend import RemovalTracker, ResendContext, publish
from openq.pipeline.resend_plan import load_plan
from openq.pipeline.transform import function_of, new_body
from tests.cli.helpers import run_in_process
from tests.serving import Served, served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REASONS = ("TimeoutError: no answer within {n} s", "ValueError: {n} is no amount", None)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(data: Path) -> Iterator[Served]:
    with served(data) as started:
        yield started


def kill(server: Served, count: int, queue: str = "orders") -> dict[str, int]:
    """Orders that fail for one reason after the other; the number of each by its id."""
    numbers: dict[str, int] = {}
    with (
        OpenQ("dead", url=server.url, codec="raw"),
        OpenQ(queue, url=server.url, codec="raw", dlq="dead", max_receives=9) as orders,
    ):
        for n in range(count):
            body = json.dumps({"n": n, "amount": f"{n} EUR"}).encode()
            kind = "refund" if n % 2 else "order"
            numbers[orders.publish(body, message_type=kind, attributes={"shop": "north", "weight": n})] = n
        for message in orders.receive_many(count):
            text = REASONS[numbers[message.id] % 3]
            orders.reject(message, reason=None if text is None else text.format(n=numbers[message.id]))
    return numbers


def waiting(server: Served, queue: str) -> list[Any]:
    with OpenQ(queue, url=server.url, codec="raw") as opened:
        return opened.peek_many(1000)


def ids(server: Served, queue: str) -> set[str]:
    return {message.id for message in waiting(server, queue)}


def audited(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_matching_dead_letters_are_redriven_once_with_their_ids(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path
) -> None:
    numbers = kill(server, 30)
    by_number = {n: message_id for message_id, n in numbers.items()}
    file = tmp_path / "plan.json"
    where = "error_signature = 'TimeoutError: no answer within <n> s' AND dlq_source = 'orders'"
    taken = by_number[0]
    with ResendContext(data, server.url) as context:
        chosen = choose(spark, context, "dead", where=where, plan=file)
        assert [(group.source, group.count) for group in chosen.groups] == [("orders", 10)]
        assert any('"amount"' in sample["body"] for sample in chosen.samples)
        assert not file.exists()
        assert len(ids(server, "dead")) == 30  # a look changes nothing
        chosen.plan.save()
    with OpenQ("dead", url=server.url, codec="raw") as dead:
        dead.cancel(taken)  # somebody was faster

    done = redrive(spark, path=data, url=server.url, plan=file)

    wanted = {by_number[n] for n in range(3, 30, 3)}
    assert ids(server, "orders") == wanted
    assert done.outcomes == {"redriven": 9, "gone": 1}
    lines = audited(done.audit)
    assert {line["id"]: line["outcome"] for line in lines} == {
        **dict.fromkeys(wanted, "redriven"),
        taken: "gone",
    }
    assert {line["to"] for line in lines if line["outcome"] == "redriven"} == {"orders"}

    # They die once more; the same plan has had its turn, also where a crash took its last word.
    with OpenQ("orders", url=server.url, codec="raw") as orders:
        for message in orders.receive_many(100):
            orders.reject(message, reason="TimeoutError: no answer within 9 s")
    assert redrive(spark, path=data, url=server.url, plan=file).outcomes == done.outcomes
    plan = load_plan(file, "redrive")
    assert plan is not None
    plan.done, plan.state = 0, {"audit": plan.state["audit"]}
    plan.save()
    assert redrive(spark, path=data, url=server.url, plan=file).outcomes == done.outcomes
    assert audited(done.audit) != []
    assert len(audited(done.audit)) == 10
    assert ids(server, "orders") == set()

    # A new plan finds them where they are now. Over HTTP alone, by what only their publish knows, elsewhere.
    with OpenQ("retry", url=server.url):
        pass
    where = "type = 'refund' AND body_json:n::int < 12 AND error_type = 'TimeoutError'"
    other = redrive(
        spark, "dead", url=server.url, where=where, to="retry", rate=1000, plan=tmp_path / "2.json"
    )
    assert other.outcomes == {"redriven": 2}
    assert ids(server, "retry") == {by_number[3], by_number[9]}


def test_a_transformed_dead_letter_is_published_once_and_removed(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path
) -> None:
    by_number = {n: message_id for message_id, n in kill(server, 24).items()}
    script = tmp_path / "fix.py"
    script.write_text(
        "import json\n"
        "def fixed(letter):\n"
        "    reported = json.loads(letter['body'])\n"
        "    if reported['n'] == 4:\n"
        "        return None\n"
        "    assert letter['attributes']['weight'] == reported['n']\n"
        "    return {**reported, 'amount': 10 // (reported['n'] - 1)}\n"
    )
    with OpenQ("dead", url=server.url, codec="raw") as dead:
        dead.edit(by_number[7], body=b"{}")
        for message in dead.receive_many(24):
            if message.id != by_number[10]:
                dead.nack(message)
    words: dict[str, Any] = {"path": data, "url": server.url}

    done = redrive(
        spark,
        "dead",
        **words,
        where="error_type = 'ValueError'",
        transform=f"{script}:fixed",
        plan=tmp_path / "fix.json",
    )

    assert done.outcomes == {"transformed": 4, "left": 3, "failed": 1}
    assert not done.is_clean
    why = {line["id"]: line["detail"] for line in audited(done.audit)}
    assert "ZeroDivisionError" in why[by_number[1]]
    assert "returned no body" in why[by_number[4]]
    assert "edited" in why[by_number[7]]
    assert "in flight" in why[by_number[10]]
    fixed = {message.attributes["openq.replay_of"]: message for message in waiting(server, "orders")}
    assert set(fixed) == {by_number[n] for n in (13, 16, 19, 22)}
    message = fixed[by_number[13]]
    assert json.loads(message.body) == {"n": 13, "amount": 0}
    assert (message.message_type, message.attributes["shop"], message.attributes["weight"]) == (
        "refund",
        "north",
        13,
    )
    assert message.attributes["openq.replay_count"] == 1
    assert ids(server, "dead").isdisjoint(fixed)
    assert len(ids(server, "dead")) == 24 - 4 - 1  # messages in flight are not listed

    # A run that sent its first slice and was gone before it could remove the originals.
    file = tmp_path / "sql.json"
    where = "error_type IS NULL AND type = 'order'"
    with ResendContext(data, server.url) as context:
        plan = choose(
            spark, context, "dead", where=where, transform="named_struct('n', body_json:n::int)", plan=file
        ).plan
        assert plan.total == 4
        plan.state["sending"] = {"slice": 0, "skipped": {}}
        plan.save()
        sent = pack({"body": [b"first"] * 4, "queue": ["orders"] * 4})
        assert not publish(context.link, plan.id, 0, [sent], 4, None)

    done = redrive(spark, **words, plan=file)

    assert done.outcomes == {"transformed": 4}
    bodies = [message.body for message in waiting(server, "orders")]
    assert bodies.count(b"first") == 4
    assert len(bodies) == 8
    assert {by_number[n] for n in (2, 8, 14, 20)}.isdisjoint(ids(server, "dead"))


def test_the_command_previews_asks_and_reports(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill(server, 9)
    monkeypatch.chdir(tmp_path)
    place = ("--url", server.url, "--data", data)

    seen = run_in_process("pipeline", "redrive", "dead", *place, "--dry-run")
    assert seen.code == 0
    assert "TimeoutError: no answer within <n> s" in seen.out
    assert "this would send 9 dead letters of dead back to the queues they came from" in seen.out
    reported = run_in_process(
        "pipeline", "redrive", "dead", *place, "--dry-run", "--json", "--transform", "upper(body)"
    )
    assert {len(json.loads(reported.out)["groups"]), json.loads(reported.out)["total"]} == {3, 9}
    assert json.loads(reported.out)["samples"][0]["new_body"].startswith('{"N": ')
    unasked = run_in_process("pipeline", "redrive", "dead", *place, "--where", "error_type = 'ValueError'")
    assert (unasked.code, len(ids(server, "dead"))) == (2, 9)
    assert "--yes" in unasked.err
    wrong = run_in_process("pipeline", "redrive", "dead", *place, "--where", "no_such = 1", "--dry-run")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "no_such" in wrong.err

    done = run_in_process(
        "pipeline", "redrive", "dead", *place, "--where", "error_type = 'ValueError'", "--yes", "--json"
    )

    assert done.code == 0
    assert json.loads(done.out)["outcomes"] == {"redriven": 3}
    assert len(audited(Path(json.loads(done.out)["audit"]))) == 3
    again = run_in_process(
        "pipeline", "redrive", "dead", *place, "--where", "error_type = 'ValueError'", "--yes"
    )
    assert (again.code, again.out) == (5, "")
    resumed = run_in_process("pipeline", "redrive", *place, "--plan", json.loads(done.out)["plan"], "--yes")
    assert "it was complete already" in resumed.out

    with OpenQ("copies", url=server.url):
        pass
    words = ("pipeline", "replay", "--from", "orders", "--to", "copies", *place)
    counted = run_in_process(*words, "--dry-run", "--plan", "copies.json")
    assert "this would publish 9 messages again to copies" in counted.out
    sent = run_in_process("pipeline", "replay", "--plan", "copies.json", *place, "--yes")
    assert (sent.code, sent.out.splitlines()[0]) == (0, "replay: 9 messages published to copies")
    assert len(ids(server, "copies")) == 9
    assert (
        "nothing to do" in run_in_process("pipeline", "replay", "--plan", "copies.json", *place, "--yes").out
    )
    Path("ids.txt").write_text("\n")
    assert run_in_process(*words, "--ids", "ids.txt").code == 2
    assert run_in_process("pipeline", "replay", "--to", "x").code == 2
    assert run_in_process("pipeline", "replay", "--speed", "fast").code == 2


def test_an_invalid_redrive_is_refused(
    spark: SparkSession, server: Served, data: Path, tmp_path: Path
) -> None:
    kill(server, 3)
    with ResendContext(data, server.url) as context:
        for named, why in (
            ({"where": "no_such = 1"}, "there are .*dlq_source"),
            ({"where": "error_type ="}, "where: "),
            ({"transform": "no_such + 1"}, "transform: .*no_such"),
            ({"transform": "no_such.py:f"}, "there is no file"),
            ({"to": "dead"}, "already"),
            ({"to": "nowhere"}, "does not exist"),
            ({"rate": -1.0}, "rate must be"),
        ):
            with pytest.raises(OpenQError, match=why):
                choose(spark, context, "dead", **named)
        with pytest.raises(InvalidSetting, match="one dead-letter queue"):
            choose(spark, context, "dead*")
        plan = choose(spark, context, "dead", plan=tmp_path / "plan.json").plan
    plan.digest = "another"
    plan.save()
    with pytest.raises(HistoryUnavailable, match="Make a new plan"):
        redrive(spark, path=data, url=server.url, plan=tmp_path / "plan.json")
    with served(tmp_path / "other") as other:
        with OpenQ("dead", url=other.url):
            pass
        with pytest.raises(InvalidSetting, match="does not serve"):
            redrive(spark, "dead", path=data, url=other.url, plan=tmp_path / "other.json")
    assert len(ids(server, "dead")) == 3


# -- without Spark ---------------------------------------------------------------------------------------


def test_a_transform_function_is_loaded_and_its_errors_reported(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def text(row):\n    return row['body'].decode() + '!'\nnumber = 5\n")
    assert function_of("upper(body)") is None
    assert function_of(None) is None
    row = {"body": b"x", "attributes": None}
    assert new_body(row, function_of(f"{file}:text")) == (b"x!", None)
    assert new_body(row, lambda row: {"a": 1}) == (b'{"a": 1}', None)
    assert new_body(row, lambda row: bytearray(b"y")) == (b"y", None)
    assert new_body(row, lambda row: object())[0] is None
    assert new_body({**row, "body": None}, None) == (None, "its publish is no longer in the history")
    for named, why in ((f"{file}:number", "no function"), (f"{file}:nothing", "no function")):
        with pytest.raises(InvalidSetting, match=why):
            function_of(named)
    file.write_text("1 / 0\n")
    with pytest.raises(InvalidSetting, match="ZeroDivisionError"):
        function_of(f"{file}:text")


def test_removals_are_tracked_as_the_journal_grows(server: Served, data: Path) -> None:
    kill(server, 6)
    context = ResendContext(data, server.url)
    letters = waiting(server, "dead")
    position, _ = context.end()
    seqs = [int(message.id[-12:], 16) for message in letters]
    departures = RemovalTracker(context, "dead", position, range(seqs[0] + 1, seqs[0] + 100))
    departures.advance()
    assert Counter(departures.of(seq) for seq in range(100)) == {None: 100}

    with OpenQ("dead", url=server.url, codec="raw") as dead:
        dead.cancel(letters[0].id)
        departures.advance()
        found = [departures.of(seq) for seq in range(100) if departures.of(seq)]
        assert found == [("cancel", None)]
        dead.purge()
    departures.advance()

    assert all(departures.of(seq) for seq in range(100))
