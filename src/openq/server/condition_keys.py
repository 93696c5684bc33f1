"""The condition keys of a request (`aws:SourceIp`, ...), for the conditions of queue policies.

One list for all protocols: a condition has the same result in each of them.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ..auth.guard import Principal
from .http_request import HttpRequest


def request_condition_keys(
    request: HttpRequest, principal: Principal, region: str, now_ms: int
) -> dict[str, str]:
    """The keys of an HTTP request."""
    keys = connection_condition_keys(request.is_tls, request.peer, principal, region, now_ms)
    for key, header in (("aws:UserAgent", b"user-agent"), ("aws:Referer", b"referer")):
        value = request.header(header)
        if value is not None:
            keys[key] = value.decode("latin-1")
    return keys


def connection_condition_keys(
    is_tls: bool, peer: str, principal: Principal, region: str, now_ms: int
) -> dict[str, str]:
    """The keys of any connection. Unknown keys are left out; `auth.policy` knows which may be missing."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    keys = {
        "aws:SecureTransport": "true" if is_tls else "false",
        "aws:CurrentTime": moment.isoformat(timespec="milliseconds"),
        "aws:EpochTime": str(now_ms // 1000),
        "aws:RequestedRegion": region,
        "aws:ViaAWSService": "false",
        "aws:PrincipalIsAWSService": "false",
    }
    if peer:
        keys["aws:SourceIp"] = peer
    if principal.is_anonymous:
        keys["aws:PrincipalType"] = keys["aws:userid"] = "Anonymous"
        return keys
    keys["aws:PrincipalArn"] = principal.arn
    keys["aws:PrincipalAccount"] = principal.account
    keys["aws:PrincipalType"] = "Account" if principal.is_root else "User"
    if principal.is_root:
        keys["aws:userid"] = principal.account
    else:
        keys["aws:username"] = principal.user
    return keys
