"""What a pushed and acked message costs the server in CPU time: WebSocket against our own AMQP.

Same server, same prefetch, durable, and a raw client on both sides. The queue is filled by the protocol that
empties it, before the clock starts. On the stream every ack is confirmed when it is on disk; AMQP has no
confirms of acks.
"""

from __future__ import annotations

from dataclasses import replace

from . import amqp_load, push_load
from .amqp_client import PREFETCH
from .amqp_processes import AmqpQueues, OpenQAmqp
from .harness import BenchTarget, Run
from .push_client import JSON, MSGPACK, Codec
from .push_common import BENCH
from .server_rounds import Contender, Work, compared, in_turns, started


def run(run: Run) -> None:
    # CPU time comes in ticks of 10 ms: few messages would be few ticks.
    count = 100_000 if run.quick else 300_000
    server = OpenQAmqp(run.folder("openq"), durable=True)
    with started(server):
        queues = AmqpQueues(server)
        port, amqp_port = server.port, server.amqp_port

        def stream(codec: Codec) -> Work:
            queue = queues.next()
            push_load.fill(port, queue, count)
            return lambda: push_load.consume(port, queue, count, codec)

        def amqp(multiple: bool) -> Work:
            queue = queues.next()
            amqp_load.fill(amqp_port, queue, count)
            return lambda: amqp_load.consume(amqp_port, queue, count, multiple=multiple)

        packed = Contender(server, lambda: stream(MSGPACK))
        text = Contender(server, lambda: stream(JSON))
        each = Contender(server, lambda: amqp(multiple=False))
        multiple = Contender(server, lambda: amqp(multiple=True))
        in_turns([packed, each, text, multiple], run.rounds(7, quick=3))
    for format, ours, reference, theirs, target in (
        ("msgpack", packed, "our AMQP consume + ack of each", each, BenchTarget(0.5, 0.9)),
        ("msgpack", packed, "our AMQP consume + ack of many", multiple, None),
        ("JSON", text, "our AMQP consume + ack of each", each, None),
    ):
        what = f"WebSocket push + ack, {format}, durable, prefetch {PREFETCH}, 100 B"
        run.emit(replace(compared(what, reference, ours, theirs, target, by="per_cpu_s"), bench=BENCH))
