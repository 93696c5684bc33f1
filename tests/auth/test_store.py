"""The file of users: private, whole, shared between processes, and never an open door."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from openq.auth.errors import UnknownName, UserStoreDamaged
from openq.auth.guard import Guard, write_secret_file
from openq.auth.rules import Rule
from openq.auth.store import UserStore, check_password, hash_password, rabbitmq_hash
from openq.errors import DiskFull, InvalidSetting

SEND = Rule("allow", frozenset({"send"}), "orders*")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "users.json"


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_everything_comes_back_from_the_file(file: Path) -> None:
    store = UserStore(file)
    store.add_user("alice", account="111122223333", password="hunter2", role="producer", rules=[SEND])
    key = store.create_key("alice")
    session = store.create_key("alice", is_session=True, expires_s=2_000_000_000)
    token = store.create_token("alice", "ci", expires_s=2_000_000_000, rules=[SEND])

    again = UserStore(file)

    assert again.users() == store.users()
    assert again.keys() == store.keys()
    assert again.tokens() == store.tokens()
    assert again.key(key.id) is not None
    assert again.key(session.id) is not None
    assert again.find_token(token) == store.tokens()[0]
    assert again.find_token(token[:-1]) is None
    assert again.find_token(token + "x") is None


def test_keys_and_tokens_look_like_what_they_are(file: Path) -> None:
    store = UserStore()
    store.add_user("alice")

    key = store.create_key("alice")
    token = store.create_token("alice", "ci")

    assert key.id.startswith("OQIA")
    assert (len(key.id), len(key.secret), key.session_token) == (20, 40, None)
    assert token.startswith("oq_")
    assert len(token) >= 3 + 43


def test_tokens_and_passwords_are_not_in_the_file(file: Path) -> None:
    store = UserStore(file)
    store.add_user("alice", password="canary-password")
    token = store.create_token("alice", "ci")
    session = store.create_key("alice", is_session=True, expires_s=2_000_000_000)

    text = file.read_text()

    assert "canary-password" not in text
    assert token not in text
    assert session.session_token is not None
    assert session.session_token not in text


@pytest.mark.usefixtures("open_umask")
def test_no_file_is_ever_readable_by_others(file: Path) -> None:
    store = UserStore(file)
    for number in range(3):
        store.add_user(f"user-{number}")
        assert {path.name: mode(path) for path in file.parent.iterdir()} == {
            "users.json": 0o600,
            "users.json.lock": 0o600,
        }


@pytest.mark.usefixtures("open_umask")
def test_a_secret_file_is_private_even_where_a_public_one_was(tmp_path: Path) -> None:
    path = tmp_path / "first-key"
    path.write_text("old")
    path.chmod(0o666)

    write_secret_file(path, "secret")

    assert path.read_text() == "secret"
    assert mode(path) == 0o600
    assert os.listdir(tmp_path) == ["first-key"]


@pytest.mark.usefixtures("open_umask")
def test_the_new_file_is_private_from_the_moment_it_exists(file: Path) -> None:
    # Looked at by the process itself, right after each open.
    program = f"""
import os, sys
os.umask(0)
modes = []
real = os.open
def spy(path, *args, **more):
    fd = real(path, *args, **more)
    if str(path).endswith((".new", ".lock")):
        modes.append(os.fstat(fd).st_mode & 0o777)
    return fd
os.open = spy
from openq.auth.store import UserStore
UserStore({str(file)!r}).add_user("alice")
print(*map(oct, modes))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.split() == ["0o600", "0o600"]


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_writer_killed_half_way_leaves_the_old_file_or_the_new_one(file: Path, call: str) -> None:
    UserStore(file).add_user("alice")
    program = f"""
import os, signal
real = os.{call}
def deadly(*args):
    if {call!r} == "write":
        real(args[0], bytes(args[1])[:10])
    os.kill(os.getpid(), signal.SIGKILL)
os.{call} = deadly
from openq.auth.store import UserStore
UserStore({str(file)!r}).add_user("bob")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert (file.parent / "users.json.new").exists()

    store = UserStore(file)
    assert [user.name for user in store.users()] == ["alice"]

    store.add_user("carol")
    assert [user.name for user in UserStore(file).users()] == ["alice", "carol"]
    assert not (file.parent / "users.json.new").exists()


def test_a_full_disk_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = UserStore(file)
    store.add_user("alice")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match="nothing was changed"):
        store.add_user("bob")

    assert store.user("bob") is None
    assert UserStore(file).user("bob") is None


def test_changes_of_two_processes_do_not_lose_each_other(file: Path) -> None:
    program = """
