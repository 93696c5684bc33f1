"""The table of all routes, and the door that follows it.

Dispatch, permissions and /openapi.json come from this one table: there is no route without a permission.
What a permission is asked for (`about`):

    queue     the queue (or exchange) named first in the path
    query     the queue named by `?queue=`
    each      every single thing in the answer: what the caller may not see is left out
    body      what the body names; the handler asks
    task      the queue that a task is about; a task of others answers like one that does not exist
    subscription    the queue that a subscription reads; one of others answers the same way
    server    the whole server
    caller    nothing but a valid sign-in
    nobody    not even that
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Meta

from ..auth.guard import Principal, read_basic
from ..names import DEFAULT_ACCOUNT
from ..server.context import ServerContext
from ..server.http import HttpRequest
from . import (
    dead_letters,
    exchanges,
    history,
    history_tables,
    messages,
    queues,
    server_info,
    staging,
    subscriptions,
    tasks,
    users,
)
from . import schemas as s
from .call import RestCall, SqsActions, answer_problem
from .formats import JSON, explain, reply_format, request_format
from .problems import Problem

Handler = Callable[[RestCall], None]
Permission = Literal["send", "receive", "peek", "manage", "admin", "none"]
About = Literal["queue", "query", "each", "body", "task", "subscription", "server", "caller", "nobody"]

PREFIX = "/api/v1/"
_MAX_CACHED = 4096
_MAX_CACHED_BYTES = 400


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  # below /api/v1/ and, for another account, below /api/v1/accounts/{account}/
    permission: Permission
    about: About
    handler: Handler
    summary: str
    request: Any = None
    reply: Any = None
    query: type[s.QueryParameters] = s.NoQuery
    status: tuple[int, ...] = (200,)
    reads_itself: bool = False  # the handler decodes the body
    media: tuple[str, ...] = ()  # of the answer, where it is neither JSON nor msgpack
    takes: tuple[str, ...] = ()  # the same of the request

    @property
    def sqs_actions(self) -> SqsActions:
        """What the policy of the queue is asked about, besides the caller's rules."""
        return _SQS_ACTIONS[self.handler]

    @property
    def group(self) -> str:
        return self.handler.__module__.rpartition(".")[2].removesuffix("_api")


_BATCH = Annotated[list[str | s.NewMessage], Meta(max_length=s.MAX_BATCH)] | s.BatchOf

