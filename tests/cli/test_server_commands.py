"""Starting a server, signing in to it, and responses that are lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.certificates import make_certificate
from tests.cli.helpers import OPENQ, Cli, run_in_process, run_openq
from tests.client.lossy_proxy import LossyProxy
from tests.serving import Served, free_port, served
from tests.waiting import until


def test_the_shortest_demo_is_one_round(cli: Cli) -> None:
    assert cli.json("demo", "--seconds", "0")["published"] > 0
    cli("demo", "--remove", "--yes")


def test_the_demo_leaves_messages_and_is_removed(cli: Cli) -> None:
    shown = cli.json("demo", "--seconds", "1")

    assert shown["published"] > shown["done"] > 0
    assert [row["name"] for row in cli.lines("queue", "ls", "demo-")] == sorted(shown["queues"])
    assert cli.counts("demo-mails") == (4, 6, 2)
    assert "of the demo with" in cli("demo", "--remove", code=2).err
    assert "4 queues deleted" in cli("demo", "--remove", "--yes").out
    assert "no queues of the demo exist" in cli("demo", "--remove", "--yes").err


def test_health_is_an_exit_code(cli: Cli) -> None:
    assert cli("healthcheck").out.startswith("ready")
    assert cli("healthcheck", "--live").out == "alive\n"
    assert cli.json("healthcheck")["ok"] is True
    nowhere = f"http://127.0.0.1:{free_port()}"
    assert "nothing listens there" in cli("healthcheck", "--url", nowhere, code=1).err
    assert json.loads(cli("healthcheck", "--url", nowhere, "--json", code=1).out)["ok"] is False


def test_without_a_server_the_error_contains_advice() -> None:
    done = run_openq("queue", "ls", "--url", f"http://127.0.0.1:{free_port()}")

    assert done.code == 1
    assert "nothing listens there" in done.err
    assert "openq serve" in done.err


def test_a_taken_port_is_reported_with_its_process(server: Served) -> None:
    done = run_openq("serve", "--memory", "--port", str(server.port))

    assert (done.code, done.out) == (1, "")
    assert f"port {server.port} is taken by process {server.pid}" in done.err
    assert "--port" in done.err


def test_a_taken_amqp_port_is_reported_with_its_process_and_flag(server: Served) -> None:
    done = run_openq("serve", "--memory", "--port", "0", "--amqp-port", str(server.port))

    assert (done.code, done.out) == (1, "")
    assert f"port {server.port} is taken by process {server.pid}" in done.err
    assert "choose another with --amqp-port (auto or 0 picks a free one" in done.err


def test_a_free_port_is_chosen_and_printed() -> None:
    process = subprocess.Popen(
        [*OPENQ, "serve", "--memory", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        ready = [process.stdout.readline() for _ in range(2)]
        url = ready[1].split()[-1]
        assert "is ready" in ready[0]
        assert run_in_process("healthcheck", "--url", url).code == 0
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 0


def test_queues_of_the_file_exist_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "openq.toml"
    file.write_text('[queues.orders]\ndlq = "orders-dead"\nvisibility_timeout = "2m"\n[queues.orders-dead]\n')
    with served(None, "--config", str(file)) as running:
        cli = Cli(running.url, "")
        settings = cli.json("queue", "show", "orders")["settings"]

        assert (settings["visibility_timeout"], settings["dlq"], settings["max_receives"]) == (
            120,
            "orders-dead",
            3,
        )
        assert len(cli.lines("queue", "ls")) == 2


def test_with_users_authentication_and_permissions_are_required(tmp_path: Path) -> None:
    data = tmp_path / "data"
    run_in_process(
        "user",
        "add",
        "admin",
        "--role",
        "admin",
        "--password",
        "--data",
        data,
        OPENQ_PASSWORD="correct horse",
    )
    run_in_process("user", "add", "shop", "--role", "producer", "--data", data)
    token = run_in_process("token", "create", "shop", "--name", "t", "--data", data).out.strip()
    secret = tmp_path / "token"
    secret.write_text(token + "\n")
    with served(data) as running:
        cli = Cli(running.url, "")

        assert "OPENQ_TOKEN_FILE" in cli("queue", "ls", code=4).err
        cli("queue", "ls", code=4, OPENQ_TOKEN="oq_wrong")
        cli("queue", "create", "orders", "--user", "admin", OPENQ_PASSWORD="correct horse")
        cli("queue", "ls", "--user", "admin", answer="wrong\n", code=4)
        assert "orders" in cli("queue", "ls", "--user", "admin", answer="correct horse\n").out
        cli("send", "orders", "x", OPENQ_TOKEN_FILE=str(secret))
        cli("send", "orders", "y", "--token-file", secret)
        assert (
            "cannot be combined"
            in cli("send", "orders", "z", "--token", token, "--token-file", secret, code=2).err
        )
        denied = cli("recv", "orders", code=4, OPENQ_TOKEN=token)
        assert token not in denied.err

        run_in_process("perm", "grant", "shop", "receive", "orders", "--data", data)
        until(lambda: run_in_process("recv", "orders", OPENQ_URL=running.url, OPENQ_TOKEN=token).code == 0)
        run_in_process("token", "revoke", "shop", "t", "--yes", "--data", data)
        until(lambda: run_in_process("recv", "orders", OPENQ_URL=running.url, OPENQ_TOKEN=token).code == 4)
        assert not any(token in line or "correct horse" in line for line in running.log + running.lines)


def test_a_public_address_requires_users(tmp_path: Path) -> None:
    done = run_openq("serve", "--data", tmp_path / "data", "--host", "0.0.0.0", "--port", str(free_port()))

    assert done.code == 2
    assert "openq user add" in done.err


def test_https_requires_a_trusted_certificate(tmp_path: Path) -> None:
    cert, key, trusted = make_certificate(tmp_path)
    with served(None, "--tls-cert", str(cert), "--tls-key", str(key)) as running:
        url = running.url.replace("http:", "https:")

        assert run_in_process("healthcheck", "--url", url, "--ca", trusted).code == 0
        assert run_in_process("queue", "create", "q", "--url", url, OPENQ_CA=str(trusted)).code == 0
        distrusted = run_in_process("queue", "ls", "--url", url)
        assert distrusted.code == 1
        assert "its certificate is not trusted" in distrusted.err
        assert "--ca" in distrusted.err
        assert run_in_process("queue", "ls", "--url", running.url).code == 1


def test_a_send_without_a_response_is_uncertain(cli: Cli, q: str) -> None:
    with LossyProxy(cli.url) as wire:
        wire.lose = 1
        done = cli("send", q, "hello", "--url", wire.url, code=1)

    assert done.out == ""
    assert "uncertain: it may have been published; cannot reach" in done.err
    assert cli.counts(q) == (1, 0, 0)


def test_uncertain_lines_are_counted(cli: Cli, q: str) -> None:
    lines = "".join(f"{number}\n" for number in range(1500))
    with LossyProxy(cli.url) as wire:

        class Second(list[bytes]):
            def append(self, request: bytes) -> None:
                super().append(request)
                wire.lose = len(self) - 1

        wire.requests = Second()
        done = cli("send", q, "--lines", "--url", wire.url, answer=lines, code=1)

    assert "uncertain: 500 messages may have been published, after 1000 messages that were;" in done.err


@pytest.mark.parametrize("status", [502, 504])
def test_a_gateway_error_leaves_a_change_uncertain(cli: Cli, q: str, status: int) -> None:
    with LossyProxy(cli.url) as wire:
        wire.instead = f"HTTP/1.1 {status} Bad\r\nContent-Length: 5\r\n\r\nsorry".encode()
        wire.lose = 1
        sent = cli("send", q, "hello", "--url", wire.url, code=1)
        wire.lose = 1
        purged = cli("queue", "purge", q, "--yes", "--url", wire.url, code=1)
        wire.lose = 1
        listed = cli("queue", "ls", "--url", wire.url, code=1 if status == 502 else 5)

    assert f"uncertain: it may have been published; the server answered {status}: sorry" in sent.err
    assert f"uncertain: the change may have been applied; the server answered {status}" in purged.err
    assert "uncertain" not in listed.err


def test_any_other_change_without_a_response_is_uncertain_too(cli: Cli, q: str) -> None:
    with LossyProxy(cli.url) as wire:
        wire.lose = 1
        done = cli("queue", "purge", q, "--yes", "--url", wire.url, code=1)

    assert "uncertain: the change may have been applied" in done.err
