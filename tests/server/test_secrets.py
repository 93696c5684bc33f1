"""Secrets stay where they belong, and a server is open to nobody by accident."""

from __future__ import annotations

import base64
import io
import json
import os
import stat
from pathlib import Path

import boto3
import botocore.config
import pytest
from botocore.exceptions import ClientError

from openq.config import Config
from openq.local.broker import LocalBroker
from openq.server.announcement import banner
from openq.server.app import Server
from openq.server.listener import new_loop
from openq.server.user_stores import NoCredentials
from tests.cli.helpers import CommandResult, run_openq
from tests.server.raw_http import Answer, RawHttpClient, request_bytes, rest_request
from tests.serving import Served, served, start

PASSWORD = "canary-correct-horse-battery"
OTHER_PASSWORD = "canary-rest-made-password"
WRONG_PASSWORD = "canary-wrong-but-still-nobodys-business"


def basic(user: str, password: str) -> dict[str, str]:
    value = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {value}"}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def cli(*words: str | Path, **environment: str) -> CommandResult:
    done = run_openq(*words, **environment)
    assert done.code == 0, done
    return done


def sqs_client(url: str, key: str, secret: str) -> object:
    config = botocore.config.Config(retries={"max_attempts": 0})
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=config,
    )


class ObservedTexts:
    """Everything that a server and its commands said after the secrets were made."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def note(self, where: str, text: str | bytes) -> None:
        self.texts.append((where, text if isinstance(text, str) else text.decode("utf-8", "replace")))

    def answer(self, where: str, answer: Answer) -> Answer:
        self.note(where, answer.body)
        self.note(where, str(answer.headers))
        return answer

    def holding(self, secret: str) -> list[str]:
        return [where for where, text in self.texts if secret in text]


def make_secrets(server: Served, data: Path, tmp_path: Path, wire: RawHttpClient) -> dict[str, str]:
    """One of each kind by the command line and by REST; what may know them is shown once, here."""
    as_admin = basic("admin", PASSWORD)

    def made(method: str, path: str, body: object) -> Answer:
        answer = wire.ask(rest_request(method, path, body, as_admin))
        assert answer.status in (200, 201), answer
        return answer

    key = json.loads(cli("key", "create", "admin", "--data", data, "--json").out)
    token = json.loads(cli("token", "create", "admin", "--name", "t", "--data", data, "--json").out)
    user = made("PUT", "users/bob", {"password": OTHER_PASSWORD, "role": "manager"})
    assert OTHER_PASSWORD.encode() not in user.body
    rest_key = made("POST", "keys", {"user": "bob"}).json()
    rest_token = made("POST", "tokens", {"user": "bob", "name": "r"}).json()
    return {
        "password": PASSWORD,
        "password by REST": OTHER_PASSWORD,
        "a wrong password": WRONG_PASSWORD,
        "key": key["secret"],
        "token": token["token"],
        "key by REST": rest_key["secret"],
        "token by REST": rest_token["token"],
        "key id": key["id"],
    }


def use_secrets(
    server: Served, secrets: dict[str, str], reported: ObservedTexts, wire: RawHttpClient
) -> None:
    """Authenticate with right and wrong credentials, in every protocol."""
    for user, password in (("admin", PASSWORD), ("bob", OTHER_PASSWORD)):
        answer = wire.ask(rest_request("GET", "whoami", None, basic(user, password)))
        assert reported.answer("whoami", answer).status == 200
    for name in ("token", "token by REST"):
        answer = wire.ask(rest_request("GET", "whoami", None, bearer(secrets[name])))
        assert reported.answer("whoami", answer).status == 200
    url = server.url
    client = sqs_client(url, secrets["key id"], secrets["key"])
    reported.note("sqs", str(client.create_queue(QueueName="q")))  # type: ignore[attr-defined]
    wrong = sqs_client(
        url, secrets["key id"], secrets["key"][:-1] + ("y" if secrets["key"].endswith("x") else "x")
    )
    with pytest.raises(ClientError) as refused:
        wrong.list_queues()  # type: ignore[attr-defined]
    reported.note("sqs refusal", str(refused.value.response))
    attempts = [
        basic("admin", WRONG_PASSWORD),
        basic("nobody", PASSWORD),
        basic(PASSWORD, "admin"),  # in the wrong field
        {"Authorization": f"Basic {PASSWORD}"},
        {"Authorization": f"Token {secrets['token']}"},
        bearer(secrets["token"] + "x"),
    ]
    for headers in attempts:
        answer = wire.ask(rest_request("GET", "whoami", None, headers))
        assert reported.answer("refusal", answer).status == 401
    # A client that puts it where it does not belong must not find it in a log.
    misplaced = [
        request_bytes("GET", f"/api/v1/queues?token={secrets['token']}", b"", basic("admin", PASSWORD)),
        request_bytes("GET", f"/metrics?password={PASSWORD}", b"", basic("admin", PASSWORD)),
        request_bytes("POST", f"/?Action=ListQueues&Secret={secrets['key']}", b""),
    ]
    for data in misplaced:
        wire.ask(data)


def look_everywhere(server: Served, data: Path, reported: ObservedTexts, wire: RawHttpClient) -> None:
    as_admin = basic("admin", PASSWORD)
    paths = [
        "audit?limit=1000",
        "users",
        "users/admin",
        "users/bob",
        "keys",
        "tokens",
        "server",
        "health",
        "queues",
        "queues/q",
    ]
    for path in paths:
        answer = wire.ask(rest_request("GET", path, None, as_admin))
        assert reported.answer(path, answer).status == 200
    for path in ("/metrics", "/openapi.json", "/readyz", "/livez"):
        reported.answer(path, wire.ask(request_bytes("GET", path, b"", as_admin)))
    for command in ("user", "key", "token"):
        for more in ((), ("--json",)):
            done = cli(command, "ls", "--data", data, *more)
            reported.note(f"openq {command} ls", done.out + done.err)
    done = cli("perm", "test", "bob", "send", "q", "--data", data)
    reported.note("openq perm test", done.out + done.err)
    for name in ("cmdline", "status", "comm"):
        reported.note(f"/proc {name}", Path(f"/proc/{server.pid}/{name}").read_bytes())


def test_no_secret_is_shown_to_anybody_but_its_owner(tmp_path: Path) -> None:
    data = tmp_path / "d"
    password_file = tmp_path / "pw"
    password_file.write_text(PASSWORD + "\n")
    password_file.chmod(0o600)
    reported = ObservedTexts()
    words = ("user", "add", "admin", "--role", "admin", "--password", "--data", data)
    done = cli(*words, OPENQ_PASSWORD_FILE=str(password_file))
    reported.note("openq user add", done.out + done.err)
    password_file.unlink()

    logs = ("--log-level", "debug", "--log-format", "json", "--log-requests", "--log-slow", "0.000001")
    server = start(data, *logs, "--log-events").wait()
    with RawHttpClient(server.port) as wire:
        secrets = make_secrets(server, data, tmp_path, wire)
        use_secrets(server, secrets, reported, wire)
        look_everywhere(server, data, reported, wire)
    assert server.stop() == 0
    reported.note("stdout", "\n".join(server.lines))
    reported.note("log", "\n".join(server.log))

    logged = [json.loads(line) for line in server.log]
    assert {"login_refused", "request", "slow_request"} <= {line["event"] for line in logged}
    public = {"key id"}
    for kind, secret in secrets.items():
        if kind not in public:
            assert reported.holding(secret) == [], kind
    check_files(data, secrets)


def check_files(data: Path, secrets: dict[str, str]) -> None:
    """Passwords and tokens are nowhere, keys only where nobody else can read."""
    for path in sorted(data.rglob("*")):
        if not path.is_file():
            continue
        content = path.read_bytes()
        for kind, secret in secrets.items():
            if secret.encode() not in content or kind == "key id":
                continue
            assert kind.startswith("key"), f"the {kind} is in {path.name}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, f"others can read the {kind} in {path.name}"


# -- who is let in


def listening(pid: int, port: int) -> set[str]:
    """The addresses on which a process accepts connections at a port, as the kernel writes them."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(link))
        except FileNotFoundError:
            continue
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            address, _, number = fields[1].rpartition(":")
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets and int(number, 16) == port:
                found.add(address)
    return found


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_by_default_only_this_machine_is_listened_to() -> None:
    with served(None) as server:
        assert listening(server.pid, server.port) == {"0100007F"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_another_address_without_users_is_refused_with_the_command_that_helps(
    tmp_path: Path, host: str
) -> None:
    done = run_openq("serve", "--host", host, "--port", "0", "--data", tmp_path / "d")

    assert done.code != 0
    assert "openq user add admin --role admin --data" in done.err
    assert "--auth on" in done.err
    assert "Traceback" not in done.err


def test_insecure_has_to_be_said_and_is_said_back() -> None:
    """Nothing listens here: the decision is made before, the words come after."""
    out = io.StringIO()
    loop = new_loop()
    broker = LocalBroker()
    try:
        with pytest.raises(NoCredentials):
            Server(Config(memory=True, host="0.0.0.0"), broker, loop)
        server = Server(Config(memory=True, host="0.0.0.0", insecure=True), broker, loop)
        banner(server, out)
        server.context.close()
    finally:
        broker.close()
        loop.close()

    assert "INSECURE" in out.getvalue()


def first_key(server: Served) -> dict[str, str]:
    pairs = (line.strip().partition("=") for line in server.lines if line.strip().startswith("AWS_"))
    return {name: value for name, _, value in pairs}


def test_the_first_key_is_shown_once_and_kept_in_a_file_of_its_owner(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with served(data, "--auth", "on") as server:
        shown = first_key(server)
        client = sqs_client(server.url, shown["AWS_ACCESS_KEY_ID"], shown["AWS_SECRET_ACCESS_KEY"])
        assert client.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200  # type: ignore[attr-defined]
        with RawHttpClient(server.port) as stranger:
            assert stranger.rest("GET", "queues").status == 401
            assert stranger.sqs("ListQueues").status == 403
            assert stranger.get("/metrics").status == 401
            assert stranger.get("/livez").status == 200
    kept = data / "first-key"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert shown["AWS_SECRET_ACCESS_KEY"] in kept.read_text()
    assert shown["AWS_SECRET_ACCESS_KEY"] not in "\n".join(server.log)

    with served(data, "--auth", "on") as again:
        client = sqs_client(again.url, shown["AWS_ACCESS_KEY_ID"], shown["AWS_SECRET_ACCESS_KEY"])
        assert client.list_queues()["ResponseMetadata"]["HTTPStatusCode"] == 200  # type: ignore[attr-defined]

    assert first_key(again) == {}
    assert shown["AWS_SECRET_ACCESS_KEY"] not in "\n".join(again.lines + again.log)


def test_the_first_key_in_memory_is_shown_and_kept_nowhere(tmp_path: Path) -> None:
    with served(None, "--auth", "on", env={"TMPDIR": str(tmp_path)}) as server:
        shown = first_key(server)

        assert shown["AWS_SECRET_ACCESS_KEY"]
        assert list(tmp_path.iterdir()) == []


def test_guessing_is_slowed_down(tmp_path: Path) -> None:
    data = tmp_path / "d"
    password_file = tmp_path / "pw"
    password_file.write_text(PASSWORD + "\n")
    words = ("user", "add", "admin", "--role", "admin", "--password", "--data", data)
    cli(*words, OPENQ_PASSWORD_FILE=str(password_file))
    with served(data) as server, RawHttpClient(server.port) as wire:
        answer = wire.ask(rest_request("GET", "whoami", None, basic("admin", "guess")))
        assert answer.status == 401
        for n in range(100):
            answer = wire.ask(rest_request("GET", "whoami", None, basic("admin", f"guess{n}")))
            if answer.status != 401:
                break

    assert answer.status == 429
    assert int(answer.headers["retry-after"]) > 0
