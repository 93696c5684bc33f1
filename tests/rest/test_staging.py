"""Staged batches over REST: permissions, answers, and kill -9 at any moment."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.local.broker import LocalBroker
from openq.packed import CONTENT_TYPE, pack
from tests.rest.helpers import Answer, Client
from tests.serving import Served, free_port, served, start


def put(client: Client, job: str, batch: int, part: str, columns: dict[str, list[Any]] | bytes) -> Answer:
    data = columns if isinstance(columns, bytes) else pack(columns)
    path = f"{client.prefix}/pipeline/stages/{job}/{batch}/parts/{part}"
    return client.send("PUT", path, data, {"content-type": CONTENT_TYPE})


def commit(client: Client, job: str, batch: int, *parts: str, **more: Any) -> Answer:
    return client.post(f"/pipeline/stages/{job}/{batch}/commit", {"parts": list(parts), **more})


def test_a_batch_is_uploaded_committed_and_there(client: Client) -> None:
    queue = client.queue("staged")

    answer = put(client, "rest", 1, "a", {"body": [b"one", b"two"]})
    assert (answer.status, answer.value["rows"]) == (200, 2)
    [shown] = [each for each in client.get("/pipeline/stages").value["stages"] if each["job"] == "rest"]
    assert (shown["batch"], shown["parts"], shown["committed"]) == (1, 1, False)
    done = commit(client, "rest", 1, "a", rows=2, queue="staged")

    assert (done.status, done.value) == (200, {"published": 2, "rejected": 0, "repeated": False})
    assert len(client.receive(queue, max=10)) == 2
    assert commit(client, "rest", 1, "a", queue="staged").value["repeated"] is True
    assert client.delete("/pipeline/stages/rest/1").value == {"committed": True}
    assert client.delete("/pipeline/stages/rest/2").value == {"committed": False}


def test_bad_rows_go_where_the_commit_says_or_refuse_it(client: Client) -> None:
    client.queue("stage-good")
    dead = client.queue("stage-dead")
    columns: dict[str, list[Any]] = {"body": [b"a", b"b"], "queue": ["stage-good", "stage-nowhere"]}
    put(client, "mixed", 1, "p", columns)

    assert commit(client, "mixed", 1, "p").code == "queue_not_found"
    assert commit(client, "mixed", 1, "p", on_error="dlq").code == "invalid"
    assert commit(client, "mixed", 1, "p", dlq="stage-dead").code == "invalid"
    done = commit(client, "mixed", 1, "p", on_error="dlq", dlq="stage-dead")

    assert done.value == {"published": 1, "rejected": 1, "repeated": False}
    [letter] = client.receive(dead)
    assert "stage-nowhere" in letter["attributes"]["rejected_reason"]


def test_what_makes_no_sense_is_refused_with_a_problem(client: Client) -> None:
    assert put(client, "bad", 1, "p", b"junk").code == "invalid_setting"
    assert put(client, "bad", 1, "p", {"body": [b"x"], "colour": ["red"]}).code == "invalid_setting"
    assert put(client, "b%2Fd", 1, "p", {"body": [b"x"]}).code == "invalid_setting"
    assert client.send("PUT", "/api/v1/pipeline/stages/bad/x/parts/p", b"x").code == "invalid"
    assert commit(client, "bad", 1, "p", queue="staged").code == "stage_not_found"
    assert client.get("/pipeline/stages").value["stages"] == []


def test_a_part_that_is_too_large_is_refused_while_it_is_still_being_sent(client: Client) -> None:
    answer = put(client, "large", 1, "p", bytes(30 << 20))

    assert answer.status == 413
    assert b"at most 20971520 bytes" in answer.data


def test_commits_of_one_job_keep_nobody_else_waiting(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        client = Client(server.url)
        client.queue("q")
        rows: dict[str, list[Any]] = {"body": [b"x"] * 60_000, "group": ["g"] * 60_000}
        assert put(client, "slow", 1, "p", rows).status == 200
        answers: list[Answer] = []

        def send() -> None:
            answers.append(commit(Client(server.url), "slow", 1, "p", queue="q"))

        senders = [threading.Thread(target=send) for _ in range(8)]
        for sender in senders:
            sender.start()
        longest = 0.0
        while any(sender.is_alive() for sender in senders):
            began = time.monotonic()
            assert client.get("/pipeline/cursors").status == 200
            longest = max(longest, time.monotonic() - began)
        took = sorted((each.status, each.value.get("repeated")) for each in answers if each.status == 200)
        refused = [each for each in answers if each.status != 200]

        assert took == [(200, False), *[(200, True)] * (len(took) - 1)]
        assert all(each.code == "too_many_commits" and each.status == 429 for each in refused)
        assert len(answers) == 8
        assert longest < 5


# -- who may


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Client]]:
    data = tmp_path_factory.mktemp("stages") / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("root", role="admin")
    store.add_user("reader", role="consumer")
    for name in ("ann", "bob"):
        store.add_user(name, rules=[Rule("allow", frozenset({"send", "receive"}), "ours-*")])
    tokens = {name: store.create_token(name, "test") for name in ("root", "reader", "ann", "bob")}
    tokens["ann, limited"] = store.create_token(
        "ann", "limited", rules=[Rule("allow", frozenset({"send"}), "ours-q")]
    )
    with served(data) as server:
        clients = {
            name: Client(server.url, headers={"authorization": f"Bearer {token}"})
            for name, token in tokens.items()
        }
        clients["root"].queue("ours-q")
        clients["root"].queue("ours-other")
        clients["root"].queue("theirs")
        yield clients


def test_rows_go_only_to_queues_to_which_the_sender_may_send(guarded: dict[str, Client]) -> None:
    ann = guarded["ann"]
    rows: dict[str, list[Any]] = {"body": [b"a", b"b"], "queue": ["ours-q", "theirs"]}
    put(ann, "rights", 1, "p", rows)

    for more in ({}, {"on_error": "dlq", "dlq": "ours-q"}, {"queue": "theirs"}, {"queue": "unknown"}):
        assert commit(ann, "rights", 1, "p", **more).status == 403
    put(ann, "rights", 1, "p", {"body": [b"a", b"b"]})
    assert commit(ann, "rights", 1, "p", queue="ours-q").value["published"] == 2
    assert put(guarded["reader"], "mine", 1, "p", {"body": [b"x"]}).status == 403
    assert guarded["reader"].get("/pipeline/stages").value == {"stages": []}


def test_a_job_is_for_who_began_it_and_for_admins(guarded: dict[str, Client]) -> None:
    ann, bob, root = guarded["ann"], guarded["bob"], guarded["root"]
    put(ann, "private", 1, "p", {"body": [b"a"]})

    assert put(bob, "private", 1, "p", {"body": [b"b"]}).code == "forbidden"
    assert commit(bob, "private", 1, "p", queue="ours-q").code == "forbidden"
    assert bob.delete("/pipeline/stages/private/1").code == "forbidden"
    assert bob.get("/pipeline/stages").value == {"stages": []}
    assert len(root.get("/pipeline/stages").value["stages"]) == 1
    assert commit(root, "private", 1, "p", queue="ours-q").value["published"] == 1
    assert commit(bob, "private", 1, "p", queue="ours-q").code == "forbidden"


def test_a_limited_token_has_jobs_of_its_own(guarded: dict[str, Client]) -> None:
    """Who may send to more would publish what it slipped in, or find a batch done that never was."""
    ann, limited = guarded["ann"], guarded["ann, limited"]
    rows: dict[str, list[Any]] = {"body": [b"a"], "queue": ["ours-other"]}
    put(ann, "whole", 1, "p", rows)
    put(limited, "narrow", 1, "p", rows)

    for client, job in ((limited, "whole"), (ann, "narrow")):
        for batch in (1, 2):
            assert put(client, job, batch, "p", rows).code == "forbidden"
            assert commit(client, job, batch, "p").code == "forbidden"
            assert client.delete(f"/pipeline/stages/{job}/{batch}").code == "forbidden"
        shown = [each["job"] for each in client.get("/pipeline/stages").value["stages"]]
        assert job not in shown
    assert commit(ann, "whole", 1, "p").value["published"] == 1
    assert commit(limited, "narrow", 1, "p").status == 403
    put(limited, "narrow", 1, "p", {"body": [b"a"]})
    assert commit(limited, "narrow", 1, "p", queue="ours-q").value["published"] == 1


# -- kill -9


def patiently(act: Any) -> Answer:
    """Again and again, as a job does while the server is away."""
    while True:
        try:
            answer: Answer = act()
        except (OSError, HTTPException):
            time.sleep(0.01)
            continue
        if answer.status != 503:
            return answer


def rows_of(chance: random.Random, batch: int, part: int) -> dict[str, list[Any]]:
    count = chance.choice((3, 400, 9_000))
    bodies = [b"%d-%d-%d-" % (batch, part, row) + b"x" * chance.randrange(200) for row in range(count)]
    columns: dict[str, list[Any]] = {"body": bodies}
    if chance.random() < 0.3:
        columns = {"body": bodies[:900], "type": ["a", "b", None] * 300, "queue": ["q", "r", "q"] * 300}
        columns = {name: values[: len(bodies)] for name, values in columns.items()}
    return columns


def killed_and_repeated(launch: Callable[[], Served], seed: int) -> Counter[bytes]:
    """What a job publishes to `q` and `r` while its server is killed again and again; it is down then."""
    chance = random.Random(seed)
    server = launch()
    client = Client(server.url)
    client.queue("q")
    client.queue("r")
    wanted: Counter[bytes] = Counter()
    is_over = threading.Event()

    def work() -> None:
        for batch in range(8):
            parts = {f"p{number}": rows_of(chance, batch, number) for number in range(4)}
            wanted.update(body for columns in parts.values() for body in columns["body"])
            rows = sum(len(columns["body"]) for columns in parts.values())
            for name, columns in parts.items():
                uploaded = patiently(partial(put, client, "kill", batch, name, columns))
                assert uploaded.status == 200, uploaded.data
            done = patiently(partial(commit, client, "kill", batch, *parts, rows=rows, queue="q"))
            assert done.status == 200, done.data
            assert done.value["published"] == rows
        is_over.set()

    worker = threading.Thread(target=work)
    worker.start()
    kills = random.Random(seed + 100)
    for _ in range(4):
        if is_over.wait(kills.uniform(0.05, 1.5)):
            break
        server.kill()
        server = launch()
    worker.join(120)
    assert is_over.is_set()
    if kills.random() < 0.5:
        server.kill()
    else:
        server.stop()
    return wanted


@pytest.mark.parametrize(("seed", "segment"), [(1, "64KiB"), (2, "64MiB")])
def test_every_batch_is_published_once_however_often_the_server_is_killed(
    tmp_path: Path, seed: int, segment: str
) -> None:
    port, data = free_port(), tmp_path / "data"

    wanted = killed_and_repeated(lambda: start(data, "--segment-bytes", segment, port=port).wait(), seed)

    broker = LocalBroker(data)
    found = Counter(entry.body or b"" for name in ("q", "r") for entry in broker.inspect.entries(name))
    assert broker.staging.stages() == []
    broker.close()
    assert found == wanted
