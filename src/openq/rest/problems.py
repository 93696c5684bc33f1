"""What goes wrong, as RFC 9457 problems: a stable code for programs, a hint for people, never a traceback.

A problem is always JSON, also for clients that speak msgpack: whoever looks at a failure can read it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..errors import OpenQError, public_text

CONTENT_TYPE = b"application/problem+json"

# code -> status, title, what to do about it.
PROBLEMS: dict[str, tuple[int, str, str]] = {
    # The request itself.
    "malformed": (400, "The request cannot be read", "Check the syntax of the body and of the address."),
    "invalid": (
        422,
        "The request says something impossible",
        "See the schema of the operation in /openapi.json.",
    ),
    "invalid_setting": (
        422,
        "A value is not acceptable",
        "The detail names the value and says what is allowed.",
    ),
    "invalid_search": (400, "A key of a search is not valid", "The detail names the key."),
    "name_taken": (409, "The name is in use", "Choose another name, or delete what has it first."),
    "invalid_policy": (422, "A policy cannot be understood", "The detail says which part of it."),
    "unauthorized": (401, "Sign in first", "Send `Authorization: Bearer oq_...` or Basic credentials."),
    "forbidden": (403, "Not allowed", "Ask an administrator for a rule that allows this action."),
    "no_such_route": (404, "There is nothing at this address", "GET /openapi.json lists every operation."),
    "method_not_allowed": (
        405,
        "Not with this method",
        "The Allow header lists the methods of this address.",
    ),
    "not_acceptable": (406, "No common format", "Accept application/json or application/msgpack."),
    "unsupported_media_type": (
        415,
        "The body's format is not spoken here",
        "Send `Content-Type: application/json` or application/msgpack (with curl: -H).",
    ),
    "range_not_satisfiable": (416, "No such part", "The Content-Range header tells the size."),
    "too_large": (413, "The message is too large", "Send a smaller body, or raise max_body of the queue."),
    "part_too_large": (413, "The part is too large", "Send its rows as several parts."),
    "batch_too_large": (413, "Too many messages in one request", "Send at most 1,000 messages per request."),
    "login_refused": (401, "Sign in first", "Check the token, or the user name and password."),
    "too_many_failed_logins": (429, "Too many failed sign-ins", "Wait as long as Retry-After says."),
    "too_many_tasks": (429, "Too many tasks at once", "Wait until a task is done, or cancel one."),
    "too_many_searches": (429, "Too many searches at once", "Send it again when others are done."),
    "too_many_commits": (429, "Too many commits at once", "Send it again when others are done."),
    "too_many_jobs": (409, "Too many jobs", "Use one job name for many batches, and number them."),
    # What it is about.
    "queue_not_found": (404, "No such queue", "PUT /api/v1/queues/{queue} creates it."),
    "message_not_found": (
        404,
        "No such message",
        "Its timeline tells what happened, as far as history is kept.",
    ),
    "exchange_not_found": (404, "No such exchange", "PUT /api/v1/exchanges/{exchange} creates it."),
    "binding_not_found": (404, "No such binding", "GET /api/v1/bindings lists them."),
    "task_not_found": (404, "No such task", "GET /api/v1/tasks lists those that are known."),
    "subscription_not_found": (404, "No such subscription", "GET /api/v1/pipeline/subscriptions lists them."),
    "subscription_taken": (
        409,
        "Somebody else reads it now",
        "Stop this reader: what it holds is with the new owner.",
    ),
    "subscription_in_use": (409, "In use", "Acknowledge its batches, or DELETE it: they go back."),
    "too_many_batches": (
        409,
        "Too many open batches",
        "Acknowledge those that are done, or DELETE the subscription: they go back.",
    ),
    "cursor_not_found": (404, "No such cursor", "GET /api/v1/pipeline/cursors lists them."),
    "not_found": (404, "No such user, key or token", "GET /api/v1/users, /keys and /tokens list them."),
    "history_unavailable": (
        410,
        "This part of history is not kept",
        "Choose a later point, or keep more history.",
    ),
    "no_history": (409, "Nothing is kept", "Start the server with a data directory, not with --memory."),
    "archive_damaged": (
        500,
        "The archive is damaged",
        "`openq pipeline archive verify` lists what is damaged.",
    ),
    "columns_missing": (
        501,
        "This server cannot read columns",
        "Install them for the server: pip install 'openq[spark]', and restart it.",
    ),
    "not_on_this_store": (
        501,
        "Not where these messages are kept",
        "The detail says what to use instead; a server with a data directory has it.",
    ),
    "queue_exists": (409, "The queue exists with other settings", "PATCH changes them; PUT does both."),
    "queue_in_use": (409, "In use", "Try again when the detail no longer holds."),
    "exchange_in_use": (409, "In use", "Remove its bindings first, or delete it without if_unused."),
    "visibility_timeout_expired": (
        409,
        "The lease is over",
        "The message may be with another consumer: extend in time, or use a longer visibility_timeout.",
    ),
    "stage_not_found": (404, "A part is not here", "Send the parts of the batch again, then commit."),
    "stage_unread": (503, "The disk refused", "Check the disk and the rights of the server's folder."),
    "staging_full": (
        429,
        "Too much is staged",
        "Commit or abort batches; GET /api/v1/pipeline/stages lists them.",
    ),
    "queue_full": (429, "The queue is full", "Consume from it or raise its limit; then send again."),
    # The server.
    "disk_full": (507, "The disk is full", "Free some space; publishing resumes by itself."),
    "exhausted": (
        503,
        "The server is out of descriptors",
        "Close connections, or raise its limit.",
    ),
    "unconfirmed": (503, "It is not on disk yet", "The outcome is uncertain: look, or send it again."),
    "store_full": (507, "Redis is full", "Raise its maxmemory, or consume; publishing resumes by itself."),
    "store_unavailable": (
        503,
        "Redis is away",
        "Send it again; the detail says whether it may have been done.",
    ),
    "store_error": (503, "Redis refused", "The detail is what it said; `openq doctor --store` tells more."),
    "not_replicated": (
        503,
        "Kept by one Redis only",
        "Its copies did not confirm in time. Sending it again may make a second one.",
    ),
    "journal_failed": (
        503,
        "The journal failed",
        "Check the disk and restart the server; nothing acknowledged is lost.",
    ),
    "not_stored": (503, "The disk refused", "Check the disk, then send it again; nothing was changed."),
    "journal_damaged": (500, "Stored data is damaged", "`openq journal check` lists what is damaged."),
    "closed": (503, "The server is stopping", "Connect again in a moment."),
    "user_store_damaged": (503, "The file of users is damaged", "Restore it from a backup."),
    "internal_error": (500, "A mistake of ours", "The log of the server says more."),
}
_INTERNAL_ERROR = (400, "Refused", "")
_RETRY_AFTER_S = {429: b"Retry-After: 1\r\n", 503: b"Retry-After: 1\r\n"}


class ProblemDocument(msgspec.Struct, omit_defaults=True, rename={"kind": "type"}):
    """The body of an answer that is an error."""

    kind: str  # a reference to what the code means
    title: str
    status: int
    code: str
    detail: str = ""
    hint: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class Problem(Exception):
    """Raised by a handler to answer with an error that is none of the engine's."""

    def __init__(self, code: str, detail: str = "", headers: bytes = b"", **facts: object) -> None:
        super().__init__(detail or code)
        self.code = code
        self.detail = detail
        self.headers = headers
        self.facts = facts


