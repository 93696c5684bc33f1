"""Key-values: values under keys, in buckets. Read, put, delete, list, wait; one key or many at a time.

A bucket has the permissions of a queue of its name: `receive` reads it, `send` changes it. Commands to
workers need `manage`. Values are bytes: as they are in msgpack and in raw requests and replies, base64 in
JSON. The work runs in threads: values may be large, and reading one waits until it is on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from ..broker.kv import (
    MAX_BATCH,
    PAGE_BYTES,
    KvEntry,
    KvPut,
    KvWaiter,
    check_bucket,
    check_key,
    is_server_bucket,
)
from ..broker.workers import COMMANDS
from ..documents.values import iso, iso_or_none, span_ms
from ..errors import KvConflict, OpenQError, public_text
from .call import RestCall
from .problems import Problem
from .retry_poll import RetryPoll
from .routes import route
from .schemas import (
    MAX_WAIT_S,
    Limit,
    QueryParameters,
    ReplyBody,
    RequestBody,
    Seconds,
)

_BINARY = "application/octet-stream"
_GET_SLICE = 16  # keys that are read at once: a reply ends after PAGE_BYTES of values

Binary = bytes  # where a field is called `bytes`
Version = Annotated[int, Meta(ge=0, le=(1 << 62))]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_S)]


# -- types --------------------------------------------------------------------------------------


class BucketView(ReplyBody, kw_only=True):
    name: str
    keys: int
    bytes: int


class BucketList(ReplyBody, kw_only=True):
    buckets: list[BucketView]


class ValueView(ReplyBody, kw_only=True):
    """A value: base64 in JSON, bytes in msgpack. `expires` is null for one that never expires."""

    key: str
    version: int
    changed: str
    expires: str | None
    bytes: int
    value: Binary | UnsetType = UNSET


class ValuePage(ReplyBody, kw_only=True):
    """`next` is the `after` of the next page; null after the last one."""

    entries: list[ValueView]
    next: str | None = None


class FoundValues(ReplyBody, kw_only=True):
    """The entries of the first keys, null where there is none. Ask again for keys that are not answered."""

    entries: list[ValueView | None]


class WaitedValue(ReplyBody, kw_only=True):
    entry: ValueView | None


class PutOutcome(ReplyBody, kw_only=True):
    """The new version, or the code and the detail of the error; `current` is the version of a conflict."""

    version: int | UnsetType = UNSET
    code: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    current: int | UnsetType = UNSET


class PutOutcomes(ReplyBody, kw_only=True):
    results: list[PutOutcome]


class StoredKey(ReplyBody, kw_only=True):
    version: int


class DeletedKeys(ReplyBody, kw_only=True):
    """Whether each key was deleted."""

    deleted: list[bool]


class DeletedKey(ReplyBody, kw_only=True):
    deleted: bool


class NewValue(RequestBody, kw_only=True):
    """`ttl` null: for ever. `version` null: whatever is there; 0: only if the key does not exist."""

    key: str
    value: bytes
    ttl: Seconds | None = None
    version: Version | None = None


class NewValues(RequestBody, kw_only=True):
    puts: Annotated[list[NewValue], Meta(max_length=MAX_BATCH)]


class WantedKeys(RequestBody, kw_only=True):
    keys: Annotated[list[str], Meta(max_length=MAX_BATCH)]


class DeleteKeys(RequestBody, kw_only=True):
    """`versions`: one for each key, 0 for any; a key with another version stays."""

    keys: Annotated[list[str], Meta(max_length=MAX_BATCH)]
    versions: list[Version] | None = None


class WaitForKey(RequestBody, kw_only=True):
    """Wait until the key has a version greater than `version`."""

    key: str
    version: Version = 0
    wait: Wait = 0.0


class ValueQuery(QueryParameters, kw_only=True):
    """`raw`: the reply is the value itself. `wait`: seconds to wait for a version greater than `version`."""

    raw: bool = False
    wait: Wait = 0.0
    version: Version = 0


class PutQuery(QueryParameters, kw_only=True):
    """`version`: only if the key has it; 0: only if it does not exist. The same as If-Match."""

    ttl: Seconds | None = None
    version: Version | None = None


class DeleteQuery(QueryParameters, kw_only=True):
    version: Annotated[int, Meta(ge=1, le=(1 << 62))] | None = None


class ValueListing(QueryParameters, kw_only=True):
    prefix: str = ""
    after: str = ""
    limit: Limit = 100
    values: bool = True  # false: without the values


# -- buckets ------------------------------------------------------------------------------------


@route(
    "GET",
    "kv",
    permission="receive",
    scope="each",
    summary="List the buckets of key-values",
    reply=BucketList,
)
def list_buckets(call: RestCall) -> None:
    def work() -> BucketList:
        return BucketList(
            buckets=[
                BucketView(name=call.short_name(each.name), keys=each.count, bytes=each.bytes)
                for each in call.broker.kv.buckets()
                if call.is_own(each.name)
                and not is_server_bucket(each.name)
                and call.may("receive", call.short_name(each.name), ())
            ]
        )

    call.answer_with(work)


@route(
    "GET",
    "kv/{bucket}",
    permission="receive",
    summary="List the keys of a bucket",
    query=ValueListing,
    reply=ValuePage,
)
def list_values(call: RestCall) -> None:
    """By key. A page ends early after some megabytes of values; `next` says whether more follow."""
    query = call.query
    bucket = _bucket(call)

    def work() -> ValuePage:
        kv = call.broker.kv
        page = kv.list(bucket, query.prefix, query.after, query.limit)
        kv.load(page)
        size = sum(len(entry.value) for entry in page)
        is_cut = len(page) == query.limit or size >= PAGE_BYTES
        views = [_view(entry, query.values) for entry in page]
        return ValuePage(entries=views, next=page[-1].key if page and is_cut else None)

    call.answer_with(work)


# -- one key ------------------------------------------------------------------------------------


@route(
    "GET",
    "kv/{bucket}/{key}",
    permission="receive",
    summary="Read a value, with a long poll",
    query=ValueQuery,
    reply=ValueView,
    media=(_BINARY,),
)
def get_value(call: RestCall) -> None:
    """The value with its version, or with `raw` the value alone and its version as ETag. With `wait` the
    answer waits for a version greater than `version`."""
    query = call.query
    key = call.args[1]
    check_key(key)

    def answer(entry: KvEntry | None) -> None:
        if entry is None or entry.version <= query.version:
            text = f" with a version greater than {query.version}" if query.version else ""
            raise Problem("key_not_found", f"bucket {call.args[0]!r} has no key {key!r}{text}")
        etag = f'ETag: "{entry.version}"\r\n'.encode()
        if query.raw:
            call.request.answer(200, entry.value, _BINARY.encode(), etag)
        else:
            call.answer(_view(entry), 200, etag)

    _poll_value(call, _bucket(call), key, query.version, query.wait, answer)


@route(
    "PUT",
    "kv/{bucket}/{key}",
    permission="send",
    summary="Put a value: the body of the request as it is",
    query=PutQuery,
    reply=StoredKey,
    takes=(_BINARY,),
)
def put_value(call: RestCall) -> None:
    """Answered when it is on disk. With `version`, or `If-Match: "VERSION"`, or `If-None-Match: *`, the put
    is refused with kv_conflict unless the key has that version, or does not exist."""
    query = call.query
    version = _expected_version(call, query.version)
    ttl_ms = None if query.ttl is None else span_ms(query.ttl, "ttl")
    put = KvPut(call.args[1], bytes(call.request.body), ttl_ms, version)
    bucket = _bucket_to_change(call)

    def work() -> StoredKey:
        [result] = call.broker.kv.put_many(bucket, [put])
        if isinstance(result, KvConflict):
            raise Problem(
                "kv_conflict", public_text(result), bucket=call.args[0], key=put.key, current=result.current
            )
        if isinstance(result, OpenQError):
            raise result
        return StoredKey(version=result)

    call.change(work)


@route(
    "DELETE",
    "kv/{bucket}/{key}",
    permission="send",
    summary="Delete a key",
    query=DeleteQuery,
    reply=DeletedKey,
)
def delete_value(call: RestCall) -> None:
    """`deleted` is false if there was no such key, or it has another version than the given one."""
    version = _expected_version(call, call.query.version)
    check_key(call.args[1])
    bucket = _bucket_to_change(call)

    def work() -> DeletedKey:
        versions = None if version is None else [version]
        [is_deleted] = call.broker.kv.delete_many(bucket, [call.args[1]], versions)
        return DeletedKey(deleted=is_deleted)

    call.change(work)


# -- many keys ----------------------------------------------------------------------------------


@route(
    "POST",
    "kv/{bucket}/get",
    permission="receive",
    summary="Read many values",
    request=WantedKeys,
    reply=FoundValues,
)
def get_values(call: RestCall) -> None:
    """Entries in the order of the keys. The reply ends after some megabytes of values: fewer entries than
    keys mean that the rest must be requested again."""
    keys = call.body.keys
    for key in keys:
        check_key(key)
    bucket = _bucket(call)

    def work() -> FoundValues:
        kv = call.broker.kv
        found: list[KvEntry | None] = []
        size = 0
        while len(found) < len(keys) and size < PAGE_BYTES:
            some = kv.get_many(bucket, keys[len(found) : len(found) + _GET_SLICE])
            found += some
            size += sum(len(entry.value) for entry in some if entry is not None)
        kv.load(found)
        return FoundValues(entries=[None if entry is None else _view(entry) for entry in found])

    call.answer_with(work)


@route(
    "POST",
    "kv/{bucket}/put",
    permission="send",
    summary="Put many values",
    request=NewValues,
    reply=PutOutcomes,
)
def put_values(call: RestCall) -> None:
    """One outcome for each put; a refused one does not stop the others."""
    bucket = _bucket_to_change(call)
    puts = [
        KvPut(each.key, each.value, None if each.ttl is None else span_ms(each.ttl, "ttl"), each.version)
        for each in call.body.puts
    ]

    def work() -> PutOutcomes:
        return PutOutcomes(results=[_outcome(result) for result in call.broker.kv.put_many(bucket, puts)])

    call.change(work)


@route(
    "POST",
    "kv/{bucket}/delete",
    permission="send",
    summary="Delete many keys",
    request=DeleteKeys,
    reply=DeletedKeys,
)
def delete_values(call: RestCall) -> None:
    body = call.body
    for key in body.keys:
        check_key(key)
    bucket = _bucket_to_change(call)
    call.change(lambda: DeletedKeys(deleted=call.broker.kv.delete_many(bucket, body.keys, body.versions)))


@route(
    "POST",
    "kv/{bucket}/wait",
    permission="receive",
    summary="Wait for a version of a key",
    request=WaitForKey,
    reply=WaitedValue,
)
def wait_for_value(call: RestCall) -> None:
    """The entry as soon as the key has a version greater than `version`; null after `wait` seconds."""
    body = call.body
    check_key(body.key)

    def answer(entry: KvEntry | None) -> None:
        is_newer = entry is not None and entry.version > body.version
        call.answer(WaitedValue(entry=_view(entry) if entry is not None and is_newer else None))

    _poll_value(call, _bucket(call), body.key, body.version, body.wait, answer)


# -- shared -------------------------------------------------------------------------------------


def _bucket(call: RestCall) -> str:
    return check_bucket(call.qualified(call.args[0], "bucket"))


def _bucket_to_change(call: RestCall) -> str:
    if call.args[0] == COMMANDS:
        # Who may only send could stop every worker otherwise.
        call.require("manage", COMMANDS, ())
    return _bucket(call)


def _view(entry: KvEntry, with_value: bool = True) -> ValueView:
    return ValueView(
        key=entry.key,
        version=entry.version,
        changed=iso(entry.changed_ms),
        expires=iso_or_none(entry.expires_ms),
        bytes=len(entry.value),
        value=entry.value if with_value else UNSET,
    )


def _outcome(result: int | OpenQError) -> PutOutcome:
    if not isinstance(result, OpenQError):
        return PutOutcome(version=result)
    current = result.current if isinstance(result, KvConflict) else UNSET
    return PutOutcome(code=result.code, detail=public_text(result), current=current)


def _expected_version(call: RestCall, version: int | None) -> int | None:
    """From the query, or from the headers that HTTP has for it."""
    match, absent = call.request.header(b"if-match"), call.request.header(b"if-none-match")
    if [version, match, absent].count(None) < 2:
        raise Problem("invalid", "give one of version, If-Match and If-None-Match")
    if absent is not None:
        if absent.strip() != b"*" or call.request.method != "PUT":
            raise Problem("invalid", "If-None-Match must be *, and only for PUT")
        return 0
    if match is None:
        return version
    text = match.strip().strip(b'"')
    if not text.isdigit() or len(text) > 18 or (call.request.method == "DELETE" and not int(text)):
        raise Problem("invalid", "If-Match must be the version of the key")
    return int(text)


def _poll_value(
    call: RestCall,
    bucket: str,
    key: str,
    version: int,
    wait_s: float,
    answer: Callable[[KvEntry | None], None],
) -> None:
    """One request for a value, which may wait for it. `answer` gets the entry on the loop."""
    kv = call.broker.kv

    def look() -> KvEntry | None:
        """In a thread."""
        if wait_s > 0:
            entry = kv.add_waiter(waiter, version)
        else:
            [entry] = kv.get_many(bucket, [key])
        kv.load([entry])
        return entry

    # Watched from the start: a client that closes its half meanwhile is gone, and does not wait for a reply.
    poll = RetryPoll(call, look, answer, wait_s, lambda: kv.remove_waiter(waiter))
    waiter = KvWaiter(bucket, key, poll.notify)
    poll.start()
