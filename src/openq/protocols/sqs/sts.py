"""The one call of another AWS service that SQS tools make first: `GetCallerIdentity`, who am I?"""

from __future__ import annotations

import re
from html import escape

from ...security.guard import Principal

ACTION = "GetCallerIdentity"
MOST = 4096  # bytes: such a request is short
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


# In a form a bare `&` or `=` is never part of a value.
_ASKED = re.compile(rf"(?:^|&)Action={ACTION}(?:&|$)")


def is_asked(query: str, body: bytes) -> bool:
    return _ASKED.search(query or body[:MOST].decode("latin-1")) is not None


def caller_identity(principal: Principal, shown_account: str, request_id: str) -> bytes:
    user = shown_account if principal.is_root else principal.user
    arn = principal.arn.replace(f"::{principal.account}:", f"::{shown_account}:")
    return (
        f'<GetCallerIdentityResponse xmlns="{_NAMESPACE}"><GetCallerIdentityResult>'
        f"<Arn>{escape(arn)}</Arn><UserId>{escape(user)}</UserId><Account>{escape(shown_account)}</Account>"
        f"</GetCallerIdentityResult><ResponseMetadata><RequestId>{request_id}</RequestId>"
        "</ResponseMetadata></GetCallerIdentityResponse>"
    ).encode()
