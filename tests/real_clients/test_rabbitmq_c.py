"""rabbitmq-c, by way of its command-line tools."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.real_clients.boto import fresh

pytestmark = pytest.mark.skipif(
    shutil.which("amqp-publish") is None,
    reason="the tools of rabbitmq-c (package amqp-tools) are not installed",
)


def run(
    port: int, tool: str, *arguments: str, given: bytes = b"", password: str = "guest"
) -> tuple[int, bytes, str]:
    """The exit code, what it printed and what it complained about."""
    where = ["--server", "127.0.0.1", "--port", str(port), "--username", "guest", "--password", password]
    done = subprocess.run([tool, *where, *arguments], input=given, capture_output=True, timeout=60)
    return done.returncode, done.stdout, done.stderr.decode()


def test_messages_are_published_and_consumed(amqp_port: int) -> None:
    queue = fresh()
    assert run(amqp_port, "amqp-declare-queue", "-q", queue, "-d")[:2] == (0, f"{queue}\n".encode())
    assert run(amqp_port, "amqp-publish", "-r", queue, "-p", "-C", "text/plain", "-b", "one")[0] == 0
    assert run(amqp_port, "amqp-publish", "-r", queue, "-l", given=b"two\nthree\n")[0] == 0

    assert run(amqp_port, "amqp-get", "-q", queue)[:2] == (0, b"one")
    code, said, _ = run(amqp_port, "amqp-consume", "-q", queue, "-c", "2", "--prefetch-count", "1", "cat")
    assert (code, said.replace(b"\n", b"")) == (0, b"twothree")
    assert run(amqp_port, "amqp-get", "-q", queue)[0] == 2  # nothing there

    large = bytes(range(256)) * 12_000
    assert run(amqp_port, "amqp-publish", "-r", queue, given=large)[0] == 0
    assert run(amqp_port, "amqp-get", "-q", queue)[1] == large
    assert run(amqp_port, "amqp-delete-queue", "-q", queue)[0] == 0


def test_a_consumer_binds_a_queue_of_its_own_to_an_exchange(amqp_port: int) -> None:
    where = ["--server", "127.0.0.1", "--port", str(amqp_port), "--username", "guest", "--password", "guest"]
    key = fresh()
    consumer = subprocess.Popen(
        ["amqp-consume", *where, "-e", "amq.topic", "-r", f"{key}.#", "-c", "1", "cat"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        # It tells the name of its queue when the binding is there.
        assert consumer.stderr is not None
        assert b"amq.gen-" in consumer.stderr.readline()
        assert run(amqp_port, "amqp-publish", "-e", "amq.topic", "-r", f"{key}.a", "-b", "hello")[0] == 0
        said, _ = consumer.communicate(timeout=60)
    finally:
        consumer.kill()
        consumer.wait()

    assert said == b"hello"


def test_refusals_carry_their_reply_code(amqp_port: int) -> None:
    code, _, complaint = run(amqp_port, "amqp-get", "-q", "missing")
    assert (code, "404" in complaint) == (1, True)

    code, _, complaint = run(amqp_port, "amqp-get", "-q", "missing", password="wrong")
    assert (code, "403" in complaint) == (1, True)
