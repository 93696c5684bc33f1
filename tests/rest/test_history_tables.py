"""The history as columns over HTTP: columns, permissions and refusals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode, urlsplit

import pyarrow as pa
import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.history.local import LocalHistory
from openq.history.selection import Selection
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.rest import history_readers
from tests.history.archives import archive_sealed
from tests.rest.helpers import Answer, Client
from tests.serving import served
from tests.waiting import until

ACCOUNT = "111111111111"
QUEUES = ("mine-1", "mine-secret", "other", f"@{ACCOUNT}/abroad")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Archived segments, full ones and an open one, with messages of four queues in each."""
    path: Path = tmp_path_factory.mktemp("columns") / "data"
    broker = LocalBroker(path, segment_bytes=1 << 16)
    for queue in QUEUES:
        broker.declare(queue, QueueSettings())
    for number in range(1600):
        broker.publish(QUEUES[number % 4], Draft(b"%0100d" % number))
    broker.sync()
    archive_sealed(LocalHistory(path), most=2)
    broker.close()
    store = UserStore(path / "users.json")
    store.add_user("admin", role="admin")
    store.add_user(
        "narrow",
        rules=[
            Rule("allow", frozenset({"peek"}), "mine-*"),
            Rule("deny", frozenset({"peek"}), "mine-secret"),
        ],
    )
    store.add_user("sender", rules=[Rule("allow", frozenset({"send"}), "*")])
    return path


@pytest.fixture(scope="module")
def clients(data: Path) -> Iterator[dict[str, Client]]:
    store = UserStore(data / "users.json")
    names = ("admin", "narrow", "sender")
    tokens = {name: store.create_token(name, "test") for name in names}
    with served(data) as server:
        found = {
            name: Client(server.url, headers={"authorization": f"Bearer {tokens[name]}"}) for name in names
        }
        found["expired"] = Client(server.url, headers={"authorization": "Bearer oq_nobody"})
        yield found
        assert [line for line in server.log if "Traceback" in line] == []


def ask(client: Client, path: str, **query: Any) -> Answer:
    said = {name: value if isinstance(value, str) else json.dumps(value) for name, value in query.items()}
    return client.get(f"/history/{path}?{urlencode(said)}")


def rows(client: Client, selection: dict[str, Any]) -> list[dict[str, Any]]:
    answer = ask(client, "snapshot", selection=selection, max_bytes=50_000)
    assert answer.status == 200, answer.data
    found: list[dict[str, Any]] = []
    for piece in answer.value["pieces"]:
        answer = ask(client, "rows", selection=selection, piece=piece)
        assert answer.status == 200, answer.data
        assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
        found += pa.ipc.open_stream(answer.data).read_all().to_pylist()
    return found


def test_everybody_sees_the_rows_of_the_queues_they_may_peek(clients: dict[str, Client]) -> None:
    everything = rows(clients["admin"], {"columns": ["seq", "queue", "body"]})
    narrow = rows(clients["narrow"], {"columns": ["seq", "queue", "body"]})

    assert {row["queue"] for row in everything} == set(QUEUES)
    assert narrow == [row for row in everything if row["queue"] == "mine-1"]
    assert len(narrow) == 400
    assert rows(clients["sender"], {}) == []
    # The queue is looked at also where nobody asked for its name.
    assert [row["seq"] for row in rows(clients["narrow"], {"columns": ["seq"]})] == [
        row["seq"] for row in narrow
    ]
    assert rows(clients["narrow"], {"queues": ["mine-secret", "other"]}) == []
    events = rows(clients["narrow"], {"table": "events", "columns": ["queue", "event"]})
    assert {(row["queue"], row["event"]) for row in events} == {("mine-1", "publish")}


def test_files_of_queues_that_are_not_for_the_caller_are_not_listed(clients: dict[str, Client]) -> None:
    def kinds(who: str) -> set[str]:
        return {piece["kind"] for piece in ask(clients[who], "snapshot").value["pieces"]}

    assert kinds("admin") == kinds("narrow") == {"file", "segment"}
    assert kinds("sender") == set()


