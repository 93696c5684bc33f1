"""Sessions: log in, who am I, log out, expiry, and requests of foreign pages."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from openq.auth.errors import ForeignRequest, SessionExpired
from openq.auth.guard import Guard
from openq.auth.rules import Rule
from openq.auth.sessions import MAX_OF_USER, Sessions, is_foreign, session_in
from openq.auth.store import UserStore
from tests.rest.helpers import Answer, Client
from tests.serving import Served, served, start

PASSWORD = "canary-session-password"
SAME = {"sec-fetch-site": "same-origin"}


@dataclass
class ServedUi:
    server: Served
    store: UserStore
    token: str

    @property
    def client(self) -> Client:
        return Client(self.server.url)


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedUi]:
    data: Path = tmp_path_factory.mktemp("sessions") / "data"
    data.mkdir()
    store = UserStore(data / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    store.add_user("vic", role="viewer", password=PASSWORD)
    store.add_user("bob", role="manager", password=PASSWORD)
    token = store.create_token("bob", "narrow", rules=[Rule("allow", frozenset({"peek"}), "mine-*")])
    with served(data) as server:
        yield ServedUi(server, store, token)
        shown = "\n".join(server.log + server.lines)
        assert PASSWORD not in shown
        assert token not in shown
        assert "oqs_" not in shown
        assert "oqs_" not in (data / "sessions.json").read_text()


def log_in(client: Client, **body: str) -> tuple[Answer, dict[str, str]]:
    answer = client.post("/session", body, **SAME)
    if answer.status != 201:
        return answer, {}
    cookie = answer.headers["set-cookie"].partition(";")[0]
    return answer, {"cookie": cookie, **SAME}


def test_a_visitor_learns_that_a_login_is_needed_and_nothing_more(ui: ServedUi) -> None:
    answer = ui.client.get("/session")

    assert answer.status == 200
    view = answer.value
    assert (view["authenticated"], view["login_required"], view["by"]) == (False, True, "none")
    assert view["read_only"] is True
    for hidden in ("user", "account", "role", "permissions", "version", "store"):
        assert view[hidden] is None


def test_a_password_begins_a_session_whose_cookie_is_a_login(ui: ServedUi) -> None:
    answer, cookie = log_in(ui.client, user="vic", password=PASSWORD)

    assert answer.status == 201
    line = answer.headers["set-cookie"]
    assert "HttpOnly" in line
    assert "SameSite=Strict" in line
    assert "Path=/" in line
    assert "Secure" not in line  # not on TLS
    view = ui.client.get("/session", **cookie).value
    assert (view["user"], view["role"], view["by"]) == ("vic", "viewer", "session")
    wanted = {"send": "none", "receive": "none", "peek": "all", "manage": "none", "admin": False}
    assert view["permissions"] == wanted
    assert view["read_only"] is True
    assert view["ends"] > view["idle_until"] > view["begun"]
    assert ui.client.get("/queues", **cookie).status == 200
    assert ui.client.get("/users", **cookie).status == 403
    assert ui.client.send("GET", "/metrics", headers=cookie).status == 200


def test_a_login_never_takes_over_the_cookie_that_was_there(ui: ServedUi) -> None:
    """Somebody who could plant a cookie before the login does not share the session after it."""
    planted = "oqs_planted"
    answer = ui.client.post(
        "/session", {"user": "vic", "password": PASSWORD}, **SAME, cookie=f"openq_session={planted}"
    )
    assert answer.status == 201
    assert planted not in answer.headers["set-cookie"]
    assert ui.client.get("/queues", **SAME, cookie=f"openq_session={planted}").status == 401
    _, first = log_in(ui.client, user="vic", password=PASSWORD)
    again = ui.client.post("/session", {"user": "vic", "password": PASSWORD}, **first)
    assert first["cookie"] not in again.headers["set-cookie"]


def test_a_token_begins_a_session_with_its_own_limits(ui: ServedUi) -> None:
    answer, cookie = log_in(ui.client, token=ui.token)

    assert answer.value["token_rules"][0]["queues"] == "mine-*"
    assert answer.value["permissions"]["peek"] == "some"
    assert answer.value["permissions"]["manage"] == "none"
    assert ui.client.put("/queues/mine-1", {}, **cookie).status == 403


def test_a_wrong_password_is_refused_like_everywhere(ui: ServedUi) -> None:
    answer, _ = log_in(ui.client, user="ann", password="wrong")
    assert (answer.status, answer.code) == (401, "login_refused")
    assert "set-cookie" not in answer.headers
    assert "Basic" in answer.headers["www-authenticate"]
    # The script of a page: the browser must not ask by a dialog of its own.
    answer = ui.client.post(
        "/session", {"user": "ann", "password": "wrong"}, **{**SAME, "sec-fetch-mode": "cors"}
    )
    assert answer.status == 401
    assert "Basic" not in answer.headers["www-authenticate"]
    for body in ({}, {"user": "ann"}, {"user": "ann", "password": 1}, {"user": "a", "passwort": "b"}):
        assert ui.client.post("/session", body, **SAME).status == 422


def test_logging_out_ends_this_session_and_everywhere_all(ui: ServedUi) -> None:
    _, first = log_in(ui.client, user="bob", password=PASSWORD)
    _, second = log_in(ui.client, user="bob", password=PASSWORD)
    _, third = log_in(ui.client, user="bob", password=PASSWORD)

    answer = ui.client.delete("/session", **first)
    assert answer.value == {"ended": 1}
    assert "Max-Age=0" in answer.headers["set-cookie"]
    ended = ui.client.get("/queues", **first)
    assert (ended.status, ended.code) == (401, "session_expired")
    assert ui.client.get("/session", **first).value["authenticated"] is False
    assert ui.client.get("/queues", **second).status == 200
    assert ui.client.delete("/sessions", **second).value["ended"] >= 2
    for cookie in (second, third):
        assert ui.client.get("/queues", **cookie).status == 401
    assert ui.client.delete("/session").value == {"ended": 0}


def test_an_admin_ends_the_sessions_of_another_user_and_nobody_else_does(ui: ServedUi) -> None:
    _, admin = log_in(ui.client, user="ann", password=PASSWORD)
    _, viewer = log_in(ui.client, user="vic", password=PASSWORD)

    assert ui.client.delete("/sessions?user=ann", **viewer).status == 403
    assert ui.client.delete("/sessions?user=vic", **admin).value["ended"] >= 1
    assert ui.client.get("/queues", **viewer).status == 401
    assert ui.client.get("/queues", **admin).status == 200


def test_a_new_password_ends_the_sessions(ui: ServedUi) -> None:
    _, admin = log_in(ui.client, user="ann", password=PASSWORD)
    ui.client.put("/users/eve", {"role": "viewer", "password": PASSWORD}, **admin)
    _, cookie = log_in(ui.client, user="eve", password=PASSWORD)
    assert ui.client.get("/queues", **cookie).status == 200

    ui.client.put("/users/eve", {"password": PASSWORD + "2"}, **admin)
    assert ui.client.get("/queues", **cookie).status == 401
    _, cookie = log_in(ui.client, user="eve", password=PASSWORD + "2")
    ui.client.delete("/users/eve", **admin)
    assert ui.client.get("/queues", **cookie).status == 401


def test_logins_and_logouts_are_in_the_audit_log(ui: ServedUi) -> None:
    _, admin = log_in(ui.client, user="ann", password=PASSWORD)
    answer, viewer = log_in(ui.client, user="vic", password=PASSWORD)
    assert answer.status == 201, answer.data
    assert ui.client.delete("/session", **viewer).value == {"ended": 1}

    records = ui.client.get("/audit?limit=1000", **admin).value["records"]
    found = {(each["action"], each["user"], each["outcome"]) for each in records}
    assert {("login", "ann", "ok"), ("login", "vic", "ok"), ("logout", "vic", "ok")} <= found


def test_a_changing_request_with_the_cookie_must_be_of_our_own_page(ui: ServedUi) -> None:
    _, cookie = log_in(ui.client, user="ann", password=PASSWORD)
    bare = {"cookie": cookie["cookie"]}

    refused: list[dict[str, str]] = [
        {},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},  # another port of this host
        {"sec-fetch-site": "none"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
    ]
    for headers in refused:
        answer = ui.client.put("/queues/csrf", {}, **bare, **headers)
        assert answer.status == 403, headers
    assert ui.client.get("/queues/csrf", **cookie).status == 404
    for headers in (SAME, {"origin": ui.server.url}, {"x-openq-request": "1"}):
        assert ui.client.put("/queues/csrf", {}, **bare, **headers).status in (200, 201)
    for headers in ({"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}):
        assert ui.client.get("/queues", **bare, **headers).status == 403
    assert ui.client.get("/queues", **bare, **{"sec-fetch-site": "none"}).status == 200
    foreign = ui.client.post(
        "/session", {"user": "ann", "password": PASSWORD}, **{"sec-fetch-site": "cross-site"}
    )
    assert foreign.status == 403


def test_events_and_the_websocket_take_the_cookie(ui: ServedUi) -> None:
    _, cookie = log_in(ui.client, user="ann", password=PASSWORD)
    ui.client.put("/queues/live", {}, **cookie)

    connection = http.client.HTTPConnection("127.0.0.1", ui.server.port, timeout=30)
    connection.request("GET", "/api/v1/events?from=end", headers=cookie)
    answer = connection.getresponse()
    assert answer.status == 200
    ui.client.post("/queues/live/messages", {"payload": "hi"}, **cookie)
    seen = b""
    while b"published" not in seen:
        seen += answer.readline()
    answer.close()
    connection.close()
    url = f"ws://127.0.0.1:{ui.server.port}/api/v1/stream"
    headers = {"cookie": cookie["cookie"]}
    with connect(
        url, subprotocols=["openq.json"], origin=ui.server.url, additional_headers=headers
    ) as socket:  # type: ignore[list-item, arg-type]
        assert socket.subprotocol == "openq.json"
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(url, subprotocols=["openq.json"], additional_headers=headers),
    ):  # type: ignore[list-item]
        pass
    assert refused.value.response.status_code == 403


def test_a_stream_ends_with_its_session(ui: ServedUi) -> None:
    _, cookie = log_in(ui.client, user="vic", password=PASSWORD)
    connection = http.client.HTTPConnection("127.0.0.1", ui.server.port, timeout=30)
    connection.request("GET", "/api/v1/events?from=end", headers=cookie)
    answer = connection.getresponse()
    assert answer.status == 200

    ui.client.delete("/session", **cookie)

    while answer.readline():  # the server closes it
        pass
    connection.close()


def test_a_session_survives_a_restart_and_ends_without_requests(tmp_path: Path) -> None:
    store = UserStore(tmp_path / "users.json")
    store.add_user("ann", role="admin", password=PASSWORD)
    server = start(tmp_path).wait()
    try:
        _, cookie = log_in(Client(server.url), user="ann", password=PASSWORD)
    finally:
        server.stop()
    with served(tmp_path, port=server.port) as again:
        assert Client(again.url).get("/session", **cookie).value["user"] == "ann"
    with served(tmp_path, "--session-idle-s", "0.001", port=server.port) as again:
        assert Client(again.url).get("/queues", **cookie).status == 401


def test_a_read_only_dashboard_shows_and_changes_nothing(tmp_path: Path) -> None:
    UserStore(tmp_path / "users.json").add_user("ann", role="admin", password=PASSWORD)
    with served(tmp_path, "--ui-read-only") as server:
        client = Client(server.url)
        answer, cookie = log_in(client, user="ann", password=PASSWORD)
        assert answer.value["read_only"] is True
        assert client.get("/queues", **cookie).status == 200
        refused = client.put("/queues/orders", {}, **cookie)
        assert (refused.status, refused.code) == (403, "read_only")
        assert client.post("/stream/tickets", {}, **cookie).code == "read_only"
        assert client.delete("/session", **cookie).status == 200


def test_an_open_server_needs_no_login() -> None:
    with served() as server:
        client = Client(server.url)
        view = client.get("/session").value
        assert (view["authenticated"], view["login_required"], view["by"]) == (True, False, "open")
        assert view["permissions"]["admin"] is True
        assert view["read_only"] is False
        assert client.post("/session", {"user": "a", "password": "b"}).code == "open_access"
        assert client.get("/queues", cookie="openq_session=whatever").status == 200


# -- without a server


class Clock:
    now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def guarded(tmp_path: Path) -> tuple[Guard, UserStore, Clock]:
    clock, store = Clock(), UserStore()
    store.add_user("ann", role="admin", password=PASSWORD)
    sessions = Sessions(clock, tmp_path / "sessions.json", idle_ms=1000, max_ms=5000)
    return Guard(store, lambda: clock.now_ms / 1000, sessions=sessions), store, clock


def use(guard: Guard, text: str) -> str:
    return guard.session(text, "GET", {})[0].user


def ann(store: UserStore) -> Any:
    return store.user("ann")


def test_idle_and_absolute_limits(tmp_path: Path) -> None:
    guard, store, clock = guarded(tmp_path)
    text = guard.sessions.begin(ann(store)).text

    for _ in range(4):
        clock.now_ms += 999
        assert use(guard, text) == "ann"
    clock.now_ms += 999
    assert use(guard, text) == "ann"  # 4995 ms old
    clock.now_ms += 5
    with pytest.raises(SessionExpired):
        use(guard, text)
    other = guard.sessions.begin(ann(store)).text
    clock.now_ms += 1000
    with pytest.raises(SessionExpired):
        use(guard, other)


def test_two_servers_of_one_store_share_sessions_and_the_time_of_use(tmp_path: Path) -> None:
    guard, store, clock = guarded(tmp_path)
    text = guard.sessions.begin(ann(store)).text
    second = Sessions(clock, tmp_path / "sessions.json", idle_ms=1000, max_ms=5000)
    other = Guard(store, lambda: clock.now_ms / 1000, sessions=second)

    clock.now_ms += 900
    assert use(guard, text) == "ann"
    assert guard.sessions.must_flush
    guard.sessions.flush()
    assert not guard.sessions.must_flush
    clock.now_ms += 900  # 1800 ms after the login, 900 after the last request at the first server
    other.refresh()
    assert use(other, text) == "ann"
    guard.sessions.end_all("ann")
    other.refresh()
    with pytest.raises(SessionExpired):
        use(other, text)


def test_a_removed_user_of_the_same_name_is_another(tmp_path: Path) -> None:
    guard, store, _ = guarded(tmp_path)
    text = guard.sessions.begin(ann(store)).text
    store.set_disabled("ann", True)
    with pytest.raises(SessionExpired):
        use(guard, text)
    store.set_disabled("ann", False)
    assert use(guard, text) == "ann"
    store.remove_user("ann")
    with pytest.raises(SessionExpired):
        use(guard, text)
    store.add_user("ann", role="admin", password=PASSWORD)  # another salt, so another proof
    with pytest.raises(SessionExpired):
        use(guard, text)


def test_a_session_by_a_token_ends_with_the_token(tmp_path: Path) -> None:
    guard, store, clock = guarded(tmp_path)
    token = store.create_token("ann", "browser", expires_s=clock.now_ms / 1000 + 0.5)
    text = guard.sessions.begin(ann(store), store.find_token(token)).text
    assert use(guard, text) == "ann"
    clock.now_ms += 500
    with pytest.raises(SessionExpired):
        use(guard, text)
    token = store.create_token("ann", "other")
    text = guard.sessions.begin(ann(store), store.find_token(token)).text
    store.revoke_token("ann", "other")
    with pytest.raises(SessionExpired):
        use(guard, text)


def test_the_number_of_sessions_is_bounded(tmp_path: Path) -> None:
    guard, store, clock = guarded(tmp_path)
    texts = []
    for _ in range(MAX_OF_USER + 1):
        clock.now_ms += 1
        texts.append(guard.sessions.begin(ann(store)).text)

    with pytest.raises(SessionExpired):
        use(guard, texts[0])
    assert use(guard, texts[1]) == "ann"
    assert len(json.loads((tmp_path / "sessions.json").read_text())["sessions"]) == MAX_OF_USER


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"format": 9}', b'{"format": 1, "sessions": [{"a": 1}]}']
)
def test_a_damaged_document_ends_sessions_and_keeps_nobody_out(tmp_path: Path, damage: bytes) -> None:
    guard, store, _ = guarded(tmp_path)
    text = guard.sessions.begin(ann(store)).text
    (tmp_path / "sessions.json").write_bytes(damage)
    guard.refresh()
    with pytest.raises(SessionExpired):
        use(guard, text)
    assert use(guard, guard.sessions.begin(ann(store)).text) == "ann"


def test_a_store_that_cannot_be_written_keeps_nobody_out(tmp_path: Path) -> None:
    guard, store, _ = guarded(tmp_path)
    guard.sessions._document.write = lambda seen, data: (_ for _ in ()).throw(OSError(28, "full"))  # type: ignore[union-attr, method-assign]

    text = guard.sessions.begin(ann(store)).text

    assert use(guard, text) == "ann"
    guard.sessions.end_all("ann")
    with pytest.raises(SessionExpired):
        use(guard, text)


def test_the_cookie_is_found_among_others() -> None:
    assert session_in(None) is None
    assert session_in(b"a=b; xopenq_session=1; openq_session=oqs_x; c=d") == "oqs_x"
    assert session_in(b"openq_session=") is None
    assert session_in(b"openq_sessions=1") is None
    guard = Guard(UserStore(), lambda: 0.0)
    with pytest.raises(ForeignRequest):
        guard.session("x", "POST", {})
    assert not is_foreign("GET", {})
    assert is_foreign("GET", {b"upgrade": b"websocket"})
