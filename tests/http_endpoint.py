"""A real HTTP server whose answers a test decides."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Respond = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Endpoint:
    """`seen` has the path, the headers and the body of each request."""

    respond: Respond
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    pages: dict[str, bytes] = field(default_factory=dict)  # by path, for a browser
    url: str = ""

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in list(self.seen)]


def answer(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class _Listener(ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is what some tests are about."""


@contextmanager
def serve_endpoint(port: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[Endpoint]:
    found = Endpoint(lambda handler: answer(handler, 200))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.seen.append((self.path, dict(self.headers), body))
            found.respond(self)

        def do_GET(self) -> None:
            page = found.pages.get(self.path)
            answer(self, 404 if page is None else 200, page or b"", Content_Type="text/html; charset=utf-8")

        def log_message(self, *_: Any) -> None: ...

    listener = _Listener(("127.0.0.1", port), Handler)
    if tls is not None:
        listener.socket = tls.wrap_socket(listener.socket, server_side=True)
    scheme = "http" if tls is None else "https"
    found.url = f"{scheme}://127.0.0.1:{listener.server_port}"
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.released.set()
        listener.shutdown()
        listener.server_close()