def test_a_snapshot_counts_only_the_rows_that_the_caller_may_see(clients: dict[str, Client]) -> None:
    def volume(who: str) -> tuple[int, int]:
        pieces = ask(clients[who], "snapshot").value["pieces"]
        return sum(piece["rows"] for piece in pieces), sum(piece["bytes"] for piece in pieces)

    everything, narrow = volume("admin"), volume("narrow")

    assert narrow[0] == 400
    assert narrow[0] < everything[0]
    assert 0 < narrow[1] < everything[1] // 2
    assert ask(clients["sender"], "snapshot").value["pieces"] == []


def test_over_http_there_is_the_same_as_by_path(clients: dict[str, Client], data: Path) -> None:
    selection = Selection(
        queues=("mine-*", "other"), first_seq=10, columns=("seq", "message_id", "body", "ts")
    )
    history = LocalHistory(data)
    snapshot = history.snapshot(selection)
    expected = [row for batch in history.read_many(snapshot.pieces, selection) for row in batch.to_pylist()]

    found = rows(clients["admin"], selection.to_json())

    assert sorted(found, key=lambda row: row["seq"]) == sorted(expected, key=lambda row: row["seq"])


def test_unknown_users_are_shown_nothing(clients: dict[str, Client]) -> None:
    for path in ("snapshot", "rows?piece=%7B%7D", "end"):
        assert clients["expired"].get(f"/history/{path}").status == 401


def piece(**changes: Any) -> dict[str, Any]:
    return {"kind": "segment", "rows": 1, "bytes": 1, "journal": "0" * 16, "start": 1 << 32, **changes}


FILE = {"kind": "file", "start": 0, "end_group": 1, "version": 1}


@pytest.mark.parametrize(
    ("made_up", "status", "code"),
    [
        ("{", 422, "invalid"),
        ("[" * 5000, 422, "invalid"),
        ([], 422, "invalid_setting"),
        ({}, 422, "invalid_setting"),
        (piece(kind="x"), 422, "invalid_setting"),
        (piece(stop=(1 << 32) + 99), 422, "invalid_setting"),  # of another journal
        (piece(start=999 << 32, stop=999 << 32 | 1), 410, "history_unavailable"),
        (piece(stop=1 << 62), 422, "invalid_setting"),
        (piece(**FILE, path="messages/../../users.json"), 422, "invalid_setting"),
        (piece(**FILE, path="/etc/passwd"), 422, "invalid_setting"),
        (piece(**FILE, path="messages/%2e%2e/x.parquet"), 422, "invalid_setting"),
        (piece(**FILE, path="messages/dt=2026-01-01/none.parquet"), 422, "invalid_setting"),
        (piece(**{**FILE, "version": 77}, path="messages/a.parquet"), 410, "history_unavailable"),
    ],
)
def test_a_piece_that_is_made_up_is_refused(
    clients: dict[str, Client], made_up: object, status: int, code: str
) -> None:
    answer = ask(clients["admin"], "rows", piece=made_up)

    assert (answer.status, answer.code) == (status, code), answer.data
    assert b"Traceback" not in answer.data


