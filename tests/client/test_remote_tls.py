"""The library over HTTPS: with whom one trusts, and a wait that ends at once there too."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import Consumer, OpenQ, Unreachable
from tests.client.helpers import ended, take, until_waiting
from tests.serving import served


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and the certificate that it shows."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    try:
        subprocess.run(
            ["openssl", *words, "-keyout", str(key), "-out", str(cert)],
            capture_output=True,
            timeout=60,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("openssl is not installed here, and it makes the certificate")
    with served(None, "--tls-cert", str(cert), "--tls-key", str(key)) as running:
        yield running.url.replace("http:", "https:"), cert


def test_a_server_is_trusted_by_its_certificate(
    secure: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, cert = secure
    with OpenQ("jobs", url=url, ca=str(cert)) as queue:
        queue.publish("x")
        take(queue).ack()
    monkeypatch.setenv("OPENQ_CA", str(cert))
    with OpenQ("jobs", url=url) as queue:
        assert queue.messages == []


def test_a_server_that_is_not_trusted_is_not_talked_to(secure: tuple[str, Path]) -> None:
    url, _ = secure
    with pytest.raises(Unreachable, match=r"certificate is not trusted.*ca= or OPENQ_CA"):
        OpenQ("jobs", url=url)
    with pytest.raises(Unreachable, match="https://"):
        OpenQ("jobs", url=url.replace("https:", "http:"))


def test_a_consumer_that_waits_stops_at_once(secure: tuple[str, Path]) -> None:
    url, cert = secure
    with OpenQ("jobs", url=url, ca=str(cert)) as queue:
        consumer = Consumer(queue, idle_timeout=None)
        consumer.start()
        until_waiting(queue, 1)

        consumer.stop()

        assert ended(consumer)
        until_waiting(queue, 0)
        queue.publish("nobody took it")
        assert take(queue).receive_count == 1
        queue.purge()
