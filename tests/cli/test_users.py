"""Users, keys, tokens and permissions from the command line, in a data directory without a server."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from openq.auth.rules import ACTIONS, ROLES
from openq.auth.store import UserStore, check_password
from tests.cli.helpers import CommandResult, run_in_process, run_on_terminal

PASSWORD = "canary-password-7"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    assert run_in_process("user", "add", "alice", "--role", "manager", "--data", folder).code == 0
    return folder


def store(data: Path) -> UserStore:
    return UserStore(data / "users.json")


def run(data: Path, *words: str, code: int = 0, answer: str = "", **environment: str) -> CommandResult:
    done = run_in_process(*words, "--data", data, answer=answer, **environment)
    assert done.code == code, done
    return done


def lines(data: Path, *words: str) -> list[Any]:
    return [json.loads(line) for line in run(data, *words, "--json").out.splitlines()]


def test_the_roles_and_actions_of_the_help_are_those_of_the_rules() -> None:
    from openq.cli.commands.users import ROLE_NAMES
    from openq.cli.values import ACTION_NAMES

    assert set(ROLE_NAMES) == set(ROLES)
    assert set(ACTION_NAMES) == ACTIONS


def test_the_first_user_creates_a_private_directory(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = run(data, "user", "add", "alice")

    assert "this is the first user" in first.err
    assert "no password" in first.err
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert stat.S_IMODE((data / "users.json").stat().st_mode) == 0o600
    assert "first user" not in run(data, "user", "add", "bob").err


@pytest.mark.parametrize(
    "words", [("user", "ls"), ("key", "ls"), ("token", "ls"), ("user", "rm", "x", "--yes")]
)
def test_listing_does_not_create_a_directory(words: tuple[str, ...], tmp_path: Path) -> None:
    assert "no such data directory" in run(tmp_path / "none", *words, code=3).err
    assert not (tmp_path / "none").exists()


def test_the_directory_may_come_from_the_environment(data: Path) -> None:
    assert "alice" in run_in_process("user", "ls", OPENQ_DATA=str(data)).out


def test_a_password_is_read_and_never_shown(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "pw"
    file.write_text(PASSWORD + "\n")
    shown = [
        run(data, "user", "add", "b", "--password", OPENQ_PASSWORD=PASSWORD),
        run(data, "user", "add", "c", "--password", OPENQ_PASSWORD_FILE=str(file)),
        run(data, "user", "add", "d", "--password", "--json", answer=PASSWORD + "\n"),
        run(data, "user", "passwd", "alice", answer=PASSWORD + "\n"),
        run(data, "user", "ls"),
        run(data, "user", "ls", "--json"),
    ]

    assert all(check_password(PASSWORD, user.password_hash) for user in store(data).users())
    assert not any(word in done.out + done.err for done in shown for word in (PASSWORD, "scrypt"))
    assert "password required" in run(data, "user", "passwd", "alice", code=2).err
    run(data, "user", "passwd", "alice", "--none")
    alice = store(data).user("alice")
    assert alice is not None
    assert alice.password_hash is None


def test_on_a_terminal_the_password_is_asked_for_twice_and_not_echoed(data: Path) -> None:
    code, seen = run_on_terminal("user", "passwd", "alice", "--data", data, typed=f"{PASSWORD}\n{PASSWORD}\n")
    assert (code, PASSWORD in seen.split("once more")[-1]) == (0, False)
    code, seen = run_on_terminal("user", "passwd", "alice", "--data", data, typed="one\ntwo\n")
    assert code == 2
    assert "the passwords differ" in seen


def test_users_are_listed_with_what_they_have(data: Path) -> None:
    run(data, "key", "create", "alice")
    run(data, "perm", "grant", "alice", "send", "orders*", "--deny")

    heads, alice = run(data, "user", "ls").out.splitlines()
    assert heads.split() == ["user", "account", "role", "password", "keys", "tokens", "rules"]
    assert alice.split() == ["alice", "000000000000", "manager", "no", "1", "0", "deny", "send", "orders*"]
    assert lines(data, "user", "ls")[0]["rules"] == [
        {"effect": "deny", "actions": ["send"], "queues": "orders*", "account": None}
    ]


def test_removing_a_user_removes_keys_and_tokens(data: Path) -> None:
    run(data, "key", "create", "alice")
    run(data, "token", "create", "alice", "--name", "t")

    printed = run(data, "user", "rm", "alice", "--dry-run").out
    assert "remove user alice with 1 key and 1 token, the last one" in printed
    assert "nothing was changed" in run(data, "user", "rm", "alice", code=2).err
    assert len(store(data).users()) == 1
    run(data, "user", "rm", "alice", "--yes")
    assert (store(data).users(), store(data).keys(), store(data).tokens()) == ([], [], [])
    assert "does not exist" in run(data, "user", "rm", "alice", "--yes", code=3).err


def test_the_secret_of_a_key_is_shown_once(data: Path) -> None:
    made = run(data, "key", "create", "alice")
    named = dict(line.split("=", 1) for line in made.out.splitlines())
    [key] = store(data).keys()

    assert named == {"AWS_ACCESS_KEY_ID": key.id, "AWS_SECRET_ACCESS_KEY": key.secret}
    assert "shown only once" in made.err
    assert key.secret not in run(data, "key", "ls").out + run(data, "key", "ls", "--json").out
    run(data, "key", "revoke", key.id, code=2)
    run(data, "key", "revoke", key.id, "--yes")
    assert store(data).keys() == []
    run(data, "key", "revoke", key.id, "--yes", code=3)
    run(data, "key", "create", "nobody", code=3)


def test_a_session_has_a_token_and_expires(data: Path) -> None:
    made = json.loads(run(data, "key", "create", "alice", "--session", "1h", "--json").out)
    [key] = store(data).keys("alice")

    assert made.keys() == {"id", "secret", "session_token"}
    assert key.expires_ms is not None
    assert 3_500_000 < key.expires_ms - key.created_ms < 3_700_000


def test_a_token_is_shown_once_and_known_by_its_name(data: Path) -> None:
    token = run(data, "token", "create", "alice", "--name", "laptop").out.strip()
    found = store(data).find_token(token)

    assert found is not None
    assert (found.user, found.name) == ("alice", "laptop")
    assert token not in run(data, "token", "ls").out + run(data, "token", "ls", "--json").out
    assert "laptop" in run(data, "token", "ls", "alice").out
    run(data, "token", "create", "alice", "--name", "laptop", code=1)
    run(data, "token", "revoke", "alice", "laptop", "--yes")
    assert store(data).find_token(token) is None
    run(data, "token", "revoke", "alice", "laptop", "--yes", code=3)


def test_a_token_may_be_narrower_than_its_user(data: Path) -> None:
    run(
        data, "token", "create", "alice", "--name", "t", "--expires", "30d", "--allow", "send,peek", "orders*"
    )

    [row] = lines(data, "token", "ls")
    assert row["expires"] is not None
    assert row["rules"] == [
        {"effect": "allow", "actions": ["peek", "send"], "queues": "orders*", "account": None}
    ]
    wrong = run(data, "token", "create", "alice", "--name", "u", "--allow", "fly", "*", code=2)
    assert "actions are" in wrong.err


def test_permissions_are_granted_tested_and_revoked(data: Path) -> None:
    run(data, "user", "add", "shop")
    may = ("perm", "test", "shop", "send", "orders-eu")

    assert run(data, *may, code=4).out == "shop: send orders-eu denied\n"
    run(data, "perm", "grant", "shop", "send", "orders*")
    assert run(data, *may).out == "shop: send orders-eu allowed\n"
    run(data, "perm", "grant", "shop", "send", "orders-eu", "--deny")
    assert json.loads(run(data, *may, "--json", code=4).out)["may"] is False
    run(data, "perm", "revoke", "shop", "send", "orders-eu", "--deny")
    run(data, *may)
    run(data, "perm", "revoke", "shop", "send", "orders*")
    run(data, *may, code=4)
    assert "does not exist" in run(data, "perm", "revoke", "shop", "send", "orders*", code=3).err
    run(data, "perm", "test", "nobody", "send", code=3)


def test_admin_is_not_granted_on_some_queues(data: Path) -> None:
    run(data, "user", "add", "shop")
    for words in (("admin", "foo*"), ("admin,send", "foo"), ("admin", "*", "--account", "111122223333")):
        assert "admin is of the whole server" in run(data, "perm", "grant", "shop", *words, code=2).err
    token = ("token", "create", "shop", "--name", "ci", "--allow", "admin", "foo*")
    assert "admin is of the whole server" in run(data, *token, code=2).err

    run(data, "perm", "test", "shop", "admin", code=4)
    run(data, "perm", "grant", "shop", "admin", "*")
    run(data, "perm", "test", "shop", "admin")


def test_a_disabled_user_has_no_permissions(data: Path) -> None:
    store(data).set_disabled("alice", True)

    assert (
        run(data, "perm", "test", "alice", "send", "q", code=4).out
        == "alice is disabled: every action is denied\n"
    )
    assert "alice (disabled)" in run(data, "user", "ls").out


def test_a_damaged_store_is_one_line(data: Path) -> None:
    (data / "users.json").write_text("{")

    done = run(data, "user", "ls", code=1)
    assert "is damaged" in done.err
    assert done.err.count("\n") == 1


def test_options_may_stand_before_the_last_word(data: Path) -> None:
    granted = run_in_process("perm", "grant", "alice", "send", "--data", data, "x*", "--deny")

    assert (granted.code, "deny send x*" in granted.out) == (0, True)
    assert run_in_process("perm", "test", "alice", "send", "--data", data, "xylophone").code == 4
    assert run_in_process("perm", "test", "--data", data, "alice", "send", "orders").code == 0


def test_removing_the_last_user_or_admin_warns(data: Path) -> None:
    run(data, "user", "add", "root", "--role", "admin")

    assert "the last admin" in run(data, "user", "rm", "root", "--yes").err
    assert "the last user" in run(data, "user", "rm", "alice", "--yes").err
    assert store(data).users() == []


def test_removing_another_user_does_not_warn(data: Path) -> None:
    run(data, "user", "add", "bob")

    assert run(data, "user", "rm", "bob", "--yes").err == ""