def test_row_groups_and_bytes_beyond_the_end_are_refused_or_empty(clients: dict[str, Client]) -> None:
    pieces = ask(clients["admin"], "snapshot").value["pieces"]
    file = next(each for each in pieces if each["kind"] == "file")
    last = pieces[-1]

    assert ask(clients["admin"], "rows", piece={**file, "end_group": 10_000}).code == "invalid_setting"
    beyond = {**last, "stop": last["stop"] + 100}
    assert ask(clients["admin"], "rows", piece=beyond).status in (200, 410)


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"selection": {"table": "users"}}, 422, "invalid_setting"),
        ({"selection": {"columns": ["password"]}}, 422, "invalid_setting"),
        ({"selection": {"first_seq": "x"}}, 422, "invalid_setting"),
        ({"selection": "nothing"}, 422, "invalid"),
        ({"selection": [1]}, 422, "invalid_setting"),
        ({"max_bytes": "0"}, 422, "invalid"),
        ({"as_of": "yesterday"}, 422, "invalid_setting"),
        ({"as_of": "12"}, 410, "history_unavailable"),
        ({"selection": {"ids": ["x" * 100] * 700}}, 431, None),
        ({"table": "events"}, 422, "invalid"),
    ],
)
def test_what_cannot_be_selected_is_said(
    clients: dict[str, Client], query: dict[str, Any], status: int, code: str | None
) -> None:
    answer = ask(clients["admin"], "snapshot", **query)

    assert answer.status == status, answer.data
    assert code is None or answer.code == code


def test_an_older_version_is_asked_for_by_number_and_time(clients: dict[str, Client]) -> None:
    for as_of in ("1", "2999-01-01T00:00:00Z"):
        value = ask(clients["admin"], "snapshot", as_of=as_of).value
        assert {each["kind"] for each in value["pieces"]} == {"file"}
        assert value["archive_version"] == 1


