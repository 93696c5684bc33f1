"""What is known of a request, under the names by which the conditions of a queue's policy ask for it.

One list for all doors: a condition must not hold at one and fail at another.
"""

from __future__ import annotations

from datetime import UTC, datetime

from ..security.guard import Principal
from .http import Request


def facts_of(request: Request, principal: Principal, region: str, now_ms: int) -> dict[str, str]:
    """What an HTTP request tells."""
    facts = known_facts(request.is_tls, request.peer, principal, region, now_ms)
    for key, header in (("aws:UserAgent", b"user-agent"), ("aws:Referer", b"referer")):
        value = request.header(header)
        if value is not None:
            facts[key] = value.decode("latin-1")
    return facts


def known_facts(is_tls: bool, peer: str, principal: Principal, region: str, now_ms: int) -> dict[str, str]:
    """A fact that cannot be told is left out: `security.policy` knows which may rightly be missing."""
    moment = datetime.fromtimestamp(now_ms / 1000, UTC)
    facts = {
        "aws:SecureTransport": "true" if is_tls else "false",
        "aws:CurrentTime": moment.isoformat(timespec="milliseconds"),
        "aws:EpochTime": str(now_ms // 1000),
        "aws:RequestedRegion": region,
        "aws:ViaAWSService": "false",
        "aws:PrincipalIsAWSService": "false",
    }
    if peer:
        facts["aws:SourceIp"] = peer
    if principal.is_anonymous:
        facts["aws:PrincipalType"] = facts["aws:userid"] = "Anonymous"
        return facts
    facts["aws:PrincipalArn"] = principal.arn
    facts["aws:PrincipalAccount"] = principal.account
    facts["aws:PrincipalType"] = "Account" if principal.is_root else "User"
    if principal.is_root:
        facts["aws:userid"] = principal.account
    else:
        facts["aws:username"] = principal.user
    return facts