TABLE: tuple[Route, ...] = (
    # Queues.
    Route(
        "GET", "queues", "peek", "each", queues.list_queues, "List queues", None, s.QueueList, s.QueueListing
    ),
    Route(
        "POST",
        "queues",
        "manage",
        "body",
        queues.create_queue,
        "Create a queue",
        s.NewQueue,
        s.QueueView,
        status=(200, 201),
    ),
    Route(
        "PUT",
        "queues/{queue}",
        "manage",
        "queue",
        queues.put_queue,
        "Create or change a queue",
        s.QueueChange,
        s.QueueView,
        s.QueuePut,
        (200, 201),
    ),
    Route(
        "GET", "queues/{queue}", "peek", "queue", queues.show_queue, "Settings and numbers", None, s.QueueView
    ),
    Route(
        "PATCH",
        "queues/{queue}",
        "manage",
        "queue",
        queues.change_queue,
        "Change some settings",
        s.QueueChange,
        s.QueueView,
    ),
    Route(
        "DELETE",
        "queues/{queue}",
        "manage",
        "queue",
        queues.delete_queue,
        "Delete a queue and all in it",
        None,
        s.RemovedMessages,
        s.QueueDeletion,
    ),
    Route(
        "POST",
        "queues/{queue}/purge",
        "manage",
        "queue",
        queues.purge_queue,
        "Remove all messages",
        None,
        s.RemovedMessages,
        s.DryRun,
    ),
    Route(
        "POST",
        "queues/{queue}/pause",
        "manage",
        "queue",
        queues.pause_queue,
        "Hand out nothing",
        None,
        s.QueueView,
    ),
    Route(
        "POST",
        "queues/{queue}/resume",
        "manage",
        "queue",
        queues.resume_queue,
        "Hand out again",
        None,
        s.QueueView,
    ),
    Route(
        "GET",
        "queues/{queue}/stats",
        "peek",
        "queue",
        queues.show_stats,
        "The queue in numbers",
        None,
        s.Stats,
    ),
    Route(
        "GET",
        "queues/{queue}/in-flight",
        "peek",
        "queue",
        queues.list_leases,
        "What is with consumers",
        None,
        s.Leases,
        s.Limited,
    ),
    # Messages.
    Route(
        "POST",
        "queues/{queue}/messages",
        "send",
        "queue",
        messages.publish,
        "Publish a message",
        s.NewMessage,
        s.Published,
        s.Restoring,
        (201,),
    ),
    Route(
        "POST",
        "queues/{queue}/messages/batch",
        "send",
        "queue",
        messages.publish_batch,
        "Publish up to 1,000 messages",
        _BATCH,
        s.PublishedBatch,
        s.Restoring,
        (201,),
        reads_itself=True,
    ),
    Route(
        "POST",
        "queues/{queue}/receive",
        "receive",
        "queue",
        messages.receive,
        "Receive, waiting if need be",
        s.Receive,
        s.Messages,
    ),
    Route(
        "POST",
        "queues/{queue}/ack",
        "receive",
        "queue",
        messages.ack,
        "Finish deliveries",
        s.Receipts,
        s.Settled,
    ),
    Route(
        "POST",
        "queues/{queue}/nack",
        "receive",
        "queue",
        messages.nack,
        "Give deliveries back, or reject them",
        s.Nack,
        s.Settled,
    ),
    Route(
        "POST",
        "queues/{queue}/extend",
        "receive",
        "queue",
        messages.extend,
        "Extend leases",
        s.Extend,
        s.Settled,
    ),
    Route(
        "GET",
        "queues/{queue}/messages",
        "peek",
        "queue",
        messages.browse,
        "Look, changing nothing",
        None,
        s.MessagePage,
        s.Browse,
    ),
    Route(
        "POST", "queues/{queue}/search", "peek", "queue", messages.search, "Search", s.Search, s.SearchReply
    ),
    Route(
        "GET",
        "queues/{queue}/messages/{id}",
        "peek",
        "queue",
        messages.show_message,
        "One message",
        None,
        s.MessageView,
    ),
    Route(
        "PATCH",
        "queues/{queue}/messages/{id}",
        "manage",
        "queue",
        messages.edit_message,
        "Another body, type, attributes or time",
        s.Edit,
        s.Id,
    ),
    Route(
        "DELETE",
        "queues/{queue}/messages/{id}",
        "manage",
        "queue",
        messages.cancel_message,
        "Cancel",
        None,
        s.Id,
    ),
    Route(
        "POST",
        "queues/{queue}/messages/{id}/move",
        "manage",
        "queue",
        messages.move_message,
        "Move to another queue",
        s.MoveTarget,
        s.Id,
    ),
    Route(
        "GET",
        "queues/{queue}/messages/{id}/timeline",
        "peek",
        "queue",
        messages.show_timeline,
        "What happened to it",
        None,
        s.Timeline,
    ),
    Route(
        "GET",
        "queues/{queue}/messages/{id}/why",
        "peek",
        "queue",
        messages.show_why,
        "Why it is not being delivered",
        None,
        s.Reason,
    ),
    # Dead letters and replay.
    Route(
        "GET",
        "dead-letters",
        "peek",
        "each",
        dead_letters.list_dead_queues,
        "Dead-letter queues",
        None,
        s.DeadQueues,
    ),
    Route(
        "GET",
        "queues/{queue}/dead-letters",
        "peek",
        "queue",
        dead_letters.list_dead_letters,
        "Dead letters, with reasons",
        None,
        s.DeadLetters,
        s.DeadPage,
    ),
    Route(
        "GET",
        "queues/{queue}/dead-letters/groups",
        "peek",
        "queue",
        dead_letters.group_dead_letters,
        "Dead letters by reason",
        None,
        s.DeadGroups,
    ),
    Route(
        "POST",
        "queues/{queue}/redrive",
        "manage",
        "queue",
        dead_letters.redrive,
        "Dead letters back to where they died",
        s.Redrive,
        s.TaskView,
        status=(202, 200),
    ),
    Route(
        "POST",
        "queues/{queue}/discard",
        "manage",
        "queue",
        dead_letters.discard,
        "Remove messages for good",
        s.Discard,
        s.TaskView,
        status=(202, 200),
    ),
    Route(
        "POST",
        "queues/{queue}/replay",
        "manage",
        "queue",
        dead_letters.replay,
        "Publish past messages again",
        s.Replay,
        s.TaskView,
        status=(202, 200),
    ),
    # Tasks.
    Route("GET", "tasks", "peek", "each", tasks.list_tasks, "Long work", None, s.TaskListView),
    Route("GET", "tasks/{id}", "peek", "task", tasks.show_task, "How far a task is", None, s.TaskView),
    Route("DELETE", "tasks/{id}", "manage", "task", tasks.cancel_task, "Cancel a task", None, s.TaskView),
    # Exchanges.
    Route(
        "GET", "exchanges", "peek", "each", exchanges.list_exchanges, "List exchanges", None, s.ExchangeList
    ),
    Route(
        "GET",
        "exchanges/{exchange}",
        "peek",
        "queue",
        exchanges.show_exchange,
        "An exchange",
        None,
        s.ExchangeView,
    ),
    Route(
        "PUT",
        "exchanges/{exchange}",
        "manage",
        "queue",
        exchanges.put_exchange,
        "Declare an exchange",
        s.ExchangeChange,
        s.ExchangeView,
        status=(200, 201),
    ),
    Route(
        "DELETE",
        "exchanges/{exchange}",
        "manage",
        "queue",
        exchanges.delete_exchange,
        "Delete an exchange",
        None,
        s.Id,
        s.IfUnused,
    ),
    Route(
        "POST",
        "exchanges/{exchange}/publish",
        "send",
        "queue",
        exchanges.publish_to_exchange,
        "Publish through an exchange",
        s.RoutedMessage,
        s.Routed,
        status=(201,),
    ),
    Route(
        "GET",
        "bindings",
        "peek",
        "each",
        exchanges.list_bindings,
        "List bindings",
        None,
        s.BindingList,
        s.BindingListing,
    ),
    Route(
        "POST",
        "bindings",
        "manage",
        "body",
        exchanges.bind,
        "Bind",
        s.BindingChange,
        s.Changed,
        status=(200, 201),
    ),
    Route("DELETE", "bindings", "manage", "body", exchanges.unbind, "Unbind", s.BindingChange, s.Changed),
    # History.
    Route(
        "GET",
        "history/segments",
        "admin",
        "server",
        history.list_segments,
        "The journal's files",
        None,
        s.SegmentList,
    ),
    Route(
        "GET",
        "history/segments/{number}/data",
        "admin",
        "server",
        history.read_segment,
        "Bytes of a segment, as far as they are durable; by Range",
        status=(200, 206),
        media=("application/octet-stream",),
    ),
    Route(
        "GET",
        "history/segments/{number}/index",
        "admin",
        "server",
        history.read_index,
        "What is where in a segment, in rows of 32 bytes",
        media=("application/octet-stream",),
    ),
    Route(
        "GET",
        "history/messages",
        "peek",
        "query",
        history.list_past,
        "Past messages as they were published",
        None,
        s.PastMessages,
        s.PastQuery,
    ),
    Route(
        "GET",
        "history/snapshot",
        "peek",
        "each",
        history_tables.show_snapshot,
        "What there is of a selection, in pieces to be read",
        None,
        s.HistorySnapshot,
        s.SnapshotQuery,
    ),
    Route(
        "GET",
        "history/rows",
        "peek",
        "each",
        history_tables.read_rows,
        "The rows of a piece, as an Arrow stream",
        None,
        None,
        s.RowsQuery,
        media=("application/vnd.apache.arrow.stream",),
    ),
    Route(
        "GET",
        "history/end",
        "none",
        "caller",
        history_tables.show_end,
        "How far the history reaches; with after and wait, once there is more",
        None,
        s.HistoryEnd,
        s.EndQuery,
    ),
    Route(
        "GET",
        "export",
        "peek",
        "query",
        history.export,
        "A queue as JSON lines, page by page",
        None,
        None,
        s.Export,
        media=("application/x-ndjson",),
    ),
    # Subscriptions and cursors.
    Route(
        "GET",
        "pipeline/subscriptions",
        "receive",
        "each",
        subscriptions.list_subscriptions,
        "Queues that are read in batches",
        None,
        s.SubscriptionList,
    ),
    Route(
        "POST",
        "pipeline/subscriptions/{name}/batches",
        "receive",
        "body",
        subscriptions.form_batch,
        "The next batch, waiting if need be",
        s.BatchRequest,
        s.BatchFormed,
    ),
    Route(
        "GET",
        "pipeline/subscriptions/{name}/batches/{number}",
        "receive",
        "subscription",
        subscriptions.read_batch,
        "The rows of a batch",
        None,
        None,
        s.BatchPart,
        media=("application/x-openq-rows",),
    ),
    Route(
        "POST",
        "pipeline/subscriptions/{name}/ack",
        "receive",
        "subscription",
        subscriptions.ack_batches,
        "Finish batches",
        s.BatchAck,
        s.BatchAcked,
    ),
    Route(
        "POST",
        "pipeline/subscriptions/{name}/extend",
        "receive",
        "subscription",
        subscriptions.extend_batches,
        "Extend the leases of open batches",
        s.BatchExtend,
        s.BatchLeases,
    ),
    Route(
        "DELETE",
        "pipeline/subscriptions/{name}",
        "receive",
        "subscription",
        subscriptions.delete_subscription,
        "Give all batches back",
        None,
        s.Returned,
    ),
    Route(
        "GET",
        "pipeline/cursors",
        "peek",
        "server",
        subscriptions.list_cursors,
        "Readers of the journal, and how far they are",
        None,
        s.CursorList,
    ),
    Route(
        "PUT",
        "pipeline/cursors/{name}",
        "peek",
        "server",
        subscriptions.put_cursor,
        "Move a cursor; the journal is kept from there on",
        s.CursorMove,
        s.CursorView,
    ),
    Route(
        "DELETE",
        "pipeline/cursors/{name}",
        "peek",
        "server",
        subscriptions.delete_cursor,
        "Forget a cursor",
        None,
        s.CursorView,
    ),
    # Batches that come in parts.
    Route(
        "GET",
        "pipeline/stages",
        "send",
        "each",
        staging.list_stages,
        "Batches that are not published yet",
        None,
        s.StageList,
    ),
    Route(
        "PUT",
        "pipeline/stages/{job}/{batch}/parts/{part}",
        "send",
        "body",
        staging.put_part,
        "A part of a batch, as packed rows",
        None,
        s.StagePart,
        takes=("application/x-openq-rows",),
    ),
    Route(
        "POST",
        "pipeline/stages/{job}/{batch}/commit",
        "send",
        "body",
        staging.commit_batch,
        "Publish a batch, once",
        s.StageCommit,
        s.BatchCommitted,
    ),
    Route(
        "DELETE",
        "pipeline/stages/{job}/{batch}",
        "send",
        "body",
        staging.abort_batch,
        "Drop the parts of a batch",
        None,
        s.StageAborted,
    ),
    # Users, keys and tokens.
    Route("GET", "users", "admin", "server", users.list_users, "List users", None, s.UserList),
    Route("GET", "users/{user}", "admin", "server", users.show_user, "A user", None, s.UserView),
    Route(
        "PUT",
        "users/{user}",
        "admin",
        "server",
        users.put_user,
        "Create or change a user",
        s.UserChange,
        s.UserView,
        status=(200, 201),
    ),
    Route("DELETE", "users/{user}", "admin", "server", users.delete_user, "Delete a user", None, s.Id),
    Route("GET", "keys", "admin", "server", users.list_keys, "List access keys", None, s.KeyList, s.OfUser),
    Route(
        "POST",
        "keys",
        "admin",
        "server",
        users.create_key,
        "Create an access key; its secret is shown once",
        s.KeyRequest,
        s.KeyView,
        status=(201,),
    ),
    Route("DELETE", "keys/{id}", "admin", "server", users.revoke_key, "Revoke an access key", None, s.Id),
    Route("GET", "tokens", "admin", "server", users.list_tokens, "List tokens", None, s.TokenList, s.OfUser),
    Route(
        "POST",
        "tokens",
        "admin",
        "server",
        users.create_token,
        "Create a token; it is shown once",
        s.TokenRequest,
        s.TokenView,
        status=(201,),
    ),
    Route(
        "DELETE",
        "tokens/{user}/{name}",
        "admin",
        "server",
        users.revoke_token,
        "Revoke a token",
        None,
        s.Id,
    ),
    # The server.
    Route("GET", "whoami", "none", "caller", server_info.whoami, "Who is asking", None, s.Whoami),
    Route("GET", "server", "none", "caller", server_info.show_server, "What is running", None, s.ServerView),
    Route(
        "GET",
        "damage",
        "admin",
        "server",
        server_info.list_damage,
        "What cannot be read any more: set aside, lost or found damaged",
        None,
        s.DamageList,
    ),
    Route(
        "DELETE",
        "damage",
        "admin",
        "server",
        server_info.clear_damage,
        "Clear the list of damage, and with it the degraded health",
        None,
        s.DamageCleared,
    ),
    Route(
        "GET",
        "health",
        "none",
        "nobody",
        server_info.show_health,
        "Whether it is well",
        None,
        s.HealthView,
        status=(200, 503),
    ),
)


