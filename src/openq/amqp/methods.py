"""AMQP's methods, one class each.

A class lists its fields in their order on the wire; each type is both Python's and AMQP's. To add a method,
write its class. `method_codec.py` encodes and decodes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, TypeVar

Octet = Annotated[int, "octet"]
Short = Annotated[int, "short"]
LongInt = Annotated[int, "long"]
LongLong = Annotated[int, "longlong"]
Bit = Annotated[bool, "bit"]
ShortStr = Annotated[str, "shortstr"]
LongStr = Annotated[bytes, "longstr"]
Table = Annotated[dict[str, Any], "table"]


class Method:
    """Base of all methods. `NAME` is as RabbitMQ writes it: `queue.declare`, `basic.recover_async`."""

    __slots__ = ()
    ID: ClassVar[tuple[int, int]]
    NAME: ClassVar[str]
    HAS_CONTENT: ClassVar[bool] = False


# Reserved fields: before the field of this name, or after the last one ("").
RESERVED: dict[type[Method], dict[str, tuple[str, ...]]] = {}
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
        RESERVED[method] = self._reserved
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
