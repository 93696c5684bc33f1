"""A whole queue as a file of JSON lines: the first says what it is, each other one is a message."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting
from ..model import FORM_BYTES, FORM_JSON, FORM_MSGPACK, FORM_PICKLE, FORM_TEXT, Draft, Entry, Extra
from .message import Message, Peeked, read_base64
from .publishing import check_attributes
from .times import from_ms, iso, moment_ms

if TYPE_CHECKING:
    from .embedded import Queue

_VERSION = 1
_ENCODED = {"base64": FORM_BYTES, "msgpack+base64": FORM_MSGPACK, "pickle+base64": FORM_PICKLE}


def write_backup(path: str, queue: Queue, entries: Sequence[Entry], lent: Mapping[int, int]) -> None:
    """`lent` says how often the messages that are with consumers were delivered, this time included."""
    head = {"openq_backup": _VERSION, "queue": queue.name, "dlq": queue.dlq, "messages": len(entries)}
    folder = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(folder, f".openq-{os.getpid()}-{os.urandom(6).hex()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(head, ensure_ascii=False) + "\n")
            for entry in entries:
                file.write(json.dumps(_line(queue, entry, lent), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """The new name must survive a power cut as the new content does."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _line(queue: Queue, entry: Entry, lent: Mapping[int, int]) -> dict[str, Any]:
    line = Peeked(queue, entry).to_dict("persistence")
    if entry.form == FORM_JSON:
        line["payload_form"] = "json"  # a text that was written as JSON must be read as JSON again
    if entry.seq in lent:
        line["status"] = "processing"
        line["receive_count"] = lent[entry.seq]
    if entry.info is not None and entry.info.publisher is not None:
        line["publisher"] = entry.info.publisher
    extra = entry.extra
    if extra is None:
        return line
    if extra.unique is not None:
        line["unique_key"] = extra.unique
    if extra.due_ms:
        line["due_at"] = iso(from_ms(extra.due_ms))
    if extra.expires_ms:
        line["expires_at"] = iso(from_ms(extra.expires_ms))
    if extra.reason is not None:
        line["reason"] = extra.reason
    if extra.deaths:
        line["deaths"] = [
            {"queue": name, "reason": reason, "time": iso(from_ms(ms)), "receive_count": count}
            for name, reason, ms, count in extra.deaths
        ]
    return line


def read_backup(path: str, queue: Queue) -> list[Draft]:
    """Every message of the file, checked; what is in the queue already left out."""
    try:
        with open(path, encoding="utf-8", newline="\n") as file:
            # Not `splitlines`: it also ends lines at characters that JSON may hold as they are.
            lines = file.read().removesuffix("\n").split("\n")
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidSetting(f"{path} is not a backup: it is not text") from None
    head = _parse(path, 1, lines[0])
    if not isinstance(head, dict) or head.get("openq_backup") != _VERSION:
        raise InvalidSetting(f"{path} is not a backup that this version of OpenQ can read")
    if head.get("messages") != len(lines) - 1:
        raise InvalidSetting(
            f"{path} is cut short or was added to: "
            f"it says {head.get('messages')} messages and has {len(lines) - 1}"
        )
    drafts: list[Draft] = []
    seen = {message.id for message in queue.messages}
    for number, line in enumerate(lines[1:], 2):
        data = _parse(path, number, line)
        try:
            draft = _draft(data, queue)
        except (InvalidSetting, KeyError, TypeError, AttributeError) as error:
            raise InvalidSetting(f"{path}, line {number}: {error}") from None
        if draft.id not in seen:
            seen.add(draft.id or "")
            drafts.append(draft)
    return drafts


def _parse(path: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise InvalidSetting(f"{path}, line {number}: not JSON: {error}") from None


def _draft(data: Any, queue: Queue) -> Draft:
    encoding = data.get("payload_encoding") if isinstance(data, dict) else None
    if encoding in _ENCODED:
        body, form = read_base64(data["payload"]), _ENCODED[encoding]
        message = Message.from_dict({**data, "payload": "", "payload_encoding": None})
    else:
        message = Message.from_dict(data)
        is_text = isinstance(message.body, str) and data.get("payload_form") != "json"
        form = FORM_TEXT if is_text else FORM_JSON
        text = message.body
        if not is_text:
            text = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
        body = text.encode()
    if not message.id:
        raise InvalidSetting("a message in a backup needs an id")
    if message.priority > 255:
        raise InvalidSetting(f"priority must be 0 to 255, not {message.priority}")
    now_ms = queue.broker.now_ms()
    expires_at = data.get("expires_at")
    past = Extra(
        count=message.receive_count,
        born_ms=moment_ms(message.timestamp, "timestamp") if message.timestamp is not None else 0,
        reason=data.get("reason"),
        deaths=tuple(
            (each["queue"], each["reason"], moment_ms(each["time"], "time"), each["receive_count"])
            for each in data.get("deaths", ())
        ),
    )
    return Draft(
        body,
        form,
        delay_ms=None if "due_at" in data else 0,
        due_ms=moment_ms(data["due_at"], "due_at") if "due_at" in data else 0,
        priority=message.priority,
        group=message.group,
        type=message.message_type,
        unique=data.get("unique_key"),
        # Counted from its due time, as at publish; one that expired meanwhile goes at once.
        ttl_ms=None if expires_at is None else max(moment_ms(expires_at, "expires_at") - now_ms, 1),
        id=message.id,
        attributes=check_attributes(message.attributes) if message.attributes else None,
        publisher=data.get("publisher"),
        past=past,
    )
