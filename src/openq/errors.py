"""Everything that can go wrong, as types: one root, few children, facts as attributes.

Each error has a stable `code` for programs and a sentence for people that says what to do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable


class OpenQError(Exception):
    """Catch this to catch them all; anything else that escapes is a bug in OpenQ.

    `public` is the sentence for clients of a server, where the usual one is only for its operator.
    """

    code = "error"
    public: str | None = None


class Interruption(BaseException):
    """Raised in a thread from outside, like KeyboardInterrupt. A change that it hits is in doubt.

    Its children may be an `Exception` too, where a handler may catch them.
    """


class MessageNotFoundError(OpenQError, KeyError):
    """The message is unknown, or already removed. Also a `KeyError`, for callers that expect one."""

    code = "message_not_found"

    def __init__(self, message_id: object, queue: str = "") -> None:
        where = f" in queue {queue!r}" if queue else ""
        self.text = f"message {message_id} is not{where}: it was acknowledged, removed, or never there"
        super().__init__(self.text)
        self.message_id = message_id
        self.queue = queue

    def __str__(self) -> str:
        # KeyError would show the repr of its argument.
        return self.text


class VisibilityTimeoutExpired(OpenQError):
    """The lease of this delivery is over: the message may be with another consumer."""

    code = "visibility_timeout_expired"

    def __init__(self, message_id: object, queue: str = "") -> None:
        where = f" in queue {queue!r}" if queue else ""
        super().__init__(
            f"the lease on message {message_id}{where} is over; ack in time, "
            "extend the lease, or use a longer visibility_timeout"
        )
        self.message_id = message_id
        self.queue = queue


class QueueNotFound(OpenQError):
    code = "queue_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"queue {name!r} does not exist")
        self.name = name


class QueueExists(OpenQError):
    code = "queue_exists"

    def __init__(self, name: str, difference: str) -> None:
        super().__init__(f"queue {name!r} exists with other settings: {difference}")
        self.name = name
        self.difference = difference


class QueueInUse(OpenQError):
    code = "queue_in_use"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"queue {name!r} is in use: {why}")
        self.name = name


class QueueFull(OpenQError):
    """The queue's own limit (max_length, max_bytes) with overflow="reject"."""

    code = "queue_full"

    def __init__(self, name: str, limit: str) -> None:
        super().__init__(f"queue {name!r} is full ({limit}); consume from it, or raise the limit")
        self.name = name
        self.limit = limit


class TooManyInFlight(OpenQError):
    """The queue has as many messages in flight as the receiver allows."""

    code = "too_many_in_flight"

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(f"queue {name!r} has {limit} messages in flight; settle some first")
        self.name = name
        self.limit = limit


class ExchangeNotFound(OpenQError):
    code = "exchange_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"exchange {name!r} does not exist")
        self.name = name


class ExchangeInUse(OpenQError):
    code = "exchange_in_use"

    def __init__(self, name: str) -> None:
        super().__init__(f"exchange {name!r} has bindings; unbind them first, or delete without if_unused")
        self.name = name


class KvConflict(OpenQError):
    """The key does not have the version that the put expects. `current`: its version, 0 if there is none."""

    code = "kv_conflict"

    def __init__(self, bucket: str, key: str, current: int) -> None:
        state = f"has version {current}" if current else "does not exist"
        super().__init__(f"key {key!r} of bucket {bucket!r} {state}; read it again before you put it")
        self.bucket = bucket
        self.key = key
        self.current = current


class WebhookNotFound(OpenQError):
    code = "webhook_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"webhook {name!r} does not exist")
        self.name = name


class ScheduleNotFound(OpenQError):
    code = "schedule_not_found"

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {name!r} does not exist")
        self.name = name


class InvalidSetting(OpenQError, ValueError):
    """A value that OpenQ cannot accept; the sentence names it and says what is allowed."""

    code = "invalid_setting"


class InvalidSearch(InvalidSetting):
    """A key of a search that names no place in a document."""

    code = "invalid_search"


