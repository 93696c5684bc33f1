"""A whole queue as a file of JSON lines: a header, then one line per message."""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidSetting
from ..journal.disk import DiskIo
from ..model import (
    ENCODING_BYTES,
    ENCODING_JSON,
    ENCODING_MSGPACK,
    ENCODING_PICKLE,
    ENCODING_TEXT,
    DeadLetterEvent,
    DeliveryOptions,
    Draft,
    Entry,
    Properties,
)
from .checks import nonempty_or_none, text, text_or_none
from .codecs import Codec
from .message import Message, PeekedMessage, read_base64
from .publishing import check_attributes
from .times import from_ms, iso, moment_ms

if TYPE_CHECKING:
    from .queues import Queue

_VERSION = 1
_TEXT, _JSON = Codec(), Codec("json")
_MAX_RECEIVES = (1 << 31) - 1
_BASE64_ENCODINGS = {
    "base64": ENCODING_BYTES,
    "msgpack+base64": ENCODING_MSGPACK,
    "pickle+base64": ENCODING_PICKLE,
}


def write_backup(path: str, queue: Queue, entries: Sequence[Entry], in_flight: Mapping[int, int]) -> None:
    """`in_flight` maps sequence numbers of messages in flight to their receive counts."""
    head = {"openq_backup": _VERSION, "queue": queue.name, "dlq": queue.dlq, "messages": len(entries)}
    target = _target(path)
    folder = os.path.dirname(target)
    temporary = os.path.join(folder, f".openq-{os.getpid()}-{os.urandom(6).hex()}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(head, ensure_ascii=False) + "\n")
            for entry in entries:
                file.write(json.dumps(_line(queue, entry, in_flight), ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except RecursionError:
        os.unlink(temporary)
        raise InvalidSetting(f"{path} cannot be written: a message is nested too deeply") from None
    except BaseException:
        os.unlink(temporary)
        raise
    DiskIo().fsync_dir(folder)  # the new name must survive a power cut like the new content


def _target(path: str) -> str:
    """The file behind symbolic links, which stay. Anything but a plain file is refused."""
    target = os.path.realpath(path)
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return target
    except OSError as error:
        raise InvalidSetting(f"{path} cannot be written: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        kind = "a directory" if stat.S_ISDIR(mode) else "not a plain file"
        raise InvalidSetting(f"{path} cannot be written: it is {kind}")
    return target


def _line(queue: Queue, entry: Entry, in_flight: Mapping[int, int]) -> dict[str, Any]:
    line = PeekedMessage(queue, entry).to_dict("persistence")
    if entry.encoding == ENCODING_JSON:
        line["payload_form"] = "json"  # text that was encoded as JSON must be decoded as JSON
    if entry.seq in in_flight:
        line["status"] = "processing"
        line["receive_count"] = in_flight[entry.seq]
    if entry.properties is not None:
        if entry.properties.publisher is not None:
            line["publisher"] = entry.properties.publisher
        if entry.properties.amqp_properties is not None:
            line["properties"] = base64.b64encode(entry.properties.amqp_properties).decode()
    options = entry.options
    if options is None:
        return line
    if options.unique is not None:
        line["unique_key"] = options.unique
    if options.due_ms:
        line["due_at"] = iso(from_ms(options.due_ms))
    if options.expires_ms:
        line["expires_at"] = iso(from_ms(options.expires_ms))
    if options.reason is not None:
        line["reason"] = options.reason
    if options.trace is not None:
        line["traceback"] = options.trace
    if options.deaths:
        line["deaths"] = [death.document(lambda ms: iso(from_ms(ms))) for death in options.deaths]
    return line


def read_backup(path: str, queue: Queue) -> list[Draft]:
    """Every message of the file, checked, except those in the queue already."""
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
    limit = queue.settings.max_body
    drafts: list[Draft] = []
    seen = {message.id for message in queue.messages}
    for number, line in enumerate(lines[1:], 2):
        data = _parse(path, number, line)
        try:
            draft = _draft(data, queue, limit)
        except KeyError as error:
            raise InvalidSetting(f"{path}, line {number}: {error} is missing") from None
        except (TypeError, AttributeError, ValueError, RecursionError) as error:
            raise InvalidSetting(f"{path}, line {number}: {error}") from None
        if draft.id not in seen:
            seen.add(draft.id or "")
            drafts.append(draft)
    return drafts


def _parse(path: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidSetting(f"{path}, line {number}: not JSON: {error}") from None


def _draft(data: Any, queue: Queue, limit: int | None) -> Draft:
    encoding = data.get("payload_encoding") if isinstance(data, dict) else None
    if encoding in _BASE64_ENCODINGS:
        body, body_encoding = read_base64(data["payload"]), _BASE64_ENCODINGS[encoding]
        message = Message.from_dict({**data, "payload": "", "payload_encoding": None})
    else:
        message = Message.from_dict(data)
        is_text = isinstance(message.body, str) and data.get("payload_form") != "json"
        body_encoding = ENCODING_TEXT if is_text else ENCODING_JSON
        body, _ = (_TEXT if is_text else _JSON).encode(message.body)
    if not message.id:
        raise InvalidSetting("a message in a backup needs an id")
    if message.priority > 255:
        raise InvalidSetting(f"priority must be 0 to 255, not {message.priority}")
    if limit is not None and len(body) > limit:
        raise InvalidSetting(f"a body of {len(body)} bytes; queue {queue.name!r} takes at most {limit}")
    due_ms = max(_time_ms(data["due_at"], "due_at"), 1) if "due_at" in data else 0
    expires_at = data.get("expires_at")
    ttl_ms = None
    if expires_at is not None:
        # Counted from its due time, as at publish; an expired message is removed at once.
        ttl_ms = max(_time_ms(expires_at, "expires_at") - max(due_ms, queue.broker.now_ms()), 1)
    past = DeliveryOptions(
        count=_receive_count(message.receive_count),
        born_ms=_time_ms(message.timestamp, "timestamp") if message.timestamp is not None else 0,
        reason=text_or_none(data.get("reason"), "reason"),
        trace=text_or_none(data.get("traceback"), "traceback"),
        deaths=_deaths(data.get("deaths", [])),
    )
    publisher = nonempty_or_none(data.get("publisher"), "publisher")
    return Draft(
        body,
        body_encoding,
        delay_ms=None if "due_at" in data else 0,
        due_ms=due_ms,
        priority=message.priority,
        group=nonempty_or_none(message.group, "group"),
        type=nonempty_or_none(message.message_type, "message_type"),
        unique=nonempty_or_none(data.get("unique_key"), "unique_key"),
        ttl_ms=ttl_ms,
        id=nonempty_or_none(message.id, "id"),
        attributes=check_attributes(message.attributes) if message.attributes else None,
        publisher=publisher,
        past=past,
        properties=_amqp_info(data["properties"], message.attributes, publisher)
        if "properties" in data
        else None,
    )


def _amqp_info(encoded: Any, attributes: Mapping[str, Any], publisher: str | None) -> Properties | None:
    """The AMQP properties as published; None if the attributes in the file were edited."""
    from .. import amqp_fields  # imported late: few need it

    amqp_properties = read_base64(text(encoded, "properties"))
    amqp_fields.decode(amqp_properties)
    properties = Properties.from_amqp(amqp_properties, publisher)
    return properties if properties.attributes == attributes else None


def _time_ms(value: Any, name: str) -> int:
    time_ms = moment_ms(value, name)
    if time_ms < 0:
        raise InvalidSetting(f"{name} must not be before 1970, not {value}")
    return time_ms


def _receive_count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_RECEIVES:
        raise InvalidSetting(f"receive_count must be 0 to {_MAX_RECEIVES}, not {value!r}")
    return value


def _deaths(value: Any) -> tuple[DeadLetterEvent, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise InvalidSetting("deaths must be a list of JSON objects")
    return tuple(
        DeadLetterEvent.from_fields(
            text(each["queue"], "the queue of a death"),
            text(each["reason"], "the reason of a death"),
            _time_ms(each["time"], "the time of a death"),
            _receive_count(each["receive_count"]),
            kind=text_or_none(each.get("kind"), "the kind of a death"),
            times=_receive_count(each.get("times", 1)),
            first_ms=_time_ms(each["first_time"], "the first time of a death") if "first_time" in each else 0,
        )
        for each in value
    )