_encode = msgspec.json.Encoder().encode


def document(error: Exception) -> ProblemDocument:
    if isinstance(error, Problem):
        code, detail, facts = error.code, error.detail, error.facts
    elif isinstance(error, OpenQError):
        code, detail, facts = error.code, public_text(error), {}
    else:
        code, detail, facts = "internal_error", "", {}
    status, title, hint = PROBLEMS.get(code, _INTERNAL_ERROR)
    return ProblemDocument(f"/errors/{code}", title, status, code, detail, hint, facts)


def render(error: Exception) -> tuple[int, bytes, bytes]:
    """Status, body and further header lines of the answer."""
    told = document(error)
    headers = error.headers if isinstance(error, Problem) else b""
    if told.status == 401:
        headers += b'WWW-Authenticate: Bearer realm="openq", Basic realm="openq"\r\n'
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is not None:
        headers += b"Retry-After: %d\r\n" % wait_s
    if b"Retry-After" not in headers:
        headers += _RETRY_AFTER_S.get(told.status, b"")
    return told.status, _encode(told), headers


class Failure(msgspec.Struct, omit_defaults=True):
    """What went wrong with one item of a batch."""

    code: str
    detail: str = ""


def failure(error: OpenQError) -> Failure:
    return Failure(error.code, public_text(error))
