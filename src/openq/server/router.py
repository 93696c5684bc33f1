"""Passes HTTP requests on to the protocol that serves their path, and rejects cross-origin requests.

A web page must not reach a server on the user's own machine through the browser: requests with a foreign
`Origin`, or with a `Host` that is not a name of this server, are rejected here for all protocols.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from .context import ServerContext
from .http_request import Handler, HttpRequest

_TEXT = b"text/plain; charset=utf-8"
_MAX_CACHED_HOSTS = 1_000
# The last two are names of the host machine in containers, and a public name for 127.0.0.1.
_LOCAL_NAMES = frozenset(
    ("localhost", "queue.amazonaws.com", "host.docker.internal", "localhost.localstack.cloud")
)
_MAX_HOST_BYTES = 300  # and its port
_QUEUE_PATH = re.compile(r"/[0-9]{12}/[^/]+/?\Z")  # the address of a queue in SQS


class HttpRouter:
    def __init__(self, context: ServerContext, fallback: Handler) -> None:
        self._context = context
        self._exact: dict[str, Handler] = {}
        self._prefixes: list[tuple[str, Handler]] = []
        self._fallback = fallback
        self._accepted_hosts: set[bytes] = set()
        self._pages: tuple[str, Handler, Handler] | None = None

    def add(self, path: str, handler: Handler) -> None:
        """Serve a path, or everything below it if it ends with a slash."""
        if path.endswith("/"):
            self._prefixes.append((path, handler))
        else:
            self._exact[path] = handler

    def add_pages(self, path: str, handler: Handler, home: Handler) -> None:
        """Serve the pages of the dashboard at and below a path; `home` answers browsers at `/`.

        A link in another page may lead there: the pages are the same for everybody, and hold no data.
        """
        assert path.endswith("/")
        self._pages = path, handler, home
        self.add(path, handler)
        self.add(path[:-1], handler)

    def _page_of(self, request: HttpRequest) -> Handler | None:
        """The handler of a page that a browser asks for."""
        if self._pages is None or request.method not in ("GET", "HEAD"):
            return None
        path, handler, home = self._pages
        if request.target == b"/":
            return home if b"text/html" in request.fields.get(b"accept", b"") else None
        return handler if request.path.startswith(path) else None

    def handle(self, request: HttpRequest) -> None:
        fields = request.fields
        host = fields.get(b"host", b"")
        if host not in self._accepted_hosts and not self._accepts(host):
            text = f"unknown host name {host.decode('latin-1')!r}; allow it with --hosts NAME\n"
            request.answer(421, text.encode(), _TEXT)
            return
        if b"origin" in fields and not _same_origin(fields[b"origin"], host):
            request.answer(403, b"cross-origin requests are rejected\n", _TEXT)
            return
        # Images and links of a foreign page have no Origin; browsers send Sec-Fetch-Site instead.
        site = fields.get(b"sec-fetch-site", b"none")
        if site not in (b"same-origin", b"none") and self._context.guard.is_open:
            page = self._page_of(request)
            if page is not None:
                page(request)
                return
            request.answer(403, b"cross-origin requests are rejected\n", _TEXT)
            return
        if request.target == b"/":
            page = None if request.method == "POST" else self._page_of(request)
            (page or self._fallback)(request)
            return
        path = request.path
        handler = self._exact.get(path)
        if handler is None:
            for prefix, each in self._prefixes:
                if path.startswith(prefix):
                    handler = each
                    break
            else:
                handler = self._fallback if _may_be_sqs(request, path) else _not_found
        handler(request)

    def _accepts(self, host: bytes) -> bool:
        try:
            text = urlsplit("//" + host.decode("ascii")).hostname or "" if host else "localhost"
        except ValueError:
            return False  # not a host name
        # With users every request is authenticated. Without, only the host name distinguishes a web page
        # whose own name resolves to this server (DNS rebinding) from a program on this machine.
        known = not self._context.guard.is_open or _is_local_name(text, self._context.config.hosts)
        if known and len(self._accepted_hosts) < _MAX_CACHED_HOSTS and len(host) <= _MAX_HOST_BYTES:
            self._accepted_hosts.add(host)
        return known

    def forget_hosts(self) -> None:
        """Called when open access begins or ends."""
        self._accepted_hosts.clear()


def _may_be_sqs(request: HttpRequest, path: str) -> bool:
    """AWS clients POST; older ones GET `/ACCOUNT/QUEUE?Action=...`. Browsers GET other paths."""
    return (
        request.method not in ("GET", "HEAD")
        or "Action=" in request.query
        or _QUEUE_PATH.search(path) is not None
    )


def _not_found(request: HttpRequest) -> None:
    text = "not found; the REST API is below /api/v1/, described in /openapi.json\n"
    request.answer(404, text.encode(), _TEXT)


def _is_local_name(name: str, more: tuple[str, ...]) -> bool:
    if name in _LOCAL_NAMES or name in more or name.endswith((".localhost", ".localhost.localstack.cloud")):
        return True
    # Host names as AWS clients build them; only Amazon can register them.
    if (name.endswith(".amazonaws.com") and name.startswith("sqs.")) or name.endswith(".queue.amazonaws.com"):
        return True
    if any(name.endswith(each) for each in more if each.startswith(".")) or "*" in more:
        return True
    # Names without a dot are not public: containers and machines of the local network.
    if name and "." not in name and ":" not in name:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _same_origin(origin: bytes, host: bytes) -> bool:
    return origin.partition(b"://")[2] == host