def test_the_end_is_waited_for(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        client = Client(server.url)
        path = client.queue("q")
        end = client.get("/history/end").value["position"]
        assert client.get(f"/history/end?after={end - 1}&wait=30").value["position"] == end
        assert client.get(f"/history/end?after={end}").value["position"] == end
        assert client.get("/history/end?after=-1").status == 422
        assert client.get("/history/end?after=1&wait=100").status == 422
        found: list[int] = []

        def wait() -> None:
            found.append(client.get(f"/history/end?after={end}&wait=30").value["position"])

        waiting = [threading.Thread(target=wait) for _ in range(5)]
        for thread in waiting:
            thread.start()
        client.post(f"{path}/messages", {"payload": "x"})
        for thread in waiting:
            thread.join(30)

        assert len(found) == 5
        assert min(found) > end
        # A message that was answered is part of the next snapshot.
        assert [row["seq"] for row in rows(client, {"columns": ["seq"]})] != []

        def wait_longer() -> None:
            with suppress(OSError):  # it may come too late: the port is closed
                client.get(f"/history/end?after={found[0] + 9999}&wait=30")

        last = threading.Thread(target=wait_longer)
        last.start()
        assert server.stop() == 0
        last.join(30)


def workers(server_pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                status = Path("/proc", name, "status").read_text()
                command = Path("/proc", name, "cmdline").read_bytes()
            except OSError:
                continue
            if f"PPid:\t{server_pid}\n" in status and b"openq.history.worker" in command:
                found.append(int(name))
    return found


def test_a_reader_that_is_killed_is_replaced_and_none_outlives_its_server(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        client = Client(server.url)
        path = client.queue("q")
        client.post(f"{path}/messages", {"payload": "x"})
        assert len(rows(client, {})) == 1
        [first] = workers(server.pid)

        os.kill(first, signal.SIGKILL)
        assert len(rows(client, {})) == 1
        until(lambda: first not in workers(server.pid))
        answers: list[int] = []
        many = [threading.Thread(target=lambda: answers.append(len(rows(client, {})))) for _ in range(12)]
        for thread in many:
            thread.start()
        for thread in many:
            thread.join(60)
        assert answers == [1] * 12
        left = workers(server.pid)
        assert 1 <= len(left) <= 2

        server.kill()

        until(lambda: not any(Path("/proc", str(pid)).exists() for pid in left))


def test_a_server_without_a_disk_or_without_arrow_says_so(tmp_path: Path) -> None:
    with served(None) as server:
        client = Client(server.url)
        for path in ("snapshot", "rows?piece=%7B%7D", "end"):
            answer = client.get(f"/history/{path}")
            assert (answer.status, answer.code) == (409, "no_history")
    blocked = tmp_path / "site"
    (blocked / "pyarrow").mkdir(parents=True)
    (blocked / "pyarrow" / "__init__.py").write_text("raise ImportError('not here')")
    with served(tmp_path / "data", env={"PYTHONPATH": str(blocked)}) as server:
        answer = Client(server.url).get("/history/snapshot")
        assert (answer.status, answer.code) == (501, "columns_missing")
        assert "openq[spark]" in answer.value["hint"]
        assert Client(server.url).get("/history/end").status == 200


def test_the_archive_can_be_elsewhere(data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns("users.json", "LOCK"))
    shutil.move(copy / "archive", tmp_path / "elsewhere")
    with served(copy) as server:
        assert ask(Client(server.url), "snapshot").value["archive_version"] is None
    with served(copy, "--archive", str(tmp_path / "elsewhere")) as server:
        assert ask(Client(server.url), "snapshot").value["archive_version"] == 1


def test_what_is_made_up_is_refused_quickly_and_without_paths(clients: dict[str, Client], data: Path) -> None:
    pieces = ask(clients["admin"], "snapshot").value["pieces"]
    file = next(each for each in pieces if each["kind"] == "file")
    for answer in (
        ask(clients["admin"], "rows", piece={**file, "end_group": 2**62}),
        ask(clients["admin"], "rows", piece={**file, "version": 77}),
        ask(clients["admin"], "snapshot", as_of="77"),
        ask(clients["admin"], "snapshot", as_of="2001-01-01T00:00:00"),
    ):
        assert answer.status in (410, 422), answer.data
        assert str(data).encode() not in answer.data
    assert len(ask(clients["admin"], "snapshot", max_bytes="1").value["pieces"]) < 20


def test_a_damaged_archive_is_reported_without_its_path(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("LOCK", "users.json"))
    with served(tmp_path / "data") as server:
        client = Client(server.url)
        pieces = ask(client, "snapshot").value["pieces"]
        file = next(each for each in pieces if each["kind"] == "file")
        (tmp_path / "data" / "archive" / file["path"]).write_bytes(b"PAR1 no more")

        answer = ask(client, "rows", piece=file)

        assert (answer.status, answer.code) == (500, "archive_damaged"), answer.data
        assert file["path"] in answer.value["detail"]
        assert str(tmp_path).encode() not in answer.data


def test_a_reader_whose_client_has_gone_is_ended(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        client = Client(server.url)
        client.post(f"{client.queue('q')}/messages", {"payload": "x"})
        assert len(rows(client, {})) == 1
        [first] = workers(server.pid)
        os.kill(first, signal.SIGSTOP)  # as good as busy for minutes
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port)) as other:
            other.sendall(b"GET /api/v1/history/snapshot HTTP/1.1\r\nHost: x\r\n\r\n")
            until(lambda: len(ask(client, "snapshot").value["pieces"]) == 1)  # by a second one
            assert first in workers(server.pid)

        until(lambda: first not in workers(server.pid))
        assert len(rows(client, {})) == 1


class _Slow:
    unsent = 100


def test_while_too_much_is_unsent_nobody_is_answered_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_readers, "MAX_UNSENT", 100)
    later: list[Any] = []
    context: Any = SimpleNamespace(loop=SimpleNamespace(call_later=lambda seconds, work: later.append(work)))
    readers = history_readers.ReaderPool(context)
    started: list[Any] = []
    readers._idle.append(SimpleNamespace(start=started.append))  # type: ignore[arg-type]
    slow = _Slow()
    readers.hold(slow)  # type: ignore[arg-type]
    readers._waiting.append("job")  # type: ignore[arg-type]

    readers._start()
    readers._start()
    assert not started
    assert len(later) == 1
    slow.unsent = 0
    later.pop()()

    assert started == ["job"]
    assert readers.unsent() == 0
