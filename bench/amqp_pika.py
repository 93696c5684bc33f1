"""The same through pika, written as its users write it: a BlockingConnection, one call per message.

Mostly this measures pika. It shows that a server is not slower for it than RabbitMQ, and by how much the
answers come sooner.
"""

from __future__ import annotations

import importlib
import multiprocessing
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from .amqp_client import PREFETCH, body
from .amqp_load import Clock, fill, percentile
from .amqp_processes import AmqpPeer, AmqpQueues, OpenQAmqp, RabbitMq
from .amqp_rounds import (
    OPENQ,
    against_the_faster,
    contenders,
    figures_in_turns,
    has_rabbitmq,
    lower_is_better,
    on_a_fresh_queue,
    sides,
)
from .harness import BenchTarget, Run, optional
from .server_load import STUCK_S, RequestRefused, Tally
from .server_rounds import Prepare, Work, in_turns, started

RATE = 2_000
LAST = b"last"
_TIMEOUT_S = 120  # a consumer would wait for ever for a producer that failed
_STAMP = struct.Struct(">Q")
_PER_USER = BenchTarget(1.0, 1.5)


def run(run: Run) -> None:
    rows = "publish, consume, end to end and latency with pika"
    if optional("pika") is None:
        run.log(f"amqp: pika is not installed (`pip install pika`). Left out: {rows}")
        return
    if not has_rabbitmq(run, rows):
        return
    openq, rabbit = OpenQAmqp(run.folder("openq"), durable=True), RabbitMq(run.folder("rabbitmq"))
    with started(openq, rabbit):
        _rates(run, openq, rabbit)
        _latency(run, openq, rabbit)


def _rates(run: Run, openq: OpenQAmqp, rabbit: RabbitMq) -> None:
    seconds = 1.0 if run.quick else 2.0
    count = 3_000 if run.quick else 10_000

    def consumed(peer: AmqpPeer, queues: AmqpQueues) -> Prepare:
        def ready() -> Work:
            queue = queues.next()
            fill(peer.amqp_port, queue, count)
            return lambda: consume(peer.amqp_port, queue, count)

        return ready

    published = on_a_fresh_queue(partial(publish, seconds=seconds))
    passed_on = on_a_fresh_queue(partial(end_to_end, seconds=seconds))
    for what, prepare in (
        ("pika: publish, each confirmed before the next, 100 B", published),
        (f"pika: consume + ack, prefetch {PREFETCH}, 100 B", consumed),
        ("pika: end to end, 1 producer with confirms + 1 consumer, 100 B", passed_on),
    ):
        taking_part = contenders(openq, rabbit, prepare)
        in_turns(list(taking_part.values()), run.rounds(6, quick=2))
        run.emit(against_the_faster(what, taking_part, _PER_USER))


def _latency(run: Run, openq: OpenQAmqp, rabbit: RabbitMq) -> None:
    seconds = 2.0 if run.quick else 5.0

    def one_lap(peer: AmqpPeer, queues: AmqpQueues) -> float:
        return p99_ms(peer.amqp_port, queues.next(), seconds)

    measures = {name: partial(one_lap, peer, queues) for name, peer, queues in sides(openq, rabbit)}
    figures = figures_in_turns(measures, run.rounds(6, quick=2))
    ours = figures.pop(OPENQ)
    for name, theirs in figures.items():
        what = f"pika: p99 latency at {RATE:,} msg/s without confirms"
        # 1.5 times as good, where less is better.
        target = BenchTarget(1 / _PER_USER.floor, 1 / _PER_USER.aim, more_is_better=False)
        run.emit(lower_is_better(what, name, ours, theirs, target, "ms"))


@contextmanager
def _channel(port: int) -> Iterator[Any]:
    pika = _pika()
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))
    connection.call_later(_TIMEOUT_S, _abort)
    yield connection.channel()
    connection.close()


def _abort() -> None:
    raise RequestRefused(f"not done in {_TIMEOUT_S} s")


def _pika() -> Any:
    return importlib.import_module("pika")


def _persistent() -> Any:
    return _pika().BasicProperties(delivery_mode=2)


def publish(port: int, queue: str, seconds: float) -> Tally:
    with _channel(port) as channel:
        channel.confirm_delivery()
        clock = Clock()
        return clock.count_records(_send_for(channel, queue, seconds))


def _send_for(channel: Any, queue: str, seconds: float) -> int:
    properties = _persistent()
    end_s = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end_s:
        channel.basic_publish("", queue, body(count, 100), properties)
        count += 1
    return count


def consume(port: int, queue: str, count: int) -> Tally:
    with _channel(port) as channel:
        channel.basic_qos(prefetch_count=PREFETCH)
        taken = 0

        def on_message(channel: Any, method: Any, properties: Any, content: bytes) -> None:
            nonlocal taken
            channel.basic_ack(method.delivery_tag)
            taken += 1
            if taken == count:
                channel.stop_consuming()

        clock = Clock()
        channel.basic_consume(queue, on_message)
        channel.start_consuming()
        return clock.count_records(taken)


def end_to_end(port: int, queue: str, seconds: float) -> Tally:
    """Producer and consumer are processes, as they are where they matter."""
    with _apart(_produce, port, queue, seconds) as go, _channel(port) as channel:
        taken = 0

        def on_message(channel: Any, method: Any, properties: Any, content: bytes) -> None:
            nonlocal taken
            channel.basic_ack(method.delivery_tag)
            taken += 1
            if content == LAST:
                channel.stop_consuming()

        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(queue, on_message)
        clock = Clock()
        go()
        channel.start_consuming()
        return clock.count_records(taken)


def p99_ms(port: int, queue: str, seconds: float) -> float:
    took_ns: list[int] = []

    def on_message(channel: Any, method: Any, properties: Any, content: bytes) -> None:
        if content == LAST:
            channel.stop_consuming()
        else:
            took_ns.append(time.monotonic_ns() - _STAMP.unpack_from(content)[0])
        channel.basic_ack(method.delivery_tag)

    with _apart(_produce_paced, port, queue, seconds) as go, _channel(port) as channel:
        channel.basic_qos(prefetch_count=PREFETCH)
        channel.basic_consume(queue, on_message)
        go()
        channel.start_consuming()
    return percentile(sorted(took_ns[len(took_ns) // 10 :]), 99) / 1e6


@contextmanager
def _apart(target: Callable[..., None], *arguments: object) -> Iterator[Callable[[], None]]:
    """A process that is ready; it begins when reported."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not pipe.poll(STUCK_S):
            raise RequestRefused("the producer does not start")
        pipe.recv()
        yield lambda: pipe.send(None)
        process.join(STUCK_S)
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def _produce(pipe: Connection, port: int, queue: str, seconds: float) -> None:
    with _channel(port) as channel:
        channel.confirm_delivery()
        pipe.send(None)
        pipe.recv()
        _send_for(channel, queue, seconds)
        channel.basic_publish("", queue, LAST, _persistent())


def _produce_paced(pipe: Connection, port: int, queue: str, seconds: float) -> None:
    with _channel(port) as channel:
        properties = _persistent()
        padding = bytes(100 - _STAMP.size)
        pipe.send(None)
        pipe.recv()
        began_s = time.monotonic()
        for number in range(int(seconds * RATE)):
            wait_s = began_s + number / RATE - time.monotonic()
            if wait_s > 0:
                time.sleep(wait_s)
            channel.basic_publish("", queue, _STAMP.pack(time.monotonic_ns()) + padding, properties)
        channel.basic_publish("", queue, LAST, properties)
