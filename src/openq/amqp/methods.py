"""AMQP's methods: one small class each, and their bytes (pure).

A class lists its fields in their order on the wire; each type is both Python's and AMQP's. Reserved fields
are skipped when decoding and empty when encoding. Strict where
RabbitMQ is strict: UTF-8 in short strings, no stray bits. To add a method: write its class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from struct import Struct
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from ..amqp_fields import MalformedProperties, decode_table, encode_table
from ..errors import OpenQError

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
LongInt = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
Bit = Annotated[bool, "bit"]
ShortStr = Annotated[str, "shortstr"]
LongStr = Annotated[bytes, "longstr"]
Table = Annotated[dict[str, Any], "table"]


class UnknownMethod(OpenQError):
    """Neither AMQP 0.9.1 nor RabbitMQ has a method with these ids."""

    code = "unknown_method"

    def __init__(self, class_id: int, method_id: int) -> None:
        super().__init__(f"unknown method {method_id} of class {class_id}")
        self.class_id = class_id
        self.method_id = method_id


class MalformedMethod(OpenQError):
    """A method with too few, too many or invalid bytes; `method` is its name."""

    code = "malformed_method"

    def __init__(self, text: str, method: str = "") -> None:
        super().__init__(f"{method}: {text}" if method else text)
        self.method = method


class Method:
    """Base of all methods. `NAME` is as RabbitMQ writes it: `queue.declare`, `basic.recover_async`."""

    __slots__ = ()
    ID: ClassVar[tuple[int, int]]
    NAME: ClassVar[str]
    HAS_CONTENT: ClassVar[bool] = False


# Reserved fields: before the field of this name, or after the last one ("").
_RESERVED: dict[type[Method], dict[str, tuple[str, ...]]] = {}
METHODS: dict[tuple[int, int], type[Method]] = {}

_M = TypeVar("_M", bound=type[Method])


class _Numbered:
    """Registers a method under its ids, with its reserved fields."""

    def __init__(self, class_id: int, method_id: int, **reserved: tuple[str, ...]) -> None:
        self._id = (class_id, method_id)
        self._reserved = {"" if name == "end" else name: kinds for name, kinds in reserved.items()}

    def __call__(self, method: _M) -> _M:
        group, name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.__name__).lower().split("_", 1)
        method.ID = self._id
        method.NAME = f"{group}.{name}"
        METHODS[self._id] = method
        _RESERVED[method] = self._reserved
        return method


# -- connection -----------------------------------------------------------------------------------


@_Numbered(10, 10)
@dataclass(slots=True)
class ConnectionStart(Method):
    version_major: Octet
    version_minor: Octet
    server_properties: Table
    mechanisms: LongStr
    locales: LongStr


@_Numbered(10, 11)
@dataclass(slots=True)
class ConnectionStartOk(Method):
    client_properties: Table
    mechanism: ShortStr
    response: LongStr
    locale: ShortStr


@_Numbered(10, 20)
@dataclass(slots=True)
class ConnectionSecure(Method):
    challenge: LongStr


@_Numbered(10, 21)
@dataclass(slots=True)
class ConnectionSecureOk(Method):
    response: LongStr


@_Numbered(10, 30)
@dataclass(slots=True)
class ConnectionTune(Method):
    channel_max: Short
    frame_max: LongInt
    heartbeat: Short


@_Numbered(10, 31)
@dataclass(slots=True)
class ConnectionTuneOk(Method):
    channel_max: Short
    frame_max: LongInt
    heartbeat: Short


@_Numbered(10, 40, end=("shortstr", "bit"))
@dataclass(slots=True)
class ConnectionOpen(Method):
    virtual_host: ShortStr


@_Numbered(10, 41, end=("shortstr",))
@dataclass(slots=True)
class ConnectionOpenOk(Method):
    pass


@_Numbered(10, 50)
@dataclass(slots=True)
class ConnectionClose(Method):
    reply_code: Short
    reply_text: ShortStr
    class_id: Short = 0
    method_id: Short = 0


@_Numbered(10, 51)
@dataclass(slots=True)
class ConnectionCloseOk(Method):
    pass


@_Numbered(10, 60)
@dataclass(slots=True)
class ConnectionBlocked(Method):
    reason: ShortStr


@_Numbered(10, 61)
@dataclass(slots=True)
class ConnectionUnblocked(Method):
    pass


@_Numbered(10, 70)
@dataclass(slots=True)
class ConnectionUpdateSecret(Method):
    new_secret: LongStr
    reason: ShortStr


@_Numbered(10, 71)
@dataclass(slots=True)
class ConnectionUpdateSecretOk(Method):
    pass


# -- channel --------------------------------------------------------------------------------------


@_Numbered(20, 10, end=("shortstr",))
@dataclass(slots=True)
class ChannelOpen(Method):
    pass


@_Numbered(20, 11, end=("longstr",))
@dataclass(slots=True)
class ChannelOpenOk(Method):
    pass


@_Numbered(20, 20)
@dataclass(slots=True)
class ChannelFlow(Method):
    active: Bit


@_Numbered(20, 21)
@dataclass(slots=True)
class ChannelFlowOk(Method):
    active: Bit


@_Numbered(20, 40)
@dataclass(slots=True)
class ChannelClose(Method):
    reply_code: Short
    reply_text: ShortStr
    class_id: Short = 0
    method_id: Short = 0


@_Numbered(20, 41)
@dataclass(slots=True)
class ChannelCloseOk(Method):
    pass


# -- access: of AMQP 0.8, still sent by old clients ------------------------------------------


@_Numbered(30, 10)
@dataclass(slots=True)
class AccessRequest(Method):
    realm: ShortStr
    exclusive: Bit = False
    passive: Bit = True
    active: Bit = True
    write: Bit = True
    read: Bit = True


@_Numbered(30, 11)
@dataclass(slots=True)
class AccessRequestOk(Method):
    ticket: Short = 1


# -- exchange -------------------------------------------------------------------------------------


@_Numbered(40, 10, exchange=("short",))
@dataclass(slots=True)
class ExchangeDeclare(Method):
    exchange: ShortStr
    type: ShortStr = "direct"
    passive: Bit = False
    durable: Bit = False
    auto_delete: Bit = False
    internal: Bit = False
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_Numbered(40, 11)
@dataclass(slots=True)
class ExchangeDeclareOk(Method):
    pass


@_Numbered(40, 20, exchange=("short",))
@dataclass(slots=True)
class ExchangeDelete(Method):
    exchange: ShortStr
    if_unused: Bit = False
    no_wait: Bit = False


@_Numbered(40, 21)
@dataclass(slots=True)
class ExchangeDeleteOk(Method):
    pass


@_Numbered(40, 30, destination=("short",))
@dataclass(slots=True)
class ExchangeBind(Method):
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_Numbered(40, 31)
@dataclass(slots=True)
class ExchangeBindOk(Method):
    pass


@_Numbered(40, 40, destination=("short",))
@dataclass(slots=True)
class ExchangeUnbind(Method):
    destination: ShortStr
    source: ShortStr
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_Numbered(40, 51)
@dataclass(slots=True)
class ExchangeUnbindOk(Method):
    pass


# -- queue ----------------------------------------------------------------------------------------


@_Numbered(50, 10, queue=("short",))
@dataclass(slots=True)
class QueueDeclare(Method):
    queue: ShortStr = ""
    passive: Bit = False
    durable: Bit = False
    exclusive: Bit = False
    auto_delete: Bit = False
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_Numbered(50, 11)
@dataclass(slots=True)
class QueueDeclareOk(Method):
    queue: ShortStr
    message_count: LongInt
    consumer_count: LongInt


@_Numbered(50, 20, queue=("short",))
@dataclass(slots=True)
class QueueBind(Method):
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr = ""
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_Numbered(50, 21)
@dataclass(slots=True)
class QueueBindOk(Method):
    pass


@_Numbered(50, 30, queue=("short",))
@dataclass(slots=True)
class QueuePurge(Method):
    queue: ShortStr
    no_wait: Bit = False


@_Numbered(50, 31)
@dataclass(slots=True)
class QueuePurgeOk(Method):
    message_count: LongInt


@_Numbered(50, 40, queue=("short",))
@dataclass(slots=True)
class QueueDelete(Method):
    queue: ShortStr
    if_unused: Bit = False
    if_empty: Bit = False
    no_wait: Bit = False


@_Numbered(50, 41)
@dataclass(slots=True)
class QueueDeleteOk(Method):
    message_count: LongInt


@_Numbered(50, 50, queue=("short",))
@dataclass(slots=True)
class QueueUnbind(Method):
    queue: ShortStr
    exchange: ShortStr
    routing_key: ShortStr = ""
    arguments: Table = field(default_factory=dict)


@_Numbered(50, 51)
@dataclass(slots=True)
class QueueUnbindOk(Method):
    pass


# -- basic ----------------------------------------------------------------------------------------


@_Numbered(60, 10)
@dataclass(slots=True)
class BasicQos(Method):
    prefetch_size: LongInt = 0
    prefetch_count: Short = 0
    global_: Bit = False


@_Numbered(60, 11)
@dataclass(slots=True)
class BasicQosOk(Method):
    pass


@_Numbered(60, 20, queue=("short",))
@dataclass(slots=True)
class BasicConsume(Method):
    queue: ShortStr
    consumer_tag: ShortStr = ""
    no_local: Bit = False
    no_ack: Bit = False
    exclusive: Bit = False
    no_wait: Bit = False
    arguments: Table = field(default_factory=dict)


@_Numbered(60, 21)
@dataclass(slots=True)
class BasicConsumeOk(Method):
    consumer_tag: ShortStr


@_Numbered(60, 30)
@dataclass(slots=True)
class BasicCancel(Method):
    """From a client: stop consuming. From the server: the queue is deleted."""

    consumer_tag: ShortStr
    no_wait: Bit = False


@_Numbered(60, 31)
@dataclass(slots=True)
class BasicCancelOk(Method):
    consumer_tag: ShortStr


@_Numbered(60, 40, exchange=("short",))
@dataclass(slots=True)
class BasicPublish(Method):
    HAS_CONTENT: ClassVar[bool] = True
    exchange: ShortStr = ""
    routing_key: ShortStr = ""
    mandatory: Bit = False
    immediate: Bit = False


@_Numbered(60, 50)
@dataclass(slots=True)
class BasicReturn(Method):
    HAS_CONTENT: ClassVar[bool] = True
    reply_code: Short
    reply_text: ShortStr
    exchange: ShortStr
    routing_key: ShortStr


@_Numbered(60, 60)
@dataclass(slots=True)
class BasicDeliver(Method):
    HAS_CONTENT: ClassVar[bool] = True
    consumer_tag: ShortStr
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr


@_Numbered(60, 70, queue=("short",))
@dataclass(slots=True)
class BasicGet(Method):
    queue: ShortStr
    no_ack: Bit = False


@_Numbered(60, 71)
@dataclass(slots=True)
class BasicGetOk(Method):
    HAS_CONTENT: ClassVar[bool] = True
    delivery_tag: LongLong
    redelivered: Bit
    exchange: ShortStr
    routing_key: ShortStr
    message_count: LongInt


@_Numbered(60, 72, end=("shortstr",))
@dataclass(slots=True)
class BasicGetEmpty(Method):
    pass


@_Numbered(60, 80)
@dataclass(slots=True)
class BasicAck(Method):
    delivery_tag: LongLong
    multiple: Bit = False


@_Numbered(60, 90)
@dataclass(slots=True)
class BasicReject(Method):
    delivery_tag: LongLong
    requeue: Bit = True


@_Numbered(60, 100)
@dataclass(slots=True)
class BasicRecoverAsync(Method):
    requeue: Bit = False


@_Numbered(60, 110)
@dataclass(slots=True)
class BasicRecover(Method):
    requeue: Bit = False


@_Numbered(60, 111)
@dataclass(slots=True)
class BasicRecoverOk(Method):
    pass


@_Numbered(60, 120)
@dataclass(slots=True)
class BasicNack(Method):
    delivery_tag: LongLong
    multiple: Bit = False
    requeue: Bit = True


# -- confirm, tx ----------------------------------------------------------------------------------


@_Numbered(85, 10)
@dataclass(slots=True)
class ConfirmSelect(Method):
    no_wait: Bit = False


@_Numbered(85, 11)
@dataclass(slots=True)
class ConfirmSelectOk(Method):
    pass


@_Numbered(90, 10)
@dataclass(slots=True)
class TxSelect(Method):
    pass


@_Numbered(90, 11)
@dataclass(slots=True)
class TxSelectOk(Method):
    pass


@_Numbered(90, 20)
@dataclass(slots=True)
class TxCommit(Method):
    pass


@_Numbered(90, 21)
@dataclass(slots=True)
class TxCommitOk(Method):
    pass


@_Numbered(90, 30)
@dataclass(slots=True)
class TxRollback(Method):
    pass


@_Numbered(90, 31)
@dataclass(slots=True)
class TxRollbackOk(Method):
    pass


# -- the bytes ------------------------------------------------------------------------------------

_ID = Struct(">HH")
_LENGTH = Struct(">I")
_NUMBERS = {"octet": Struct(">B"), "short": Struct(">H"), "long": Struct(">I"), "longlong": Struct(">Q")}
_EMPTY: dict[str, Any] = {"short": 0, "bit": False, "shortstr": "", "longstr": b""}


class _Step:
    """One field of a method, or up to eight bits that share an octet. A name of "" is reserved."""

    __slots__ = ("kind", "names")

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.names = [name]


def _wire_fields(method: type[Method]) -> Iterator[tuple[str, str]]:
    hints = get_type_hints(method, include_extras=True)
    reserved = _RESERVED[method]
    for place in fields(method):  # type: ignore[arg-type]  # every method is a dataclass
        yield from (("", kind) for kind in reserved.get(place.name, ()))
        yield place.name, hints[place.name].__metadata__[0]
    yield from (("", kind) for kind in reserved.get("", ()))


def _steps_of(method: type[Method]) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    for name, kind in _wire_fields(method):
        if kind == "bit" and steps and steps[-1].kind == "bit" and len(steps[-1].names) < 8:
            steps[-1].names.append(name)
        else:
            steps.append(_Step(kind, name))
    return tuple(steps)


_STEPS = {method: _steps_of(method) for method in METHODS.values()}


def decode(payload: bytes) -> Method:
    """The method in the payload of a method frame; `UnknownMethod` or `MalformedMethod` if there is none."""
    if len(payload) < 4:
        raise MalformedMethod("a method frame without the numbers of a method")
    class_id, method_id = _ID.unpack_from(payload)
    method = METHODS.get((class_id, method_id))
    if method is None:
        raise UnknownMethod(class_id, method_id)
    values: list[Any] = []
    at = 4
    end = len(payload)
    try:
        for step in _STEPS[method]:
            kind = step.kind
            if kind == "bit":
                if at >= end:
                    raise MalformedMethod("it ends within a field")
                bits = payload[at]
                if bits >> len(step.names):
                    raise MalformedMethod("bits are set that have no meaning")
                at += 1
                values.extend(bits >> place & 1 == 1 for place, name in enumerate(step.names) if name)
                continue
            value, at = _read(payload, at, end, kind)
            if step.names[0]:
                values.append(value)
        if at != end:
            raise MalformedMethod(f"{end - at} bytes after its last field")
    except (MalformedMethod, MalformedProperties) as error:
        raise MalformedMethod(str(error), method.NAME) from None
    return method(*values)


def _read(payload: bytes, at: int, end: int, kind: str) -> tuple[Any, int]:
    if kind == "shortstr":
        after = at + 1 + payload[at] if at < end else end + 1
        if after > end:
            raise MalformedMethod("it ends within a field")
        try:
            return payload[at + 1 : after].decode(), after
        except UnicodeDecodeError:
            raise MalformedMethod("a short string that is not UTF-8") from None
    if kind == "table":
        return decode_table(payload, at)
    if kind == "longstr":
        start = at + 4
        if start > end:
            raise MalformedMethod("it ends within a field")
        (size,) = _LENGTH.unpack_from(payload, at)
        if size > end - start:
            raise MalformedMethod(f"a length of {size} bytes where {end - start} are left")
        return payload[start : start + size], start + size
    number = _NUMBERS[kind]
    if at + number.size > end:
        raise MalformedMethod("it ends within a field")
    return number.unpack_from(payload, at)[0], at + number.size


def encode(method: Method) -> bytes:
    """The payload of a method frame. `MalformedMethod` if a value does not fit its field."""
    parts = [_ID.pack(*method.ID)]
    try:
        for step in _STEPS[type(method)]:
            if step.kind == "bit":
                bits = sum(bool(getattr(method, name)) << i for i, name in enumerate(step.names) if name)
                parts.append(bytes((bits,)))
            else:
                name = step.names[0]
                parts.append(_written(getattr(method, name) if name else _EMPTY[step.kind], step.kind))
    except (MalformedMethod, MalformedProperties) as error:
        raise MalformedMethod(str(error), method.NAME) from None
    return b"".join(parts)


def _written(value: Any, kind: str) -> bytes:
    if kind == "shortstr":
        try:
            raw: bytes = value.encode()
        except UnicodeEncodeError:
            raise MalformedMethod("a short string that cannot be encoded as UTF-8") from None
        if len(raw) > 255:
            raise MalformedMethod(f"a short string of {len(raw)} bytes, the limit is 255")
        return bytes((len(raw),)) + raw
    if kind == "table":
        return encode_table(value)
    if kind == "longstr":
        return b"".join((_LENGTH.pack(len(value)), value))
    number = _NUMBERS[kind]
    if not 0 <= value < 1 << 8 * number.size:
        raise MalformedMethod(f"the number {value} does not fit into {number.size} bytes")
    return number.pack(value)