# A policy speaks of the operations of SQS. What SQS does not have is asked for by what comes to the same:
# all of them must be allowed. Who may send to a queue and purge it could edit what is in it; who may only
# delete what it has received must not cancel what it has not.
_SQS_ACTIONS: dict[Handler, SqsActions] = {
    queues.list_queues: ("GetQueueAttributes",),
    queues.create_queue: ("CreateQueue",),
    queues.put_queue: ("SetQueueAttributes",),
    queues.show_queue: ("GetQueueAttributes",),
    queues.change_queue: ("SetQueueAttributes",),
    queues.delete_queue: ("DeleteQueue",),
    queues.purge_queue: ("PurgeQueue",),
    queues.pause_queue: ("SetQueueAttributes",),
    queues.resume_queue: ("SetQueueAttributes",),
    queues.show_stats: ("GetQueueAttributes",),
    queues.list_leases: ("ReceiveMessage",),
    messages.publish: ("SendMessage",),
    messages.publish_batch: ("SendMessage",),
    messages.receive: ("ReceiveMessage",),
    messages.ack: ("DeleteMessage",),
    messages.nack: ("ChangeMessageVisibility",),
    messages.extend: ("ChangeMessageVisibility",),
    messages.browse: ("ReceiveMessage",),
    messages.search: ("ReceiveMessage",),
    messages.show_message: ("ReceiveMessage",),
    messages.edit_message: ("SendMessage", "DeleteMessage", "PurgeQueue"),
    messages.cancel_message: ("DeleteMessage", "PurgeQueue"),
    messages.move_message: ("DeleteMessage", "StartMessageMoveTask"),
    messages.show_timeline: ("ReceiveMessage",),
    messages.show_why: ("ReceiveMessage",),
    dead_letters.list_dead_queues: ("GetQueueAttributes",),
    dead_letters.list_dead_letters: ("ReceiveMessage",),
    dead_letters.group_dead_letters: ("ReceiveMessage",),
    dead_letters.redrive: ("StartMessageMoveTask",),
    dead_letters.discard: ("DeleteMessage", "PurgeQueue"),
    dead_letters.replay: ("ReceiveMessage", "StartMessageMoveTask"),
    tasks.list_tasks: ("ListMessageMoveTasks",),
    tasks.show_task: ("ListMessageMoveTasks",),
    tasks.cancel_task: ("CancelMessageMoveTask",),
    exchanges.list_exchanges: (),
    exchanges.show_exchange: (),
    exchanges.put_exchange: (),
    exchanges.delete_exchange: (),
    exchanges.publish_to_exchange: (),
    exchanges.list_bindings: ("GetQueueAttributes",),
    exchanges.bind: ("SetQueueAttributes",),
    exchanges.unbind: ("SetQueueAttributes",),
    staging.list_stages: ("SendMessage",),
    staging.put_part: ("SendMessage",),
    staging.commit_batch: ("SendMessage",),
    staging.abort_batch: ("SendMessage",),
    history.list_past: ("ReceiveMessage",),
    history.export: ("ReceiveMessage",),
    subscriptions.list_subscriptions: ("ReceiveMessage", "DeleteMessage"),
    subscriptions.form_batch: ("ReceiveMessage", "DeleteMessage"),
    subscriptions.read_batch: ("ReceiveMessage", "DeleteMessage"),
    subscriptions.ack_batches: ("ReceiveMessage", "DeleteMessage"),
    subscriptions.extend_batches: ("ReceiveMessage", "DeleteMessage"),
    subscriptions.delete_subscription: ("ReceiveMessage", "DeleteMessage"),
    history_tables.show_snapshot: ("ReceiveMessage",),
    history_tables.read_rows: ("ReceiveMessage",),
}


