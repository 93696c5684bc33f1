"""`openq import` and `openq export`: a RabbitMQ's definitions, through a server and without one."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from openq.auth.store import UserStore
from tests.serving import Served, free_port, served

from .helpers import run_in_process

EXPORTED = Path(__file__).parent.parent / "amqp" / "rabbitmq_definitions.json"
IMPORT = ("import", "rabbitmq-definitions")
EXPORT = ("export", "rabbitmq-definitions")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "served", "--amqp-port", str(free_port())) as server:
        yield server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    return path


@pytest.fixture
def queues_only(tmp_path: Path) -> Path:
    """Without users the server stays open."""
    source = json.loads(EXPORTED.read_text())
    path = tmp_path / "queues.json"
    path.write_text(json.dumps({**source, "users": [], "permissions": [], "topic_permissions": []}))
    return path


@pytest.fixture
def users_left_out(tmp_path: Path) -> Path:
    """Users without an administrator, except guest."""
    source = json.loads(EXPORTED.read_text())
    source["users"] = [each for each in source["users"] if each["name"] != "boss"]
    source["permissions"] = [each for each in source["permissions"] if each["user"] != "boss"]
    path = tmp_path / "nobody.json"
    path.write_text(json.dumps(source))
    return path


def test_a_running_server_imports_definitions(server: Served, queues_only: Path) -> None:
    done = run_in_process(*IMPORT, queues_only, "--url", server.url)
    assert done.code == 0
    assert "created: 1 vhost, 2 policies, 2 exchanges, 3 queues, 6 bindings" in done.out
    assert "skipped: queue 'log' in vhost 'v'" in done.err
    again = run_in_process(*IMPORT, queues_only, "--url", server.url, "--json")
    assert json.loads(again.out)["made"] == {}
    exported = json.loads(run_in_process(*EXPORT, "--url", server.url).out)
    assert {each["name"] for each in exported["queues"]} == {"q1", "work", "dead"}
    one = json.loads(run_in_process(*EXPORT, "--url", server.url, "--vhost", "v", "--json").out)
    assert {each["name"] for each in one["queues"]} == {"work", "dead"}


def test_importing_users_ends_open_access(server: Served) -> None:
    done = run_in_process(*IMPORT, EXPORTED, "--url", server.url)
    assert done.code == 0
    assert "authentication is required" in done.err
    refused = run_in_process(*EXPORT, "--url", server.url)
    assert refused.code != 0
    assert "Login failed" in refused.err


def test_an_imported_administrator_can_sign_in(server: Served) -> None:
    run_in_process(*IMPORT, EXPORTED, "--url", server.url)
    login = b64encode(b"boss:boss-pass-9").decode()
    for _ in range(2):  # the second time by a hash of our own
        request = Request(f"{server.url}/api/users", headers={"Authorization": f"Basic {login}"})
        with urlopen(request) as answer:
            assert {each["name"] for each in json.load(answer)} == {"boss", "u", "worker"}


def test_users_without_an_administrator_are_skipped(server: Served, data: Path, users_left_out: Path) -> None:
    done = run_in_process(*IMPORT, users_left_out, "--url", server.url)
    assert done.code == 0
    assert "skipped: all 2 users ('u', 'worker')" in done.err
    assert run_in_process(*EXPORT, "--url", server.url).code == 0
    for flags in (("--url", server.url), ("--data", data)):
        assert run_in_process(*IMPORT, users_left_out, "--strict", *flags).code == 1
    assert UserStore(str(data / "users.json")).users() == []


def test_definitions_at_the_start_do_not_end_open_access_without_an_administrator(
    tmp_path: Path, users_left_out: Path
) -> None:
    flags = ("--amqp-port", str(free_port()), "--definitions", str(users_left_out))
    with served(tmp_path / "served", *flags) as server:
        assert run_in_process(*EXPORT, "--url", server.url).code == 0
        assert any("the server stays open" in line for line in server.log)


def test_a_data_directory_needs_no_server(data: Path) -> None:
    assert run_in_process(*IMPORT, EXPORTED, "--data", data).code == 0
    users = UserStore(str(data / "users.json")).users()
    assert {user.name for user in users} == {"u", "worker", "boss"}
    exported = run_in_process(*EXPORT, "--data", data)
    assert exported.code == 0
    found = json.loads(exported.out)
    assert {each["name"] for each in found["policies"]} == {"pol", "ha"}
    assert {each["name"] for each in found["users"]} == {"u", "worker", "boss"}
    with served(data, "--amqp-port", str(free_port())) as server:
        busy = run_in_process(*IMPORT, EXPORTED, "--data", data)
        assert busy.code == 1
        assert server.url in busy.err  # how to reach who has it


def test_an_export_feeds_an_import(data: Path, tmp_path: Path, queues_only: Path) -> None:
    run_in_process(*IMPORT, queues_only, "--data", data)
    exported = run_in_process(*EXPORT, "--data", data).out
    other = tmp_path / "other"
    other.mkdir()
    done = run_in_process(*IMPORT, "-", "--data", other, "--strict", answer=exported)
    assert (done.code, done.err) == (0, "")
    assert run_in_process(*EXPORT, "--data", other).out == exported


def test_strict_fails_if_anything_is_skipped(data: Path) -> None:
    assert run_in_process(*IMPORT, EXPORTED, "--data", data, "--strict").code == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "definitions must be an object"),
        ('{"queues": [{}]}', "queues[0].name is missing"),
        ('{"queues": [{"name": "q", "vhost": "shop"}]}', "queues[0].vhost: vhost 'shop' is neither"),
    ],
)
def test_an_invalid_file_is_one_line_with_the_place(data: Path, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = run_in_process(*IMPORT, path, "--data", data)
    assert done.code == 1
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_missing_files_and_vhosts_are_reported(data: Path, tmp_path: Path) -> None:
    assert "none.json" in run_in_process(*IMPORT, tmp_path / "none.json", "--data", data).err
    assert "no such data directory" in run_in_process(*EXPORT, "--data", tmp_path / "none").err
    assert "vhost 'x' does not exist" in run_in_process(*EXPORT, "--data", data, "--vhost", "x").err


def test_empty_definitions_are_reported(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.json"
    path.write_text("{}")
    assert run_in_process(*IMPORT, path, "--data", data).out == "the definitions are empty\n"


def test_definitions_of_the_configuration_exist_at_the_start(tmp_path: Path, queues_only: Path) -> None:
    for _ in range(2):
        flags = ("--amqp-port", str(free_port()), "--definitions", str(queues_only))
        with served(tmp_path / "served", *flags) as server:
            exported = json.loads(run_in_process(*EXPORT, "--url", server.url).out)
            assert {each["name"] for each in exported["queues"]} == {"q1", "work", "dead"}
            assert any("queue 'log'" in line for line in server.log)
