"""History over HTTP from a program: the same rows as by path, through restarts, or one clear error."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from openq.auth.rules import Rule
from openq.auth.store import UserStore
from openq.client.http import Refused, Unreachable
from openq.errors import HistoryUnavailable, InvalidSetting, OpenQError
from openq.history.local import LocalHistory, ScanPiece
from openq.history.selection import Selection
from openq.local.broker import LocalBroker
from openq.model import Draft, QueueSettings
from openq.pipeline.link import Link
from openq.pipeline.remote_history import RemoteHistory
from tests.serving import free_port, served, start

TOKEN = "oq_canary-2718"


def fill(data: Path, count: int = 1000) -> None:
    broker = LocalBroker(data, segment_bytes=1 << 16)
    for queue in ("a", "b"):
        broker.declare(queue, QueueSettings())
    for number in range(count):
        broker.publish("ab"[number % 2], Draft(b"%0100d" % number, id=f"id-{number}"))
    broker.sync()
    broker.close()


def table(history: LocalHistory | RemoteHistory, selection: Selection) -> pa.Table:
    snapshot = history.snapshot(selection, max_bytes=30_000)
    return pa.Table.from_batches(list(history.read_many(snapshot.pieces, selection)))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    fill(tmp_path / "data")
    return tmp_path / "data"


def test_rows_over_http_equal_rows_by_path(data: Path) -> None:
    everybody = tuple(f"id-{number}" for number in range(0, 5000, 2))
    with served(data) as server:
        near = LocalHistory(data)
        far: RemoteHistory = pickle.loads(pickle.dumps(RemoteHistory(server.url)))
        for selection in (
            Selection(),
            Selection(table="events", queues=("a",)),
            Selection(columns=("message_id", "seq"), first_seq=100, last_seq=300),
            # Too long for an address: what the server does not know is sorted out here.
            Selection(columns=("seq",), ids=everybody),
            Selection(columns=("seq",), ids=everybody, queues=("a", *(f"{n:050d}" for n in range(1000)))),
        ):
            assert table(far, selection).equals(table(near, selection)), selection
        assert far.end_position() >= near.end_position()
        [first, *_] = far.snapshot(Selection()).pieces
        assert sum(batch.num_rows for batch in far.read(first, Selection())) > 0
        far.link.close()
        near_end = far.end_position()
        assert far.end_position(after=near_end, wait_s=0.05) == near_end
        with pytest.raises(HistoryUnavailable, match="no version 5"):
            far.snapshot(Selection(), as_of=5)
        with pytest.raises(InvalidSetting, match="another journal"):
            list(far.read(ScanPiece("segment", 1, 1, "0" * 16, 1 << 32, 1 << 32 | 100), Selection()))


def test_a_restarting_server_is_waited_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, 4000)
    port = free_port()
    selection = Selection(columns=("seq",))
    first = start(data, port=port).wait()
    again: list[object] = []
    try:
        far = RemoteHistory(first.url)
        snapshot = far.snapshot(selection, max_bytes=20_000)
        assert len(snapshot.pieces) > 6  # two are on their way at a time
        found: list[int] = []
        for number, batch in enumerate(far.read_many(snapshot.pieces, selection)):
            found += batch.column(0).to_pylist()
            if number == 1:
                first.kill()
                revival = threading.Thread(target=lambda: again.append(start(data, port=port)))
                revival.start()
        revival.join(30)
    finally:
        first.kill()
        for server in again:
            server.wait().stop()  # type: ignore[attr-defined]

    assert found == list(range(min(found), min(found) + 4000))


def test_an_unreachable_server_is_an_error_without_the_token() -> None:
    link = Link(f"http://127.0.0.1:{free_port()}", TOKEN, retry_s=0.3)
    history = RemoteHistory("", link=link)

    with pytest.raises(Unreachable, match=r"nothing listens there.*openq serve") as raised:
        history.end_position()

    shown = f"{raised.value} {raised.value!r} {history!r} {link!r}"
    assert TOKEN not in shown
    assert TOKEN in pickle.loads(pickle.dumps(link)).settings["token"]
    for wrong in ("ftp://x", "http://127.0.0.1:99999"):
        with pytest.raises(InvalidSetting, match="url: "):
            Link(wrong, TOKEN)
    with pytest.raises(InvalidSetting, match="printable") as bad:
        Link("http://127.0.0.1:1", "secret\nword")
    assert "secret" not in str(bad.value)


def test_a_forbidden_user_is_refused_at_once(data: Path) -> None:
    store = UserStore(data / "users.json")
    store.add_user("narrow", rules=[Rule("allow", frozenset({"peek"}), "a")])
    token = store.create_token("narrow", "t")
    gone = store.create_token("narrow", "old", expires_s=1)
    with served(data) as server:
        rows = table(RemoteHistory(server.url, token), Selection(columns=("queue",)))
        assert set(rows.column("queue").to_pylist()) == {"a"}
        for bad in (gone, TOKEN, None):
            with pytest.raises(OpenQError, match=r"[Tt]oken|authentication required") as raised:
                RemoteHistory(server.url, bad).snapshot(Selection())
            assert raised.value.code in ("unauthorized", "login_refused")
            assert bad is None or bad not in str(raised.value)
        with pytest.raises(Refused):
            Link(server.url, token).call("GET", "users")


def test_another_service_at_the_url_is_detected(data: Path) -> None:
    with served(data) as server:
        far = RemoteHistory(f"{server.url}/api/v1/queues/a")
        with pytest.raises(OpenQError, match="not an address"):
            far.snapshot(Selection())