# -- from a path to a row -----------------------------------------------------------------------


class _PathNode:
    __slots__ = ("branches", "other", "route")

    def __init__(self) -> None:
        self.branches: dict[str, _PathNode] = {}
        self.other: _PathNode | None = None  # any name
        self.route: Route | None = None

    def add(self, parts: list[str], route: Route) -> None:
        if not parts:
            assert self.route is None, f"{route.method} {route.path} is there twice"
            self.route = route
        elif parts[0].startswith("{"):
            self.other = self.other or _PathNode()
            self.other.add(parts[1:], route)
        else:
            self.branches.setdefault(parts[0], _PathNode()).add(parts[1:], route)

    def find(self, parts: list[str], names: list[str]) -> Route | None:
        """Raw parts; those that stand for names are added to `names`."""
        if not parts:
            return self.route
        branch = self.branches.get(parts[0])
        if branch is not None:
            found = branch.find(parts[1:], names)
            if found is not None:
                return found
        if self.other is None:
            return None
        names.append(parts[0])
        found = self.other.find(parts[1:], names)
        if found is None:
            names.pop()
        return found


def _build(table: tuple[Route, ...]) -> dict[str, _PathNode]:
    trees: dict[str, _PathNode] = {}
    for route in table:
        trees.setdefault(route.method, _PathNode()).add(route.path.split("/"), route)
    return trees