class OutOfRoom(OpenQError):
    """Whatever keeps the messages is full: publishing is refused until there is room, the rest goes on."""


class DiskFull(OutOfRoom):
    """Publishing is refused until space returns; receive, ack and extend go on."""

    code = "disk_full"

    def __init__(self, detail: str) -> None:
        super().__init__(f"disk full: {detail}; free some space, publishing resumes by itself")
        self.detail = detail
        self.public = "disk full: publishing is refused until there is room; publishing resumes by itself"


class Exhausted(OutOfRoom):
    """This process is out of file descriptors or memory: publishing is refused until some are free."""

    code = "exhausted"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the system refuses more: {what}; raise the limit or close connections, "
            "publishing resumes by itself"
        )
        self.what = what
        self.public = "the server is out of file descriptors or memory; publishing resumes by itself"


class KvFull(OutOfRoom):
    """The keys and values of the store fill the memory that they may use: puts that need more are refused."""

    code = "kv_full"

    def __init__(self, max_bytes: int) -> None:
        super().__init__(
            f"keys and values use the {max_bytes} bytes of memory that they may use; delete keys, "
            "put with a ttl, or raise max_kv_bytes"
        )
        self.max_bytes = max_bytes


class Unconfirmed(OutOfRoom):
    """Accepted, but the disk takes no more: it is written once there is room, if this process lives on."""

    code = "unconfirmed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"not on disk yet: {reason}; it is written once that is over, so it may have been done or not"
        )
        self.reason = reason
        self.public = "not on disk yet, the outcome is uncertain: the server's disk takes no more"


class JournalFailed(OpenQError):
    """A write or sync failed: nothing is acknowledged any more. Restart to recover all that was."""

    code = "journal_failed"

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"the journal failed and stopped acknowledging: {reason}; "
            "check the disk, then restart: everything acknowledged is recovered"
        )
        self.reason = reason


class CannotOpen(JournalFailed):
    """The directory for the data cannot be used as it is; nothing was changed in it."""

    code = "cannot_open"

    def __init__(self, path: str, reason: str) -> None:
        OpenQError.__init__(self, f"cannot open {path}: {reason}")
        self.path = path
        self.reason = reason


class JournalDamaged(OpenQError):
    """Stored data does not match its checksum, and intact data follows it."""

    code = "journal_damaged"

    def __init__(self, file: str, offset: int, detail: str) -> None:
        super().__init__(
            f"damage in {file} at offset {offset}: {detail}; nothing was changed. "
            "`openq journal check` lists it, `openq journal repair` saves every intact record"
        )
        self.file = file
        self.offset = offset
        self.detail = detail
        self.public = f"stored data is damaged: {detail}; `openq journal check` on the server names the place"


class NewerFormat(OpenQError):
    """The data was written by a later version of OpenQ, in a format that this one does not read."""

    code = "newer_format"

    def __init__(self, directory: str, found: str, known: str) -> None:
        super().__init__(
            f"{directory} was written by a newer version of OpenQ: {found}; {known}. Nothing was changed. "
            "Install the newer version, or restore a backup from before the upgrade"
        )
        self.public = "the data directory was written by a newer version of OpenQ"


class UnfinishedMigration(OpenQError):
    """`openq migrate` into this place was interrupted: a part of the source is missing here."""

    code = "unfinished_migration"

    def __init__(self, place: str, source: str, command: str) -> None:
        super().__init__(
            f"{place} holds only a part of {source}: its migration was interrupted. "
            f"Finish it with `{command}`, or use an empty place: the source still holds everything. "
            "Nothing was changed"
        )
        self.public = "the migration into this store was interrupted; `openq migrate` finishes it"


class DirectoryInUse(OpenQError):
    code = "directory_in_use"

    def __init__(self, path: str, pid: int | None, url: str | None = None) -> None:
        who = f"process {pid}" if pid else "another process"
        how = (
            f"connect to it: url={url!r}"
            if url
            else "share one queue object, or run `openq serve` and use url="
        )
        super().__init__(f"{path} is in use by {who}; {how}")
        self.path = path
        self.pid = pid
        self.url = url
        self.public = "the data directory is in use by another process"


