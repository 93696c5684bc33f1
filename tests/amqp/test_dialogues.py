"""OpenQ answers as RabbitMQ does: the same frames, codes and sentences in the same order.

Each dialogue was recorded from RabbitMQ 3.10.8 (see `dialogue.py`). `INTENDED_DIFFERENCES` says why OpenQ
differs; a dialogue named there must really differ, so that the list cannot outlive its reasons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.amqp.dialogue import TIMEOUT_S, Script, compare, load
from tests.amqp.scripts import SCRIPTS
from tests.serving import free_port, served

_RECORDED = load()
_MISSING_S = 4.0
_STREAMS = "streams are refused: replay is how OpenQ reads a queue's history"
_WORDS = "the same code in words of our own: RabbitMQ shows terms of Erlang"
_TELLS = "the client gets the reason, where RabbitMQ closes the socket or reports an internal error"
_TYPES = "a number's width is not kept once it is read, so an error cannot name it"
_TRACE = "there is no firehose, so no exchange for it"
_FOUR = "only the channel ends, with 406, as in RabbitMQ 4"
_NACK = "a nack of one message, as the specification has it: nothing but that one is meant"
INTENDED_DIFFERENCES = {
    "queue: x-queue-type = 'stream'": _STREAMS,
    "stream: declare": _STREAMS,
    "stream: transient": _STREAMS,
    "quorum: global prefetch": "a prefetch for the whole channel works on every queue",
    "dead letter: only the head expires": "every message expires on time, wherever it stands",
    "length: zero": "a queue with max-length 0 accepts nothing, even if a consumer waits",
    "length: given back beyond the limit": "what was with a consumer is not thrown away when it comes back",
    "length: reject-publish": _NACK,
    "length: reject-publish at one of two queues": _NACK,
    "dead letter: too many, reject-publish-dlx": _NACK,
    "exchange: amq.rabbitmq.trace": _TRACE,
    "exchange: unknown type": _FOUR,
    "exchange: empty type": _FOUR,
    "checks: publish to amq.rabbitmq.trace": _TRACE,
    **{f"checks: type {letter} of a number": _TYPES for letter in "lsbBui"},
    "checks: type f is no number": _TYPES,
    "handshake: tune frame_max 0": "0 means no limit of its own, as the specification has it",
    "handshake: tune channel_max 0": "0 means no limit of its own, as the specification has it",
    "handshake: protocol header of 0-8": "0-8 is another protocol, and nobody speaks it any more",
    "handshake: channel method before open": _WORDS,
    "channel: flow off": "a client may stop the messages for a while; RabbitMQ can no longer do that",
    "queue: x-queue-master-locator = 'nope'": "there is one node, so it does not matter where the master is",
    "reply-to: round trip": "an answer that was delivered is not returned as well",
    "connection: body size beyond the limit": "refused when it is announced, not when it has come",
    **{
        f"connection: {name}": _TELLS
        for name in (
            "unknown class",
            "unknown method",
            "unknown method on channel 0",
            "table with an unknown type",
            "header with malformed properties",
            "header with flags continued",
        )
    },
    **{
        f"connection: {name}": _WORDS
        for name in (
            "method frame too short",
            "method frame with bytes left over",
            "method frame of one byte",
            "table longer than the frame",
            "queue name is not UTF-8",
            "unknown frame type",
            "unknown frame type on channel 0",
            "frame end is wrong",
            "frame too large",
            "heartbeat on channel 1",
            "heartbeat with a payload",
            "header too short",
        )
    },
}


@pytest.fixture(scope="module")
def amqp_port() -> Iterator[int]:
    port = free_port()
    with served(None, "--amqp-port", str(port)):
        yield port


def test_every_script_has_a_record_and_every_record_a_script() -> None:
    assert {script.name: len(script.steps) for script in SCRIPTS} == {
        name: len(steps) for name, steps in _RECORDED.items()
    }


def test_every_intended_difference_names_a_script() -> None:
    assert set(INTENDED_DIFFERENCES) <= {script.name for script in SCRIPTS}


@pytest.mark.parametrize("script", [pytest.param(script, id=script.name) for script in SCRIPTS])
def test_the_answers_are_those_of_rabbitmq(script: Script, amqp_port: int) -> None:
    # Some differences are answers that RabbitMQ gives and OpenQ does not.
    timeout_s = _MISSING_S if script.name in INTENDED_DIFFERENCES else TIMEOUT_S
    difference = compare(script, _RECORDED[script.name], amqp_port, timeout_s=timeout_s)
    if script.name in INTENDED_DIFFERENCES:
        assert difference, f"no longer differs, though it is said to: {INTENDED_DIFFERENCES[script.name]}"
    else:
        assert not difference, "\n".join(["", *difference])