_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def decoded(part: str, what: str = "path") -> str:
    """One part of a path: percent-decoded UTF-8. Raises Problem."""
    if "%" not in part and part.isascii():
        return part
    try:
        if _BROKEN_ESCAPE.search(part):
            raise ValueError
        return unquote_to_bytes(part.encode("latin-1")).decode()
    except ValueError:
        raise Problem("malformed", f"the {what} is not percent-encoded UTF-8") from None


CachedRoute = tuple[Route, str | None, tuple[str, ...]]


class RestHandler:
    """Everything below /api/v1/, and /openapi.json."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self._trees = _build(TABLE)
        self._cached_routes: dict[tuple[str, str], CachedRoute] = {}
        self._openapi: bytes | None = None

    def handle(self, request: HttpRequest) -> None:
        try:
            if request.path == "/openapi.json":
                self._answer_openapi(request)
                return
            route, account, args = self._find(request)
            if route.about == "nobody":
                self._run_handler(RestCall(self.context, request, route, DEFAULT_ACCOUNT, args))
                return
            guard = self.context.guard
            if guard.is_open:
                principal: Principal | None = guard.open_principal(account or DEFAULT_ACCOUNT)
            else:
                principal = self._sign_in(request, route, account, args)
            if principal is not None:
                self._enter(request, route, account, args, principal)
        except Exception as error:
            answer_problem(request, error)

    def _sign_in(
        self, request: HttpRequest, route: Route, account: str | None, args: tuple[str, ...]
    ) -> Principal | None:
        """Who is asking; None if that takes a while and the request goes on by itself."""
        header = request.header(b"authorization")
        if header is None:
            raise Problem("unauthorized", "this server wants to know who is asking")
        scheme, _, value = header.partition(b" ")
        scheme = scheme.lower()
        guard = self.context.guard
        if scheme == b"bearer":
            return guard.bearer(value.strip().decode("latin-1"), request.peer)
        if scheme != b"basic":
            raise Problem("unauthorized", "sign in by a bearer token, or by user and password (Basic)")
        user, password = read_basic(value)
        known = guard.cached_login(user, password, request.peer)
        if known is not None:
            return known

        def signed_in(principal: Principal | None, error: BaseException | None) -> None:
            try:
                if error is not None:
                    raise error
                assert principal is not None
                self._enter(request, route, account, args, principal)
            except Exception as problem:
                answer_problem(request, problem)

        # Checking a password is slow on purpose: not on the loop.
        self.context.check(lambda: guard.basic(user, password, request.peer), signed_in)
        return None

    def _enter(
        self,
        request: HttpRequest,
        route: Route,
        account: str | None,
        args: tuple[str, ...],
        principal: Principal,
    ) -> None:
        call = RestCall(self.context, request, route, account or principal.account, args)
        call.principal = principal
        # Before anything is looked up: who may not know of a queue does not learn whether it exists.
        if route.about == "queue":
            call.require(route.permission, args[0])
        elif route.about == "server" and not self.context.guard.may(
            principal, route.permission, DEFAULT_ACCOUNT, None
        ):
            raise Problem("forbidden", f"{principal.user} may not {route.permission} this server")
        self._run_handler(call)

    def _run_handler(self, call: RestCall) -> None:
        request, route = call.request, call.route
        try:
            call.sent = JSON if route.takes else request_format(request)
            call.format = reply_format(request, call.sent)
            if request.query or route.query not in _OFTEN_EMPTY:
                call.query = _read_query(request.query, route.query)
                if route.about == "query":
                    call.require(route.permission, call.query.queue)
            if route.request is not None and not route.reads_itself:
                call.body = call.sent.decode(request.body or _EMPTY[call.sent.is_json], route.request)
            route.handler(call)
        except Exception as error:
            call.fail(error)

    def _find(self, request: HttpRequest) -> CachedRoute:
        method, path = request.method, request.path
        if method == "HEAD":
            method = "GET"
        known = self._cached_routes.get((method, path))
        if known is not None:
            return known
        parts = path[len(PREFIX) :].split("/")
        account: str | None = None
        if parts[0] == "accounts" and len(parts) > 2:
            account = decoded(parts[1])
            if not 0 < len(account) <= 128 or not account.isprintable() or "*" in account:
                raise Problem("invalid", "an account has 1 to 128 printable characters, no *")
            parts = parts[2:]
        names: list[str] = []
        tree = self._trees.get(method)
        route = None if tree is None else tree.find(parts, names)
        if route is None:
            raise self._not_found(parts, path)
        known = (route, account, tuple(map(decoded, names)))
        if len(path) <= _MAX_CACHED_BYTES:
            if len(self._cached_routes) >= _MAX_CACHED:
                self._cached_routes.clear()
            self._cached_routes[method, path] = known
        return known

    def _not_found(self, parts: list[str], path: str) -> Problem:
        allowed = [method for method, tree in self._trees.items() if tree.find(parts, []) is not None]
        if not allowed:
            return Problem("no_such_route", f"{path[:200]} is not an address of this API")
        line = f"Allow: {', '.join(sorted(allowed))}\r\n".encode()
        return Problem("method_not_allowed", f"this address takes {', '.join(sorted(allowed))}", line)

    def _answer_openapi(self, request: HttpRequest) -> None:
        if request.method not in ("GET", "HEAD"):
            raise Problem("method_not_allowed", "this address takes GET", b"Allow: GET\r\n")
        if self._openapi is None:
            from .openapi import document

            self._openapi = msgspec.json.encode(document(TABLE))
        request.answer(200, self._openapi, b"application/json")


_EMPTY = {True: b"{}", False: b"\x80"}
_OFTEN_EMPTY = (s.NoQuery, s.Restoring)  # nothing is read where nothing is said


def _read_query(text: str, kind: type[s.QueryParameters]) -> Any:
    values: dict[str, str] = {}
    try:
        # Bytes that are not UTF-8 must not become a question mark somebody else's queue is named by.
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=50)
    except ValueError:
        raise Problem("malformed", "the query is not percent-encoded UTF-8, or has too many parts") from None
    for name, value in pairs:
        if name in values:
            raise Problem("invalid", f"the query says {name[:100]!r} twice")
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Problem("invalid", f"the query: {explain(error, kind)}") from None
