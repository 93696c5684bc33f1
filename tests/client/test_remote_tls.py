"""The library over HTTPS: trusted certificates, and a wait that ends at once there too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from openq import Consumer, OpenQ, Unreachable
from tests.certificates import make_certificate
from tests.client.helpers import ended, take, until_waiting
from tests.serving import served


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of a server, and the authority to trust for it."""
    cert, key, trusted = make_certificate(tmp_path_factory.mktemp("tls"))
    with served(None, "--tls-cert", str(cert), "--tls-key", str(key)) as running:
        yield running.url.replace("http:", "https:"), trusted


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
