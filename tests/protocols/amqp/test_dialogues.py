"""OpenQ answers as RabbitMQ does: the same frames, codes and sentences in the same order.

Each dialogue was recorded from RabbitMQ 3.10.8 (see `dialogue.py`). Where OpenQ means to differ, `MEANT` says
why; a dialogue named there must really differ, so that the list cannot outlive its reasons."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.amqp.dialogue import Script, compare, load
from tests.protocols.amqp.scripts import SCRIPTS
from tests.serving import free_port, served

_RECORDED = load()
_STREAMS = "streams are refused: replay is how OpenQ reads a queue's history"
MEANT = {
    "queue: x-queue-type = 'stream'": _STREAMS,
    "stream: declare": _STREAMS,
    "stream: transient": _STREAMS,
    "quorum: global prefetch": "a prefetch for the whole channel works on every queue",
    "dead letter: only the head expires": "every message expires on time, wherever it stands",
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


def test_every_meant_difference_names_a_script() -> None:
    assert set(MEANT) <= {script.name for script in SCRIPTS}


@pytest.mark.parametrize("script", [pytest.param(script, id=script.name) for script in SCRIPTS])
def test_the_answers_are_those_of_rabbitmq(script: Script, amqp_port: int) -> None:
    difference = compare(script, _RECORDED[script.name], amqp_port)
    if script.name in MEANT:
        assert difference, f"no longer differs, though it is said to: {MEANT[script.name]}"
    else:
        assert not difference, "\n".join(["", *difference])
