"""The vocabulary of the scripts: what a client may send, and how answers are compared."""

from __future__ import annotations

from typing import Any

from tests.amqp.dialogue import ClientMessage, DialogueStep, Script
from tests.amqp.dialogue_codec import METHOD, encode_method, frame

SCRIPTS: list[Script] = []


def script(
    name: str, *steps: DialogueStep | ClientMessage | tuple[ClientMessage, ...], **options: Any
) -> None:
    whole = []
    for step in steps:
        if isinstance(step, DialogueStep):
            whole.append(step)
        elif isinstance(step, ClientMessage):
            whole.append(DialogueStep((step,)))
        else:
            whole.append(DialogueStep(step))
    SCRIPTS.append(Script(name, tuple(whole), options))


def m(method: str, on: str = "a1", **fields: Any) -> ClientMessage:
    return ClientMessage(on, method, fields)


def raw(data: bytes, on: str = "r") -> ClientMessage:
    return ClientMessage(on, raw=data)


def slow(*says: ClientMessage, settle: float = 1.0) -> DialogueStep:
    return DialogueStep(says, settle=settle)


def late(*says: ClientMessage) -> DialogueStep:
    """RabbitMQ lets three seconds pass before it hangs up on somebody who is not signed in."""
    return DialogueStep(says, settle=4.0)


def eventually(*says: ClientMessage) -> DialogueStep:
    """Asked again until the answer is the recorded one: time must pass, or an end be noticed."""
    return DialogueStep(says, settle=1.5, again=True)


def free(*says: ClientMessage, settle: float = 0.0) -> DialogueStep:
    """The order of the answers is the broker's free choice."""
    return DialogueStep(says, settle=settle, unordered=True)


def queue(name: str, on: str = "a1", arguments: dict[str, Any] | None = None, **fields: Any) -> ClientMessage:
    return m("queue.declare", on, queue=name, **fields, arguments=arguments or {})


def exchange(
    name: str, kind: str, on: str = "a1", arguments: dict[str, Any] | None = None, **fields: Any
) -> ClientMessage:
    return m("exchange.declare", on, exchange=name, type=kind, **fields, arguments=arguments or {})


def bind(
    queue: str, exchange: str, key: str = "", on: str = "a1", arguments: dict[str, Any] | None = None
) -> ClientMessage:
    return m("queue.bind", on, queue=queue, exchange=exchange, routing_key=key, arguments=arguments or {})


def publish(
    key: str,
    body: str = "x",
    exchange: str = "",
    on: str = "a1",
    mandatory: bool = False,
    immediate: bool = False,
    **properties: Any,
) -> ClientMessage:
    fields: dict[str, Any] = {"exchange": exchange, "routing_key": key}
    if mandatory:
        fields["mandatory"] = True
    if immediate:
        fields["immediate"] = True
    return ClientMessage(on, "basic.publish", fields, properties, body.encode())


def get(queue: str, on: str = "a1", no_ack: bool = False) -> ClientMessage:
    return m("basic.get", on, queue=queue, no_ack=no_ack)


def take(queue: str, on: str = "a1") -> ClientMessage:
    return get(queue, on, no_ack=True)


def consume(
    queue: str, tag: str = "", on: str = "a1", arguments: dict[str, Any] | None = None, **fields: Any
) -> ClientMessage:
    return m("basic.consume", on, queue=queue, consumer_tag=tag, **fields, arguments=arguments or {})


def ack(tag: int, on: str = "a1", multiple: bool = False) -> ClientMessage:
    return m("basic.ack", on, delivery_tag=tag, multiple=multiple)


def nack(tag: int, on: str = "a1", multiple: bool = False, requeue: bool = True) -> ClientMessage:
    return m("basic.nack", on, delivery_tag=tag, multiple=multiple, requeue=requeue)


def reject(tag: int, on: str = "a1", requeue: bool = True) -> ClientMessage:
    return m("basic.reject", on, delivery_tag=tag, requeue=requeue)


def qos(count: int, on: str = "a1", everyone: bool = False, size: int = 0) -> ClientMessage:
    return m("basic.qos", on, prefetch_size=size, prefetch_count=count, **{"global": everyone})


def method_frame(name: str, channel: int = 0, **fields: Any) -> bytes:
    return frame(METHOD, channel, encode_method(name, fields))


CONFIRM = m("confirm.select")
TX = m("tx.select")
CLOSE_CHANNEL = m("channel.close", reply_code=200, reply_text="bye")
