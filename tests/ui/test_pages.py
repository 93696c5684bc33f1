"""The files of the dashboard over HTTP: addresses, caching, compression, security headers."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from openq.config import Config
from openq.local.broker import LocalBroker
from openq.ui.files import WebFiles
from tests.rest.helpers import Answer, Client
from tests.server.in_process import in_process_server
from tests.serving import served

INDEX = b"<!doctype html><title>OpenQ</title><script type=module src=/ui/assets/app-1a2b.js></script>"
SCRIPT = b"console.log('one');" * 20
HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = Path(__file__).parents[2] / "src" / "openq" / "ui" / "pages"


def build(directory: Path, index: bytes = INDEX) -> None:
    (directory / "assets").mkdir(parents=True, exist_ok=True)
    for name, body in (("assets/app-1a2b.js", SCRIPT), ("index.html", index)):
        (directory / name).write_bytes(body)
        (directory / f"{name}.gz").write_bytes(gzip.compress(body))
    (directory / "favicon.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")


@pytest.fixture
def static(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "static"
    monkeypatch.setattr("openq.ui.handler.STATIC", directory)
    monkeypatch.setattr("openq.ui.handler.MARKER", tmp_path / ".building")
    return directory


@pytest.fixture
def client(static: Path) -> Iterator[Client]:
    with in_process_server(LocalBroker(None), Config(memory=True, drain_timeout_s=1)) as server:
        yield Client(f"http://127.0.0.1:{server.port}")


def assert_protected(answer: Answer) -> None:
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert answer.headers["x-frame-options"] == "DENY"


def test_every_screen_is_the_index(static: Path, client: Client) -> None:
    build(static)

    for path in (
        "/ui/",
        "/ui/queues/orders/messages",
        "/ui/m/01J9?tab=body",
        "/ui/queues/a%2Fb",
        "/ui/queues/orders.fifo",
    ):
        answer = client.send("GET", path)
        assert (answer.status, answer.data) == (200, INDEX), path
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert_protected(answer)


def test_assets_are_kept_for_ever_and_missing_ones_are_not(static: Path, client: Client) -> None:
    build(static)

    answer = client.send("GET", "/ui/assets/app-1a2b.js")
    assert (answer.status, answer.data) == (200, SCRIPT)
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in answer.headers["cache-control"]
    assert_protected(answer)
    for path in ("/ui/assets/gone-0000.js", "/ui/assets/gone", "/ui/robots.txt", "/ui/assets/app-1a2b.js.gz"):
        missing = client.send("GET", path)
        assert missing.status == 404, path
        assert missing.headers["cache-control"] == "no-store"
        assert_protected(missing)


def test_gzip_is_sent_to_clients_that_take_it(static: Path, client: Client) -> None:
    build(static)

    packed = client.send("GET", "/ui/assets/app-1a2b.js", headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.data) == SCRIPT
    plain = client.send("GET", "/ui/assets/app-1a2b.js", headers={"accept-encoding": "gzip;q=0, br"})
    assert "content-encoding" not in plain.headers
    assert plain.data == SCRIPT
    assert packed.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert packed.headers["etag"] != plain.headers["etag"]


def test_a_known_file_is_not_sent_again(static: Path, client: Client) -> None:
    build(static)
    etag = client.send("GET", "/ui/").headers["etag"]

    for given in (etag, f'"other", W/{etag}', "*"):
        answer = client.send("GET", "/ui/", headers={"if-none-match": given})
        assert (answer.status, answer.data) == (304, b"")
    build(static, b"<!doctype html><title>a newer build</title>")
    answer = client.send("GET", "/ui/", headers={"if-none-match": etag})
    assert answer.status == 200
    assert b"newer" in answer.data


def test_head_has_the_headers_alone_and_other_methods_are_refused(static: Path, client: Client) -> None:
    build(static)

    head = client.send("HEAD", "/ui/")
    assert (head.status, head.data, head.headers["content-length"]) == (200, b"", str(len(INDEX)))
    refused = client.send("POST", "/ui/", b"{}")
    assert (refused.status, refused.headers["allow"]) == (405, "GET, HEAD")


def test_a_browser_at_the_root_is_led_to_the_dashboard(static: Path, client: Client) -> None:
    for path, headers in (("/", HTML), ("/ui", {}), ("/", {**HTML, "sec-fetch-site": "cross-site"})):
        answer = client.send("GET", path, headers=headers)
        assert (answer.status, answer.headers["location"]) == (302, "/ui/")
    # Everything else at the root is SQS, as before.
    assert b"UnknownOperationException" in client.send("GET", "/").data
    assert (
        b"ListQueuesResponse"
        in client.send("GET", "/?Action=ListQueues&Version=2012-11-05", headers=HTML).data
    )
    sent = client.send(
        "POST",
        "/",
        b"Action=ListQueues&Version=2012-11-05",
        {**HTML, "content-type": "application/x-www-form-urlencoded"},
    )
    assert b"ListQueuesResponse" in sent.data


def test_a_link_elsewhere_leads_to_the_page_and_never_to_data(static: Path, client: Client) -> None:
    build(static)
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

    assert client.send("GET", "/ui/queues/orders", headers=linked).status == 200
    assert client.send("GET", "/api/v1/queues", headers=linked).status == 403
    assert client.send("GET", "/ui/", headers={"origin": "https://evil.example"}).status == 403
    assert client.send("GET", "/ui/", headers={"host": "evil.example"}).status == 421


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../app.py",
        "/ui/assets/../../handler.py",
        "/ui/assets/..%2f..%2fhandler.py",
        "/ui/%2e%2e/handler.py",
        "/ui//etc/passwd.txt",
        "/ui/.building",
        "/ui/assets/.hidden",
        "/ui/assets/a\x00.js".replace("\x00", "%00"),
        "/ui/" + "a/" * 2000 + "x.js",
    ],
)
def test_no_path_leaves_the_directory(static: Path, client: Client, path: str) -> None:
    build(static)
    (static / ".building").write_text("secret")
    (static / "assets" / ".hidden").write_text("secret")

    answer = client.send("GET", path)

    # Below an unknown directory there is no file, only a screen that says so.
    assert answer.status in (404, 400) or answer.data == INDEX
    assert b"secret" not in answer.data


def test_without_a_build_the_page_says_how_to_get_it(static: Path, client: Client) -> None:
    answer = client.send("GET", "/ui/queues")

    assert answer.status == 200
    assert b"make web" in answer.data
    assert b"<script" not in answer.data
    assert b"style=" not in answer.data
    assert b"http-equiv" not in answer.data
    assert answer.headers["cache-control"] == "no-store"
    assert_protected(answer)
    style = client.send("GET", "/ui/pages.css")
    assert (style.status, style.headers["content-type"]) == (200, "text/css; charset=utf-8")


def test_during_a_build_the_page_reloads_until_it_is_there(static: Path, client: Client) -> None:
    (static.parent / ".building").touch()

    waiting = client.send("GET", "/ui/")
    assert b'http-equiv="refresh"' in waiting.data
    assert b"being built" in waiting.data
    build(static)
    assert client.send("GET", "/ui/").data == INDEX


def test_an_old_compressed_file_is_not_sent_with_a_new_build(tmp_path: Path) -> None:
    build(tmp_path)
    files = WebFiles(tmp_path)
    first = files.find("index.html")
    assert first is not None
    assert first.compressed is not None

    newer = (tmp_path / "index.html.gz").stat().st_mtime_ns + 1_000_000_000
    (tmp_path / "index.html").write_bytes(b"changed")
    os.utime(tmp_path / "index.html", ns=(newer, newer))
    second = files.find("index.html")
    assert second is not None
    assert (second.body, second.compressed) == (b"changed", None)


def test_the_dashboard_can_be_turned_off(static: Path) -> None:
    build(static)
    config = Config(memory=True, drain_timeout_s=1, ui=False)
    with in_process_server(LocalBroker(None), config) as server:
        client = Client(f"http://127.0.0.1:{server.port}")
        assert client.send("GET", "/ui/").status == 404
        assert b"UnknownOperation" in client.send("GET", "/", headers=HTML).data


def test_the_banner_names_the_dashboard() -> None:
    with served() as server:
        assert any(f"dashboard  {server.url}/ui/" in line for line in server.lines)
        status, _ = server.get("/ui/")
        assert status == 200
    with served(None, "--no-ui") as server:
        assert not any("/ui/" in line for line in server.lines)
        assert server.get("/ui/")[0] == 404
