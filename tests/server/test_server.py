"""The server as a whole: starting, stopping, TLS, what it says."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from openq.server.announcement import _activate_command
from tests.certificates import make_certificate
from tests.serving import free_port, served, start
from tests.waiting import until


def publish(url: str, queue: str, payload: str) -> None:
    request = urllib.request.Request(
        f"{url}/api/v1/queues/{queue}/messages",
        json.dumps({"payload": payload}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201


def create(url: str, queue: str) -> None:
    request = urllib.request.Request(f"{url}/api/v1/queues/{queue}", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status in (200, 201)


def add_admin(data: Path) -> None:
    """By another process, as an operator would."""
    words = ("user", "add", "root", "--role", "admin", "--data", str(data))
    command = [sys.executable, "-m", "openq", *words]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def test_it_reports_its_address_and_what_is_stored_when_it_stops(tmp_path: Path) -> None:
    with served(tmp_path / "data") as server:
        assert any(f"{server.url}/api/v1/" in line for line in server.lines)
        create(server.url, "orders")
        for number in range(3):
            publish(server.url, "orders", str(number))

    assert server.process.returncode == 0
    assert server.lines[-1] == f"stopped; 3 messages are safe on disk in {tmp_path / 'data'}"


def test_what_it_says_to_copy_begins_with_the_environment_that_has_what_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "my env" / "bin" / "activate"
    script.parent.mkdir(parents=True)
    script.touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "my env"))
    assert _activate_command() == [f"  . '{script}'"]
    monkeypatch.chdir(tmp_path)
    assert _activate_command() == ["  . 'my env/bin/activate'"]
    script.unlink()
    assert _activate_command() == []


def test_port_0_picks_one_and_says_which() -> None:
    server = start(None, "--port", "0")
    try:
        server.wait()
        address = next(line.split()[1] for line in server.lines if line.strip().startswith("SQS"))
        with urllib.request.urlopen(f"{address}/readyz", timeout=30) as answer:
            assert answer.read() == b"ready: in memory\n"
    finally:
        server.stop()


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as other:
        port = free_port()
        other.bind(("127.0.0.1", port))
        other.listen()
        done = subprocess.run(
            [sys.executable, "-m", "openq", "serve", "--memory", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
        )

    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_server_on_the_same_data_is_refused_with_the_holder(tmp_path: Path) -> None:
    with served(tmp_path) as first:
        done = subprocess.run(
            [sys.executable, "-m", "openq", "serve", "--data", str(tmp_path), "--port", "0"],
            capture_output=True,
            text=True,
            timeout=60,
        )

        assert done.returncode == 1
        assert str(first.pid) in done.stderr
        assert first.url in done.stderr


def test_queues_of_the_configuration_are_there_from_the_start(tmp_path: Path) -> None:
    file = tmp_path / "openq.toml"
    file.write_text('[queues.orders]\nvisibility_timeout = 7\ndlq = "dead"\n[queues.dead]\n')

    with served(tmp_path / "data", "--config", str(file)) as server:
        status, body = server.get("/api/v1/queues/orders")

    assert status == 200
    settings = json.loads(body)["settings"]
    assert (settings["visibility_timeout"], settings["dlq"], settings["max_receives"]) == (7, "dead", 3)


def test_with_a_certificate_it_speaks_tls_and_nothing_else(tmp_path: Path) -> None:
    cert, key, trusted = make_certificate(tmp_path)
    with served(None, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        trust = ssl.create_default_context(cafile=str(trusted))
        url = server.url.replace("http:", "https:")
        with urllib.request.urlopen(f"{url}/readyz", timeout=30, context=trust) as answer:
            assert answer.status == 200
        with socket.create_connection(("127.0.0.1", server.port), 30) as plain:
            plain.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"200 OK" not in plain.recv(1000)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname = False
        old.verify_mode = ssl.CERT_NONE
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", server.port), 30) as raw, old.wrap_socket(raw) as tls:
            assert tls.version() == "TLSv1.2"


def test_a_certificate_that_is_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    file = tmp_path / "cert.pem"
    file.write_text("no certificate\n")

    done = subprocess.run(
        [
            *(sys.executable, "-m", "openq", "serve", "--memory", "--port", "0"),
            *("--tls-cert", str(file), "--tls-key", str(file)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode != 0
    assert str(file) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 421),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "sqs.us-east-1.amazonaws.com"}, 200),
        ({"Host": "openq"}, 200),
    ],
)
def test_a_web_page_cannot_reach_an_open_server(headers: dict[str, str], status: int) -> None:
    with served(None) as server:
        request = urllib.request.Request(f"{server.url}/api/v1/queues", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                got = answer.status
        except urllib.error.HTTPError as error:
            with error:
                got = error.code

    assert got == status


def test_users_added_while_it_runs_count(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.get("/api/v1/queues")[0] == 200
        add_admin(tmp_path)

        until(lambda: server.get("/api/v1/queues")[0] == 401)
        assert server.get("/metrics")[0] == 401
        assert server.get("/readyz")[0] == 200


def test_a_foreign_picture_deletes_no_queue() -> None:
    with served(None) as server:
        create(server.url, "orders")
        request = urllib.request.Request(
            f"{server.url}/000000000000/orders?Action=DeleteQueue", headers={"Sec-Fetch-Site": "cross-site"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        refused.value.close()

        assert refused.value.code == 403
        assert server.get("/api/v1/queues/orders")[0] == 200


def test_nobody_learns_which_queues_exist_without_signing_in(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        create(server.url, "orders")
        add_admin(tmp_path)
        until(lambda: server.get("/api/v1/queues")[0] == 401)

        answers = [
            server.get(f"/{path}/{name}{action}")
            for name in ("orders", "nowhere")
            for path, action in (
                ("000000000000", "?Action=GetQueueAttributes"),
                ("_aws/sqs/messages/us-east-1/000000000000", ""),
            )
        ]

    assert [status for status, _ in answers[:2]] == [status for status, _ in answers[2:]] == [403, 403]
