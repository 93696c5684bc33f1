"""`GetCallerIdentity` of AWS STS: tools call it before they use SQS."""

from __future__ import annotations

import re
from html import escape

from ..auth.guard import Principal

ACTION = "GetCallerIdentity"
MAX_BYTES = 4096  # bytes: such a request is short
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


# In a form a bare `&` or `=` is never part of a value.
_ACTION_PARAMETER = re.compile(rf"(?:^|&)Action={ACTION}(?:&|$)")


def is_caller_identity_request(query: str, body: bytes) -> bool:
    return _ACTION_PARAMETER.search(query or body[:MAX_BYTES].decode("latin-1")) is not None


def caller_identity(principal: Principal, shown_account: str, request_id: str) -> bytes:
    user = shown_account if principal.is_root else principal.user
    arn = principal.arn.replace(f"::{principal.account}:", f"::{shown_account}:")
    return (
        f'<GetCallerIdentityResponse xmlns="{_NAMESPACE}"><GetCallerIdentityResult>'
        f"<Arn>{escape(arn)}</Arn><UserId>{escape(user)}</UserId><Account>{escape(shown_account)}</Account>"
        f"</GetCallerIdentityResult><ResponseMetadata><RequestId>{request_id}</RequestId>"
        "</ResponseMetadata></GetCallerIdentityResponse>"
    ).encode()