import sys
import time
from openq.auth.store import UserStore
store = UserStore(sys.argv[1])
for number in range(20):
    store.add_user(f"{sys.argv[2]}-{number}")
"""
    running = [subprocess.Popen([sys.executable, "-c", program, str(file), name]) for name in ("a", "b", "c")]
    assert [process.wait(120) for process in running] == [0, 0, 0]

    assert len(UserStore(file).users()) == 60


def test_a_change_in_the_file_is_noticed(file: Path) -> None:
    server, command_line = UserStore(file), UserStore(file)
    command_line.add_user("alice")

    assert server.user("alice") is None
    assert server.refresh()
    assert not server.refresh()
    assert server.user("alice") is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 2, "users": [], "keys": [], "tokens": []}',
        '{"format": 1}',
        '{"format": 1, "users": [{}], "keys": [], "tokens": []}',
        '{"format": 1, "users": 5, "keys": [], "tokens": []}',
        '{"format": 1, "users": [], "keys": [{"id": "x", "user": "nobody", "secret": "s"}], "tokens": []}',
        "\xff",
    ],
)
def test_a_damaged_file_is_named_and_lets_nobody_in(file: Path, text: str) -> None:
    store = UserStore(file)
    store.add_user("alice", password="right")
    guard = Guard(store, lambda: 0.0)
    file.write_text(text, encoding="latin-1")

    with pytest.raises(UserStoreDamaged, match=r"users\.json"):
        UserStore(file)
    with pytest.raises(UserStoreDamaged):
        guard.refresh()
    with pytest.raises(UserStoreDamaged):
        store.add_user("mallory", role="admin")
    assert not guard.is_open
    assert guard.basic("alice", "right").user == "alice"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("users", "role", "emperor"),
        ("users", "disabled", "no"),
        ("users", "password", "plain text"),
        ("users", "password", "scrypt$1073741824$8$1$00$" + "00" * 32),
        ("users", "rules", [{"effect": "deny", "actions": []}]),
        ("users", "rules", None),
        ("users", "name", "../x"),
        ("keys", "secret", ""),
        ("keys", "secret", None),
        ("keys", "user", "nobody"),
        ("keys", "token_sha256", "00"),
        ("tokens", "expires_ms", "never"),
        ("tokens", "rules", {}),
        ("tokens", "sha256", ""),
    ],
)
def test_a_wrong_entry_is_damage_not_a_default(file: Path, kind: str, field: str, value: object) -> None:
    store = UserStore(file)
    store.add_user("alice", password="right", rules=[SEND])
    store.create_key("alice")
    store.create_token("alice", "ci")
    source = json.loads(file.read_text())
    source[kind][0][field] = value
    file.write_text(json.dumps(source))

    with pytest.raises(UserStoreDamaged):
        UserStore(file)


def test_an_entry_that_stands_there_twice_is_damage(file: Path) -> None:
    UserStore(file).add_user("alice")
    source = json.loads(file.read_text())
    source["users"] *= 2
    file.write_text(json.dumps(source))

    with pytest.raises(UserStoreDamaged):
        UserStore(file)


def test_a_missing_user_file_does_not_restore_open_access(file: Path) -> None:
    store = UserStore(file)
    store.add_user("alice")
    guard = Guard(store, lambda: 0.0)
    file.unlink()

    with pytest.raises(UserStoreDamaged, match="missing"):
        guard.refresh()
    assert not guard.is_open


def test_users_are_changed_and_removed_with_all_they_have(file: Path) -> None:
    store = UserStore(file)
    store.add_user("alice")
    store.create_key("alice")
    store.create_token("alice", "ci")
    store.set_role("alice", "viewer")
    store.grant("alice", SEND)
    store.grant("alice", SEND)
    store.set_disabled("alice", True)
    user = store.user("alice")
    assert user is not None
    assert (user.role, user.rules, user.is_disabled) == ("viewer", (SEND,), True)
    assert store.revoke("alice", SEND).rules == ()
    assert store.set_rules("alice", [SEND, SEND]).rules == (SEND, SEND)

    store.remove_user("alice")

    assert (store.users(), store.keys(), store.tokens()) == ([], [], [])


def test_keys_and_tokens_are_revoked(file: Path) -> None:
    store = UserStore(file)
    store.add_user("alice")
    key = store.create_key("alice")
    token = store.create_token("alice", "ci")

    store.revoke_key(key.id)
    store.revoke_token("alice", "ci")

    assert store.key(key.id) is None
    assert store.find_token(token) is None


def test_what_is_not_there_is_named() -> None:
    store = UserStore()
    store.add_user("alice")

    for call in (
        lambda: store.remove_user("bob"),
        lambda: store.create_key("bob"),
        lambda: store.create_token("bob", "ci"),
        lambda: store.set_password("bob", "x"),
        lambda: store.revoke("alice", SEND),
        lambda: store.revoke_key("OQIAX"),
        lambda: store.revoke_token("alice", "x"),
    ):
        with pytest.raises(UnknownName, match="does not exist"):
            call()


def test_what_makes_no_sense_is_refused() -> None:
    store = UserStore()
    store.add_user("alice")
    store.create_token("alice", "ci")

    for call in (
        lambda: store.add_user("alice"),
        lambda: store.add_user(""),
        lambda: store.add_user("a:b"),
        lambda: store.add_user("a\n"),
        lambda: store.add_user("b", account="*"),
        lambda: store.add_user("b", role="emperor"),
        lambda: store.add_user("b", password=""),
        lambda: store.add_user("b", password="x" * 1025),
        lambda: store.create_key("alice", is_session=True),
        lambda: store.create_token("alice", "ci"),
        lambda: store.create_token("alice", "a\nb"),
    ):
        with pytest.raises(InvalidSetting):
            call()


@pytest.mark.parametrize("effect", ["allow", "deny"])
@pytest.mark.parametrize(
    ("queues", "account"), [("foo*", None), ("*", "111122223333"), ("foo*", "*"), ("foo", "000000000000")]
)
def test_admin_of_some_queues_or_of_one_account_is_refused(
    effect: Any, queues: str, account: str | None
) -> None:
    store = UserStore()
    store.add_user("alice")
    for actions in ({"admin"}, {"admin", "send"}):
        rule = Rule(effect, frozenset(actions), queues, account)
        for call in (
            partial(store.add_user, "bob", rules=[rule]),
            partial(store.grant, "alice", rule),
            partial(store.set_rules, "alice", [SEND, rule]),
            partial(store.create_token, "alice", "ci", rules=[rule]),
        ):
            with pytest.raises(InvalidSetting, match="admin is of the whole server"):
                call()

    assert [user.name for user in store.users()] == ["alice"]
    assert store.users()[0].rules == ()
    assert not store.tokens("alice")
    for everything in (None, "*"):
        store.grant("alice", Rule(effect, frozenset({"admin"}), "*", everything))


def test_an_older_rule_of_admin_on_some_queues_gives_its_other_actions_only(file: Path) -> None:
    store = UserStore(file)
    store.add_user("alice", rules=[Rule("allow", frozenset({"admin", "send"}))])
    store.add_user("carol", role="admin")
    text = file.read_text()
    assert text.count('"queues": "*"') + text.count('"queues":"*"') == 1
    file.write_text(
        text.replace('"queues": "*"', '"queues": "foo*"').replace('"queues":"*"', '"queues":"foo*"')
    )
    guard = Guard(UserStore(file), lambda: 0.0)
    alice = guard.named("alice")
    assert alice is not None

    assert guard.may(alice, "send", "000000000000", "foo-1")
    assert not guard.may(alice, "admin", "000000000000", None)
    [rule] = guard.store.users()[0].rules
    guard.store.revoke("alice", rule)


def test_a_password_is_right_or_wrong() -> None:
    hashed = hash_password("pässword")

    assert check_password("pässword", hashed)
    assert not check_password("password", hashed)
    assert not check_password("", hashed)
    assert not check_password("x" * 5000, hashed)
    assert not check_password("anything", None)
    assert hash_password("pässword") != hashed


# Made by RabbitMQ 3.10.8.
RABBITMQ_HASHES = [
    ("sha256", "IsfWBAHKnHObuVuDh7S8K0RZlqosstAdce4z4obQVY6Q5YAi", "boss-pass-9"),
    ("sha256", "5y7c4QulugzAQ+Y9TdSV+KX6/+MV8+pn0KwT+KCKYdZ67PXA", "wätch-pass"),
    (
        "sha512",
        "MNuwrGX9uQt3MWNDiVIOCk+MreOv9EBoXkYeAfT53EnogJU4U/bJyE5YBjkfVaKlsAZNdp5YWr01ogWGuxTgqeGTeZo=",
        "long-pass",
    ),
]


@pytest.mark.parametrize(("kind", "text", "password"), RABBITMQ_HASHES)
def test_what_rabbitmq_hashed_is_checked_kept_and_replaced_by_our_own(
    tmp_path: Path, kind: str, text: str, password: str
) -> None:
    hashed = rabbitmq_hash(text, f"rabbit_password_hashing_{kind}")
    assert hashed.startswith(f"rabbitmq-{kind}$")
    assert check_password(password, hashed)
    for wrong in (password + "x", password[:-1], "", text, hashed):
        assert not check_password(wrong, hashed)
    path = tmp_path / "users.json"
    UserStore(path).add_user("boss", password_hash=hashed)
    guard = Guard(UserStore(path), time.time)
    assert guard.basic("boss", password).user == "boss"
    boss = UserStore(path).user("boss")
    assert boss is not None
    assert boss.password_hash is not None
    assert boss.password_hash.startswith("scrypt$")
    assert guard.basic("boss", password).user == "boss"


def test_a_foreign_hash_serves_even_where_the_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text, password = RABBITMQ_HASHES[0]
    store = UserStore(tmp_path / "users.json")
    store.add_user("boss", password_hash=rabbitmq_hash(text, "rabbit_password_hashing_sha256"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("openq.auth.documents._replace_file", full)
    assert Guard(store, time.time).basic("boss", password).user == "boss"


def test_a_password_that_was_changed_meanwhile_is_not_changed_back(tmp_path: Path) -> None:
    _, text, password = RABBITMQ_HASHES[0]
    hashed = rabbitmq_hash(text, "rabbit_password_hashing_sha256")
    store = UserStore(tmp_path / "users.json")
    store.add_user("boss", password_hash=hashed)
    store.set_password("boss", "new")
    store.upgrade_hash("boss", password, hashed)
    boss = store.user("boss")
    assert boss is not None
    assert check_password("new", boss.password_hash)


@pytest.mark.parametrize(
    "damaged", ["rabbitmq-sha256$00$00", "rabbitmq-md5$00000000$" + "00" * 16, "rabbitmq-"]
)
def test_a_foreign_hash_that_is_none_is_damage(tmp_path: Path, damaged: str) -> None:
    path = tmp_path / "users.json"
    UserStore(path).add_user("boss", password="secret")
    source = json.loads(path.read_text())
    source["users"][0]["password"] = damaged
    path.write_text(json.dumps(source))
    with pytest.raises(UserStoreDamaged):
        UserStore(path)
