"""`openq worker --http`: a POST for each message, whose status decides."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from openq import OpenQ
from openq.http_text import retry_after_s
from openq.worker.http_runner import HttpHandler, check_url
from openq.worker.options import ServiceOptions
from tests.http_endpoint import Endpoint, answer, serve_endpoint
from tests.serving import Served, served
from tests.waiting import until
from tests.worker.service import worker


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served() as running:
        yield running


@pytest.fixture
def jobs(server: Served, request: pytest.FixtureRequest) -> Iterator[OpenQ]:
    name = "".join(char if char.isalnum() else "-" for char in request.node.name)[:70]
    queue = OpenQ(name, url=server.url, dlq=f"{name}-dead", max_receives=2, retry="none")
    yield queue
    queue.close()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve_endpoint() as found:
        yield found


def flags(server: Served, queue: OpenQ) -> tuple[str, ...]:
    return ("--queue", queue.name, "--url", server.url)


def test_2xx_acks_and_attributes_are_headers(
    server: Served, jobs: OpenQ, endpoint: Endpoint, tmp_path: Path
) -> None:
    attributes = {"color": "red", "line": "a\r\nEvil: yes", "city": "Zürich"}
    for _ in range(3):
        jobs.publish({"number": 1}, attributes=attributes, message_type="order")

    url = endpoint.url.replace("://", "://user:pass@") + "/jobs?x=1"
    with worker(tmp_path, "--http", url, "--threads", "1", *flags(server, jobs)) as service:
        until(lambda: service.metric("openq_worker_jobs_total") == 3)

    path, headers, body = endpoint.seen[0]
    assert (path, body) == ("/jobs?x=1", b'{"number":1}')
    assert headers["Content-Type"] == "application/json"
    assert headers["OpenQ-Queue"] == jobs.name
    assert headers["OpenQ-Message-Type"] == "order"
    assert headers["OpenQ-Receive-Count"] == "1"
    assert headers["OpenQ-Attribute-color"] == "red"
    assert headers["OpenQ-Attribute-city"] == "Z%C3%BCrich"
    assert headers["OpenQ-Attribute-line"] == "a%0D%0AEvil: yes"
    assert "Evil" not in headers
    assert headers["Authorization"] == "Basic dXNlcjpwYXNz"
    assert jobs.stats().ready == jobs.stats().in_flight == 0


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("retry_after", ["3600", None])
def test_429_and_503_return_the_message_for_later(
    server: Served, jobs: OpenQ, endpoint: Endpoint, tmp_path: Path, status: int, retry_after: str | None
) -> None:
    headers = {} if retry_after is None else {"Retry_After": retry_after}
    endpoint.respond = lambda handler: answer(handler, status, b"busy", **headers)
    jobs.publish("x")

    delay = ("--retry-delay", "1h") if retry_after is None else ("--retry-delay", "0s")
    with worker(tmp_path, "--http", endpoint.url, *delay, *flags(server, jobs)) as service:
        until(lambda: service.metric("openq_worker_jobs_total") == 1)

    assert jobs.stats().delayed == 1
    [message] = jobs.messages
    assert str(message.reason).startswith(f"{status} ")  # type: ignore[attr-defined]


@pytest.mark.parametrize("status", [302, 400, 500])
def test_any_other_status_nacks_with_an_excerpt(
    server: Served, jobs: OpenQ, endpoint: Endpoint, tmp_path: Path, status: int
) -> None:
    elsewhere = f"{endpoint.url}/elsewhere"
    endpoint.respond = lambda handler: answer(handler, status, b"broken\n" * 100_000, Location=elsewhere)
    jobs.publish("x")
    dead = OpenQ(f"{jobs.name}-dead", url=server.url)

    with worker(tmp_path, "--http", endpoint.url, *flags(server, jobs)):
        until(lambda: dead.stats().ready == 1)

    [letter] = dead.queue
    reason = letter.deaths[0]["reason"]
    assert reason.startswith(f"{status} ")
    assert "broken broken" in reason
    assert len(reason) < 400
    assert [path for path, _, _ in endpoint.seen] == ["/", "/"]  # no redirect is followed
    dead.close()


def test_an_endpoint_that_does_not_answer_times_out(
    server: Served, jobs: OpenQ, endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.respond = lambda handler: (endpoint.released.wait(), None)[1]
    jobs.publish("x")
    dead = OpenQ(f"{jobs.name}-dead", url=server.url)

    with worker(tmp_path, "--http", endpoint.url, "--timeout", "500ms", *flags(server, jobs)):
        until(lambda: dead.stats().ready == 1)

    [letter] = dead.queue
    assert letter.deaths[0]["reason"] == "timed out after 0.5 s"
    dead.close()


def test_an_unreachable_endpoint_nacks(server: Served, jobs: OpenQ, tmp_path: Path) -> None:
    jobs.publish("x")
    dead = OpenQ(f"{jobs.name}-dead", url=server.url)

    with worker(tmp_path, "--http", "http://127.0.0.1:9/", *flags(server, jobs)):
        until(lambda: dead.stats().ready == 1)

    [letter] = dead.queue
    assert letter.deaths[0]["reason"].startswith("no response: ConnectionRefusedError")
    dead.close()


def test_a_connection_that_the_endpoint_closed_while_idle_is_opened_again(
    server: Served, jobs: OpenQ, endpoint: Endpoint, tmp_path: Path
) -> None:
    def close_afterwards(handler: BaseHTTPRequestHandler) -> None:
        answer(handler, 200)  # promises to keep the connection
        handler.close_connection = True

    endpoint.respond = close_afterwards
    with worker(tmp_path, "--http", endpoint.url, "--threads", "1", *flags(server, jobs)) as service:
        for number in range(1, 4):
            jobs.publish("x")
            until(lambda number=number: service.metric("openq_worker_jobs_total") == number)

        assert service.metric(f'openq_worker_jobs_total{{task="http",queue="{jobs.name}",outcome="done"') == 3


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after_s("120", 0.0) == 120
    assert retry_after_s("Wed, 21 Oct 2015 07:28:00 GMT", 2e9) == 0
    assert retry_after_s("soon", 0.0) is None
    assert retry_after_s(None, 0.0) is None
    assert retry_after_s("99999999999", 0.0) == 86400
    assert retry_after_s("9" * 400, 0.0) == 86400


def test_a_response_that_comes_byte_by_byte_ends_at_the_timeout() -> None:
    is_over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Endless: ")
            while not is_over.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener, OpenQ("drip", codec="raw") as queue:
        thread = threading.Thread(target=drip, args=(listener,))
        thread.start()
        queue.publish(b"x")
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        message = queue.receive(timeout=0)
        assert message is not None
        outcome = HttpHandler(url, timeout_s=0.5, retry_delay_s=1, ca=None).handle(message)
        is_over.set()
        thread.join()
    assert outcome.reason == "timed out after 0.5 s"


def test_the_list_of_workers_shows_no_secret_of_the_url() -> None:
    options = ServiceOptions(name="a", unit="a", http_url="https://me:secret@host/hook?key=secret#secret")
    assert options.what == "https://me:...@host/hook"


def test_an_aborted_handler_posts_nothing() -> None:
    with OpenQ("aborted", codec="raw") as queue:
        queue.publish(b"x")
        message = queue.receive(timeout=0)
        assert message is not None
        handler = HttpHandler("http://127.0.0.1:1/", timeout_s=1, retry_delay_s=1, ca=None)
        handler.abort()
        outcome = handler.handle(message)
    assert outcome.reason == "no response: ConnectionAbortedError: the worker stops"


@pytest.mark.parametrize("url", ["ftp://host/", "host/path", "http://", "http://host:port/"])
def test_only_http_urls_are_accepted(url: str) -> None:
    with pytest.raises(ValueError, match="--http"):
        check_url(url)
