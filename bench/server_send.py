"""SendMessage and its kin: what a request costs the server, in CPU time.

The reference is an empty handler under granian, the fastest Python web server beside ours: it parses the same
requests, throws them away and answers 200. The other rows compare the server with itself.
"""

from __future__ import annotations

import msgspec

from . import server_wrk
from .harness import BenchTarget, Run
from .server_processes import Granian, OpenQ, OpenQSigned
from .server_requests import VARIETY, AwsJson, body, post_msgpack
from .server_rounds import (
    CONNECTIONS,
    Contender,
    FreshQueues,
    Prepare,
    Work,
    compared,
    drained,
    in_turns,
    obtain,
    repeat_requests,
    singles,
    started,
    tens,
)

EMPTY = "empty granian RSGI handler"
REST_BATCH = 100


def run(run: Run) -> None:
    server_wrk.obtain(run.log)
    seconds = 1.0 if run.quick else 2.0
    memory = OpenQ(run.folder("openq"))
    durable = OpenQ(run.folder("openq"), durable=True)
    with started(memory, durable):
        if obtain(run, Granian):
            _against_an_empty_handler(run, memory, durable, seconds)
        _in_memory_against_itself(run, memory, seconds)
        _durable_against_itself(run, durable, seconds)


def _against_an_empty_handler(run: Run, memory: OpenQ, durable: OpenQ, seconds: float) -> None:
    granian, signed = Granian(run.folder("granian")), OpenQSigned(run.folder("openq"))
    with started(granian, signed):
        ignored = AwsJson(granian.port, f"http://127.0.0.1:{granian.port}/000000000000/bench").sends()
        empty = Contender(granian, lambda: repeat_requests(granian, ignored, seconds))
        in_memory = Contender(memory, singles(memory, seconds))
        on_disk = Contender(durable, singles(durable, seconds))
        requests = signed.queue("signed").sends()
        verified = Contender(signed, lambda: repeat_requests(signed, requests, seconds))
        in_turns([empty, in_memory, verified, on_disk], run.rounds(7, quick=2))
    for how, contender, target in (
        ("in memory", in_memory, BenchTarget(1.0, 1.6)),
        ("in memory, SigV4 verified", verified, BenchTarget(0.5, 0.85)),
        ("durable", on_disk, BenchTarget(0.6, 1.0)),
    ):
        run.emit(compared(f"SendMessage, {how}, {CONNECTIONS} connections", EMPTY, contender, empty, target))


def _in_memory_against_itself(run: Run, peer: OpenQ, seconds: float) -> None:
    single = Contender(peer, singles(peer, seconds))
    batch = Contender(peer, tens(peer, seconds))
    in_turns([single, batch], run.rounds(5, quick=2))
    what = "SendMessageBatch of 10, in memory, messages"
    run.emit(compared(what, "SendMessage, in memory", batch, single, BenchTarget(3, 4)))


def _durable_against_itself(run: Run, peer: OpenQ, seconds: float) -> None:
    count = 20_000 if run.quick else 150_000
    single = Contender(peer, singles(peer, seconds))
    batch = Contender(peer, tens(peer, seconds))
    drain = Contender(peer, drained(peer, count))
    rest = Contender(peer, _hundreds(peer, seconds))
    in_turns([single, batch, drain, rest], run.rounds(5, quick=2))
    what = "SendMessageBatch of 10, durable, messages"
    run.emit(compared(what, "SendMessage, durable", batch, single, BenchTarget(3, 4)))
    what = "ReceiveMessage(10) + DeleteMessageBatch(10), durable, messages"
    run.emit(compared(what, "SendMessageBatch of 10, durable", drain, batch, BenchTarget(0.7, 1.0)))
    what = f"REST, msgpack batch of {REST_BATCH}, durable, messages"
    run.emit(compared(what, "SendMessageBatch of 10, durable", rest, batch, BenchTarget(4, 8)))


def _hundreds(peer: OpenQ, seconds: float) -> Prepare:
    queues = FreshQueues(peer)

    def prepare() -> Work:
        name = queues.next().queue_url.rpartition("/")[2]
        path = f"/api/v1/queues/{name}/messages/batch"
        batches = [
            [body(REST_BATCH * number + at).encode() for at in range(REST_BATCH)]
            for number in range(VARIETY // REST_BATCH)
        ]
        requests = [post_msgpack(peer.port, path, msgspec.msgpack.encode(batch)) for batch in batches]
        return repeat_requests(peer, requests, seconds, messages=REST_BATCH)

    return prepare
