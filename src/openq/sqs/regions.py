"""The region of a request: that of its signature, else that of its host, else the server's own.

Names in the format of AWS regions are regions. Other names, such as the `elasticmq` or `local` of other
servers, stand for the server's own region; so do unsigned requests. A region exists once it has a queue.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

from ..names import is_region
from ..server.http_request import HttpRequest

_CREDENTIAL = b"Credential="
_PRESIGNED = b"X-Amz-Credential="
_END_OF_SCOPE = b"/aws4_request"
_MAX_CACHED = 10_000
_MAX_CACHED_BYTES = 500  # bytes
_HOST = re.compile(r"(?:sqs(?:-fips)?\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\..+")


class Regions:
    """None is the server's own region, as in `names.py`."""

    def __init__(self, own: str) -> None:
        self.own = own
        self._signed: dict[bytes, str | None] = {}  # empty: not a region, the host decides
        self._hosts: dict[bytes, str | None] = {}

    def key_of(self, name: str) -> str | None:
        """The region of this name; None, the server's own, if it is not a region."""
        return None if name == self.own or not is_region(name) else name

    def is_known(self, name: str) -> bool:
        return name == self.own or is_region(name)

    def name_of(self, key: str | None) -> str:
        return self.own if key is None else key

    def of_request(self, request: HttpRequest) -> str | None:
        fields = request.fields
        authorization = fields.get(b"authorization")
        if authorization is not None:
            signed = credential_of(authorization)
            region = self._signed[signed] if signed in self._signed else self._of_signed(signed)
        elif _PRESIGNED in request.target:
            region = self._of_name(_scope_of_query(request))
        else:
            region = ""
        if region != "":
            return region
        host = fields.get(b"host", b"")
        return self._hosts[host] if host in self._hosts else self._of_host(host)

    def of_host(self, host: str) -> str | None:
        """By AWS's own names of hosts: `sqs.eu-west-1.*`, or the older `eu-west-1.queue.*`."""
        name = region_of_host(host)
        return None if name is None else self.key_of(name)

    def _of_name(self, name: str) -> str | None:
        return self.key_of(name) if self.is_known(name) else ""

    def _of_signed(self, signed: bytes) -> str | None:
        region = self._of_name(_scope_of(signed))
        _remember(self._signed, signed, region)
        return region

    def _of_host(self, host: bytes) -> str | None:
        region = self.of_host(host.decode("latin-1"))
        _remember(self._hosts, host, region)
        return region


def credential_of(authorization: bytes) -> bytes:
    """The header up to the end of the credential: key and region, the same all day."""
    at = authorization.find(_END_OF_SCOPE)
    return authorization if at < 0 else authorization[: at + len(_END_OF_SCOPE)]


def _remember(known: dict[bytes, str | None], key: bytes, region: str | None) -> None:
    # The header is not authenticated: the cache is bounded in count and size.
    if len(key) <= _MAX_CACHED_BYTES:
        if len(known) >= _MAX_CACHED:
            known.clear()
        known[key] = region


def region_of_host(host: str) -> str | None:
    """The name of the region in the name of a host."""
    found = _HOST.match(host.lower())
    name = None if found is None else found[1] or found[2]
    return name if name is not None and is_region(name) else None


def _scope_of(authorization: bytes) -> str:
    """`Credential=KEY/20260131/eu-west-1/sqs/aws4_request` -> `eu-west-1`."""
    at = authorization.find(_CREDENTIAL)
    return "" if at < 0 else _region_in(authorization[at + len(_CREDENTIAL) :].partition(b",")[0])


def _scope_of_query(request: HttpRequest) -> str:
    try:
        return _region_in(parse_qs(request.query, max_num_fields=1_000)["X-Amz-Credential"][0].encode())
    except (KeyError, ValueError):
        return ""


def _region_in(credential: bytes) -> str:
    parts = credential.strip().split(b"/")
    return parts[2].decode("latin-1") if len(parts) == 5 else ""


def host_in(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return ""
