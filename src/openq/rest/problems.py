"""Errors as RFC 9457 problems: a stable code for programs, a hint for people, never a traceback.

A problem is always JSON, for msgpack clients too, so that it is readable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ..documents.problem import Problem as Problem
from ..errors import OpenQError, public_text

CONTENT_TYPE = b"application/problem+json"

# code -> status, title, hint.
PROBLEMS: dict[str, tuple[int, str, str]] = {
    # The request itself.
    "malformed": (400, "Malformed request", "Check the syntax of the body and of the address."),
    "invalid": (
        422,
        "Invalid request",
        "See the schema of the operation in /openapi.json.",
    ),
    "invalid_setting": (
        422,
        "Invalid value",
        "The detail names the value and what is allowed.",
    ),
    "invalid_search": (400, "Invalid search key", "The detail names the key."),
    "name_taken": (409, "The name is in use", "Choose another name, or delete the other object first."),
    "invalid_policy": (422, "Invalid policy", "The detail names the part."),
    "unauthorized": (
        401,
        "Authentication required",
        "Send `Authorization: Bearer oq_...` or Basic credentials.",
    ),
    "forbidden": (403, "Not allowed", "Ask an administrator for a rule that allows this action."),
    "no_such_route": (404, "Not found", "GET /openapi.json lists every operation."),
    "method_not_allowed": (
        405,
        "Method not allowed",
        "The Allow header lists the methods of this address.",
    ),
    "not_acceptable": (406, "No common format", "Accept application/json or application/msgpack."),
    "upgrade_required": (
        426,
        "WebSocket required",
        "Connect with a WebSocket client: ws://HOST:PORT/api/v1/stream.",
    ),
    "unsupported_media_type": (
        415,
        "Unsupported media type",
        "Send `Content-Type: application/json` or application/msgpack (with curl: -H).",
    ),
    "range_not_satisfiable": (416, "Range not satisfiable", "The Content-Range header has the size."),
    "too_large": (413, "The message is too large", "Send a smaller body, or raise max_body of the queue."),
    "part_too_large": (413, "The part is too large", "Send its rows as several parts."),
    "batch_too_large": (413, "Too many messages in one request", "Send at most 1,000 messages per request."),
    "login_refused": (401, "Authentication failed", "Check the token, or the user name and password."),
    "session_expired": (401, "The session has ended", "POST /api/v1/session logs in again."),
    "foreign_request": (
        403,
        "Not a request of this server's pages",
        "Programs that use the session cookie send the header X-OpenQ-Request: 1.",
    ),
    "read_only": (403, "The dashboard is read-only", "The setting ui_read_only of the server decides this."),
    "open_access": (409, "No login is needed", "The server has no users: everybody may do everything."),
    "too_many_failed_logins": (429, "Too many failed logins", "Wait for the time in Retry-After."),
    "too_many_tasks": (429, "Too many long operations at once", "Wait until one is done, or cancel one."),
    "too_many_tickets": (429, "Too many open tickets", "Use or drop tickets; they expire by themselves."),
    "too_many_streams": (429, "Too many streams at once", "Close pages that are left open, then try again."),
    "too_many_searches": (429, "Too many searches at once", "Try again later."),
    "too_many_commits": (429, "Too many commits at once", "Try again later."),
    "too_many_jobs": (409, "Too many jobs", "Use one job name for many batches, and number them."),
    # The object of the request.
    "queue_not_found": (404, "No such queue", "PUT /api/v1/queues/{queue} creates it."),
    "message_not_found": (
        404,
        "No such message",
        "Its timeline shows what happened, as far as history is kept.",
    ),
    "exchange_not_found": (404, "No such exchange", "PUT /api/v1/exchanges/{exchange} creates it."),
    "binding_not_found": (404, "No such binding", "GET /api/v1/bindings lists them."),
    "schedule_not_found": (404, "No such schedule", "GET /api/v1/schedules lists them."),
    "webhook_not_found": (404, "No such webhook", "GET /api/v1/webhooks lists them."),
    "address_refused": (
        422,
        "The address is not allowed",
        "Use a public address, or allow this one in the configuration of the server: webhook_allow.",
    ),
    "alert_not_found": (404, "No such alert", "GET /api/v1/alerts lists them."),
    "alert_rule_not_found": (404, "No such alert rule", "GET /api/v1/alerts/rules lists them."),
    "silence_not_found": (404, "No such silence", "GET /api/v1/alerts/silences lists them."),
    "destination_not_found": (
        404,
        "No such destination",
        "Destinations are in the configuration of the server: [alerts.destinations.NAME].",
    ),
    "invalid_expression": (422, "Invalid expression", "docs/ALERTS.md has the grammar and the signals."),
    "invalid_alerts": (422, "Invalid alert rule", "The detail names the value and what is allowed."),
    "undo_not_found": (
        404,
        "Nothing to undo",
        "What was removed is kept for ten minutes, while the server runs. A replay may bring it back.",
    ),
    "redrive_stopped": (
        409,
        "The redrive was stopped",
        "Look at the new dead letters, fix the consumer, then redrive the rest.",
    ),
    "not_transformed": (422, "The body cannot be changed so", "Only fields of JSON bodies can be changed."),
    "task_not_found": (404, "No such operation", "GET /api/v1/tasks lists them."),
    "worker_not_found": (404, "No such worker", "GET /api/v1/workers lists them."),
    "subscription_not_found": (404, "No such subscription", "GET /api/v1/pipeline/subscriptions lists them."),
    "subscription_taken": (
        409,
        "Another reader took it over",
        "Stop this reader: its batches belong to the new owner.",
    ),
    "subscription_in_use": (409, "In use", "Acknowledge its batches, or DELETE it, which returns them."),
    "too_many_batches": (
        409,
        "Too many open batches",
        "Acknowledge finished ones, or DELETE the subscription, which returns them.",
    ),
    "cursor_not_found": (404, "No such cursor", "GET /api/v1/pipeline/cursors lists them."),
    "not_found": (404, "No such user, key or token", "GET /api/v1/users, /keys and /tokens list them."),
    "history_unavailable": (
        410,
        "This part of the history is not available",
        "Choose a later point, or keep more history.",
    ),
    "backup_not_found": (404, "No such backup in progress", "POST /api/v1/backups begins another one."),
    "backup_busy": (503, "No backup now", "Try again later; the detail names what to wait for."),
    "nothing_kept": (409, "Nothing to back up", "Start the server with a data directory, not with --memory."),
    "no_history": (409, "No history", "Start the server with a data directory, not with --memory."),
    "archive_damaged": (
        500,
        "The archive is damaged",
        "`openq pipeline archive verify` lists what is damaged.",
    ),
    "columns_missing": (
        501,
        "Packages for history tables are missing",
        "Install them for the server: pip install 'openq[spark]', and restart it.",
    ),
    "not_on_this_store": (
        501,
        "Not supported by this store",
        "The detail names the alternative; a server with a data directory supports it.",
    ),
    "queue_exists": (409, "The queue exists with other settings", "PATCH changes them; PUT does both."),
    "queue_in_use": (409, "In use", "Try again when the detail no longer holds."),
    "exchange_in_use": (409, "In use", "Remove its bindings first, or delete it without if_unused."),
    "visibility_timeout_expired": (
        409,
        "The lease has expired",
        "The message may be with another consumer: extend in time, or use a longer visibility_timeout.",
    ),
    "stage_not_found": (404, "A part is missing", "Send the parts of the batch again, then commit."),
    "stage_unread": (503, "Read error", "Check the disk and the permissions of the data directory."),
    "staging_full": (
        429,
        "Too many staged bytes",
        "Commit or abort batches; GET /api/v1/pipeline/stages lists them.",
    ),
    "too_many_in_flight": (
        429,
        "Too many messages are in flight",
        "Ack or nack deliveries, then receive again.",
    ),
    "queue_full": (429, "The queue is full", "Consume from it or raise its limit; then send again."),
    "key_not_found": (404, "No such key", "GET /api/v1/kv/{bucket} lists the keys; one may have expired."),
    "kv_conflict": (409, "The key has another version", "Read it again, then put it with its new version."),
    # The server.
    "kv_full": (
        507,
        "The memory for key-values is full",
        "Delete keys, put them with a ttl, or raise max_kv_bytes.",
    ),
    "disk_full": (507, "The disk is full", "Free some space; publishing resumes automatically."),
    "exhausted": (
        503,
        "The server is out of descriptors",
        "Close connections, or raise its limit.",
    ),
    "unconfirmed": (503, "Not on disk yet", "The outcome is uncertain: check, or send it again."),
    "store_full": (
        507,
        "Redis is full",
        "Raise its maxmemory, or consume; publishing resumes automatically.",
    ),
    "store_unavailable": (
        503,
        "Redis is unreachable",
        "Send it again; the detail says whether it may have been executed.",
    ),
    "store_error": (
        503,
        "Redis returned an error",
        "The detail is its text; `openq doctor --store` examines it.",
    ),
    "not_replicated": (
        503,
        "Not replicated",
        "The replicas did not confirm in time. Sending it again may create a duplicate.",
    ),
    "journal_failed": (
        503,
        "The journal failed",
        "Check the disk and restart the server; nothing acknowledged is lost.",
    ),
    "not_reloaded": (
        409,
        "Not reloaded",
        "Correct the configuration; `openq config check` validates the file.",
    ),
    "audit_unavailable": (503, "Audit log unavailable", "Check the disk or Redis, then try again."),
    "not_stored": (503, "Write error", "Check the disk, then send it again; nothing was changed."),
    "journal_damaged": (500, "Stored data is damaged", "`openq journal check` lists what is damaged."),
    "connection_closed": (
        503,
        "An operator closed the connection",
        "The detail has the reason; connect again when it no longer holds.",
    ),
    "connection_not_found": (404, "No such connection", "GET /api/v1/connections lists them."),
    "closed": (503, "The server is stopping", "Connect again in a moment."),
    "user_store_damaged": (503, "The file of users is damaged", "Restore it from a backup."),
    "internal_error": (500, "Internal error", "See the log of the server."),
}
_INTERNAL_ERROR = (400, "Refused", "")
_RETRY_AFTER_S = {429: b"Retry-After: 1\r\n", 503: b"Retry-After: 1\r\n"}


class ProblemDocument(msgspec.Struct, omit_defaults=True, rename={"kind": "type"}):
    """The body of an answer that is an error."""

    kind: str  # a reference to the meaning of the code
    title: str
    status: int
    code: str
    detail: str = ""
    hint: str = ""
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


_encode = msgspec.json.Encoder().encode


def code_of(error: Exception) -> str:
    return error.code if isinstance(error, Problem | OpenQError) else "internal_error"


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
    shown = document(error)
    headers = error.headers if isinstance(error, Problem) else b""
    if shown.status == 401:
        headers += b'WWW-Authenticate: Bearer realm="openq", Basic realm="openq"\r\n'
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is not None:
        headers += b"Retry-After: %d\r\n" % wait_s
    if b"Retry-After" not in headers:
        headers += _RETRY_AFTER_S.get(shown.status, b"")
    return shown.status, _encode(shown), headers
