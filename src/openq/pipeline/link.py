"""The way from Spark to a server: requests that are retried while the server is unreachable or busy.

Every call through a `Link` is idempotent, so one without a response is sent again. A `Link` can be
pickled to executors and opens its own connections there; its token is part of the pickle, but not of its
`repr`.
"""

from __future__ import annotations

import os

from ..client.http import ClientResponse, Refused
from ..client.rest_client import RestClient, Retries

RETRY_S = 60.0
FIRST_RETRY_S = 5.0  # for a server that has not been reached yet: the address may be wrong
TIMEOUT_S = 60.0
_PERMANENT = ("certificate", "does not speak HTTPS", "is not known", "called off")


class Link(RestClient):
    """Calls to the REST API of one server, from any thread."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        user: str | None = None,
        timeout: float = TIMEOUT_S,
        *,
        password: str | None = None,
        ca: str | None = None,
        account: str | None = None,
        retry_s: float = RETRY_S,
        reached_before: bool = False,  # as if it had been reached before
    ) -> None:
        retries = Retries(
            retry_s,
            first_s=FIRST_RETRY_S,
            min_pause_s=0.05,
            max_pause_s=2.0,
            failure_in=_busy,
            permanent=_PERMANENT,
        )
        super().__init__(
            url,
            token,
            user=user,
            password=password,
            ca=ca or os.environ.get("OPENQ_CA") or None,
            account=account,
            timeout_s=timeout,
            retries=retries,
            reached=reached_before,
        )


def _busy(url: str, response: ClientResponse) -> Refused | None:
    """A server that refuses for now, or a gateway without one."""
    if response.status not in (429, 502, 503, 504):
        return None
    try:
        response.raise_for_status()
    except Refused as refused:
        return refused
    return None
