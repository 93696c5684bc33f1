"""The URL and the headers of a webhook: checked once, when they are declared, and written once."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from .._version import __version__
from ..errors import InvalidSetting

MAX_URL = 2048
MAX_HEADERS = 50
MAX_HEADER_BYTES = 8192

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
# Of the connection, or written by the sender itself.
_REFUSED = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
    *("trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length", "content-type"),
}
_REFUSED_PREFIXES = ("webhook-", "ce-", "openq-")


class Endpoint(NamedTuple):
    """Where requests go. `host` is without brackets, in ASCII."""

    is_tls: bool
    host: str
    port: int
    target: str  # path and query
    authorization: str | None  # from user and password in the URL

    @property
    def host_header(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.is_tls else 80) else f"{name}:{self.port}"


def read_url(url: str) -> Endpoint:
    """Raises InvalidSetting. The text of the URL is not repeated: it may contain a password."""
    if not 0 < len(url) <= MAX_URL:
        raise InvalidSetting(f"the URL of a webhook has 1 to {MAX_URL} characters")
    if not url.isascii() or not url.isprintable() or " " in url or "\\" in url or "#" in url:
        raise InvalidSetting(
            "the URL of a webhook is ASCII without spaces, backslashes and fragment: percent-encode the rest"
        )
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError as error:
        raise InvalidSetting(f"the URL of a webhook is not valid: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InvalidSetting("the URL of a webhook looks like https://example.com/hook; http works too")
    if port == 0:
        raise InvalidSetting("the URL of a webhook needs a port from 1 to 65535")
    is_tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    authorization = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        authorization = f"Basic {base64.b64encode(login.encode()).decode()}"
    return Endpoint(is_tls, host, port or (443 if is_tls else 80), target, authorization)


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Further headers of every request. Raises InvalidSetting; values are not repeated."""
    if len(headers) > MAX_HEADERS:
        raise InvalidSetting(f"a webhook has at most {MAX_HEADERS} headers, not {len(headers)}")
    seen: set[str] = set()
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name):
            raise InvalidSetting(f"{name[:100]!r} is not the name of a header")
        lower = name.lower()
        if lower in _REFUSED or lower.startswith(_REFUSED_PREFIXES):
            raise InvalidSetting(f"the header {name!r} is written by the sender: leave it out")
        if lower in seen:
            raise InvalidSetting(f"the header {name!r} is given twice")
        seen.add(lower)
        if not value.isascii() or not (value.isprintable() or not value) or len(value) > MAX_HEADER_BYTES:
            raise InvalidSetting(
                f"the value of header {name!r} must be printable ASCII of at most {MAX_HEADER_BYTES} bytes"
            )
    return dict(headers)


def fixed_head(endpoint: Endpoint, headers: Mapping[str, str]) -> bytes:
    """The beginning of every request: the request line, and the headers that do not change."""
    lines = [f"POST {endpoint.target} HTTP/1.1", f"Host: {endpoint.host_header}"]
    names = {name.lower() for name in headers}
    if "user-agent" not in names:
        lines.append(f"User-Agent: openq-webhook/{__version__}")
    if endpoint.authorization is not None and "authorization" not in names:
        lines.append(f"Authorization: {endpoint.authorization}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("ascii")
