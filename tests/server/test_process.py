"""The server as a process that an operator or a program runs: its ready line, its ports, SIGHUP."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

import openq.server.app
from openq.config import Config
from openq.errors import InvalidSetting
from openq.local.broker import LocalBroker
from openq.server.app import Server, tls_context
from openq.server.listener import new_loop
from openq.server.ports import PortTaken
from tests.certificates import make_certificate
from tests.serving import free_port, served, start, taken_port
from tests.waiting import until


def test_json_prints_one_line_with_the_ports_when_ready_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "openq", "serve", "--json", "--data", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*command, "--port", "0", "--amqp-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{ready['url']}/readyz", timeout=30) as answer:
            assert answer.status == 200
        socket.create_connection(("127.0.0.1", ready["amqp_port"]), 30).close()
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)

    assert ready["event"] == "ready"
    assert ready["pid"] == process.pid
    assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
    assert ready["amqp_url"] == f"amqp://127.0.0.1:{ready['amqp_port']}"
    assert (ready["amqps_url"], ready["amqps_port"], ready["sign_in"]) == (None, None, False)
    assert (ready["store"], ready["data"]) == ("journal", str(tmp_path / "data"))
    assert [json.loads(line) for line in out.splitlines()] == [
        {"event": "stopping"},
        {"event": "stopped", "messages": 0},
    ]
    assert all(json.loads(line) for line in err.splitlines())


def started(config: Config) -> Server:
    """The server, stopped again."""
    loop = new_loop()
    broker = LocalBroker()
    try:
        server = Server(config, broker, loop)
        try:
            loop.run_until_complete(server.start())
        finally:
            loop.run_until_complete(server.drain())
        return server
    finally:
        broker.close()
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_the_default_amqp_port_taken_is_an_error_unless_it_is_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    with taken_port() as taken:
        monkeypatch.setattr(openq.server.app, "DEFAULT_AMQP_PORT", taken)  # not a real server's

        with pytest.raises(PortTaken, match=r"--amqp-port \(auto or 0 picks a free one"):
            started(Config(memory=True, port=free_port(), amqp_port=taken))
        moved = started(Config(memory=True, port=free_port(), amqp_port="auto"))

    assert moved.amqp_url.startswith("amqp://127.0.0.1:")
    assert not moved.amqp_url.endswith(f":{taken}")


def test_amqp_port_auto_takes_the_default_port_where_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(openq.server.app, "DEFAULT_AMQP_PORT", port)

    assert started(Config(memory=True, port=free_port(), amqp_port="auto")).amqp_url.endswith(f":{port}")


# -- SIGHUP -----------------------------------------------------------------------------------------


def certificate_of(port: int) -> bytes | None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 30) as raw, context.wrap_socket(raw) as tls:
        return tls.getpeercert(binary_form=True)


def test_sighup_reloads_the_certificate_of_new_connections(tmp_path: Path) -> None:
    cert, key, _ = make_certificate(tmp_path)
    amqps = free_port()
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--amqps-port", str(amqps))
    with served(None, *flags) as server:
        before = certificate_of(server.port)
        assert certificate_of(amqps) == before

        make_certificate(tmp_path)
        server.process.send_signal(signal.SIGHUP)

        until(lambda: certificate_of(server.port) != before)
        assert certificate_of(amqps) == certificate_of(server.port)
    assert server.process.returncode == 0


def test_a_certificate_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    cert, key, _ = make_certificate(tmp_path)
    with served(None, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        before = certificate_of(server.port)
        cert.write_text("nonsense")

        server.process.send_signal(signal.SIGHUP)

        until(lambda: any("not_reloaded" in line and str(cert) in line for line in server.log))
        assert certificate_of(server.port) == before
    assert server.process.returncode == 0


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (lambda cert, key: key.unlink(), "cannot read the key {key}: No such file or directory"),
        (lambda cert, key: cert.unlink(), "cannot read the certificate {cert}: No such file or directory"),
        (lambda cert, key: cert.write_text("no"), "certificate {cert} and the key {key}: expected PEM"),
        (lambda cert, key: key.write_text("no"), "certificate {cert} and the key {key}: expected PEM"),
        (lambda cert, key: key.write_text(other_key(key)), "the key {key}: they do not belong together"),
    ],
    ids=["no key", "no certificate", "damaged certificate", "damaged key", "another key"],
)
def test_what_is_wrong_with_a_certificate_is_said_without_words_of_openssl(
    tmp_path: Path, damage: Callable[[Path, Path], object], wanted: str
) -> None:
    cert, key, _ = make_certificate(tmp_path)
    config = Config(tls_cert=str(cert), tls_key=str(key))
    assert tls_context(config) is not None
    damage(cert, key)

    with pytest.raises(InvalidSetting) as raised:
        tls_context(config)

    assert wanted.format(cert=cert, key=key) in str(raised.value)
    assert "SSL" not in str(raised.value)
    assert "Errno" not in str(raised.value)


def other_key(key: Path) -> str:
    folder = key.parent / "other"
    folder.mkdir()
    return make_certificate(folder)[1].read_text()


def test_serve_ignores_sighup_before_it_imports_the_server() -> None:
    code = (
        "import signal, sys, openq.cli.serve as serve, openq.cli.main as main\n"
        "def read(options):\n"
        "    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN\n"
        "    print(ignored, 'openq.server.app' in sys.modules, 'openq.config' in sys.modules)\n"
        "    sys.exit(0)\n"
        "serve.read_settings = read\n"
        "main.main(['serve', '--memory', '--port', '0'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:2] == ["True", "False"], done


def test_sighup_while_it_starts_does_not_end_it(tmp_path: Path) -> None:
    server = start(tmp_path / "data")
    try:
        while not server.lines:  # SIGHUP is ignored from its first line on, until the loop handles it
            ignored = Path(f"/proc/{server.pid}/status").read_text().split("SigIgn:")[1].split()[0]
            if int(ignored, 16) & 1 << (signal.SIGHUP - 1):
                os.kill(server.pid, signal.SIGHUP)
                break
        server.wait()
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: any("reloaded" in line for line in server.log))
    finally:
        assert server.stop() == 0