class HistoryUnavailable(OpenQError):
    """The part of history that was asked for is not kept (any more)."""

    code = "history_unavailable"


class NotOnThisStore(OpenQError):
    """What only a journal can do, asked of messages that are kept elsewhere."""

    code = "not_on_this_store"

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what}: not where messages are kept in Redis; {instead}")
        self.what = what
        self.instead = instead


class Closed(OpenQError):
    code = "closed"

    def __init__(self) -> None:
        super().__init__("this queue is closed")


class Forked(Closed):
    """The queue was opened by the process that this one was forked from."""

    code = "forked"

    def __init__(self, queue: str, path: str | None) -> None:
        if path is None:
            what = (
                "a queue in memory is not shared with a child: open it with the url of a server or of Redis"
            )
        else:
            what = f"one process at a time can use {path}: share it by `openq serve --data {path}` and url="
        OpenQError.__init__(self, f"queue {queue!r} was opened before this process was forked; {what}")
        self.queue = queue


class ConnectionClosed(Closed):
    """An operator closed the connection."""

    code = "connection_closed"

    def __init__(self, reason: str) -> None:
        OpenQError.__init__(self, f"the connection was closed: {reason}")
        self.reason = reason


class StoreError(OpenQError):
    """Redis refused a call; the sentence is its own."""

    code = "store_error"
    may_pass = False  # true: Redis is unreachable now and may answer later


class StoreUnavailable(StoreError):
    """Redis is unreachable. `sent`: the call had been sent, so it may have been executed."""

    code = "store_unavailable"
    may_pass = True

    def __init__(self, detail: str, *, sent: bool = False) -> None:
        outcome = "the call was sent, its outcome is unknown" if sent else "nothing was done"
        super().__init__(f"Redis is not available ({detail}); {outcome}")
        self.detail = detail
        self.sent = sent


class StoreFull(StoreError, OutOfRoom):
    """Redis reached its `maxmemory`: publishing is refused until there is room; the rest goes on."""

    code = "store_full"

    def __init__(self, detail: str) -> None:
        super().__init__(f"Redis is full: {detail}; raise maxmemory or consume, publishing resumes by itself")
        self.detail = detail


class NotReplicated(StoreError):
    """The write was done, but too few copies confirmed it in time: a failover now could lose it."""

    code = "not_replicated"

    def __init__(self, detail: str) -> None:
        super().__init__(f"kept by the master only; the outcome is not certain: {detail}")
        self.detail = detail


class FunctionError(StoreError):
    """What one of OpenQ's own Redis functions answers when it refuses: its own code and text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.text = text


# -- what clients of a server may read --------------------------------------------------------

_private: set[str] = set()


def keep_private(*paths: str | os.PathLike[str]) -> None:
    """Directories and files of this machine that no answer to a client may name."""
    for path in paths:
        for form in (os.path.abspath(path), os.path.realpath(path)):
            if len(form) > 1:
                _private.add(form)


def hide_paths(text: str) -> str:
    """What lies in a private directory is named from there on, the directory itself not at all."""
    for path in sorted(_private, key=len, reverse=True):
        if path in text:
            text = text.replace(path + os.sep, "")
            # A name that only begins like it lies beside it: that one is named without its directory.
            text = re.sub(rf"(?<![\w.-]){re.escape(path)}((?:[\w-]|\.\w)[\w.-]*)?", _as_named(path), text)
    return text


def _as_named(path: str) -> Callable[[re.Match[str]], str]:
    return lambda found: os.path.basename(path) + found[1] if found[1] else "the data directory"


def public_text(error: BaseException) -> str:
    """The sentence of an error for clients of a server. The log has the whole one."""
    return hide_paths(getattr(error, "public", None) or str(error))
