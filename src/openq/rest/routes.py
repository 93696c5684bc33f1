"""The routes of the REST API: `@route` registers a handler with its path, its permission and its types.

Dispatch, permissions and /openapi.json are built from `ROUTES`; `handler.py` imports the modules that
fill it. Every route has a permission. `scope` says what the permission is required for:

    queue         the queue (or exchange) that is the first name in the path
    query         the queue that `?queue=` names; see `QueryParameters.MAY_OMIT_QUEUE`
    each          every item of the reply: items that the caller may not see are left out
    body          what the body names; the handler checks it
    task          the queue of a task; a task of another user is not found
    schedule      the queue that a schedule publishes to; one of another user is not found
    webhook       the queue or the queues of a webhook; one of another user is not found
    worker        the queues of a worker; one of another user is not found
    connection    the caller's own connection, or the account of another; one of another user is not found
    subscription  the queue that a subscription reads; one of another user is not found
    server        the whole server
    caller        authentication only
    visitor       nothing; a caller that authenticates is known to the handler
    public        nothing: no authentication either
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..server.routes import RouteTable
from .schemas import NoQuery, QueryParameters

if TYPE_CHECKING:
    from .call import RestCall

SqsActions = tuple[str, ...]  # actions of SQS, as the policies of queues name them
Handler = Callable[["RestCall"], None]
Permission = Literal["send", "receive", "peek", "manage", "admin", "none"]
Scope = Literal[
    "queue",
    "query",
    "each",
    "body",
    "task",
    "schedule",
    "webhook",
    "worker",
    "connection",
    "subscription",
    "server",
    "caller",
    "visitor",
    "public",
]


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # below /api/v1/ and, for another account, below /api/v1/accounts/{account}/
    handler: Handler
    permission: Permission
    scope: Scope
    summary: str
    # What the policy of the queue is checked for, besides the caller's own rules.
    sqs_actions: SqsActions = ()
    request: Any = None
    reply: Any = None
    query: type[QueryParameters] = NoQuery
    status: tuple[int, ...] = (200,)
    reads_itself: bool = False  # the handler decodes the body
    media: tuple[str, ...] = ()  # media types of the reply, besides JSON and msgpack if it has a type
    takes_ticket: bool = False  # a ticket in the query is a login, too
    takes: tuple[str, ...] = ()  # media types of the request, likewise

    @property
    def is_audited(self) -> bool:
        """Whether the audit log records its requests: all that administrate."""
        if self.method == "GET":
            return False
        return self.permission in ("manage", "admin") or self.path.startswith(
            ("schedules/", "pipeline/cursors/", "connections/")
        )

    @property
    def tag(self) -> str:
        """The module of the handler groups the routes in /openapi.json."""
        return self.handler.__module__.rpartition(".")[2]


EVENT_STREAM = "text/event-stream"  # the media type of a route that answers with server-sent events
ROUTES: RouteTable[Route] = RouteTable()


def route(
    method: str, path: str, *, permission: Permission, summary: str, scope: Scope = "queue", **options: Any
) -> Callable[[Handler], Handler]:
    """Register the function below. `options` are the other fields of `Route`."""

    def add(handler: Handler) -> Handler:
        ROUTES.add(Route(method, path, handler, permission, scope, summary, **options))
        return handler

    return add
